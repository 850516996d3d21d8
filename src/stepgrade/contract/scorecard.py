"""Contract v1: from a step profile to a scorecard, bit for bit as the reference computes it.

Sums run left to right over keys in code-point order, as the reference's sorted maps do;
`sum` and `math.fsum` round differently.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepgrade.contract.types import (
    Bottleneck,
    Grade,
    HardwareSpec,
    LayerSummary,
    PerLayerData,
    Regression,
    StepProfilerInput,
    TrainingScorecard,
)

HOTSPOTS_SHOWN = 10

LAUNCH_ADVICE = "Kernel launch overhead >30%. Enable NF4_TC_BWD_GEMM=1 to eliminate 196 launches/step."
FAST_BACKWARD_ADVICE = "Backward faster than forward \N{EM DASH} possible NaN backward skips. Check PMAT-462."


def compute_training_scorecard(
    input: StepProfilerInput,
    throughput_tok_s: float,
    hw: HardwareSpec,
    baseline: TrainingScorecard | None = None,
) -> TrainingScorecard:
    """Grade a profile against one memory ceiling, and against a baseline when there is one."""
    efficiency = _efficiency(throughput_tok_s, hw.peak_throughput_tok_s())
    grade = Grade.from_efficiency(efficiency)
    launch_overhead = _launch_overhead(input)
    bottleneck = Bottleneck.classify(_transfer_share(input), launch_overhead, efficiency)
    layers = [layer_summary(layer) for layer in input.per_layer]
    ratio = _mean_ratio(layers)
    return TrainingScorecard(
        grade=str(grade),
        efficiency=efficiency,
        bottleneck=bottleneck,
        throughput_tok_s=throughput_tok_s,
        step_time_ms=input.avg_step_ms,
        forward_backward_ratio=ratio,
        wall_coverage=input.wall_coverage,
        per_layer_summary=layers,
        hotspot_ops=_hotspots(input.per_layer),
        regressions=_regressions(baseline, throughput_tok_s, input) if baseline else [],
        recommendations=_recommendations(grade, bottleneck, launch_overhead, ratio),
    )


def add_up(values: Iterable[float]) -> float:
    """Return the plain left-to-right sum."""
    total = 0.0
    for value in values:
        total += value
    return total


def _efficiency(throughput_tok_s: float, peak_tok_s: float) -> float:
    """Clamp to 0..1; NaN and -0.0 pass through as they do in Rust's `clamp`."""
    if not peak_tok_s > 0.0:
        return 0.0
    share = throughput_tok_s / peak_tok_s
    if share < 0.0:
        return 0.0
    return 1.0 if share > 1.0 else share


def _transfer_share(input: StepProfilerInput) -> float:
    names = (name for name in sorted(input.phases) if "h2d" in name or "d2h" in name)
    return add_up(input.phases[name].pct for name in names) / 100.0


def _launch_overhead(input: StepProfilerInput) -> float:
    """Return the share of one step that no phase covers (totals of all steps: a quirk that stays)."""
    if not input.avg_step_ms > 0.0:
        return 0.0
    covered = add_up(input.phases[name].total_ms for name in sorted(input.phases)) / input.avg_step_ms
    return 1.0 - (covered if covered < 1.0 else 1.0)


def layer_summary(layer: PerLayerData) -> LayerSummary:
    """Return one layer's times, their ratio (0 without a forward time) and its longest operation."""
    top_op, top_ms = longest_operation(layer.ops)
    total_ms = add_up(layer.ops[op] for op in sorted(layer.ops))
    return LayerSummary(
        layer=layer.layer,
        fwd_ms=layer.fwd_ms,
        bwd_ms=layer.bwd_ms,
        ratio=layer.bwd_ms / layer.fwd_ms if layer.fwd_ms > 0.0 else 0.0,
        top_op=top_op,
        top_op_pct=top_ms / total_ms * 100.0 if total_ms > 0.0 else 0.0,
    )


def longest_operation(ops: dict[str, float]) -> tuple[str, float]:
    """Return the operation with the most time, the last in order of name when several have it."""
    top, top_ms = "", 0.0
    for rank, op in enumerate(sorted(ops)):
        if rank == 0 or not top_ms > ops[op]:
            top, top_ms = op, ops[op]
    return top, top_ms


def _mean_ratio(layers: list[LayerSummary]) -> float:
    ratios = [layer.ratio for layer in layers if layer.ratio > 0.0 and layer.bwd_ms > 0.0]
    return add_up(ratios) / float(len(ratios)) if ratios else 0.0


def _hotspots(layers: list[PerLayerData]) -> list[tuple[str, float, float]]:
    totals: dict[str, float] = {}
    for layer in layers:
        for op, ms in layer.ops.items():
            totals[op] = totals.get(op, 0.0) + ms
    return rank_operations(totals)[:HOTSPOTS_SHOWN]


def rank_operations(totals: dict[str, float]) -> list[tuple[str, float, float]]:
    """Return (name, ms, percent of all) by falling time; equal times in order of name."""
    names = sorted(totals)
    total = add_up(totals[name] for name in names)
    rows = [(name, totals[name], totals[name] / total * 100.0 if total > 0.0 else 0.0) for name in names]
    return sorted(rows, key=lambda row: row[1], reverse=True)


def _regressions(
    baseline: TrainingScorecard, throughput_tok_s: float, input: StepProfilerInput
) -> list[Regression]:
    found = [
        throughput_regression(baseline.throughput_tok_s, throughput_tok_s),
        step_time_regression(baseline.step_time_ms, input.avg_step_ms),
        coverage_regression(baseline.wall_coverage, input.wall_coverage),
    ]
    return [regression for regression in found if regression]


def throughput_regression(before: float, now: float) -> Regression | None:
    """Report a throughput more than 10 % lower; more than 20 % is critical."""
    if not before > 0.0:
        return None
    delta = (now - before) / before
    if not delta < -0.10:
        return None
    severity = "critical" if delta < -0.20 else "warning"
    return Regression(metric="throughput_tok_s", delta=delta, severity=severity)


def step_time_regression(before: float, now: float) -> Regression | None:
    """Report a step more than 10 % longer; more than 20 % is critical."""
    if not (before > 0.0 and now > 0.0):
        return None
    delta = (now - before) / before
    if not delta > 0.10:
        return None
    return Regression(metric="step_time_ms", delta=delta, severity="critical" if delta > 0.20 else "warning")


def coverage_regression(before: float, now: float) -> Regression | None:
    """Report a wall coverage more than 5 points lower."""
    if not (before > 0.0 and now > 0.0):
        return None
    delta = now - before
    return Regression(metric="wall_coverage", delta=delta, severity="warning") if delta < -0.05 else None


def _recommendations(grade: Grade, bottleneck: Bottleneck, launch_overhead: float, ratio: float) -> list[str]:
    advice = []
    if grade <= Grade.C:
        advice.append(bottleneck.recommendation())
    if grade <= Grade.D and launch_overhead > 0.30:
        advice.append(LAUNCH_ADVICE)
    if 0.0 < ratio < 1.0:
        advice.append(FAST_BACKWARD_ADVICE)
    return advice

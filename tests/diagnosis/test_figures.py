"""The figures in every finding, worked out by hand from the run made for its rule, and where limits begin."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.config import Config
from stepgrade.diagnosis.rules import RULES
from stepgrade.model.activity import CollectiveTally
from stepgrade.model.compilation import Compilation, GraphBreak
from stepgrade.model.scorecard import Finding
from tests.diagnosis.test_rules import FIRES, card_of, ignoring, op, setup_of, talk, trace

CLAIMS = Path(__file__).with_name("claims.txt")

# Steps take 100 ms, so that a share is its milliseconds over 100 unless operations fill more than the step.
# By rule: severity, what a fix can save at most, and the numbers in the evidence.
FIGURES: dict[str, tuple[str, float, dict[str, float]]] = {
    "input-wait": ("critical", 0.3, {"input_share": 0.3}),
    "loader-on-main-thread": ("critical", 0.3, {"input_share": 0.3}),
    "starved-loader": ("warning", 0.15, {"steps": 3, "longest_ms": 50, "median_ms": 0, "input_share": 0.15}),
    "heavy-transfer": ("critical", 0.2, {"transfer_share": 0.2}),
    "pageable-copies": ("critical", 0.2, {"copies": 2, "copy_ms": 20, "lost_share": 0.2, "bytes": 1e08}),
    "many-small-copies": ("critical", 0.2, {"copies": 50, "mean_bytes": 100, "lost_share": 0.2}),
    "offload-traffic": ("critical", 0.2, {"copy_ms": 20, "lost_share": 0.2}),
    "scalar-read-sync": ("critical", 0.2, {"calls": 20, "wait_ms": 30, "idle_share": 0.2}),
    "data-dependent-sync": ("critical", 0.2, {"calls": 20, "wait_ms": 30, "idle_share": 0.2}),
    "allocator-sync": ("critical", 0.2, {"calls": 20, "wait_ms": 30, "idle_share": 0.2}),
    "device-synchronize": ("critical", 0.2, {"calls": 20, "wait_ms": 30, "idle_share": 0.2}),
    "blocking-copy-sync": ("critical", 0.2, {"calls": 20, "wait_ms": 30, "idle_share": 0.2}),
    "sync-wait": ("critical", 0.2, {"idle_share": 0.2}),
    "scalar-read-loop": ("critical", 0.35, {"reads": 200, "share": 0.35}),
    "short-kernels": (
        "critical",
        0.4,
        {
            "kernels": 2000,
            "short_kernels": 0,
            "mean_us": 5,
            "shorter_than_launch_share": 0,
            "idle_share": 0.4,
            "run_share": 0,
        },
    ),
    "launch-gaps": ("critical", 0.3, {"idle_share": 0.3, "launches": 500}),
    "host-stall": ("critical", 0.14, {"stall_share": 0.28, "stalls": 3, "longest_ms": 20}),
    "slow-launches": ("info", 0.06, {"launch_call_us": 80, "idle_share": 0.06}),
    "dispatch-latency": ("info", 0.06, {"dispatch_ms": 6, "dispatch_share": 0.06}),
    "many-compiled-regions": ("info", 0.06, {"regions": 30, "idle_share": 0.06}),
    "uncovered-time": ("warning", 0.4, {"uncovered_share": 0.4, "limit_share": 0.3}),
    "host-phases": ("critical", 0.18, {"host_share": 0.18}),
    "python-overhead": ("info", 0.5, {"share": 0.5}),
    "python-loop": ("critical", 0.3, {"turns": 600, "turn_us": 33.3333, "share": 0.3}),
    "frequent-printing": ("critical", 0.3, {"share": 0.3}),
    "random-numbers": ("warning", 0.4, {"calls": 1, "share": 0.4}),
    "fp32-matmuls": ("warning", 0.55943, {"fp32_ms": 60, "fp32_share": 0.6, "of_matmuls": 1}),
    "tf32-matmuls": ("info", 0.3, {"tf32_share": 0.6}),
    "fp64-matmuls": ("warning", 0.3, {"fp64_share": 0.6, "of_matmuls": 0.6}),
    "small-micro-batches": (
        "critical",
        0.96875,
        {"passes": 32, "flops_per_byte": 2, "share": 0.96875, "samples": 4},
    ),
    "fp16-beside-bf16": ("info", 0, {"scaler_calls": 1}),
    "math-attention": ("critical", 0.4, {"calls": 24, "share": 0.4}),
    "unfused-attention": ("critical", 0.4, {"softmax_calls": 24, "product_calls": 48, "share": 0.4}),
    "slow-attention": (
        "info",
        0.0683676,
        {"reached": 0.404285, "usual": 0.5, "share": 0.357143, "tokens": 4096},
    ),
    "odd-vocabulary": ("warning", 0.15, {"share": 0.3, "calls": 10}),
    "misaligned-gemm": ("warning", 0.15, {"share": 0.3, "calls": 10}),
    "tiny-gemms": ("warning", 0.2, {"share": 0.2, "calls": 5000}),
    "slow-gemm": ("info", 0.472218, {"share": 0.5, "calls": 2, "reached": 0.0444517}),
    "memory-bound-gemm": ("info", 0.25, {"share": 0.5, "calls": 500}),
    "single-tensor-optimizer": (
        "warning",
        0.2,
        {"kernels": 900, "mean_us": 5.55556, "many_tensor_share": 0, "share": 0.2, "idle_share": 0.15},
    ),
    "heavy-optimizer": ("warning", 0.4, {"share": 0.4}),
    "zero-grad-fills": ("info", 0.03, {"fills": 300, "share": 0.03}),
    "elementwise-chains": ("warning", 0.3015, {"share": 0.45, "kernels": 0}),
    "fragmented-elementwise": ("info", 0.0335, {"kernels": 3000, "share": 0.05}),
    "slow-elementwise": ("info", 0.142829, {"reached": 0.000199005, "share": 0.142857}),
    "hand-written-norm": ("info", 0.0714286, {"calls": 64, "elementwise_share": 0.142857}),
    "unfused-loss": ("warning", 0.142857, {"share": 0.142857}),
    # 35 of 131 ms of operations: the gradient and the fill with zeros before it.
    "dense-embedding-gradients": (
        "critical",
        0.267176,
        {"rows": 400000, "looked_up": 5120, "share": 0.267176},
    ),
    "heavy-embedding": ("info", 0.181818, {"share": 0.181818}),
    "data-shuffling": ("warning", 0.307692, {"share": 0.307692}),
    "one-hot-operation": ("info", 0.8, {"share": 0.8}),
    "layout-conversions": ("warning", 0.2, {"share": 0.2}),
    "device-copies": ("warning", 0.2, {"share": 0.2}),
    "exposed-communication": ("critical", 0.3, {"exposed_share": 0.3, "hidden_share": 0.666667}),
    "weak-overlap": ("info", 0.03, {"hidden_share": 0.25, "total_ms": 4}),
    "small-messages": ("critical", 0.3, {"collectives": 40, "mean_bytes": 100000, "exposed_share": 0.3}),
    # All but one of eight reductions, of 40 ms.
    "sync-every-micro-batch": ("critical", 0.35, {"reductions": 8, "share": 0.35}),
    "slow-link": ("info", 0.296889, {"bytes_per_s": 4.66667e09, "of_link": 0.0103704}),
    "gloo-on-devices": ("warning", 0.3, {"calls": 4, "waiting_share": 0.3}),
    "data-parallel": ("warning", 0.3, {"calls": 1, "waiting_share": 0.3}),
    "straggler-rank": (
        "critical",
        0.2,
        {"rank": 3, "wait_ms": 20, "share": 0.2, "last_share": 0.9, "excess_share": 0.2},
    ),
    "uneven-ranks": ("warning", 0.15, {"wait_ms": 15, "share": 0.15}),
    "compiles-again": ("critical", 0.5, {"recompiles": 3, "compile_ms": 500, "share": 0.5}),
    "compile-failed": ("warning", 0, {"functions": 1}),
    "graph-breaks": ("info", 0.1, {"places": 1, "graph_breaks": 2}),
    "graphs-recorded-again": ("info", 0.1, {"rerecords": 1100, "records": 1200}),
    "slow-stage": (
        "critical",
        0.2,
        {"rank": 2, "others_ms": 40, "micro_batches": 4, "ideal_bubble_share": 0.428571},
    ),
    "uneven-experts": ("critical", 0.2, {"rank": 7, "max_over_mean": 1.77778, "wait_ms": 20}),
    "slow-layer": ("warning", 0.1, {"layer": 5, "total_ms": 150, "median_total_ms": 50}),
    "unused-gradients": ("warning", 0.3, {"dropped_share": 0.5, "share": 0.3}),
    "recomputed-forward": ("info", 0.2, {"again_ms": 20, "share": 0.2}),
    "fast-backward": ("info", 0, {"backward_over_forward": 0.5}),
    "slow-backward": ("info", 0.4, {"backward_over_forward": 6}),
    "skipped-steps": ("warning", 0, {"steps": 2}),
    "no-backward": ("warning", 0, {"updates": 1}),
    "slow-checkpoints": (
        "warning",
        0.111111,
        {"pauses": 1, "seconds": 200, "mean_s": 200, "median_s": 200, "wall_s": 1800, "share": 0.111111},
    ),
    "long-evaluations": (
        "warning",
        0.111111,
        {"pauses": 1, "seconds": 200, "mean_s": 200, "median_s": 200, "wall_s": 1800, "share": 0.111111},
    ),
    "recurring-slow-steps": (
        "warning",
        0.111111,
        {"pauses": 1, "seconds": 200, "mean_s": 200, "median_s": 200, "wall_s": 1800, "share": 0.111111},
    ),
    "run-restarts": ("warning", 0.111111, {"restarts": 1, "seconds": 200, "lost_s": 0, "share": 0.111111}),
    "slower-run": (
        "warning",
        0.0943182,
        {"drift": 0.2, "seconds": 166, "share": 0.0943182, "first_change": 810},
    ),
    "slow-start": ("warning", 0.111111, {"seconds": 200, "share": 0.111111}),
    "longest-rl-part": ("warning", 0.6, {"ms": 60, "share": 0.6}),
    "unsteady-steps": (
        "critical",
        0.256198,
        {"steps": 1, "longest_ms": 400, "median_ms": 90, "lost_share": 0.256198},
    ),
    "drifting-steps": ("warning", 0.1, {"early_ms": 80, "late_ms": 100}),
    "rank-never-arrived": ("critical", 0, {"waiting": 2, "missing": 1}),
    "collectives-differ": ("critical", 0, {"sequence": 3, "values": 2}),
    "ranks-wait-for-each-other": ("critical", 0, {"ranks": 2}),
    "collective-unfinished": ("critical", 0, {"waiting": 2}),
    "out-of-memory": ("critical", 0, {"asked_bytes": 2e09, "free_bytes": 1e08}),
    "memory-grows": ("warning", 0, {"bytes_per_step": 3e07, "steps": 8}),
    "allocator-retries": ("warning", 0, {"retries": 3}),
    "memory-fragmented": ("warning", 0, {"fragmentation": 0.28, "lost_bytes": 1.96e10}),
    "loss-dominates-memory": ("warning", 0, {"loss_bytes": 2e10, "loss_share": 0.5}),
    "optimizer-unsharded": ("info", 0, {"optimizer_bytes": 1.6e10, "ranks": 8}),
    "activations-kept": ("info", 0, {"activation_bytes": 5e10}),
    "memory-nearly-full": ("critical", 0, {"memory_share": 0.975}),
    "memory-idle": ("info", 0, {"memory_share": 0.125}),
    "hardly-any-work": ("warning", 0, {"kernels": 3, "compute": 0.03}),
    "start-up": ("warning", 0, {"startup_ms": 75, "share": 0.75}),
    "graph-capture": ("warning", 0, {"captures": 4, "compute": 0.1}),
    "collective-is-all": ("warning", 0, {"communication": 0.95, "compute": 0.05}),
    "above-roof": ("info", 0, {"roof_share": 5.61735}),
}
# With a limit at exactly this value, or at that figure of the evidence: does the rule fire?
AT_ITS_LIMIT: list[tuple[str, str, str | float, bool]] = [
    ("tiny-gemms", "tiny_gemm_flops", 2.0 * 64**3, False),
    ("memory-bound-gemm", "gemm_warning_share", 0.25, True),  # twice that share
    ("weak-overlap", "communication_info_share", 0.03, True),
    ("slow-link", "communication_warning_share", 0.3, True),
    ("graphs-recorded-again", "cudagraph_rerecords", 11.0, True),  # 1,100 for each of 100 graphs
    ("slow-stage", "slow_stage_ratio", 1.5, True),  # 60 ms, the others 40
    ("slow-layer", "outlier_ratio", 3.0, False),
    ("drifting-steps", "drift_ratio", 1.25, True),  # 100 ms, before 80
    ("optimizer-unsharded", "optimizer_memory_share", 0.4, True),
    ("starved-loader", "starved_ms", "longest_ms", False),
    ("many-small-copies", "copies_per_step", "copies", False),
    ("many-small-copies", "small_copy_bytes", "mean_bytes", False),
    ("scalar-read-loop", "reads_per_step", "reads", True),
    ("short-kernels", "short_kernel_us", "mean_us", False),
    ("short-kernels", "short_kernel_launches", "kernels", True),
    ("slow-launches", "launch_info_share", "idle_share", True),
    ("slow-launches", "slow_launch_us", "launch_call_us", False),
    ("dispatch-latency", "dispatch_info_share", "dispatch_share", True),
    ("many-compiled-regions", "launch_info_share", "idle_share", True),
    ("many-compiled-regions", "compiled_regions", "regions", False),
    ("uncovered-time", "launch_advice_share", "uncovered_share", False),
    ("python-overhead", "python_info_share", "share", True),
    ("start-up", "startup_share", "share", True),
    ("graph-capture", "explained_share", "compute", True),
    ("fp32-matmuls", "precision_info_share", "fp32_share", True),
    ("tf32-matmuls", "precision_warning_share", "tf32_share", True),
    ("slow-attention", "attention_long_peak", "reached", False),
    ("tiny-gemms", "tiny_gemms", "calls", True),
    ("slow-gemm", "slow_gemm_share", "reached", False),
    ("single-tensor-optimizer", "optimizer_kernels", "kernels", True),
    ("single-tensor-optimizer", "optimizer_kernel_us", "mean_us", True),
    ("heavy-optimizer", "optimizer_warning_share", "share", True),
    ("zero-grad-fills", "copies_per_step", "fills", True),
    ("zero-grad-fills", "fill_info_share", "share", True),
    ("fragmented-elementwise", "fill_info_share", "share", True),
    ("fragmented-elementwise", "elementwise_launches", "kernels", True),
    ("slow-elementwise", "streaming_share", "reached", False),
    ("hand-written-norm", "norm_share", "elementwise_share", True),
    ("heavy-embedding", "shuffle_info_share", "share", True),
    ("one-hot-operation", "hotspot_share", "share", True),
    ("weak-overlap", "good_overlap", "hidden_share", False),
    ("small-messages", "copies_per_step", "collectives", False),
    ("small-messages", "small_message_bytes", "mean_bytes", False),
    ("slow-link", "slow_link_share", "of_link", False),
    ("gloo-on-devices", "communication_warning_share", "waiting_share", True),
    ("graph-breaks", "graph_breaks", "graph_breaks", True),
    ("uneven-experts", "uneven_experts_ratio", "max_over_mean", True),
    ("recomputed-forward", "recompute_info_share", "share", True),
    ("slow-backward", "slow_backward_ratio", "backward_over_forward", True),
    ("memory-grows", "growth_bytes", "bytes_per_step", True),
    ("memory-fragmented", "fragmentation_share", "fragmentation", True),
    ("loss-dominates-memory", "loss_memory_share", "loss_share", True),
    ("memory-idle", "memory_idle_share", "memory_share", False),
    ("hardly-any-work", "few_kernels", "kernels", False),
    ("hardly-any-work", "idle_device_share", "compute", False),
    ("collective-is-all", "collective_compute_share", "compute", True),
    ("above-roof", "above_roof", "roof_share", False),
]


def alone(name: str, **limits: float) -> tuple[Finding, ...]:
    """Return what one rule finds in the run made for it."""
    others = ignoring(*(rule.name for rule in RULES if rule.name != name))
    config = Config(limits=limits, rules=others.rules)
    return sg.score(FIRES[name], setup=setup_of(FIRES[name]), config=config).findings


@pytest.mark.parametrize("name", FIGURES)
def test_a_finding_has_the_figures_of_its_run(name: str) -> None:
    (finding,) = alone(name)
    severity, gain, evidence = FIGURES[name]
    figures = {key: value for key, value in finding.evidence.items() if isinstance(value, float)}
    assert finding.severity == severity
    assert figures == pytest.approx(evidence, rel=1e-5)
    (worth,) = (rule.worth for rule in RULES if rule.name == name)
    part = worth.realistic if worth else 0.0
    assert (finding.gain_high, finding.gain_low) == pytest.approx((gain, gain * part), rel=1e-5)


def test_every_rule_with_figures_is_in_the_table() -> None:
    for name in FIRES.keys() - FIGURES.keys():
        (finding,) = alone(name)
        assert not any(isinstance(value, float) and value for value in finding.evidence.values()), name


@pytest.mark.parametrize(("name", "limit", "at", "is_found"), AT_ITS_LIMIT)
def test_a_limit_begins_where_it_says(name: str, limit: str, at: str | float, is_found: bool) -> None:
    value = alone(name)[0].evidence[at] if isinstance(at, str) else at
    assert isinstance(value, float)
    assert bool(alone(name, **{limit: value})) == is_found
    around = [bool(alone(name, **{limit: value * factor})) for factor in (0.999999, 1.000001)]
    assert sorted(around) == [False, True]


@pytest.mark.parametrize(
    ("info", "warning", "critical", "severity"),
    [(0.3, 0.9, 0.9, "info"), (0.3, 0.3, 0.9, "warning"), (0.3, 0.3, 0.3, "critical")],
)
def test_a_share_at_its_limit_has_its_severity(
    info: float, warning: float, critical: float, severity: str
) -> None:
    limits = {"input_info_share": info, "input_warning_share": warning, "input_critical_share": critical}
    assert [finding.severity for finding in alone("input-wait", **limits)] == [severity]
    assert not alone("input-wait", **dict.fromkeys(limits, 0.300001))


def test_one_step_may_include_the_start_of_the_loaders_workers() -> None:
    workers = {"loader": "_MultiProcessingDataLoaderIter", "lost": {"idle_input": 0.3}}
    first, later = (
        next(found for found in card_of(trace(steps=steps, **workers)).findings if found.rule == "input-wait")
        for steps in (1, 10)
    )
    words = " Only one step was recorded: its wait may include starting the loader's workers."
    assert first.claim == later.claim + words


def test_a_graph_break_has_its_line_and_reason() -> None:
    where = GraphBreak(reason="call to print.", where="a.py:8", function="step")
    known = Compilation(
        compiles=1, recompiles=0, breaks=(where,), graph_breaks=2.0, total_ms=5.0, cudagraph_records=0
    )
    (finding,) = (
        found for found in card_of(trace(compilation=known)).findings if found.rule == "graph-breaks"
    )
    assert finding.claim == (
        "Compiled graphs break 2 times a step, most at a.py:8 in step. Why: call to print."
    )
    assert finding.evidence["reason"] == "call to print."


def test_every_claim_is_in_the_same_words(pytestconfig: pytest.Config) -> None:
    """`--update-golden` rewrites claims.txt; the diff is reviewed."""
    claims = "".join(f"{name}: {finding.claim}\n" for name in FIRES for finding in alone(name))
    if pytestconfig.getoption("--update-golden"):
        CLAIMS.write_text(claims, encoding="utf-8")
    assert claims == CLAIMS.read_text(encoding="utf-8")


@pytest.mark.parametrize(("unknown_ms", "is_known"), [(20.0, True), (40.0, False)])
def test_the_links_share_is_known_if_most_collectives_have_sizes(unknown_ms: float, is_known: bool) -> None:
    unsized = CollectiveTally(name="broadcast", group_size=8, count=1.0, ms=unknown_ms, bytes=None)
    run = trace(lost={"exposed_communication": 0.3}, collectives=(*talk(4.0, 1e6), unsized))
    finding = next(found for found in card_of(run).findings if found.rule == "exposed-communication")
    # An all-reduce of 8 ranks sends 7/4 of its 4 MB over the link, here in 30 ms; NVLink moves 450 GB a second.
    reached = 7e6 / 0.03 / 450e9
    assert finding.evidence.get("of_link") == (pytest.approx(reached) if is_known else None)
    assert ("The link needs less than 1 %" in finding.claim) is is_known


def test_the_operation_furthest_above_its_roof_is_named() -> None:
    """One of a hundredth of the step or less, or under another roof, does not count."""
    ops = tuple(
        op(name, "gemm", ms, flops=rate * ms, bytes=1e6)
        for name, ms, rate in (
            ("aten::mm", 50.0, 2e13),
            ("aten::bmm", 30.0, 3e13),
            ("aten::addmm", 0.9, 9e13),
        )
    )
    run = structs.replace(FIRES["above-roof"], operations=ops)
    (finding,) = (one for one in card_of(run).findings if one.rule == "above-roof")
    assert finding.evidence["operation"] == "aten::bmm"
    assert finding.evidence["roof_share"] == pytest.approx(3e13 * 1e3 / 10 / 989.4e12, rel=0.01)

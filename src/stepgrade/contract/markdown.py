"""Contract v1 as Markdown, byte for byte as the reference writes it.

Names go through unescaped, as they do there; Markdown v2 escapes them.
"""

from __future__ import annotations

import math

from stepgrade.contract.types import ParityComparison, TrainingScorecard


def format_training_scorecard_markdown(sc: TrainingScorecard) -> str:
    """Return the scorecard as Markdown."""
    lines = [
        "## Training Scorecard",
        "",
        "| Metric | Value |",
        "|--------|-------|",
        f"| Grade | **{sc.grade}** |",
        f"| Efficiency | {_fixed(sc.efficiency * 100.0, 1)}% |",
        f"| Bottleneck | {sc.bottleneck} |",
        f"| Throughput | {_fixed(sc.throughput_tok_s, 0)} tok/s |",
        f"| Step time | {_fixed(sc.step_time_ms, 1)} ms |",
        f"| Fwd/Bwd ratio | {_fixed(sc.forward_backward_ratio, 2)} |",
        f"| Wall coverage | {_fixed(sc.wall_coverage * 100.0, 1)}% |",
    ]
    if sc.hotspot_ops:
        lines += ["", "### Hotspot Operations", "", "| Op | Total ms | % |", "|-----|---------|---|"]
        lines += [f"| {op} | {_fixed(ms, 1)} | {_fixed(pct, 1)}% |" for op, ms, pct in sc.hotspot_ops]
    if sc.regressions:
        lines += ["", "### Regressions", ""]
        # The space before the line's end is the reference's.
        lines += [f"- **{r.metric}**: {_fixed(r.delta * 100.0, 1)}% ({r.severity}) " for r in sc.regressions]
    if sc.recommendations:
        lines += ["", "### Recommendations", ""]
        lines += [f"- {advice}" for advice in sc.recommendations]
    return "\n".join(lines) + "\n"


def format_parity_markdown(comp: ParityComparison) -> str:
    """Return the comparison as Markdown."""
    throughput, launches = _fixed(comp.throughput_ratio, 1), _fixed(comp.launch_ratio, 1)
    lines = [
        f"## Parity: {comp.apr_runtime} vs {comp.baseline_runtime}",
        "",
        f"- **Throughput gap**: {throughput}x ({comp.baseline_runtime} is {throughput}x faster)",
        f"- **Kernel launches**: {launches}x (APR launches {launches}x more)",
        f"- **Parity achieved**: {'YES' if comp.parity_achieved else 'NO'}",
    ]
    if comp.top_gaps:
        lines += ["", "### Top Gaps", ""]
        lines += ["| Op | APR (ms) | Baseline (ms) | Ratio |", "|-----|---------|--------------|-------|"]
        lines += [
            f"| {g.op} | {_fixed(g.apr_ms, 1)} | {_fixed(g.baseline_ms, 1)} | {_fixed(g.ratio, 1)}x |"
            for g in comp.top_gaps
        ]
    return "\n".join(lines) + "\n"


def _fixed(value: float, digits: int) -> str:
    """Write `value` as Rust's `{:.N}` does: all digits, never an exponent, `NaN` spelt so."""
    return "NaN" if math.isnan(value) else f"{value:.{digits}f}"

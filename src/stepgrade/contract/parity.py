"""Contract v1: two runtimes compared operation by operation, as the reference does it."""

from __future__ import annotations

from stepgrade.contract.types import ParityComparison, ParityGap, ParityProfile

GAPS_SHOWN = 5
PARITY_RATIO = 1.10


def compute_parity_comparison(apr: ParityProfile, baseline: ParityProfile) -> ParityComparison:
    """Compare the operations both have; parity holds when none is more than 10 % slower in `apr`."""
    gaps = _gaps(apr.ops, baseline.ops)
    return ParityComparison(
        apr_runtime=apr.runtime,
        baseline_runtime=baseline.runtime,
        throughput_ratio=_ratio(baseline.throughput_tok_s, apr.throughput_tok_s),
        # Both counts become floats first: the quotient of two large integers rounds differently.
        launch_ratio=_ratio(float(apr.kernel_launches_per_step), float(baseline.kernel_launches_per_step)),
        top_gaps=gaps[:GAPS_SHOWN],
        parity_achieved=all(gap.ratio <= PARITY_RATIO for gap in gaps),
    )


def _ratio(top: float, bottom: float) -> float:
    return top / bottom if bottom > 0.0 else 0.0


def _gaps(ours: dict[str, float], theirs: dict[str, float]) -> list[ParityGap]:
    """Return the operations that take time on both sides, widest gap first."""
    gaps = [
        ParityGap(op=op, apr_ms=ours[op], baseline_ms=theirs[op], ratio=ours[op] / theirs[op])
        for op in sorted(ours)
        if ours[op] > 0.0 and theirs.get(op, 0.0) > 0.0
    ]
    return sorted(gaps, key=lambda gap: gap.ratio, reverse=True)

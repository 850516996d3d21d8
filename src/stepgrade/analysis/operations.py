"""Operations by time: those of the layers and those that the profile lists for the whole model."""

from __future__ import annotations

from stepgrade.analysis.scorecard import Operation
from stepgrade.contract.scorecard import HOTSPOTS_SHOWN, rank_operations
from stepgrade.model import OpTime, Profile


def total_by_operation(profile: Profile) -> dict[str, float]:
    """Return milliseconds over all profiled steps by operation.

    An operation listed both in the layers and for the whole model is one and the same:
    the larger figure is the whole.
    """
    totals: dict[str, float] = {}
    for layer in profile.layers:
        for name, ms in layer.ops_total_ms.items():
            totals[name] = totals.get(name, 0.0) + ms
    for op in profile.operations:
        totals[op.name] = max(op.total_ms, totals.get(op.name, 0.0))
    return totals


def hotspots(profile: Profile) -> tuple[tuple[str, float, float], ...]:
    """Return (name, total ms, percent of all operations), longest first, as contract v1 lists them."""
    return tuple(rank_operations(total_by_operation(profile))[:HOTSPOTS_SHOWN])


def operations_of_step(profile: Profile) -> tuple[Operation, ...]:
    """Return every operation of one step, longest first."""
    listed = {op.name: op for op in profile.operations}
    ranked = rank_operations(total_by_operation(profile))
    return tuple(_operation(name, total_ms, listed.get(name), profile) for name, total_ms, _ in ranked)


def _operation(name: str, total_ms: float, op: OpTime | None, profile: Profile) -> Operation:
    steps = profile.steps
    if not steps:
        return Operation(name=name, kind=op.kind if op else None)
    ms = total_ms / steps
    return Operation(
        name=name,
        kind=op.kind if op else None,
        ms=ms,
        share=ms / profile.step_ms if profile.step_ms else None,
        calls=_per_step(op.calls if op else None, steps),
        flops=_per_step(op.flops if op else None, steps),
        bytes=_per_step(op.bytes if op else None, steps),
        longest=op.longest if op else None,
    )


def _per_step(count: float | None, steps: int) -> float | None:
    return None if count is None else count / steps

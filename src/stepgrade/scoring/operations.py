"""Operations by time: those of the layers and those that the profile lists for the whole model."""

from __future__ import annotations

from msgspec import Struct, structs

from stepgrade.contract.scorecard import HOTSPOTS_SHOWN, rank_operations
from stepgrade.hardware import Figures
from stepgrade.model import OpTime, Profile
from stepgrade.model.scorecard import Operation
from stepgrade.naming.roles import class_of
from stepgrade.scoring.step_times import kept_of_part

NO_FIGURES = Figures()
_PRODUCTS = frozenset({"gemm", "convolution", "attention"})


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


def operations_of_step(
    profile: Profile, figures: Figures = NO_FIGURES, dtype: str = ""
) -> tuple[Operation, ...]:
    """Return every operation of one step, longest first, each against its own roof."""
    listed = {op.name: op for op in profile.operations}
    ranked = rank_operations(total_by_operation(profile))
    found = [
        _operation(
            name, total_ms, op := listed.get(name), profile, _roofs(figures, _dtype(op, profile, dtype))
        )
        for name, total_ms, _ in ranked
    ]
    return tuple(_with_samples(one, listed.get(one.name), place) for place, one in enumerate(found))


def _with_samples(one: Operation, op: OpTime | None, place: int) -> Operation:
    samples = kept_of_part(op.samples_ms, one.share, place) if op is not None and op.samples_ms else ()
    return structs.replace(one, samples_ms=samples) if samples else one


def _dtype(op: OpTime | None, profile: Profile, dtype: str) -> str:
    """Return the precision whose peak an operation is compared with: its own where it was recorded."""
    own = op.dtype if op is not None else None
    if own is None or (own == "fp32" and profile.matmul_dtype == "tf32"):
        return profile.matmul_dtype or dtype
    return own


def _roofs(figures: Figures, dtype: str) -> _Roofs:
    return _Roofs(
        flops_s=next((rate.per_s for rate in figures.compute(dtype)), None),
        bytes_s=next((rate.per_s for rate in figures.bandwidth()), None),
    )


class _Roofs(Struct, frozen=True, kw_only=True):
    flops_s: float | None
    bytes_s: float | None

    def least_ms(self, kind: str, flops: float | None, moved: float | None) -> tuple[float, str] | None:
        """Return the time that an operation takes at least, and what sets it; None if that is not known.

        Of one rate alone it is known only where that one is what usually limits such operations.
        """
        if (self.flops_s if kind in _PRODUCTS else self.bytes_s) is None:
            return None
        compute = flops / self.flops_s * 1000.0 if flops and self.flops_s else 0.0
        memory = moved / self.bytes_s * 1000.0 if moved and self.bytes_s else 0.0
        if not compute and not memory:
            return None
        return (compute, "compute") if compute >= memory else (memory, "memory")


def _operation(name: str, total_ms: float, op: OpTime | None, profile: Profile, roofs: _Roofs) -> Operation:
    kind = op.kind if op and op.kind else class_of(name).label
    steps = profile.steps
    if not steps:
        return Operation(name=name, kind=kind)
    ms = total_ms / steps
    calls, flops, moved = (
        _per_step(getattr(op, field, None), steps) for field in ("calls", "flops", "bytes")
    )
    least = roofs.least_ms(kind, flops, moved) if ms > 0.0 else None
    return Operation(
        name=name,
        kind=kind,
        ms=ms,
        share=ms / profile.mean_step_ms if profile.mean_step_ms else None,
        calls=calls,
        flops=flops,
        bytes=moved,
        mean_ms=ms / calls if calls else None,
        flops_per_s=flops / ms * 1000.0 if flops and ms > 0.0 else None,
        bytes_per_s=moved / ms * 1000.0 if moved and ms > 0.0 else None,
        roof=least[1] if least else None,
        roof_share=least[0] / ms if least else None,
        longest=op.longest if op else None,
    )


def _per_step(count: float | None, steps: int) -> float | None:
    return None if count is None else count / steps

"""Operations by time: those of the layers and those that the profile lists for the whole model."""

from __future__ import annotations

from collections.abc import Sequence

from stepgrade.hardware.ceilings import Figures
from stepgrade.model import OpTime, Profile
from stepgrade.model.scorecard import Operation
from stepgrade.naming.roles import class_of
from stepgrade.scoring.step_times import RunTimes, kept_of_part

_PRODUCTS = frozenset({"gemm", "convolution", "attention"})
RankedOperation = tuple[str, float, float]  # name, total ms, percent of all operations


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


def operations_of_step(
    ranked: Sequence[RankedOperation], profile: Profile, times: RunTimes, figures: Figures, dtype: str
) -> tuple[Operation, ...]:
    """Return every operation of the typical step, longest first, each beside its own roof.

    `ranked` has totals over all steps, as contract v1 ranks them. An operation is compared with the peak of
    its own precision where that was recorded.
    """
    listed = {op.name: op for op in profile.operations}
    found = []
    for place, (name, total_ms, _) in enumerate(ranked):
        op = listed.get(name) or OpTime(name=name, total_ms=total_ms)
        kind = op.kind or class_of(name).label
        if not times.steps:
            found.append(Operation(name=name, kind=kind))
            continue
        share = times.share(total_ms)
        calls, flops, moved = (
            None if total is None else total / times.steps for total in (op.calls, op.flops, op.bytes)
        )
        # How long a call takes and how fast it is do not depend on the step: these are means over all steps.
        mean_ms = total_ms / times.steps
        precision = op.dtype
        if precision is None or (precision == "fp32" and profile.matmul_dtype == "tf32"):
            precision = profile.matmul_dtype or dtype
        least = _least_ms(kind, flops, moved, figures, precision) if mean_ms > 0.0 else None
        found.append(
            Operation(
                name=name,
                kind=kind,
                ms=times.per_step(total_ms),
                share=share,
                calls=calls,
                flops=flops,
                bytes=moved,
                mean_ms=mean_ms / calls if calls else None,
                flops_per_s=flops / mean_ms * 1000.0 if flops and mean_ms > 0.0 else None,
                bytes_per_s=moved / mean_ms * 1000.0 if moved and mean_ms > 0.0 else None,
                roof=least[1] if least else None,
                roof_share=least[0] / mean_ms if least else None,
                longest=op.longest,
                samples_ms=kept_of_part(op.samples_ms, share, place),
            )
        )
    return tuple(found)


def _least_ms(
    kind: str, flops: float | None, moved: float | None, figures: Figures, dtype: str
) -> tuple[float, str] | None:
    """Return the time that an operation takes at least, and what sets it; None if that is not known.

    Of one rate alone it is known only where that one is what usually limits such operations.
    """
    flops_s = next((rate.per_s for rate in figures.compute(dtype)), None)
    bytes_s = next((rate.per_s for rate in figures.bandwidth()), None)
    if (flops_s if kind in _PRODUCTS else bytes_s) is None:
        return None
    compute = flops / flops_s * 1000.0 if flops and flops_s else 0.0
    memory = moved / bytes_s * 1000.0 if moved and bytes_s else 0.0
    if not compute and not memory:
        return None
    return (compute, "compute") if compute >= memory else (memory, "memory")

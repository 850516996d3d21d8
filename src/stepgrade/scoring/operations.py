"""Operations by time: those of the layers and those that the profile lists for the whole model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stepgrade.hardware.catalogue import cache_bytes
from stepgrade.hardware.ceilings import Figures
from stepgrade.hardware.setup import CPU_KEY, Target
from stepgrade.model import Note, OpTime, Profile
from stepgrade.model.scorecard import Operation
from stepgrade.naming.roles import class_of
from stepgrade.scoring.step_times import RunTimes, kept_of_part

_PRODUCTS = frozenset({"gemm", "convolution", "attention"})
# Clocks above the one that a data sheet's peak is for, and timers: up to so much above its roof is at it.
MOST = 1.05
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

    `ranked` has totals over all steps, as contract v1 ranks them.
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
        roof, reached = _roof_of(structs.replace(op, total_ms=total_ms), profile, figures, dtype)
        if _is_measured(figures) and (reached or 0.0) > MOST:
            roof = reached = None  # from a cache, which has no roof here, or measured too low
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
                roof=roof,
                roof_share=1.0 if reached and 1.0 < reached <= MOST else reached,
                longest=op.longest,
                samples_ms=kept_of_part(op.samples_ms, share, place),
            )
        )
    return tuple(found)


def _is_measured(figures: Figures) -> bool:
    return figures.device is not None and figures.device.key == CPU_KEY


def drop_impossible_counts(profile: Profile, target: Target) -> Profile:
    """Return the profile without the FLOPs and bytes of operations that would be above their roof.

    Nothing runs faster than its hardware: such a count is wrong (padded rows, buffers of which a part is
    used), and neither a share of the peak nor a grade may rest on it. Peaks that were given or measured
    may be wrong themselves: an operation above them shows it.
    """
    steps, listed, figures = profile.steps or 0, profile.operations, target.figures
    if figures.device is None or figures.device.is_by_hand or figures.peak_tflops or figures.peak_bw_gb_s:
        return profile
    if _is_measured(figures):
        return profile
    wrong = {
        op.name: op
        for op in listed
        if steps and op.total_ms > 0.0 and (_roof_of(op, profile, figures, target.dtype)[1] or 0.0) > MOST
    }
    if not wrong:
        return profile
    names = ", ".join(wrong)
    text = f"the sizes of {names} give more work than the device can do in their time: not counted"
    products = [op for op in listed if op.kind in _PRODUCTS]
    lost = [op for op in wrong.values() if op in products and op.flops]
    whole_ms, flops = sum(op.total_ms for op in products), sum(op.flops or 0.0 for op in lost)
    share = profile.matmul_known_share
    return structs.replace(
        profile,
        operations=tuple(
            structs.replace(op, flops=None, bytes=None) if op.name in wrong else op for op in listed
        ),
        matmul_flops=max(0.0, (profile.matmul_flops or 0.0) - flops) or None,
        matmul_known_share=share and max(0.0, share - sum(op.total_ms for op in lost) / max(whole_ms, 1e-9)),
        notes=(*profile.notes, Note("count_above_roof", text)),
    )


def _roof_of(op: OpTime, profile: Profile, figures: Figures, dtype: str) -> tuple[str | None, float | None]:
    """Return which roof of an operation is lower, and the share of it that was reached; None if not known.

    An operation is compared with the peak of its own precision where that was recorded. Of one rate alone a
    roof is known only where that one is what usually limits such operations.
    """
    kind, precision = op.kind or class_of(op.name).label, op.dtype
    if precision is None or (precision == "fp32" and profile.matmul_dtype == "tf32"):
        precision = profile.matmul_dtype or dtype
    flops_s = next((rate.per_s for rate in figures.compute(precision)), None)
    bytes_s = next((rate.per_s for rate in figures.bandwidth()), None)
    if (flops_s if kind in _PRODUCTS else bytes_s) is None or op.total_ms <= 0.0:
        return None, None
    if kind not in _PRODUCTS and not op.bytes:
        return None, None  # where types were not recorded, as by NVTX, bytes are not known
    compute = op.flops / flops_s * 1000.0 if op.flops and flops_s else 0.0
    memory = op.bytes / bytes_s * 1000.0 if op.bytes and bytes_s else 0.0
    if not compute and not memory:
        return None, None
    if compute >= memory:
        return "compute", compute / op.total_ms
    if memory > op.total_ms and bytes_s:
        # What a call reads may still be in the cache, and what it writes may stay there.
        cached = 2.0 * cache_bytes(figures.device) * (op.calls or 1.0)
        if ((op.bytes or 0.0) - cached) / bytes_s * 1000.0 <= op.total_ms and compute <= op.total_ms:
            return "memory", None
    return "memory", memory / op.total_ms

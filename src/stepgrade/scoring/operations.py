"""Operations by time: those of the layers and those that the profile lists for the whole model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stepgrade.contract.scorecard import HOTSPOTS_SHOWN, rank_operations
from stepgrade.hardware.catalogue import cache_bytes
from stepgrade.hardware.ceilings import Figures
from stepgrade.hardware.setup import CPU_KEY, Target
from stepgrade.model import Note, Profile
from stepgrade.model.ceiling import Roof
from stepgrade.model.operations import PRODUCTS, Operation, ShapeRow
from stepgrade.naming.work_class import class_of
from stepgrade.scoring.step_times import RunTimes, kept_of_part

# Clocks above the one that a data sheet's peak is for, and timers: up to so much above its roof is at it.
MOST = 1.05
_ROOFS = ("compute", "memory")
_Peaks = tuple[float | None, float | None]  # FLOPs and bytes a second


def ms_by_operation(profile: Profile) -> dict[str, float]:
    """Return the milliseconds of each operation in the mean step.

    An operation listed both in the layers and for the whole model is one and the same:
    the larger figure is the whole.
    """
    found: dict[str, float] = {}
    for layer in profile.layers:
        for name, ms in layer.ops.items():
            found[name] = found.get(name, 0.0) + ms
    for op in profile.operations:
        found[op.name] = max(op.ms or 0.0, found.get(op.name, 0.0))
    return found


def hotspots(profile: Profile) -> tuple[tuple[str, float, float], ...]:
    """Return the longest operations as contract v1 lists them: name, total over all steps, percent of all."""
    return tuple(
        rank_operations({name: profile.total(ms) for name, ms in ms_by_operation(profile).items()})[
            :HOTSPOTS_SHOWN
        ]
    )


def operations_of_step(
    profile: Profile, times: RunTimes, figures: Figures, dtype: str
) -> tuple[Operation, ...]:
    """Return every operation of the typical step, longest first, each beside its own roof."""
    listed = {op.name: op for op in profile.operations}
    found = []
    for index, (name, ms, _) in enumerate(rank_operations(ms_by_operation(profile))):
        op = listed.get(name) or Operation(name=name, ms=ms)
        kind = op.kind or class_of(name).label
        if not times.steps:
            found.append(Operation(name=name, kind=kind))
            continue
        share, peaks = times.share(ms), _peaks_of(op, profile, figures, dtype)
        rows = [_under_roof(kind, row, peaks, figures) for row in op.rows]
        roof, reached = _roof_of_rows(rows)
        # How long a call takes and how fast it is do not depend on the step: these are means over all steps.
        found.append(
            structs.replace(
                op,
                kind=kind,
                ms=times.typical(ms),
                share=share,
                mean_ms=ms / op.calls if op.calls else None,
                flops_per_s=_rate([(row.flops, row.ms) for row in rows]),
                bytes_per_s=_rate([(row.bytes, row.ms) for row in rows]),
                roof=roof,
                roof_share=reached,
                samples_ms=kept_of_part(op.samples_ms, share, index),
                dtype=None,
                shapes=tuple(structs.replace(row, ms=row.ms * times.scale) for row in rows)
                if op.shapes
                else (),
                kernels=tuple(structs.replace(kernel, ms=kernel.ms * times.scale) for kernel in op.kernels),
            )
        )
    return tuple(found)


def counted_share(operations: Sequence[Operation]) -> float | None:
    """Return how much of the operations' time, without communication, has its FLOPs or bytes known."""
    computing = [op for op in operations if op.kind != "communication" and op.ms]
    whole_ms = sum(op.ms or 0.0 for op in computing)
    known_ms = sum((op.ms or 0.0) * (op.known_share or 0.0) for op in computing)
    return known_ms / whole_ms if whole_ms and any(op.known_share is not None for op in computing) else None


def _under_roof(kind: str, row: ShapeRow, peaks: _Peaks, figures: Figures) -> ShapeRow:
    roof, reached = _roof_of(kind, row, peaks, figures)
    if reached and reached > MOST and (row.at_most or _is_measured(figures)):
        roof = reached = None  # a bound; from a cache, which has no roof here; or measured too low
    return structs.replace(row, roof=roof, roof_share=1.0 if reached and 1.0 < reached <= MOST else reached)


def _roof_of_rows(rows: Sequence[ShapeRow]) -> tuple[str | None, float | None]:
    """Return the roof that most of the rows' time would be under, and the share of their roofs they reach."""
    known = [row for row in rows if row.roof_share is not None and row.ms]
    least = {roof: sum((r.roof_share or 0.0) * r.ms for r in known if r.roof == roof) for roof in _ROOFS}
    whole_ms = sum(row.ms for row in known)
    if not whole_ms:
        return next((row.roof for row in rows if row.roof), None), None
    return max(_ROOFS, key=lambda roof: least[roof]), sum(least.values()) / whole_ms


def _rate(amounts: Sequence[tuple[float | None, float]]) -> float | None:
    """Return how much a second the calls do of which that is known."""
    known = [(amount, ms) for amount, ms in amounts if amount is not None]
    total, ms = sum(amount for amount, _ in known), sum(ms for _, ms in known)
    return total / ms * 1000.0 if total and ms > 0.0 else None


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
    wrong = dict.fromkeys(  # in the order of the profile, so that sums over it are always the same
        (op.name, row)
        for op in listed
        if steps
        for peaks in (_peaks_of(op, profile, figures, target.dtype),)
        for row in op.rows
        if not row.at_most
        and (_roof_of(op.kind or class_of(op.name).label, row, peaks, figures)[1] or 0.0) > MOST
    )
    if not wrong:
        return profile
    names = ", ".join(dict.fromkeys(op.name for op in listed for row in op.rows if (op.name, row) in wrong))
    text = f"the sizes of {names} give more work than the device can do in their time: not counted"
    products = {op.name for op in listed if op.kind in PRODUCTS}
    lost = [row for name, row in wrong if name in products and row.flops]
    whole_ms = sum(op.ms or 0.0 for op in listed if op.name in products)
    share = profile.matmul_known_share
    return structs.replace(
        profile,
        operations=tuple(
            op.with_rows(
                tuple(
                    structs.replace(row, flops=None, bytes=None) if (op.name, row) in wrong else row
                    for row in op.rows
                )
            )
            if any((op.name, row) in wrong for row in op.rows)
            else op
            for op in listed
        ),
        matmul_flops=max(0.0, (profile.matmul_flops or 0.0) - sum(row.flops or 0.0 for row in lost)) or None,
        matmul_known_share=share and max(0.0, share - sum(row.ms for row in lost) / max(whole_ms, 1e-9)),
        notes=(*profile.notes, Note("count_above_roof", text)),
    )


def _peaks_of(op: Operation, profile: Profile, figures: Figures, dtype: str) -> _Peaks:
    """Return the FLOPs and bytes a second that the hardware allows an operation; None where not known.

    An operation is compared with the peak of its own precision where that was recorded.
    """
    precision = _precision_of(op, profile, dtype)
    flops_s = next((rate.per_s for rate in figures.compute(precision)), None)
    return flops_s, next((rate.per_s for rate in figures.bandwidth()), None)


def _precision_of(op: Operation, profile: Profile, dtype: str) -> str:
    if op.dtype is None or (op.dtype == "fp32" and profile.matmul_dtype == "tf32"):
        return profile.matmul_dtype or dtype
    return op.dtype


def roofs_over(profile: Profile, target: Target) -> tuple[Roof, ...]:
    """Return the roofs of the run's precision first, of the others in which it multiplies, and of memory."""
    figures, dtypes = target.figures, {target.dtype: None}
    if figures.peak_tflops is None:  # a given peak is of one precision
        products = (op for op in profile.operations if op.kind in PRODUCTS and op.flops)
        dtypes |= dict.fromkeys(_precision_of(op, profile, target.dtype) for op in products)
    return (*(roof for dtype in dtypes for roof in figures.compute(dtype)), *figures.bandwidth())


def _roof_of(kind: str, row: ShapeRow, peaks: _Peaks, figures: Figures) -> tuple[str | None, float | None]:
    """Return which roof of calls of an operation is lower, and the share of it that was reached.

    Both are None if not known. Of one rate alone a roof is known only where that one is what usually limits
    such operations.
    """
    flops_s, bytes_s = peaks
    if (flops_s if kind in PRODUCTS else bytes_s) is None or row.ms <= 0.0:
        return None, None
    if not (row.flops if kind in PRODUCTS else row.bytes):
        return None, None  # where types were not recorded, as by NVTX, bytes are not known
    compute = row.flops / flops_s * 1000.0 if row.flops and flops_s else 0.0
    memory = row.bytes / bytes_s * 1000.0 if row.bytes and bytes_s else 0.0
    if compute >= memory:
        return "compute", compute / row.ms
    if memory > row.ms and bytes_s:
        # What a call reads may still be in the cache, and what it writes may stay there.
        cached = 2.0 * cache_bytes(figures.device) * (row.calls or 1.0)
        if ((row.bytes or 0.0) - cached) / bytes_s * 1000.0 <= row.ms and compute <= row.ms:
            return "memory", None
    return "memory", memory / row.ms

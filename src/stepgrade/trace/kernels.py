"""Kernels under operations, and how they fill the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.activity import CounterMean, KernelUse, QueueDepth
from stepgrade.model.columns import groups
from stepgrade.model.events import DeviceEvent, Ids, Longs, TraceDevice
from stepgrade.model.profile import KernelTime
from stepgrade.naming.tensor_cores import uses_tensor_cores
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.trace import intervals as iv
from stepgrade.trace.occupancy import occupancy_of
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.timeline import Driver, Timeline
from stepgrade.units import NS_PER_MS

MOST_KERNELS = 8  # of an operation
_MOST_COUNTERS = 100
Floats = NDArray[np.float64]


def find_device(timeline: Timeline) -> TraceDevice | None:
    """Return the analysed device as the trace describes it.

    ROCm numbers agents, not devices: that all are alike is as good as a match.
    """
    listed = timeline.trace.devices
    match = next((device for device in listed if device.index == timeline.device), None)
    if match is None and len({device.name for device in listed}) == 1:
        return listed[0]
    return match


def _launch_figures(timeline: Timeline, work: Ids) -> tuple[Floats, Floats, Floats]:
    """Return occupancy, blocks of a multiprocessor and registers of each piece, NaN where not known."""
    launch, launches = timeline.trace.work.launch, timeline.trace.launches
    if launch is None or not launches:
        nothing = np.broadcast_to(np.nan, len(work))
        return nothing, nothing, nothing
    device = find_device(timeline)
    limits, capability = (device.limits, device.capability) if device is not None else (None, None)
    columns = (
        [occupancy_of(one, limits, capability) for one in launches],
        [one.blocks_per_sm for one in launches],
        [one.registers for one in launches],
    )
    rows = launch[work]
    occupancy, blocks, registers = (np.array([*column, None], np.float64)[rows] for column in columns)
    return occupancy, blocks, registers


def kernels_by_label(timeline: Timeline, pieces: Pieces, rows: Ids) -> dict[int, tuple[KernelTime, ...]]:
    """Return the longest kernels of these pieces under each label."""
    if timeline.driver is not Driver.DEVICE or not len(rows):
        return {}
    trace = timeline.trace
    width = len(trace.strings) + 1
    values, which, counts = groups(pieces.label[rows].astype(np.int64) * width + pieces.kernel[rows])
    dur = pieces.dur_ns[rows].astype(np.float64)
    total = np.bincount(which, dur)
    classes = np.zeros(len(values), np.int64)
    classes[which] = pieces.work_class[rows]
    means = []
    for column in _launch_figures(timeline, pieces.work[rows]):
        known = ~np.isnan(column)
        weight = np.bincount(which, dur * known, len(values))
        amount = np.bincount(which, dur * np.where(known, column, 0.0), len(values))
        means.append(np.where(weight > 0, amount / np.maximum(weight, 1.0), np.nan))
    found: dict[int, list[KernelTime]] = {}
    for place in np.argsort(-total, kind="stable").tolist():
        label, kernel = divmod(int(values[place]), width)
        alike = found.setdefault(label, [])
        if len(alike) < MOST_KERNELS:
            occupancy, blocks, registers = (_known(mean[place]) for mean in means)
            is_product = WorkClass(int(classes[place])) in MATMULS
            alike.append(
                KernelTime(
                    name=trace.strings[kernel],
                    total_ms=float(total[place]) / NS_PER_MS,
                    calls=float(counts[place]),
                    occupancy=occupancy,
                    blocks_per_sm=blocks,
                    registers=registers,
                    tensor_cores=uses_tensor_cores(trace.strings[kernel]) if is_product else None,
                )
            )
    return {label: tuple(alike) for label, alike in found.items()}


def _known(figure: float) -> float | None:
    """Return a mean with six digits, which do not depend on the order in which it was added up."""
    return None if np.isnan(figure) else float(f"{figure:.6g}")


def kernel_use(timeline: Timeline, pieces: Pieces) -> KernelUse | None:
    """Return how the kernels of the steady steps fill the device; None where nothing says.

    What cannot be told for most of the time is not known.
    """
    if timeline.driver is not Driver.DEVICE:
        return None
    trace, windows = timeline.trace, timeline.windows
    rows = np.flatnonzero(pieces.steady & (trace.work.kind[pieces.work] == DeviceEvent.KERNEL)).astype(
        np.int32
    )
    step_ns = float(windows.dur_ns[windows.steady].sum())
    dur = pieces.dur_ns[rows].astype(np.float64)
    if not dur.any() or not step_ns:  # there is none, or none that took any time
        return None
    occupancy, blocks, _ = _launch_figures(timeline, pieces.work[rows])
    told, filled = ~np.isnan(occupancy), ~np.isnan(blocks)
    products = np.array([WorkClass(int(one)) in MATMULS for one in range(len(WorkClass))])[
        pieces.work_class[rows]
    ]
    kernels, which, _ = groups(pieces.kernel[rows])
    says = [uses_tensor_cores(trace.strings[index]) for index in kernels.tolist()]
    tensor = np.array([one is True for one in says])[which] & products
    named = np.array([one is not None for one in says])[which] & products
    whole, product_ns = float(dur.sum()), float(dur[products].sum())
    is_filled = float(dur[filled].sum()) > 0.5 * whole
    return KernelUse(
        sm_efficiency=_known(sm_filled_ns(timeline) / step_ns) if is_filled else None,
        occupancy=_known((dur * np.nan_to_num(occupancy))[told].sum() / dur[told].sum())
        if dur[told].any()
        else None,
        occupancy_known_share=float(dur[told].sum()) / whole,
        tensor_core_share=float(dur[tensor].sum()) / product_ns if product_ns and named.any() else None,
        tensor_core_known_share=float(dur[named].sum()) / product_ns if product_ns else None,
        queue=queue_depth(timeline),
        counters=counter_means(timeline),
    )


def sm_filled_ns(timeline: Timeline) -> float:
    """Return how long the multiprocessors had a block in the steady steps, all of them for 1 ns being 1.

    A multiprocessor without a block is idle. Kernels that run beside each other fill the device together.
    """
    work, windows = timeline.trace.work, timeline.windows
    rows = np.flatnonzero(timeline.chosen & (work.kind == DeviceEvent.KERNEL)).astype(np.int32)
    _, blocks, _ = _launch_figures(timeline, rows)
    rows, blocks = rows[~np.isnan(blocks)], blocks[~np.isnan(blocks)]
    if not len(rows):
        return 0.0
    start = work.start_ns[rows]
    time = np.concatenate((start, start + work.dur_ns[rows]))
    order = np.argsort(time, kind="stable")
    time = time[order]
    filled = np.clip(np.cumsum(np.concatenate((blocks, -blocks))[order]), 0.0, 1.0)
    until = np.append(0.0, np.cumsum(filled[:-1] * np.diff(time)))  # up to each change

    def before(at: Longs) -> Floats:
        place = np.searchsorted(time, at, side="right") - 1
        known = np.maximum(place, 0)
        return np.where(place < 0, 0.0, until[known] + filled[known] * (at - time[known]))

    steady = windows.steady
    return float((before(windows.end_ns[steady]) - before(windows.start_ns[steady])).sum())


def queue_depth(timeline: Timeline) -> QueueDepth | None:
    """Return how far the host is ahead of the device; None where no launches were recorded.

    A launch counts from when its call begins until what it launched begins.
    """
    trace, windows, call = timeline.trace, timeline.windows, timeline.links.call
    chosen = timeline.chosen & windows.is_steady(timeline.attribution.step)
    count, launched = int(chosen.sum()), int((chosen & (call >= 0)).sum())
    step_ns = float(windows.dur_ns[windows.steady].sum())
    if not launched or not step_ns:
        return None
    # Those of all steps: what an earlier step launched may still wait in this one.
    rows = np.flatnonzero(timeline.chosen & (call >= 0)).astype(np.int32)
    begun = trace.work.start_ns[rows]
    issued = np.minimum(trace.calls.start_ns[call[rows]], begun)
    steady = windows.steady
    starts, ends = windows.start_ns[steady], windows.end_ns[steady]
    # Of each moment how long all have waited until then; what a step adds is between its two ends.
    at_ends = _elapsed_since(issued, ends) - _elapsed_since(begun, ends)
    at_starts = _elapsed_since(issued, starts) - _elapsed_since(begun, starts)
    waiting_ns = float(windows.in_steady(iv.union(issued, begun)).sum())
    return QueueDepth(
        mean=float(f"{(at_ends - at_starts) / step_ns:.6g}"),
        empty_share=float(f"{max(0.0, 1.0 - waiting_ns / step_ns):.6g}"),
        known_share=launched / count,
    )


def _elapsed_since(times: Longs, at: Longs) -> int:
    """Return how long before each moment these times lie, all that lie before it added up."""
    ordered = np.sort(times)
    ordered -= (zero := int(ordered[0]))
    place = np.searchsorted(ordered, at - zero, side="right")
    sums = np.cumsum(ordered)
    before = np.where(place > 0, sums[np.maximum(place, 1) - 1], 0)
    return int((place * (at - zero) - before).sum())


def counter_means(timeline: Timeline) -> tuple[CounterMean, ...]:
    """Return the device's counters in the steady steps; samples are of equal stretches of time."""
    counters, windows = timeline.trace.counters, timeline.windows
    if counters is None or not len(counters.name):
        return ()
    step = np.searchsorted(windows.start_ns, counters.start_ns, side="right") - 1
    inside = (step >= 0) & (counters.device == (timeline.device or 0))
    inside &= windows.steady[np.maximum(step, 0)] & (counters.start_ns < windows.end_ns[np.maximum(step, 0)])
    names, which, counts = groups(counters.name[inside])
    value = counters.value[inside]
    total = np.bincount(which, value, len(names))
    return tuple(
        CounterMean(
            name=timeline.trace.strings[name],
            mean=float(f"{total[place] / counts[place]:.6g}"),
            least=float(value[which == place].min()),
            most=float(value[which == place].max()),
            samples=int(counts[place]),
        )
        for place, name in enumerate(names.tolist()[:_MOST_COUNTERS])
    )

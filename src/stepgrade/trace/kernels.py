"""Kernels under operations, and how they fill the device."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.activity import CounterMean, KernelUse, QueueDepth
from stepgrade.model.columns import distinct, groups, sums
from stepgrade.model.events import NONE, DeviceEvent, Ids, Longs, TraceDevice
from stepgrade.model.operations import KernelRow
from stepgrade.naming.tensor_cores import uses_tensor_cores
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.timeline.windows import Windows
from stepgrade.trace.occupancy import occupancy_of
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


class _Launches:
    """How the kernels of a trace were launched: figures of each way, NaN where not known."""

    def __init__(self, timeline: Timeline) -> None:
        self._way = timeline.trace.work.launch
        launches = timeline.trace.launches if self._way is not None else ()
        device = find_device(timeline)
        limits, capability = (device.limits, device.capability) if device is not None else (None, None)
        # The last is of a kernel of which nothing is known: NONE finds it.
        self.occupancy, self.blocks, self.registers = (
            np.array([*column, None], np.float64)
            for column in (
                [occupancy_of(one, limits, capability) for one in launches],
                [one.blocks_per_sm for one in launches],
                [one.registers for one in launches],
            )
        )

    def of(self, work: Ids) -> Ids:
        """Return which way each piece of work was launched."""
        return np.broadcast_to(np.int32(NONE), len(work)) if self._way is None else self._way[work]


def kernels_by_label(timeline: Timeline, pieces: Pieces, rows: Ids) -> dict[int, tuple[KernelRow, ...]]:
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
    launches = _Launches(timeline)
    way = launches.of(pieces.work[rows])
    for figures in (launches.occupancy, launches.blocks, launches.registers):
        column = figures[way]
        known = ~np.isnan(column)
        weight = np.bincount(which, dur * known, len(values))
        amount = np.bincount(which, dur * np.where(known, column, 0.0), len(values))
        means.append(np.where(weight > 0, amount / np.maximum(weight, 1.0), np.nan))
    found: dict[int, list[KernelRow]] = {}
    for place in np.argsort(-total, kind="stable").tolist():
        label, kernel = divmod(int(values[place]), width)
        alike = found.setdefault(label, [])
        if len(alike) < MOST_KERNELS:
            occupancy, blocks, registers = (_known(mean[place]) for mean in means)
            is_product = WorkClass(int(classes[place])) in MATMULS
            alike.append(
                KernelRow(
                    name=trace.strings[kernel],
                    ms=float(total[place]) / NS_PER_MS,
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
    dur_ns = pieces.dur_ns[rows]
    whole_ns = float(dur_ns.sum())
    if not whole_ns or not step_ns:  # there is none, or none that took any time
        return None
    launches = _Launches(timeline)
    occupancy, ways = launches.occupancy, len(launches.occupancy)
    way_ns = sums(launches.of(pieces.work[rows]) % ways, dur_ns, ways)
    told_ns = way_ns * ~np.isnan(occupancy)
    is_filled = float(way_ns[~np.isnan(launches.blocks)].sum()) > 0.5 * whole_ns
    tensor_ns, named_ns, product_ns = _tensor_core_ns(timeline, pieces, rows)
    del rows, dur_ns  # what follows is large too
    return KernelUse(
        sm_efficiency=_known(sm_filled_ns(timeline) / step_ns) if is_filled else None,
        occupancy=_known((told_ns * np.nan_to_num(occupancy)).sum() / told_ns.sum())
        if told_ns.any()
        else None,
        occupancy_known_share=float(told_ns.sum()) / whole_ns,
        tensor_core_share=tensor_ns / product_ns if product_ns and tensor_ns is not None else None,
        tensor_core_known_share=named_ns / product_ns if product_ns else None,
        queue=queue_depth(timeline),
        counters=counter_means(timeline),
    )


def _tensor_core_ns(timeline: Timeline, pieces: Pieces, rows: Ids) -> tuple[float | None, float, float]:
    """Return the time of products on tensor cores, of those whose names tell, and of all.

    The first is None where no name tells.
    """
    is_product = np.array([one in MATMULS for one in WorkClass])
    rows = rows[is_product[pieces.work_class[rows]]]
    strings, kernel = timeline.trace.strings, pieces.kernel[rows]
    kernel_ns = sums(kernel, pieces.dur_ns[rows], len(strings))
    says = {index: uses_tensor_cores(strings[index]) for index in distinct(kernel).tolist()}
    told = [index for index, answer in says.items() if answer is not None]
    on_tensor_cores = [index for index in told if says[index]]
    return (
        float(kernel_ns[on_tensor_cores].sum()) if told else None,
        float(kernel_ns[told].sum()),
        float(kernel_ns.sum()),
    )


def sm_filled_ns(timeline: Timeline) -> float:
    """Return how long the multiprocessors had a block in the steady steps, all of them for 1 ns being 1.

    A multiprocessor without a block is idle. Kernels that run beside each other fill the device together.
    """
    work, windows = timeline.trace.work, timeline.windows
    rows = np.flatnonzero(timeline.chosen & (work.kind == DeviceEvent.KERNEL)).astype(np.int32)
    launches = _Launches(timeline)
    blocks = launches.blocks[launches.of(rows)]
    rows, blocks = rows[~np.isnan(blocks)], blocks[~np.isnan(blocks)]
    if not len(rows):
        return 0.0
    start = work.start_ns[rows]
    time = np.concatenate((start, start + work.dur_ns[rows]))
    del start, rows
    order = np.argsort(time, kind="stable").astype(np.int32)
    time = time[order]
    change = np.concatenate((blocks, -blocks))
    filled = change[order]
    del order, change
    np.clip(np.cumsum(filled, out=filled), 0.0, 1.0, out=filled)
    until = np.zeros(len(time), np.float64)  # up to each change
    np.multiply(filled[:-1], np.diff(time), out=until[1:])
    np.cumsum(until, out=until)

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
    issued = trace.calls.start_ns[call[rows]]
    del rows, chosen
    np.minimum(issued, begun, out=issued)
    waited_ns = _elapsed_in_steady(windows, issued) - _elapsed_in_steady(windows, begun)
    waiting_ns = float(windows.in_steady(iv.union(issued, begun)).sum())
    return QueueDepth(
        mean=float(f"{waited_ns / step_ns:.6g}"),
        empty_share=float(f"{max(0.0, 1.0 - waiting_ns / step_ns):.6g}"),
        known_share=launched / count,
    )


def _elapsed_in_steady(windows: Windows, times: Longs) -> int:
    """Return how much of the steady steps lies after each of these times, added up over the times.

    Up to a moment it is the distance of all earlier times from it; a step adds what lies between its ends.
    """
    ordered = np.sort(times)
    ordered -= (zero := int(ordered[0]))
    starts, ends = (at[windows.steady] - zero for at in (windows.start_ns, windows.end_ns))
    places = [np.searchsorted(ordered, at, side="right") for at in (starts, ends)]
    sums_before = np.cumsum(ordered, out=ordered)
    at_starts, at_ends = (
        int((place * at - np.where(place > 0, sums_before[np.maximum(place, 1) - 1], 0)).sum())
        for place, at in zip(places, (starts, ends), strict=True)
    )
    return at_ends - at_starts


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

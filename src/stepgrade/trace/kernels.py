"""Kernels: those under each operation, how they fill the device, and how far the host runs ahead.

Occupancy is computed like NVIDIA's calculator does: blocks share a multiprocessor until its warps, registers,
shared memory or block slots are used up. Registers are given to warps in units of 256, a quarter of them to
each of four partitions; shared memory in units of 128 bytes (256 before Ampere), from Ampere on with 1 KiB
for the system in each block. Kineto computes it without the dynamic shared memory above 48 KiB, and then
writes 0, as it does below half a percent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.activity import CounterMean, KernelUse, QueueDepth
from stepgrade.model.columns import among, distinct, groups, sums
from stepgrade.model.events import NONE, DeviceEvent, Ids, KernelLaunch, Longs, SmLimits, TraceDevice
from stepgrade.model.operations import KernelRow
from stepgrade.naming.kernels import uses_tensor_cores
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import Windows
from stepgrade.timeline.timeline import Driver, Pieces, Timeline
from stepgrade.units import NS_PER_MS

_WARP = 32
_REGISTER_UNIT = 256  # given to a warp
_PARTITIONS = 4  # of a multiprocessor, with a quarter of its registers each
_SYSTEM_SHARED = 1024  # bytes of each block, from Ampere on
# Blocks that a multiprocessor can hold, by compute capability; of others the warps decide.
_MOST_BLOCKS = {
    version: blocks
    for blocks, versions in ((16, "7.5 8.6 8.7"), (24, "8.9 12.0 12.1"), (32, "7.0 7.2 8.0 9.0 10.0 10.3"))
    for version in versions.split()
}
MOST_KERNELS = 8  # of an operation
_MOST_COUNTERS = 100
Floats = NDArray[np.float64]


def occupancy_of(launch: KernelLaunch, limits: SmLimits | None, capability: str | None) -> float | None:
    """Return what was recorded, else what registers, shared memory and blocks allow; None if not known."""
    if launch.occupancy is not None:
        return launch.occupancy
    most_blocks = _MOST_BLOCKS.get(capability or "")
    known = (launch.block_threads, launch.shared_bytes, launch.registers, launch.blocks_per_sm)
    if limits is None or most_blocks is None or None in known:
        return None
    threads, shared = launch.block_threads or 0, launch.shared_bytes or 0
    warps = -(-threads // _WARP)
    per_warp = -(-(launch.registers or 1) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    of_registers = limits.registers // _PARTITIONS // per_warp * _PARTITIONS // warps
    unit, system = (128, _SYSTEM_SHARED) if int((capability or "0").split(".")[0]) >= 8 else (256, 0)
    of_block = -(-(shared + system) // unit) * unit
    of_shared = limits.shared_bytes // of_block if of_block else most_blocks
    blocks = min(limits.threads // _WARP // warps, of_registers, of_shared, most_blocks)
    if blocks < 1:  # it ran, so something is not as it is taken to be
        return None
    held = min(float(blocks), launch.blocks_per_sm or 0.0) * threads / limits.threads
    return round(min(1.0, held), 4)  # finer than the profiler's own whole percents


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
    """How the kernels of a trace were launched: figures of each kind of launch, NaN where not known."""

    def __init__(self, timeline: Timeline) -> None:
        self._kind = timeline.trace.work.launch
        launches = timeline.trace.launches if self._kind is not None else ()
        device = find_device(timeline)
        limits, capability = (device.limits, device.capability) if device is not None else (None, None)
        # The last row, which NONE finds, is for kernels of which nothing is known.
        rows = [(occupancy_of(one, limits, capability), one.blocks_per_sm, one.registers) for one in launches]
        self.occupancy, self.blocks, self.registers = np.array([*rows, (None,) * 3], np.float64).T

    def of(self, work: Ids) -> Ids:
        """Return the kind of launch of each piece of work."""
        return np.broadcast_to(np.int32(NONE), len(work)) if self._kind is None else self._kind[work]


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
    launch = launches.of(pieces.work[rows])
    for figures in (launches.occupancy, launches.blocks, launches.registers):
        column = figures[launch]
        known = ~np.isnan(column)
        weight = np.bincount(which, dur * known, len(values))
        amount = np.bincount(which, dur * np.where(known, column, 0.0), len(values))
        means.append(np.where(weight > 0, amount / np.maximum(weight, 1.0), np.nan))
    found: dict[int, list[KernelRow]] = {}
    for index in np.argsort(-total, kind="stable").tolist():
        label, kernel = divmod(int(values[index]), width)
        alike = found.setdefault(label, [])
        if len(alike) < MOST_KERNELS:
            occupancy, blocks, registers = (_known(mean[index]) for mean in means)
            is_product = WorkClass(int(classes[index])) in MATMULS
            alike.append(
                KernelRow(
                    name=trace.strings[kernel],
                    ms=float(total[index]) / NS_PER_MS,
                    calls=float(counts[index]),
                    occupancy=occupancy,
                    blocks_per_sm=blocks,
                    registers=registers,
                    tensor_cores=uses_tensor_cores(trace.strings[kernel]) if is_product else None,
                )
            )
    return {label: tuple(alike) for label, alike in found.items()}


def _known(figure: float) -> float | None:
    """Return a mean with six digits, which do not depend on the order of its summands; None for NaN."""
    return None if np.isnan(figure) else float(f"{figure:.6g}")


def kernel_use(timeline: Timeline, pieces: Pieces) -> KernelUse | None:
    """Return how the kernels of the steady steps fill the device; None without kernels.

    A figure that is not known for most of the time is None.
    """
    if timeline.driver is not Driver.DEVICE:
        return None
    trace, windows = timeline.trace, timeline.windows
    is_kernel = pieces.steady & (trace.work.kind[pieces.work] == DeviceEvent.KERNEL)
    rows = np.flatnonzero(is_kernel).astype(np.int32)
    step_ns = float(windows.dur_ns[windows.steady].sum())
    dur_ns = pieces.dur_ns[rows]
    whole_ns = float(dur_ns.sum())
    if not whole_ns or not step_ns:  # there is none, or none that took any time
        return None
    launches = _Launches(timeline)
    occupancy, kinds = launches.occupancy, len(launches.occupancy)
    launch_ns = sums(launches.of(pieces.work[rows]) % kinds, dur_ns, kinds)
    known_ns = launch_ns * ~np.isnan(occupancy)
    is_filled = float(launch_ns[~np.isnan(launches.blocks)].sum()) > 0.5 * whole_ns
    # The time of products on tensor cores, of those whose names show it, and of all.
    rows = rows[among(pieces.work_class[rows], MATMULS)]
    kernel = pieces.kernel[rows]
    kernel_ns = sums(kernel, pieces.dur_ns[rows], len(trace.strings))
    uses = {index: uses_tensor_cores(trace.strings[index]) for index in distinct(kernel).tolist()}
    named = [index for index, answer in uses.items() if answer is not None]
    tensor_ns = float(kernel_ns[[index for index in named if uses[index]]].sum())
    named_ns, product_ns = float(kernel_ns[named].sum()), float(kernel_ns.sum())
    del rows, dur_ns, kernel  # what follows is large too
    return KernelUse(
        sm_efficiency=_known(sm_filled_ns(timeline, launches) / step_ns) if is_filled else None,
        occupancy=_known((known_ns * np.nan_to_num(occupancy)).sum() / known_ns.sum())
        if known_ns.any()
        else None,
        occupancy_known_share=float(known_ns.sum()) / whole_ns,
        tensor_core_share=tensor_ns / product_ns if product_ns and named else None,
        tensor_core_known_share=named_ns / product_ns if product_ns else None,
        queue=queue_depth(timeline),
        counters=counter_means(timeline),
    )


def sm_filled_ns(timeline: Timeline, launches: _Launches) -> float:
    """Return how long the multiprocessors had a block in the steady steps, all of them for 1 ns being 1.

    A multiprocessor without a block is idle. Kernels that run beside each other fill the device together.
    """
    work, windows = timeline.trace.work, timeline.windows
    rows = np.flatnonzero(timeline.chosen & (work.kind == DeviceEvent.KERNEL)).astype(np.int32)
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
        index = np.searchsorted(time, at, side="right") - 1
        known = np.maximum(index, 0)
        return np.where(index < 0, 0.0, until[known] + filled[known] * (at - time[known]))

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
    indices = [np.searchsorted(ordered, at, side="right") for at in (starts, ends)]
    sums_before = np.cumsum(ordered, out=ordered)
    at_starts, at_ends = (
        int((index * at - np.where(index > 0, sums_before[np.maximum(index, 1) - 1], 0)).sum())
        for index, at in zip(indices, (starts, ends), strict=True)
    )
    return at_ends - at_starts


def counter_means(timeline: Timeline) -> tuple[CounterMean, ...]:
    """Return the device's counters in the steady steps; samples cover equal stretches of time."""
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
            mean=float(f"{total[index] / counts[index]:.6g}"),
            least=float(value[which == index].min()),
            most=float(value[which == index].max()),
            samples=int(counts[index]),
        )
        for index, name in enumerate(names.tolist()[:_MOST_COUNTERS])
    )

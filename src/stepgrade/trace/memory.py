"""What a device's memory held: of a recording of allocations alone, and of the events in a trace."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from msgspec import structs

from stepgrade.model.allocations import (
    IN_BACKWARD,
    IN_FORWARD,
    IN_OPTIMIZER,
    IN_ZERO_GRAD,
    STATES_PER_WEIGHT,
    Allocations,
    MemoryRecording,
    MemoryTimeline,
)
from stepgrade.model.columns import groups
from stepgrade.model.events import (
    NONE,
    HostCalls,
    HostOps,
    HostRanges,
    Ids,
    Kinds,
    Longs,
    MemoryEvents,
)
from stepgrade.model.memory import Holder, Memory, MemoryCurve, PeakPlace
from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile, Source
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.torch_names import Mask, matching, named
from stepgrade.timeline.links import find_parents, inherit, pick
from stepgrade.timeline.timeline import IN_BACKWARD as BACKWARD_BIT
from stepgrade.timeline.timeline import IN_OPTIMIZER as OPTIMIZER_BIT
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.trace.allocations import (
    categories_at,
    curve_between,
    growth_of,
    has_addresses,
    holders_of,
    live_at,
    moments_of,
    replay,
    total_curve,
)
from stepgrade.trace.layers import Layers, blocks_of_rows

_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#|^##\s*zero_grad\b|^zero[ _]grad$", re.IGNORECASE)
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#(\w{1,60})")
_TAKES = re.compile(r"^(cuda|hip)(Malloc|MallocAsync)$|^(cu|hip)MemCreate$")
# With less than this reserved nobody asked in vain.
_ROOMY_SHARE = 0.5
_ASKS_AGAIN = re.compile(rb"tg+(?=t)")  # t takes memory, g gives it back
_GIVES_BACK = re.compile(r"^(cuda|hip)(Free|FreeAsync)$|^(cu|hip)MemRelease$")
_MORE_THAN_ANY = 1 << 50
_NO_STEP_TIMES = Note(
    "no_step_times",
    "A recording of memory holds allocations, not the times of steps: a trace of the same run can be graded.",
    fatal=True,
)
_PROCESSOR = 0


def profile_of_memory(recording: MemoryRecording | MemoryTimeline) -> Profile:
    """Return the profile of a recording that holds memory and no times of steps."""
    if isinstance(recording, MemoryTimeline):
        return profile_of_timeline(recording)
    memory, phase = memory_of_recording(recording), recording.events.phase
    is_training = recording.has_phases and bool((phase != IN_FORWARD).any())
    return Profile(
        source=Source(format=recording.format, files=(recording.file,), producer=recording.producer),
        work="training" if is_training else "unknown",
        memory=memory,
        peak_memory_bytes=memory.peak_bytes,
        contents=recording.contents,
        notes=recording.notes,
        warnings=(_NO_STEP_TIMES,),
    )


def profile_of_timeline(timeline: MemoryTimeline) -> Profile:
    """Return the profile of a timeline, which tells the categories itself."""
    at_ms, levels = timeline.at_ms, timeline.levels
    total = np.sum(list(levels.values()), axis=0)
    peak = int(total.argmax())
    picks = moments_of(total)
    held = {name: level for name, level in levels.items() if level.any()}
    parts = {name: float(level[peak]) for name, level in held.items() if level[peak] > 0}
    curve = MemoryCurve(
        at_ms=tuple(at_ms[picks].tolist()),
        has_times=bool(np.ptp(at_ms) > 0),
        categories={name: tuple(np.maximum(level[picks], 0.0).tolist()) for name, level in held.items()},
        peak_index=int(total[picks].argmax()),
    )
    is_training = any(levels[name].any() for name in ("gradients", "optimizer") if name in levels)
    return Profile(
        source=Source(format=timeline.format, files=(timeline.file,), producer="torch"),
        work="training" if is_training else "unknown",
        memory=Memory(
            peak_bytes=float(total[peak]),
            categories=parts,
            curve=curve if len(picks) > 1 else None,
        ),
        peak_memory_bytes=float(total[peak]),
        contents={"moments": f"{len(total):,}"},
        warnings=(_NO_STEP_TIMES,),
    )


def memory_of_recording(recording: MemoryRecording) -> Memory:
    """Return what a recording of allocations tells of the memory."""
    events = recording.events
    known = Memory(
        peak_bytes=float(recording.held_bytes),
        reserved_bytes=float(recording.reserved_bytes),
        largest_free_bytes=float(recording.largest_free_bytes),
        out_of_memory=recording.failed,
    )
    if not len(events.delta):  # only what is held at the end is known
        return known
    found = replay(events)
    tells_parts = recording.has_phases and has_addresses(events)
    peak_bytes, reserved = float(found.total[found.peak]), float(events.reserved[found.peak])
    maker = events.makers[int(events.tag[found.peak])]
    return Memory(
        peak_bytes=peak_bytes,
        reserved_bytes=max(float(events.reserved.max()), peak_bytes),
        categories=categories_at(found, found.peak) if tells_parts else {},
        peak_at=PeakPlace(op=maker.op, where=maker.where),
        fragmentation=max(0.0, 1.0 - peak_bytes / reserved) if reserved > 0 else None,
        largest_free_bytes=known.largest_free_bytes,
        from_before_bytes=float(found.events.base_bytes),
        retries=recording.retries,
        holders=holders_of(found, live_at(found, found.peak)),
        growth=growth_of(found, np.array(recording.step_ends, np.int64)),
        out_of_memory=recording.failed,
        curve=(
            curve_between(found, 0, len(found.total), int(events.time_ns[0]))
            if tells_parts
            else total_curve(found, 0, len(found.total), int(events.time_ns[0]))
        ),
    )


class LocatedEvents(NamedTuple):
    """Allocations and frees of the analysed device, and the row of the host tree that each happens in."""

    events: MemoryEvents
    row: Ids


def locate_memory(timeline: Timeline) -> LocatedEvents | None:
    """Return the profiler's `[memory]` events of the analysed device; None without any."""
    chosen = _of_device(timeline)
    return None if chosen is None else LocatedEvents(chosen, _rows_around(timeline, chosen))


def memory_of_trace(timeline: Timeline, layers: Layers, located: LocatedEvents | None) -> Memory | None:
    """Return what the memory of the analysed device held."""
    if located is None:
        return None
    chosen, row = located
    # Operations and lines of code are looked up once for each pair that occurs.
    tree, trace = timeline.tree, timeline.trace
    op = pick(tree.name, pick(tree.op, row))
    line = _lines_at(timeline, chosen)
    pairs, tag, _ = groups(op.astype(np.int64) * (len(trace.strings) + 1) + line + 1)
    makers = []
    for pair in pairs.tolist():
        name, where = divmod(pair, len(trace.strings) + 1)
        makers.append(
            Holder(
                bytes=0.0,
                op=trace.strings[name] if name >= 0 else None,
                where=read_frame(trace.strings[where - 1]).where if where else None,
            )
        )
    totals_known = bool((chosen.allocated != NONE).all())
    base = int(chosen.allocated[0] - chosen.bytes[0]) if totals_known else 0
    found = replay(
        Allocations(
            time_ns=chosen.start_ns,
            delta=chosen.bytes,
            address=chosen.address,
            phase=_phases_of(timeline, row),
            tag=tag.astype(np.int32),
            makers=tuple(makers),
            base_bytes=max(base, 0),
            states_per_weight=_states_per_weight(timeline),
            reserved=chosen.reserved,
        )
    )
    steps, times = timeline.steps, np.maximum.accumulate(chosen.start_ns)
    ends = np.searchsorted(times, steps.end_ns)
    begins = np.searchsorted(times, steps.start_ns)
    of_peak = np.flatnonzero((begins <= found.peak) & (found.peak < ends))
    low, high, start_ns = 0, len(times), int(times[0])
    if len(of_peak):
        step = int(of_peak[0])
        low, high, start_ns = int(begins[step]), int(ends[step]), int(steps.start_ns[step])
    peak_bytes, reserved = float(found.total[found.peak]), float(chosen.reserved[found.peak])
    maker = found.events.makers[int(found.events.tag[found.peak])]
    known = Memory(
        peak_bytes=peak_bytes,
        reserved_bytes=float(chosen.reserved.max()) if reserved > 0 else None,
        peak_at=PeakPlace(op=maker.op, where=maker.where, layer=_layer_at(timeline, layers, row[found.peak])),
        fragmentation=max(0.0, 1.0 - peak_bytes / reserved) if reserved > 0 else None,
        from_before_bytes=float(found.events.base_bytes),
        retries=_retries(timeline, float(chosen.reserved.max())) if len(trace.calls.name) else None,
        curve=total_curve(found, low, high, start_ns),
    )
    if not has_addresses(found.events):  # of 2021: what is freed cannot be told
        return known
    return structs.replace(
        known,
        categories=categories_at(found, found.peak),
        holders=holders_of(found, live_at(found, found.peak)),
        growth=growth_of(found, ends),
        curve=curve_between(found, low, high, start_ns),
    )


def _of_device(timeline: Timeline) -> MemoryEvents | None:
    """Return the events of the device that most bytes were allocated on, in the profiler's own order."""
    memory = timeline.trace.memory
    if memory is None or not len(memory.bytes):
        return None
    usable = (memory.bytes != 0) & (memory.kind >= 0)
    for column in (memory.bytes, memory.allocated, memory.reserved):  # more than any device has is no size
        usable &= (column > -_MORE_THAN_ANY) & (column < _MORE_THAN_ANY)
    on_device = usable & (memory.kind != _PROCESSOR)
    if not on_device.any() and timeline.driver is not Driver.HOST:
        return None  # the host's memory says nothing about the device's
    rows = np.flatnonzero(on_device if on_device.any() else usable)
    if not len(rows):
        return None
    _, which, _ = groups(memory.kind[rows].astype(np.int64) * (1 << 20) + (memory.device[rows] % (1 << 20)))
    most = np.bincount(which, weights=np.abs(memory.bytes[rows])).argmax()
    rows = rows[which == most]
    if (memory.order[rows] >= 0).all():
        rows = rows[np.argsort(memory.order[rows], kind="stable")]
    return MemoryEvents(**{name: column[rows] for name, column in structs.asdict(memory).items()})


def _rows_around(timeline: Timeline, events: MemoryEvents) -> Ids:
    """Return the innermost row of the host tree that runs when each event happens, or NONE."""
    tree, trace = timeline.tree, timeline.trace
    count = len(tree.name)
    if not count:
        return np.full(len(events.bytes), NONE, np.int32)
    tables: tuple[HostRanges | HostOps | HostCalls, ...] = (
        *(trace.ranges, trace.ranges),  # annotations, modules
        *(trace.ops, trace.calls),
    )
    start, end, thread = (np.empty(count + len(events.bytes), np.int64) for _ in range(3))
    for kind, table in enumerate(tables):
        of_kind = np.flatnonzero(tree.kind == kind)
        origin = tree.origin[of_kind]
        start[of_kind] = table.start_ns[origin]
        end[of_kind] = table.start_ns[origin] + table.dur_ns[origin]
        thread[of_kind] = table.thread[origin]
    start[count:] = end[count:] = events.start_ns
    thread[count:] = events.thread
    order = np.lexsort((np.arange(len(start)), start, thread))
    parent = find_parents(start[order], end[order], thread[order].astype(np.int32))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    above = parent[place[count:]]
    rows: Ids = np.where(above >= 0, order[np.maximum(above, 0)], NONE).astype(np.int32)
    return rows


def _phases_of(timeline: Timeline, row: Ids) -> Kinds:
    """Return the phase of each event; one outside of all operations is in that of the event before it."""
    tree, strings = timeline.tree, timeline.trace.strings
    phase = np.full(len(row), NONE, np.int8)
    if len(tree.name):
        bits = matching(strings, _ZERO_GRAD)[tree.name].astype(np.int8)
        clears = pick(inherit(tree.parent, bits), row) > 0
        context = np.where(row >= 0, pick(timeline.context, row), np.int8(0))
        phase[pick(tree.op, row) >= 0] = IN_FORWARD
        phase[(context & OPTIMIZER_BIT) > 0] = IN_OPTIMIZER
        phase[(context & BACKWARD_BIT) > 0] = IN_BACKWARD
        phase[clears] = IN_ZERO_GRAD
    known = np.maximum.accumulate(np.where(phase >= 0, np.arange(len(phase)), 0))
    filled: Kinds = np.maximum(phase[known], np.int8(IN_FORWARD))
    return filled


def _lines_at(timeline: Timeline, events: MemoryEvents) -> Longs:
    """Return the name of the user's function that the loop's thread was in at each event, or NONE."""
    frames = timeline.frames
    found = np.full(len(events.bytes), NONE, np.int64)
    if not len(frames.start_ns):
        return found
    place = np.searchsorted(frames.start_ns, events.start_ns, side="right") - 1
    inside: Mask = (place >= 0) & (events.start_ns < frames.end_ns[np.maximum(place, 0)])
    inside &= events.thread == timeline.steps.thread
    found[inside] = frames.user[place[inside]]
    return found


def _layer_at(timeline: Timeline, layers: Layers, row: int) -> str | None:
    if layers.blocks is None or row < 0:
        return None
    in_backward = (timeline.context[row : row + 1] & BACKWARD_BIT) > 0
    block = int(blocks_of_rows(timeline, layers.blocks, np.array([row], np.int32), in_backward)[0])
    return layers.blocks.names[block] if block >= 0 else None


def _states_per_weight(timeline: Timeline) -> int:
    """Return how many values of a weight's size the optimizer keeps for each weight; 0 if not known."""
    trace = timeline.trace
    steps = trace.ranges.name[named(trace.strings, trace.ranges.name, _OPTIMIZER_STEP)]
    match = _OPTIMIZER_STEP.match(trace.strings[int(steps[0])]) if len(steps) else None
    return STATES_PER_WEIGHT.get(match[1], 0) if match else 0


def _retries(timeline: Timeline, reserved_bytes: float) -> int:
    """Return how often, in the steady steps, an allocation gave memory back to the device and asked again.

    Between the two requests nothing else is done. Libraries that set themselves up do the same, on a device
    that has room.
    """
    trace = timeline.trace
    capacities = [device.memory_bytes for device in trace.devices if device.memory_bytes]
    if capacities and 0.0 < reserved_bytes < _ROOMY_SHARE * min(capacities):
        return 0
    takes = named(trace.strings, trace.calls.name, _TAKES)
    gives = named(trace.strings, trace.calls.name, _GIVES_BACK)
    if not takes.any() or not gives.any():
        return 0
    rows = np.flatnonzero(takes | gives)
    rows = rows[timeline.in_steady_step(trace.calls.start_ns[rows])]
    letters = np.where(takes[rows], ord("t"), ord("g"))
    order = np.lexsort(
        (
            np.concatenate([trace.ops.start_ns, trace.calls.start_ns[rows]]),
            np.concatenate([trace.ops.thread, trace.calls.thread[rows]]),
        )
    )
    kinds = np.concatenate([np.full(len(trace.ops.name), ord("o")), letters])[order]
    return len(_ASKS_AGAIN.findall(kinds.astype(np.uint8).tobytes()))

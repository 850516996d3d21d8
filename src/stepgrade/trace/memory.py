"""The memory of a device, from a recording of allocations or from the events in a trace.

The category of a block follows from its lifetime: made and freed within one pass it is temporary; made in the
forward pass and alive in the backward pass, an activation; outliving the backward pass that made it, a
gradient; outliving the optimizer that made it, optimizer state.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import structs

from stepgrade.model.allocations import (
    IN_BACKWARD,
    IN_FORWARD,
    IN_OPTIMIZER,
    IN_SETUP,
    IN_ZERO_GRAD,
    STATES_PER_WEIGHT,
    Allocations,
    MemoryRecording,
    MemoryTimeline,
)
from stepgrade.model.columns import groups, median
from stepgrade.model.events import NONE, Floats, Ids, Kinds, Longs, MemoryEvents
from stepgrade.model.memory import (
    ACTIVATIONS,
    CATEGORIES,
    GRADIENTS,
    OPTIMIZER,
    OTHER,
    TEMPORARY,
    WEIGHTS,
    Holder,
    Memory,
    MemoryCurve,
    MemoryGrowth,
    PeakPlace,
)
from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile, Source
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.torch_names import Mask, matching, named
from stepgrade.patterns import regex
from stepgrade.timeline.links import CALL, MODULE, OP, RANGE, find_parents, nearest, pick
from stepgrade.timeline.timeline import IN_BACKWARD as BACKWARD_BIT
from stepgrade.timeline.timeline import IN_OPTIMIZER as OPTIMIZER_BIT
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.trace.layers import Layers, blocks_of_rows

_MOST_POINTS = 160
_MOST_HOLDERS = 12
# A level that rises with every step, by more than rounding.
_LEAST_STEPS = 4
_LEAST_GROWTH_BYTES = 1 << 16
_ZERO_GRAD = regex(r"^Optimizer\.zero_grad#|^##\s*zero_grad\b|^zero[ _]grad$", re.IGNORECASE)
_OPTIMIZER_STEP = regex(r"^Optimizer\.step#(\w{1,60})")
_TAKES = regex(r"^(cuda|hip)(Malloc|MallocAsync)$|^(cu|hip)MemCreate$")
# With less than this reserved nobody asked in vain.
_ROOMY_SHARE = 0.5
_ASKS_AGAIN = regex(rb"tg+(?=t)")  # t takes memory, g gives it back
_GIVES_BACK = regex(r"^(cuda|hip)(Free|FreeAsync)$|^(cu|hip)MemRelease$")
_MORE_THAN_ANY = 1 << 50
_NO_STEP_TIMES = Note(
    "no_step_times",
    "A memory recording contains allocations, not step times: a trace of the same run can be graded.",
    fatal=True,
)
_PROCESSOR = 0


class HeldBlocks(NamedTuple):
    """One row for each block of memory; `died` is the number of events for a block that is never freed."""

    size: Longs
    born: Longs  # the event that allocated it; NONE if that was before the first event
    died: Longs
    category: Kinds
    tag: Ids


class Replay(NamedTuple):
    """What was allocated after each event."""

    events: Allocations
    blocks: HeldBlocks
    total: Longs
    peak: int  # the event after which most was allocated


def replay(events: Allocations) -> Replay:
    """Return the blocks, each allocation with the next free at its address, and what was held over time."""
    count = len(events.delta)
    order = np.argsort(events.address, kind="stable")
    address, made = events.address[order], events.delta[order] > 0
    follows = np.zeros(count, np.bool_)  # the row before is at the same address
    follows[1:] = address[1:] == address[:-1]
    died = np.full(count, count, np.int64)
    died[:-1][follows[1:]] = order[1:][follows[1:]]
    unseen = ~made
    unseen[1:] &= ~(follows[1:] & made[:-1])
    rows, before = order[made], order[unseen]
    size = np.concatenate((events.delta[rows], -events.delta[before]))
    born = np.concatenate((rows, np.full(len(before), NONE, np.int64)))
    ends = np.concatenate((died[made], before))
    tag = np.concatenate((events.tag[rows], np.full(len(before), NONE, np.int32))).astype(np.int32)
    blocks, total = (
        HeldBlocks(size, born, ends, _categorise(events, born, ends), tag),
        np.cumsum(events.delta),
    )
    # A processor's allocator counts from the start of recording, but frees earlier blocks as well.
    earlier = int(size[born < 0].sum()) if has_addresses(events) else -int(total.min(initial=0))
    base = max(events.base_bytes, earlier)
    total += base
    peak = int(total.argmax()) if count else 0
    return Replay(events._replace(base_bytes=base), blocks, total, peak)


def has_addresses(events: Allocations) -> bool:
    """Return whether it is known which allocation a free belongs to."""
    return not ((events.address == NONE) | (events.address == 0)).any()


def _levels(found: Replay, chosen: Mask) -> Longs:
    """Return the bytes of the chosen blocks that are held after each event."""
    blocks, count = found.blocks, len(found.events.delta) + 1
    size = blocks.size[chosen]
    made = np.bincount(np.maximum(blocks.born[chosen], 0), weights=size, minlength=count)
    freed = np.bincount(blocks.died[chosen], weights=size, minlength=count)
    levels: Longs = np.cumsum(made - freed).astype(np.int64)[:-1]
    return levels


def _categorise(events: Allocations, born: Longs, died: Longs) -> Kinds:
    """Return the category of each block by the passes in which it was made and freed."""
    count = len(events.phase)
    category = np.full(len(born), OTHER, np.int8)
    if not count:
        return category
    part = np.zeros(count + 1, np.int64)  # which pass an event is in, counted from 0
    part[1:count] = np.cumsum(events.phase[1:] != events.phase[:-1])
    part[count] = part[count - 1] + 1  # blocks that are never freed outlive the last pass
    # How many backward passes have begun before each event, and up to it.
    is_backward = events.phase == IN_BACKWARD
    begins = is_backward.copy()
    begins[1:] &= ~is_backward[:-1]
    passes = np.zeros(count + 1, np.int64)
    passes[1:] = np.cumsum(begins)
    seen = born >= 0
    made = np.where(seen, born, 0)
    phase, outlives = events.phase[made], part[made] != part[died]
    seen_passes = passes[np.minimum(died + 1, count)] - passes[made]
    from_forward = seen & outlives & (phase == IN_FORWARD)
    category[seen] = TEMPORARY
    category[from_forward & ((seen_passes == 1) | (died == count))] = ACTIVATIONS
    # Blocks that several backward passes see were made to stay.
    category[from_forward & (seen_passes > 1)] = OTHER
    category[seen & (phase == IN_SETUP) & (died == count)] = WEIGHTS
    category[seen & outlives & (phase == IN_BACKWARD)] = GRADIENTS
    category[seen & outlives & (phase == IN_OPTIMIZER)] = OPTIMIZER
    # Of earlier blocks, an optimizer frees states that it replaces, and `zero_grad` gradients.
    ends_in = events.phase[np.minimum(died, count - 1)]
    category[~seen & (ends_in == IN_OPTIMIZER)] = OPTIMIZER
    category[~seen & (ends_in == IN_ZERO_GRAD)] = GRADIENTS
    return category


def live_at(found: Replay, event: int) -> Mask:
    """Return which blocks are held after the event."""
    return (found.blocks.born <= event) & (found.blocks.died > event)


def categories_at(found: Replay, event: int) -> dict[str, float]:
    """Return the bytes of each category after the event; they add up to what is allocated then."""
    blocks, live = found.blocks, live_at(found, event)
    held = np.bincount(blocks.category[live], weights=blocks.size[live], minlength=len(CATEGORIES))
    for category, amount in split_base(found).items():
        held[category] += amount
    return {name: float(amount) for name, amount in zip(CATEGORIES, held, strict=True) if amount > 0}


def split_base(found: Replay) -> dict[int, float]:
    """Return what was there before and stays: weights, optimizer states, and what is not known.

    Each trained weight has a gradient of its size, and as many states as its kind of optimizer keeps.
    """
    events, blocks = found.events, found.blocks
    base = float(events.base_bytes - int(blocks.size[blocks.born < 0].sum()))
    gradients = float(_levels(found, blocks.category == GRADIENTS).max(initial=0))
    if base <= 0 or not gradients:
        return {OTHER: max(base, 0.0)}
    own_states = float(blocks.size[blocks.category == OPTIMIZER].sum())
    states = max(0.0, gradients * events.states_per_weight - own_states)
    return {WEIGHTS: base - states, OPTIMIZER: states} if base > states else {WEIGHTS: base}


def curve_between(
    found: Replay, low: int, high: int, start_ns: int, *, by_category: bool
) -> MemoryCurve | None:
    """Return the memory over the events from `low` to before `high`: the highest moment of each stretch."""
    picks = low + moments_of(found.total[low:high])
    if len(picks) < 2:
        return None
    held: dict[str, tuple[float, ...]] = {}
    if by_category:
        base = split_base(found)
        for number, name in enumerate(CATEGORIES):
            level = _levels(found, found.blocks.category == number)[picks] + base.get(number, 0.0)
            if level.any():
                held[name] = tuple(np.maximum(level, 0.0).tolist())
    else:
        held[CATEGORIES[OTHER]] = tuple(found.total[picks].astype(float).tolist())
    has_times = bool((found.events.time_ns >= 0).all())
    at = (found.events.time_ns[picks] - start_ns) / 1e6 if has_times else picks.astype(float)
    return MemoryCurve(
        at_ms=tuple(np.maximum(at, 0.0).tolist()),
        has_times=has_times,
        categories=held,
        peak_index=int(found.total[picks].argmax()),
    )


def moments_of(total: Longs | Floats) -> Longs:
    """Return the indices of a few moments, enough for a curve: the highest of each stretch."""
    edges = np.linspace(0, len(total), min(_MOST_POINTS, len(total)) + 1).astype(np.int64)
    return np.array([a + int(total[a:b].argmax()) for a, b in pairwise(edges.tolist())], np.int64)


def holders_of(found: Replay, chosen: Mask) -> tuple[Holder, ...]:
    """Return who allocated the chosen blocks, most bytes first."""
    blocks = found.blocks
    rows = np.flatnonzero(chosen & (blocks.tag >= 0))
    key = blocks.tag[rows].astype(np.int64) * len(CATEGORIES) + blocks.category[rows]
    sums: dict[tuple[str | None, str | None, str], float] = {}
    if not len(rows):
        return ()
    amount = np.bincount(key, weights=blocks.size[rows])
    for value in np.flatnonzero(amount).tolist():
        maker, name = found.events.makers[value // len(CATEGORIES)], CATEGORIES[value % len(CATEGORIES)]
        who = (maker.op, maker.where, name)
        sums[who] = sums.get(who, 0.0) + float(amount[value])
    most = sorted(sums.items(), key=lambda item: -item[1])[:_MOST_HOLDERS]
    return tuple(Holder(bytes=size, op=op, where=where, category=name) for (op, where, name), size in most)


def growth_of(found: Replay, ends: Longs) -> MemoryGrowth | None:
    """Return how the memory grows from step to step; `ends` are the numbers of events before each step's end.

    The first step allocates what stays, gradients and states: it does not count.
    """
    edges = ends[1:]
    if len(edges) < _LEAST_STEPS + 1 or not len(found.total):
        return None
    least = np.minimum.reduceat(found.total, np.minimum(edges[:-1], len(found.total) - 1))
    rises = np.diff(least)
    if (rises <= 0).any() or median(rises) < _LEAST_GROWTH_BYTES:
        return None
    blocks, count = found.blocks, len(found.total)
    kept = (blocks.born >= edges[0]) & (blocks.born < edges[-2]) & (blocks.died >= count)
    return MemoryGrowth(bytes_per_step=median(rises), steps=len(rises) + 1, holders=holders_of(found, kept))


def _at_peak(found: Replay, extent: tuple[int, int, int], *, by_category: bool) -> Memory:
    """Return the memory at its peak, and over the events of `extent` (first, last, and its start in ns)."""
    events = found.events
    peak_bytes, reserved = float(found.total[found.peak]), float(events.reserved[found.peak])
    maker = events.makers[int(events.tag[found.peak])]
    return Memory(
        peak_bytes=peak_bytes,
        peak_at=PeakPlace(op=maker.op, where=maker.where),
        fragmentation=max(0.0, 1.0 - peak_bytes / reserved) if reserved > 0 else None,
        from_before_bytes=float(events.base_bytes),
        categories=categories_at(found, found.peak) if by_category else {},
        curve=curve_between(found, *extent, by_category=by_category),
    )


def profile_of_memory(recording: MemoryRecording | MemoryTimeline) -> Profile:
    """Return the profile of a recording that holds memory and no times of steps."""
    if isinstance(recording, MemoryTimeline):  # its bytes are already divided into categories
        total = np.sum(list(recording.levels.values()), axis=0)
        levels = {name: level for name, level in recording.levels.items() if level.any()}
        peak, picks = int(total.argmax()), moments_of(total)
        curve = MemoryCurve(
            at_ms=tuple(recording.at_ms[picks].tolist()),
            has_times=bool(np.ptp(recording.at_ms) > 0),
            categories={
                name: tuple(np.maximum(level[picks], 0.0).tolist()) for name, level in levels.items()
            },
            peak_index=int(total[picks].argmax()),
        )
        memory = Memory(
            peak_bytes=float(total[peak]),
            categories={name: float(level[peak]) for name, level in levels.items() if level[peak] > 0},
            curve=curve if len(picks) > 1 else None,
        )
        is_training = not levels.keys().isdisjoint({"gradients", "optimizer"})
        producer, contents, notes = "torch", {"moments": f"{len(total):,}"}, tuple[Note, ...]()
    else:
        events, reserved = recording.events, float(recording.reserved_bytes)
        memory = Memory(peak_bytes=float(recording.held_bytes))
        if len(events.delta):  # else only what is held at the end is known
            found = replay(events)
            by_category = recording.has_phases and has_addresses(events)
            memory = structs.replace(
                _at_peak(found, (0, len(found.total), int(events.time_ns[0])), by_category=by_category),
                retries=recording.retries,
                holders=holders_of(found, live_at(found, found.peak)),
                growth=growth_of(found, np.array(recording.step_ends, np.int64)),
            )
            reserved = float(max(events.reserved.max(), found.total[found.peak]))
        memory = structs.replace(
            memory,
            reserved_bytes=reserved,
            largest_free_bytes=float(recording.largest_free_bytes),
            out_of_memory=recording.failed,
        )
        is_training = recording.has_phases and bool((events.phase != IN_FORWARD).any())
        producer, contents, notes = recording.producer, recording.contents, recording.notes
    return Profile(
        source=Source(format=recording.format, files=(recording.file,), producer=producer),
        work="training" if is_training else "unknown",
        memory=memory,
        peak_memory_bytes=memory.peak_bytes,
        contents=contents,
        notes=notes,
        warnings=(_NO_STEP_TIMES,),
    )


class LocatedEvents(NamedTuple):
    """Allocations and frees of the analysed device, and the row of the host tree that each happens in."""

    events: MemoryEvents
    row: Ids


def locate_memory(timeline: Timeline) -> LocatedEvents | None:
    """Return the `[memory]` events of the device with the most allocated bytes, in the profiler's own order.

    Each comes with the innermost row of the host tree that runs when it happens, or NONE.
    """
    memory, tree, trace = timeline.trace.memory, timeline.tree, timeline.trace
    if memory is None or not len(memory.bytes):
        return None
    usable = (memory.bytes != 0) & (memory.kind >= 0)
    for column in (memory.bytes, memory.allocated, memory.reserved):  # larger than any device: not a size
        usable &= (column > -_MORE_THAN_ANY) & (column < _MORE_THAN_ANY)
    on_device = usable & (memory.kind != _PROCESSOR)
    # The host's memory says nothing about the device's.
    rows = np.flatnonzero(on_device if on_device.any() or timeline.driver is not Driver.HOST else usable)
    if not len(rows):
        return None
    _, which, _ = groups(memory.kind[rows].astype(np.int64) * (1 << 20) + (memory.device[rows] % (1 << 20)))
    rows = rows[which == np.bincount(which, weights=np.abs(memory.bytes[rows])).argmax()]
    if (memory.order[rows] >= 0).all():
        rows = rows[np.argsort(memory.order[rows], kind="stable")]
    events = MemoryEvents(**{name: column[rows] for name, column in structs.asdict(memory).items()})
    count = len(tree.name)
    start, end, thread = (np.empty(count + len(rows), np.int64) for _ in range(3))
    tables = {RANGE: trace.ranges, MODULE: trace.ranges, OP: trace.ops, CALL: trace.calls}
    for kind, table in tables.items():
        own = np.flatnonzero(tree.kind == kind)
        origin = tree.origin[own]
        start[own], end[own] = table.start_ns[origin], table.end_ns[origin]
        thread[own] = table.thread[origin]
    start[count:] = end[count:] = events.start_ns
    thread[count:] = events.thread
    order = np.lexsort((np.arange(len(start)), start, thread))
    parent = find_parents(start[order], end[order], thread[order].astype(np.int32))
    index = np.empty(len(order), np.int64)
    index[order] = np.arange(len(order))
    return LocatedEvents(events, pick(order.astype(np.int32), parent[index[count:]]))


def memory_of_trace(timeline: Timeline, layers: Layers, located: LocatedEvents | None) -> Memory | None:
    """Return what the memory of the analysed device held."""
    if located is None:
        return None
    events, row = located
    # Operations and lines of code are looked up once for each pair that occurs.
    tree, trace, frames = timeline.tree, timeline.trace, timeline.frames
    op = pick(tree.name, pick(tree.op, row))
    in_loop = events.thread == timeline.steps.thread
    line = np.where(in_loop, pick(frames.user, frames.at(events.start_ns)), NONE)
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
    optimizers = trace.ranges.name[named(trace.strings, trace.ranges.name, _OPTIMIZER_STEP)]
    optimizer = _OPTIMIZER_STEP.match(trace.strings[int(optimizers[0])]) if len(optimizers) else None
    totals_known = bool((events.allocated != NONE).all())
    found = replay(
        Allocations(
            time_ns=events.start_ns,
            delta=events.bytes,
            address=events.address,
            phase=_phases_of(timeline, row),
            tag=tag.astype(np.int32),
            makers=tuple(makers),
            base_bytes=max(int(events.allocated[0] - events.bytes[0]) if totals_known else 0, 0),
            states_per_weight=STATES_PER_WEIGHT.get(optimizer[1], 0) if optimizer else 0,
            reserved=events.reserved,
        )
    )
    steps, times = timeline.steps, np.maximum.accumulate(events.start_ns)
    ends = np.searchsorted(times, steps.end_ns)
    begins = np.searchsorted(times, steps.start_ns)
    of_peak = np.flatnonzero((begins <= found.peak) & (found.peak < ends))
    extent = 0, len(times), int(times[0])
    if len(of_peak):
        step = int(of_peak[0])
        extent = int(begins[step]), int(ends[step]), int(steps.start_ns[step])
    layer, peak_row = None, row[found.peak : found.peak + 1]
    if layers.blocks is not None and peak_row[0] >= 0:
        in_backward = (timeline.context[peak_row] & BACKWARD_BIT) > 0
        block = int(blocks_of_rows(timeline, layers.blocks, peak_row, in_backward)[0])
        layer = layers.blocks.names[block] if block >= 0 else None
    is_whole = has_addresses(found.events)  # in 2021 frees did not name what they freed
    reserved = float(events.reserved.max())
    memory = _at_peak(found, extent, by_category=is_whole)
    return structs.replace(
        memory,
        reserved_bytes=reserved if events.reserved[found.peak] > 0 else None,
        peak_at=memory.peak_at and structs.replace(memory.peak_at, layer=layer),
        retries=_retries(timeline, reserved) if len(trace.calls.name) else None,
        holders=holders_of(found, live_at(found, found.peak)) if is_whole else (),
        growth=growth_of(found, ends) if is_whole else None,
    )


def _phases_of(timeline: Timeline, row: Ids) -> Kinds:
    """Return the phase of each event; events outside of all operations are in that of the event before."""
    tree, strings = timeline.tree, timeline.trace.strings
    phase = np.full(len(row), NONE, np.int8)
    if len(tree.name):
        clears = pick(nearest(tree.parent, matching(strings, _ZERO_GRAD)[tree.name]), row) >= 0
        context = np.where(row >= 0, pick(timeline.context, row), np.int8(0))
        phase[pick(tree.op, row) >= 0] = IN_FORWARD
        phase[(context & OPTIMIZER_BIT) > 0] = IN_OPTIMIZER
        phase[(context & BACKWARD_BIT) > 0] = IN_BACKWARD
        phase[clears] = IN_ZERO_GRAD
    known = np.maximum.accumulate(np.where(phase >= 0, np.arange(len(phase)), 0))
    filled: Kinds = np.maximum(phase[known], np.int8(IN_FORWARD))
    return filled


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

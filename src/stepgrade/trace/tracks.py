"""Draw a trace: one step as lanes of slices for a report, and every event as tracks for a timeline tool.

In a report, events too short to be seen are gathered into one slice, named after the longest of them.
Timeline tools draw slices inside each other and drop other overlaps: those get tracks of their own here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from stepgrade.model.columns import groups
from stepgrade.model.events import NONE, Ids, Kinds, Longs, Trace, Wholes
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.step_view import Lane, LaneKind, StepView
from stepgrade.model.tracks import Counter, RanksTogether, RankTracks, Track, TrackKind
from stepgrade.naming.torch_names import classes_of
from stepgrade.naming.work_class import WorkClass
from stepgrade.ranks.collectives import Arrivals, find_arrivals
from stepgrade.ranks.matching import Matching
from stepgrade.ranks.ranks import number_ranks, share_clock
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import waiting_calls
from stepgrade.timeline.links import pick
from stepgrade.timeline.steps import outermost_operations
from stepgrade.timeline.timeline import (
    PHASES,
    Driver,
    Pieces,
    Timeline,
    build_timeline,
    find_pieces,
)

SLICES = 4_000  # across a step: single kernels where a reader zooms in
RANKS_VIEWED = 16  # of thousands, the first: nobody reads more
STREAMS_SHOWN = 6
THREADS_SHOWN = 3
LONGEST_NAME = 80
_Columns = tuple[Wholes, Wholes, Wholes, Wholes]  # start, end, label, look
_WAIT = len(WorkClass)  # beside the classes of work: the host waits for the device
# Beyond so many tracks of one stream or thread, what overlaps is cut to fit: no sound trace comes near.
MOST_LAYERS = 32


def view_steps(timeline: Timeline, pieces: Pieces) -> tuple[StepView, ...]:
    """Return the middle steady step of the run, and the slowest and the fastest where they differ from it.

    None are drawn without a steady step, and where no device was seen.
    """
    steady, rank = np.flatnonzero(timeline.windows.steady), timeline.trace.rank
    if not len(steady) or (rank is not None and rank >= RANKS_VIEWED) or timeline.driver is Driver.UNSEEN:
        return ()
    by_time = steady[np.argsort(timeline.windows.dur_ns[steady], kind="stable")]
    steps = dict.fromkeys((int(steady[len(steady) // 2]), int(by_time[-1]), int(by_time[0])))
    return tuple(_view_step(timeline, pieces, step) for step in steps if timeline.windows.dur_ns[step] > 0)


def _view_step(timeline: Timeline, pieces: Pieces, step: int) -> StepView:
    trace, tree, windows = timeline.trace, timeline.tree, timeline.windows
    begin, end = extent = int(windows.start_ns[step]), int(windows.end_ns[step])
    accounts, phases, classes = [*ACCOUNTS], [*PHASES], [*(member.label for member in WorkClass), "wait"]
    lanes: list[Lane | None] = []
    if timeline.ledger is not None:
        start, stop, account = _account_slices([iv.clip(s, *extent) for s in timeline.ledger.by_account()])
        lanes.append(
            _lane("ledger", "the device", extent, (start, stop, account, account), accounts, accounts)
        )
    start, stop, phase = phase_stretches(pieces, extent)
    lanes.append(_lane("phases", "phases", extent, (start, stop, phase, phase), phases, phases))
    if timeline.driver is Driver.DEVICE:
        stop = pieces.start_ns + pieces.dur_ns
        rows = np.flatnonzero((stop > begin) & (pieces.start_ns < end))
        columns = (pieces.start_ns[rows], stop[rows], pieces.label[rows], pieces.work_class[rows])
        streams = _busiest(trace.work.stream[pieces.work[rows]], columns, STREAMS_SHOWN)
        lanes += [
            _lane("stream", f"stream {stream}", extent, own, pieces.labels, classes)
            for stream, own in streams
        ]
    # The outermost operations of the busiest threads, and when they waited for the device.
    op = np.flatnonzero(outermost_operations(tree))
    waits = np.flatnonzero(waiting_calls(trace, timeline.links, timeline.steps))
    look = np.append(classes_of(trace.strings, trace.ops.name[op]), np.full(len(waits), _WAIT, np.int8))
    start, dur, name, thread = (
        np.append(getattr(trace.ops, column)[op], getattr(trace.calls, column)[waits])
        for column in ("start_ns", "dur_ns", "name", "thread")
    )
    rows = np.flatnonzero((start + dur > begin) & (start < end))
    columns = (start[rows], (start + dur)[rows], name[rows], look[rows])
    for number, own in _busiest(thread[rows], columns, THREADS_SHOWN):
        described = trace.threads[number] if trace.threads else None
        title = described.name[:LONGEST_NAME] if described and described.name else "another thread"
        if number == timeline.steps.thread:
            title = "training loop"
        lanes.append(_lane("thread", title, extent, own, trace.strings, classes))
    return StepView(
        rank=trace.rank,
        number=int(timeline.steps.number[step]),
        at_ns=(trace.base_ns or 0) + begin,
        dur_ns=end - begin,
        lanes=tuple(lane for lane in lanes if lane is not None),
    )


def _account_slices(spans: Sequence[iv.Spans]) -> tuple[Longs, Longs, Longs]:
    """Return start, end and number of the account of each span."""
    start = np.concatenate([part.starts for part in spans])
    stop = np.concatenate([part.ends for part in spans])
    return start, stop, np.repeat(np.arange(len(spans)), [len(part.starts) for part in spans])


def _busiest(group: Wholes, columns: _Columns, count: int) -> Iterator[tuple[int, _Columns]]:
    """Yield the groups with the most time, each with its own rows of the columns."""
    values, which, _ = groups(group)
    busy = np.bincount(which, weights=columns[1] - columns[0], minlength=len(values))
    for index in np.argsort(-busy, kind="stable")[:count].tolist():
        start, stop, label, look = (column[which == index] for column in columns)
        yield int(values[index]), (start, stop, label, look)


def _lane(
    kind: LaneKind,
    name: str,
    extent: tuple[int, int],
    columns: _Columns,
    labels: Sequence[str],
    looks: Sequence[str],
) -> Lane | None:
    """Return a lane of the events (start, end, label, look), gathered to what can be shown."""
    begin, end = extent
    start, stop, label, look = columns
    start, stop = np.clip(start, begin, end), np.clip(stop, begin, end)
    kept = np.flatnonzero(stop > start)
    if not len(kept):
        return None
    # Of events that start together the longest is last, and the order of the file does not matter.
    kept = kept[np.lexsort((look[kept], label[kept], stop[kept], start[kept]))]
    start, stop, label, look = start[kept], stop[kept], label[kept], look[kept]
    # A lane shows one thing at a time: an event is cut where the next begins.
    stop = np.minimum(stop, np.append(start[1:], end))
    start, stop, label, look = (column[stop > start] for column in (start, stop, label, look))
    width = max((end - begin) // SLICES, 1)
    is_short = stop - start < width
    bucket = np.where(is_short, (start - begin) // width, -1)
    joins = np.append(False, is_short[1:] & is_short[:-1] & (bucket[1:] == bucket[:-1]))
    first = np.flatnonzero(~joins)
    slice_of = np.cumsum(~joins) - 1
    order = np.lexsort((label, stop - start, slice_of))
    longest = order[np.append(slice_of[order][1:] != slice_of[order][:-1], True)]
    return Lane(
        kind=kind,
        name=name,
        start_ns=tuple((start[first] - begin).tolist()),
        dur_ns=tuple((np.maximum.reduceat(stop, first) - start[first]).tolist()),
        label=tuple(labels[int(value)][:LONGEST_NAME] for value in label[longest]),
        look=tuple(looks[int(value)] for value in look[longest]),
        count=tuple(np.diff(np.append(first, len(start))).tolist()),
    )


class RankCollector:
    """Turns the traces of a run into tracks, one by one, and keeps what puts them on one clock."""

    def __init__(self) -> None:
        self._ranks: list[int | None] = []
        self._bases: list[tuple[int | None, tuple[str, ...]]] = []
        self._arrivals: list[Arrivals] = []
        self._steps: list[dict[int, tuple[int, bool]]] = []  # number -> start, steady
        self._processes: list[str | None] = []

    def add(self, trace: Trace) -> RankTracks:
        """Return the tracks of one rank."""
        timeline = build_timeline(trace)
        pieces = find_pieces(timeline)
        self._ranks.append(trace.rank)
        self._bases.append((trace.base_ns, (trace.file,)))
        self._arrivals.append(find_arrivals(timeline, pieces))
        self._processes.append(trace.process)
        windows = timeline.windows
        starts = zip(windows.start_ns.tolist(), windows.steady.tolist(), strict=True)
        self._steps.append(dict(zip(timeline.steps.number.tolist(), starts, strict=True)))
        return _tracks_of(timeline, pieces)

    def together(self) -> RanksTogether:
        """Return the numbers of the ranks, how far their clocks are apart, and which waited for which."""
        indices = number_ranks(self._ranks)
        ranks = [0] * len(indices)
        for number, index in indices.items():
            ranks[index] = number
        none = (0,) * len(ranks)
        is_joined = len({name for name in self._processes if name is not None}) < len(ranks)
        if len(ranks) < 2 or (is_joined and self._processes[0] is not None):
            return RanksTogether(ranks=tuple(ranks), offsets_ns=none, basis="the clock of the trace")
        known = [{number for number, (_, steady) in steps.items() if steady} for steps in self._steps]
        common = sorted(set.intersection(*known))
        if not share_clock(self._bases):
            first = next((number for number in self._steps[0] if all(number in s for s in self._steps)), None)
            begins = [
                (base or 0) + (steps[first][0] if first is not None else 0)
                for (base, _), steps in zip(self._bases, self._steps, strict=True)
            ]
            basis = "the traces share no clock: their first common steps begin together"
            return RanksTogether(
                ranks=tuple(ranks), offsets_ns=tuple(begin - begins[0] for begin in begins), basis=basis
            )
        matching = Matching()
        for number, index in indices.items():
            matching.add(number, self._arrivals[index])
        matched = matching.match(common, 0)
        offsets = matched.clock_offsets_ns if matched else {}
        basis = "the clocks of the hosts"
        if offsets:
            basis += ", corrected by the common ends of collectives"
        everywhere = sorted({number for steps in self._steps for number in steps})
        return RanksTogether(
            ranks=tuple(ranks),
            offsets_ns=tuple(offsets.get(number, 0) for number in ranks),
            basis=basis,
            waits=tuple(matching.waits(everywhere, offsets)),
        )


class _Strings:
    """Texts, each kept once: those of the trace, and what is added to them."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = list(texts)

    def add(self, texts: Sequence[str]) -> Ids:
        first = len(self.texts)
        self.texts += texts
        return np.arange(first, len(self.texts), dtype=np.int32)


def _tracks_of(timeline: Timeline, pieces: Pieces) -> RankTracks:
    trace, windows = timeline.trace, timeline.windows
    strings = _Strings(trace.strings)
    tracks = _layers(
        "steps",
        "steps",
        (
            windows.start_ns,
            np.maximum(windows.dur_ns, 0),
            strings.add([f"step {number}" for number in timeline.steps.number.tolist()]),
        ),
        category=strings.add([f"{mark.value}" for mark in windows.mark]),
        step=timeline.steps.number,
    )
    middle = np.flatnonzero(windows.steady)
    typical = None
    if len(middle):
        index = int(middle[len(middle) // 2])
        typical = int(windows.start_ns[index]), max(int(windows.dur_ns[index]), 0)
    longest = {}  # stretch of each account in the typical step
    if timeline.ledger is not None:
        spans = timeline.ledger.by_account()
        names = strings.add([account.words for account in ACCOUNTS.values()])
        start, stop, account = _account_slices(spans)
        title = "the host's time" if timeline.driver is Driver.HOST else "the device's time"
        tracks += _layers("ledger", title, (start, stop - start, names[account]))
        for name, own in zip(ACCOUNTS, spans if typical else (), strict=False):
            inside = iv.clip(own, typical[0], typical[0] + typical[1]) if typical else own
            if len(inside.starts):
                most = int((inside.ends - inside.starts).argmax())
                longest[name] = int(inside.starts[most]), int(inside.ends[most] - inside.starts[most])
    start, stop, phase = phase_stretches(pieces)
    if len(start):
        tracks += _layers("phases", "phases", (start, stop - start, strings.add(PHASES)[phase]))
    return RankTracks(
        file=trace.file,
        file_zero_ns=trace.file_zero_ns,
        base_ns=trace.base_ns or 0,
        tracks=(*tracks, *_streams(timeline, pieces, strings), *_threads(timeline)),
        strings=strings.texts,
        counters=_memory(trace),
        longest=longest,
        typical_step=typical,
    )


def _streams(timeline: Timeline, pieces: Pieces, strings: _Strings) -> list[Track]:
    """Return the device's work, a track for each stream; with steps for the analysed device."""
    work = timeline.trace.work
    if not len(work.name):
        return []
    step = np.full(len(work.name), NONE, np.int64)
    known = (pieces.work >= 0) & (pieces.step >= 0) & (pieces.step < len(timeline.steps.number))
    step[pieces.work[known]] = timeline.steps.number[pieces.step[known]]
    operation = pick(timeline.trace.ops.name, timeline.links.op)
    category = strings.add([member.label for member in WorkClass])[timeline.classes]
    launched = _first_launched(timeline)
    found = []
    several = bool((work.device != work.device[0]).any())
    for rows in _rows_of(work.device, work.stream):
        name = f"stream {int(work.stream[rows[0]])}"
        if several:
            name = f"device {int(work.device[rows[0]])}, {name}"
        found += _layers(
            "stream",
            name,
            (work.start_ns[rows], work.dur_ns[rows], work.name[rows]),
            category=category[rows],
            operation=operation[rows],
            step=step[rows],
            launched=launched[rows],
        )
    return found


def _threads(timeline: Timeline) -> list[Track]:
    """Return operations, calls and ranges of each of the host's threads, one inside another."""
    trace = timeline.trace
    tables = (trace.ranges, trace.ops, trace.calls)
    start, dur, label, thread = (
        np.concatenate([getattr(table, column) for table in tables])
        for column in ("start_ns", "dur_ns", "name", "thread")
    )
    launched = np.full(len(start), NONE, np.int64)
    work = _first_launched(timeline)
    rows = np.flatnonzero(work > 0)
    launched[len(trace.ranges.name) + len(trace.ops.name) + timeline.links.call[rows]] = work[rows]
    found = []
    for own in _rows_of(thread):
        number = int(thread[own[0]])
        known = trace.threads[number] if trace.threads and number >= 0 else None
        name = (known.name or f"thread {known.thread}") if known else "a thread"
        if number == timeline.steps.thread:
            name += " (training loop)"
        found += _layers("thread", name, (start[own], dur[own], label[own]), launched=launched[own])
    return found


def _first_launched(timeline: Timeline) -> Longs:
    """Return a number for each piece of work that is the first of what its call launched, else NONE."""
    call = timeline.links.call
    found = np.full(len(call), NONE, np.int64)
    rows = np.flatnonzero(call >= 0)
    rows = rows[np.lexsort((rows, timeline.trace.work.start_ns[rows], call[rows]))]
    first = rows[np.append(True, np.diff(call[rows]) != 0)] if len(rows) else rows
    found[first] = first + 1
    return found


def _rows_of(*columns: Wholes) -> list[Longs]:
    """Return the rows of each value, or of each pair of values."""
    which = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, index, _ = groups(column)
        which = which * len(values) + index
    order = np.argsort(which, kind="stable")
    cuts = np.flatnonzero(np.diff(which[order])) + 1
    return np.split(order, cuts) if len(order) else []


def _memory(trace: Trace) -> tuple[Counter, ...]:
    memory = trace.memory
    if memory is None:
        return ()
    usable = np.flatnonzero((memory.allocated >= 0) & (memory.start_ns >= 0) & (memory.kind >= 0))
    found = []
    for group in _rows_of(memory.kind[usable], memory.device[usable]):
        rows = usable[group]
        rows = rows[np.argsort(memory.start_ns[rows], kind="stable")]
        where = f"device {int(memory.device[rows[0]])}" if memory.kind[rows[0]] else "the host"
        found.append(
            Counter(name=f"allocated on {where}", at_ns=memory.start_ns[rows], value=memory.allocated[rows])
        )
    return tuple(found)


def _layers(
    kind: TrackKind, name: str, columns: tuple[Longs, Wholes, Ids], **more: Ids | Longs
) -> list[Track]:
    """Return the slices as a track, and those that overlap others without lying in them on further ones."""
    start, dur, label = columns
    order = np.lexsort((label, -dur, start))
    start, dur = start[order].astype(np.int64), dur[order].astype(np.int64)
    layer, dur = lay(start, dur)
    found = []
    for number in range(int(layer.max(initial=-1)) + 1):
        own = layer == number
        found.append(
            Track(
                kind=kind,
                name=name if number == 0 else f"{name}, overlapping {number}",
                start_ns=start[own],
                dur_ns=dur[own],
                label=label[order][own],
                **{key: column[order][own] for key, column in more.items()},
            )
        )
    return found


def lay(start: Longs, dur: Longs) -> tuple[Ids, Longs]:
    """Return a layer for each slice, so that those of one lie in each other or apart; and their durations."""
    stop = start + dur
    layer = np.zeros(len(start), np.int32)
    if not len(start) or (start[1:] >= np.maximum.accumulate(stop)[:-1]).all():
        return layer, dur
    open_until: list[list[int]] = [[]]
    for index, (begin, end) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        for ends in open_until:
            while ends and ends[-1] <= begin:
                ends.pop()
        fitting = (number for number, ends in enumerate(open_until) if not ends or end <= ends[-1])
        number = next(fitting, len(open_until))
        if number == MOST_LAYERS:
            number -= 1
            dur[index] = open_until[number][-1] - begin
        elif number == len(open_until):
            open_until.append([])
        layer[index] = number
        open_until[number].append(begin + int(dur[index]))
    return layer, dur


def phase_stretches(pieces: Pieces, extent: tuple[int, int] | None = None) -> tuple[Longs, Longs, Kinds]:
    """Return start, end and phase of stretches; consecutive pieces of one phase are one stretch."""
    stop = pieces.start_ns + pieces.dur_ns
    inside = pieces.dur_ns > 0
    if extent is not None:
        inside &= (stop > extent[0]) & (pieces.start_ns < extent[1])
    rows = np.flatnonzero(inside)
    rows = rows[np.lexsort((pieces.phase[rows], stop[rows], pieces.start_ns[rows]))]
    start, stop, phase = pieces.start_ns[rows], stop[rows], pieces.phase[rows]
    if not len(rows):
        return start, stop, phase
    first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1]))
    last = int(stop.max()) if extent is None else extent[1]
    ends = np.minimum(np.maximum.reduceat(stop, first), np.append(start[first][1:], last))
    return start[first], ends, phase[first]

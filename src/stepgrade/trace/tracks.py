"""Every event of a trace as tracks for a timeline tool, beside what the analysis makes of it.

Such tools draw one slice inside another and leave out what overlaps otherwise. Here nothing is left out: what
overlaps is put on a track of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stepgrade.model.columns import groups
from stepgrade.model.events import NONE, Ids, Longs, Trace, Wholes
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.tracks import Counter, RanksTogether, RankTracks, Track, TrackKind
from stepgrade.naming.work_class import WorkClass
from stepgrade.ranks.arrivals import Arrivals, find_arrivals
from stepgrade.ranks.matching import Matching
from stepgrade.ranks.ranks import number_ranks, share_clock
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.links import pick
from stepgrade.timeline.pieces import Pieces, find_pieces
from stepgrade.timeline.timeline import Driver, Timeline, build_timeline
from stepgrade.trace.phases import PHASES, find_phases, phase_stretches

# Beyond so many tracks of one stream or thread, what overlaps is cut to fit: no sound trace comes near.
MOST_LAYERS = 32


class RankCollector:
    """Turns the traces of a run into tracks, one by one, and keeps of each what puts it on one clock."""

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
        steady = timeline.windows.steady.tolist()
        starts = timeline.windows.start_ns.tolist()
        numbers = timeline.steps.number.tolist()
        self._steps.append(
            {
                number: (start, is_steady)
                for number, start, is_steady in zip(numbers, starts, steady, strict=True)
            }
        )
        return _tracks_of(timeline, pieces)

    def together(self) -> RanksTogether:
        """Return the numbers of the ranks, how far their clocks are apart, and who waited for whom."""
        places = number_ranks(self._ranks)
        ranks = [0] * len(places)
        for number, place in places.items():
            ranks[place] = number
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
        for number, place in places.items():
            matching.add(number, self._arrivals[place])
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
    steps = _layers(
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
        place = int(middle[len(middle) // 2])
        typical = int(windows.start_ns[place]), max(int(windows.dur_ns[place]), 0)
    return RankTracks(
        file=trace.file,
        file_zero_ns=trace.file_zero_ns,
        base_ns=trace.base_ns or 0,
        tracks=(
            *steps,
            *_ledger(timeline, strings),
            *_phases(timeline, pieces, strings),
            *_streams(timeline, pieces, strings),
            *_threads(timeline),
        ),
        strings=strings.texts,
        counters=_memory(trace),
        longest=_longest(timeline, typical),
        typical_step=typical,
    )


def _ledger(timeline: Timeline, strings: _Strings) -> list[Track]:
    if timeline.ledger is None:
        return []
    names = strings.add([account.words for account in ACCOUNTS.values()])
    spans = timeline.ledger.by_account()
    start = np.concatenate([part.starts for part in spans])
    stop = np.concatenate([part.ends for part in spans])
    label = np.repeat(names, [len(part.starts) for part in spans])
    title = "the host's time" if timeline.driver is Driver.HOST else "the device's time"
    return _layers("ledger", title, (start, stop - start, label))


def _phases(timeline: Timeline, pieces: Pieces, strings: _Strings) -> list[Track]:
    found = phase_stretches(pieces, find_phases(timeline, pieces))
    if found is None:
        return []
    start, stop, kind = found
    return _layers("phases", "phases", (start, stop - start, strings.add(PHASES)[kind]))


def _streams(timeline: Timeline, pieces: Pieces, strings: _Strings) -> list[Track]:
    """Return the device's work, a track for each stream; of the analysed device with its step."""
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
    start = np.concatenate([table.start_ns for table in tables])
    dur = np.concatenate([table.dur_ns for table in tables])
    label = np.concatenate([table.name for table in tables])
    thread = np.concatenate([table.thread for table in tables])
    launched = np.full(len(start), NONE, np.int64)
    work = _first_launched(timeline)
    rows = np.flatnonzero(work > 0)
    launched[len(trace.ranges.name) + len(trace.ops.name) + timeline.links.call[rows]] = work[rows]
    found = []
    for own in _rows_of(thread):
        told = trace.threads[int(thread[own[0]])] if trace.threads and thread[own[0]] >= 0 else None
        name = (told.name or f"thread {told.thread}") if told else "a thread"
        if int(thread[own[0]]) == timeline.steps.thread:
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
        values, place, _ = groups(column)
        which = which * len(values) + place
    order = np.argsort(which, kind="stable")
    cuts = np.flatnonzero(np.diff(which[order])) + 1
    return np.split(order, cuts) if len(order) else []


def _memory(trace: Trace) -> tuple[Counter, ...]:
    memory = trace.memory
    if memory is None:
        return ()
    usable = np.flatnonzero((memory.allocated >= 0) & (memory.start_ns >= 0) & (memory.kind >= 0))
    if not len(usable):
        return ()
    found = []
    for place in _rows_of(memory.kind[usable], memory.device[usable]):
        rows = usable[place]
        rows = rows[np.argsort(memory.start_ns[rows], kind="stable")]
        where = f"device {int(memory.device[rows[0]])}" if memory.kind[rows[0]] else "the host"
        found.append(
            Counter(name=f"allocated on {where}", at_ns=memory.start_ns[rows], value=memory.allocated[rows])
        )
    return tuple(found)


def _longest(timeline: Timeline, step: tuple[int, int] | None) -> dict[str, tuple[int, int]]:
    """Return the longest stretch of each account in a step."""
    if timeline.ledger is None or step is None:
        return {}
    found = {}
    for account, spans in zip(ACCOUNTS, timeline.ledger.by_account(), strict=True):
        inside = iv.clip(spans, step[0], step[0] + step[1])
        if len(inside.starts):
            most = int((inside.ends - inside.starts).argmax())
            start, stop = int(inside.starts[most]), int(inside.ends[most])
            found[account] = start, stop - start
    return found


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
    for place, (begin, end) in enumerate(zip(start.tolist(), stop.tolist(), strict=True)):
        for ends in open_until:
            while ends and ends[-1] <= begin:
                ends.pop()
        fitting = (number for number, ends in enumerate(open_until) if not ends or end <= ends[-1])
        number = next(fitting, len(open_until))
        if number == MOST_LAYERS:
            number -= 1
            dur[place] = open_until[number][-1] - begin
        elif number == len(open_until):
            open_until.append([])
        layer[place] = number
        open_until[number].append(begin + int(dur[place]))
    return layer, dur

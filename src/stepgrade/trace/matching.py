"""Collectives across ranks: who waited for whom, and how fast data moved.

A collective ends for all ranks soon after the last one has arrived. Before that the others wait (skew), from
then on data moves. Collectives of two ranks are the same one if they have the same place in the order of
their process group within the same step.

What a rank leaves behind is columns of integers, and what is said of all ranks is found in two passes over
one process group after the other: first how far the clocks are apart, then who waited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.collectives import CollectiveTime, Exchange, RankMessages
from stepgrade.model.columns import among, distinct, narrow
from stepgrade.model.events import NONE, Collective, Longs, Trace
from stepgrade.model.tracks import CollectiveWait
from stepgrade.naming.collective_kind import CollectiveKind, collective_kind
from stepgrade.naming.torch_names import COMMUNICATION_OP, COMMUNICATION_RANGE, named
from stepgrade.naming.work_class import WorkClass
from stepgrade.trace.collectives import describe, item_bytes, message_bytes
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.recorded_inputs import Shapes, decode_shapes
from stepgrade.trace.steps import steps_of
from stepgrade.trace.timeline import Driver, Timeline
from stepgrade.units import NS_PER_MS

CLOCKS_APART_NS = 1_000_000
_MESSAGES = ("send", "recv")
STRAGGLER_SHARE = 0.01
# Rows of a process group that are looked at together: more take memory, fewer take time.
_BLOCK_ROWS = 1 << 22
_LEAST, _MOST = np.iinfo(np.int64).min // 2, np.iinfo(np.int64).max  # halved: a difference must fit


class ProcessGroup(Struct, frozen=True, kw_only=True, order=True):
    """The ranks of a collective; Kineto lists the first 30, so name and size tell groups apart as well."""

    name: str = ""
    size: int = 0  # 0 where it is not known
    ranks: str = ""


class CollectiveCall(Struct, frozen=True, kw_only=True, order=True):
    """What one call of a collective has in common with others: its name, group and message."""

    name: str
    group: ProcessGroup
    bytes: int = NONE  # of the larger side
    received: int = NONE  # bytes that this rank gets, of an exchange
    peer: int = NONE  # of a message: the rank that it goes to or comes from


class Arrivals(Struct, frozen=True, kw_only=True):
    """One rank's part in collectives, in the order of their issue, on the clock that the ranks share.

    Columns are bytes: little-endian integers that are compared, sent and kept as they are.
    """

    calls: tuple[CollectiveCall, ...] = ()
    call: bytes = b""  # place in `calls`, of 32 bits; all others are of 64
    step: bytes = b""  # number of the step
    start_ns: bytes = b""  # the first, then by how much each starts after the one before
    dur_ns: bytes = b""

    @classmethod
    def of(cls, rows: Sequence[tuple[CollectiveCall, int, int, int]]) -> Arrivals:
        """Return the columns of rows: the call, its step, its start and its duration."""
        calls = sorted({row[0] for row in rows})
        place = {call: number for number, call in enumerate(calls)}
        start = np.array([row[2] for row in rows], "<i8")
        return cls(
            calls=tuple(calls),
            call=np.array([place[row[0]] for row in rows], "<i4").tobytes(),
            step=np.array([row[1] for row in rows], "<i8").tobytes(),
            start_ns=np.diff(start, prepend=np.zeros(1, "<i8")).tobytes(),
            dur_ns=np.array([row[3] for row in rows], "<i8").tobytes(),
        )

    def __len__(self) -> int:
        return len(self.step) // 8

    @property
    def starts_ns(self) -> Longs:
        """Return when each began."""
        return np.cumsum(np.frombuffer(self.start_ns, "<i8"))


class RankWait(Struct, frozen=True, kw_only=True):
    """How long one rank waited in collectives, and how long it made others wait, over the common steps."""

    rank: int
    wait_ns: int  # from its arrival to the last rank's
    caused_ns: int  # how long the others waited for it, on average, when it came last
    last: int  # how often it came last


class MatchedCollectives(Struct, frozen=True, kw_only=True):
    """What the collectives that several ranks took part in show."""

    matched: int
    ranks: tuple[RankWait, ...]
    skew_ns: int  # mean wait of a rank, all collectives added up
    straggler: RankWait | None  # the rank that the others waited for, if one stands out
    clock_offsets_ns: dict[int, int]  # corrected differences of the ranks' clocks, where there were any
    rates: tuple[CollectiveTime, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    messages: tuple[RankMessages, ...] = ()  # of a pipeline's stages


def find_arrivals(timeline: Timeline, pieces: Pieces) -> Arrivals:
    """Return the collectives of all steps in the order of their issue, on the clock that ranks share."""
    if timeline.driver is Driver.HOST:
        return arrivals_on_host(timeline)
    if timeline.driver is not Driver.DEVICE:
        return Arrivals()
    trace, numbers = timeline.trace, timeline.steps.number
    usable = (
        (pieces.work_class == WorkClass.COMMUNICATION) & (pieces.step >= 0) & (pieces.step < len(numbers))
    )
    usable &= (trace.work.collective[pieces.work] >= 0) | ~timeline.attribution.unlaunched[pieces.work]
    rows = np.flatnonzero(usable)
    issued = np.where(pieces.launch_ns >= 0, pieces.launch_ns, pieces.start_ns)
    rows = rows[np.lexsort((issued[rows], pieces.step[rows]))]
    known: dict[tuple[str, Collective], CollectiveCall] = {}
    found = []
    for row in rows.tolist():
        name, described = describe(timeline, pieces, row)
        call = known.get((name, described))
        if call is None:
            group = ProcessGroup()  # of all ranks, where nothing is said
            if described.group or described.group_ranks:
                group = ProcessGroup(
                    name=described.group or "",
                    size=described.group_size or 0,
                    ranks=described.group_ranks or "",
                )
            size, item = message_bytes(described), item_bytes(described)
            is_exchange = collective_kind(name) is CollectiveKind.ALL_TO_ALL and item is not None
            call = CollectiveCall(
                name=name,
                group=group,
                bytes=NONE if size is None else size,
                received=(item or 0) * (described.out_elements or 0) if is_exchange else NONE,
                peer=NONE if described.peer is None else described.peer,
            )
            known[name, described] = call
        start = int(pieces.start_ns[row]) + (trace.base_ns or 0)
        found.append((call, int(numbers[pieces.step[row]]), start, int(pieces.dur_ns[row])))
    return Arrivals.of(found)


def arrivals_on_host(timeline: Timeline) -> Arrivals:
    """Return the collectives of a run without accelerators by the ranges that their backend writes."""
    trace, numbers = timeline.trace, timeline.steps.number
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, COMMUNICATION_RANGE))
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    steps = steps_of(ranges.start_ns[rows], timeline.steps)
    calls = calls_on_host(trace, rows)
    return Arrivals.of(
        [
            (
                call,
                int(numbers[index]),
                int(ranges.start_ns[row]) + (trace.base_ns or 0),
                int(ranges.dur_ns[row]),
            )
            for row, index, call in zip(rows.tolist(), steps.tolist(), calls, strict=True)
            if 0 <= index < len(numbers)
        ]
    )


def calls_on_host(trace: Trace, rows: NDArray[np.intp]) -> list[CollectiveCall]:
    """Return what each of these ranges is: its message, and of the operation that asked for it the peer.

    Operations and ranges of one kind are in the same order, on whichever threads they are.
    """
    ops, ranges = trace.ops, trace.ranges
    asked: dict[str, list[Shapes | None]] = {}
    own = np.flatnonzero(named(trace.strings, ops.name, COMMUNICATION_OP) & (ops.inputs >= 0))
    for row in own[np.argsort(ops.start_ns[own], kind="stable")].tolist():
        shapes = decode_shapes(trace.inputs[int(ops.inputs[row])])
        name = trace.strings[int(ops.name[row])]
        asked.setdefault(_kind_on_host(name), []).append(shapes)
    names = [trace.strings[int(name)] for name in ranges.name[rows].tolist()]
    counts = Counter(map(_kind_on_host, names))
    found = []
    seen: Counter[str] = Counter()
    for name, row in zip(names, rows.tolist(), strict=True):
        kind = _kind_on_host(name)
        # Where one was not recorded, nobody knows which.
        places = asked.get(kind, [])
        shapes = places[seen[kind]] if len(places) == counts[kind] else None
        seen[kind] += 1
        place = NONE if ranges.inputs is None else int(ranges.inputs[row])
        message = decode_shapes(trace.inputs[place]) if place >= 0 else None
        size = message.bytes_at(*message.tensors) if message and message.tensors else None
        received = shapes.bytes_at(0) if shapes and kind is CollectiveKind.ALL_TO_ALL else None
        peer = shapes.value(2) if shapes and kind in _MESSAGES else None
        found.append(
            CollectiveCall(
                name=name,
                group=ProcessGroup(),
                bytes=NONE if size is None else max(size, received or 0),
                received=NONE if received is None else received,
                peer=peer if type(peer) is int and 0 <= peer < 1 << 31 else NONE,
            )
        )
    return found


def _kind_on_host(name: str) -> str:
    """Return what a range or operation does: send and recv are two kinds."""
    kind = collective_kind(name)
    if kind is CollectiveKind.SEND_RECEIVE:
        return "send" if "send" in name else "recv"
    return kind


class _Rows(NamedTuple):
    """A rank's collectives of one group: where they stand in its columns, and which of the group's they are.

    Ranks that run the same program share them.
    """

    row: NDArray[np.intp]
    key: NDArray[np.intp]


class _Meetings(NamedTuple):
    """The collectives of one process group in the common steps."""

    places: list[int]  # of the members, in the order of their ranks
    rows: list[_Rows]  # of each member
    step: NDArray[np.intp]  # of each collective, its place among the common ones
    calls: list[CollectiveCall]


class _Block(NamedTuple):
    """Some collectives of a group: a column for each, a row for each member."""

    places: list[int]
    keys: slice
    start_ns: Longs  # the least number where a member took no part
    dur_ns: Longs
    took_part: NDArray[np.bool_]
    cells: list[_Rows]  # of each member: where in its columns, and in which column here


_Program = tuple[bytes, bytes, tuple[CollectiveCall, ...]]  # the columns `call` and `step`, and the calls


class Matching:
    """The collectives of a run's ranks; those count that two or more took part in."""

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._start_ns: list[Longs] = []
        self._dur_ns: list[NDArray[Any]] = []
        self._calls: list[tuple[NDArray[Any], tuple[CollectiveCall, ...]]] = []
        self._steps: list[NDArray[Any]] = []
        self._columns: dict[bytes, bytes] = {}  # kept once: ranks have most of them in common
        self._members: dict[ProcessGroup, list[tuple[int, _Program]]] = {}

    def add(self, rank: int, arrivals: Arrivals) -> None:
        """Add what one rank leaves behind; ranks are added in order."""
        place = len(self._ranks)
        self._ranks.append(rank)
        self._start_ns.append(arrivals.starts_ns)
        self._dur_ns.append(narrow(np.frombuffer(arrivals.dur_ns, "<i8")))
        call, step = (self._columns.setdefault(column, column) for column in (arrivals.call, arrivals.step))
        self._calls.append((np.frombuffer(call, "<i4"), arrivals.calls))
        self._steps.append(np.frombuffer(step, "<i8"))
        for group in {one.group: None for one in arrivals.calls}:
            self._members.setdefault(group, []).append((place, (call, step, arrivals.calls)))

    def match(self, steps: Sequence[int], total_ns: int) -> MatchedCollectives | None:
        """Return what the collectives in these steps show; None if no two ranks share any.

        `total_ns` is how long the steps took a rank: waiting that is small against it makes no straggler.
        """
        meetings = [
            self._meetings_of(group, members, np.array(sorted(steps), np.int64))
            for group, members in sorted(self._members.items())
            if len(members) > 1
        ]
        offsets_ns = self._find_clock_offsets(meetings)
        waits, rates = _Waits(len(self._ranks)), Rates(self._ranks)
        for meeting in meetings:
            for block in self._blocks(meeting, offsets_ns):
                waits.add(block)
                rates.add(block, meeting.calls[block.keys], self._received(meeting, block))
        messages = self._messages(set(steps), offsets_ns)
        if not waits.matched and not messages:
            return None
        ranks = tuple(
            RankWait(rank=self._ranks[place], wait_ns=wait, caused_ns=caused, last=last)
            for place, (wait, caused, last, met) in enumerate(
                zip(*(column.tolist() for column in waits.columns), strict=True)
            )
            if met
        )
        # A straggler caused more than half of all waiting and came last more often than its share.
        worst = max(ranks, key=lambda wait: (wait.caused_ns, -wait.rank), default=None)
        stands_out = worst is not None and (
            2 * worst.caused_ns > sum(wait.caused_ns for wait in ranks)
            and worst.last * len(ranks) > waits.matched
            and worst.caused_ns > STRAGGLER_SHARE * total_ns
        )
        return MatchedCollectives(
            matched=waits.matched,
            ranks=ranks,
            skew_ns=sum(wait.wait_ns for wait in ranks) // max(len(ranks), 1),
            straggler=worst if stands_out else None,
            clock_offsets_ns={
                rank: offset for rank, offset in zip(self._ranks, offsets_ns.tolist(), strict=True) if offset
            },
            rates=rates.collectives,
            exchanges=rates.exchanges,
            messages=messages,
        )

    def waits(self, steps: Sequence[int], offsets_ns: Mapping[int, int]) -> Iterator[CollectiveWait]:
        """Yield each wait of a rank for the last one to arrive, in these steps, with clocks set right."""
        offsets = np.array([offsets_ns.get(rank, 0) for rank in self._ranks], np.int64)
        numbers = np.array(sorted(steps), np.int64)
        several = [(group, members) for group, members in sorted(self._members.items()) if len(members) > 1]
        for meeting in (self._meetings_of(group, members, numbers) for group, members in several):
            for block in self._blocks(meeting, offsets):
                latest, until, waited = _waits_of(block)
                for line, column in np.argwhere(waited).tolist():
                    yield CollectiveWait(
                        rank=self._ranks[block.places[line]],
                        start_ns=int(block.start_ns[line, column]),
                        dur_ns=int(waited[line, column]),
                        late=self._ranks[block.places[latest[column]]],
                        until_ns=int(until[column]),
                        name=meeting.calls[block.keys.start + column].name,
                    )

    def _received(self, meeting: _Meetings, block: _Block) -> Longs | None:
        """Return what each member of an exchange gets, in bytes; None where no member says."""
        if all(call.received == NONE for call in meeting.calls[block.keys]):
            return None
        found = np.zeros(block.start_ns.shape, np.int64)
        for line, (place, own) in enumerate(zip(block.places, block.cells, strict=True)):
            call, calls = self._calls[place]
            sizes = np.array([one.received for one in calls], np.int64)
            found[line, own.key] = np.maximum(sizes[call[own.row]], 0)
        return found

    def _messages(self, steps: set[int], offsets_ns: Longs) -> tuple[RankMessages, ...]:
        """Return what each rank receives from its peers in these steps, split by when they sent it.

        The messages of two ranks in one direction are in the same order on both sides.
        """
        sent: dict[tuple[int, int, int], list[int]] = {}  # by step, from and to: when each was sent
        received: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        counts: dict[int, Counter[int]] = {}
        for place, rank in enumerate(self._ranks):
            call, calls = self._calls[place]
            is_message = np.array([one.peer != NONE for one in calls], np.bool_)
            rows = np.flatnonzero(is_message[call]) if len(call) else ()
            for row in rows:
                one, step = calls[call[row]], int(self._steps[place][row])
                start = int(self._start_ns[place][row] - offsets_ns[place])
                if step in steps and "send" in one.name:
                    sent.setdefault((step, rank, one.peer), []).append(start)
                    counts.setdefault(rank, Counter())[one.peer] += 1
                elif step in steps:
                    whole = start, int(self._dur_ns[place][row])
                    received.setdefault((step, one.peer, rank), []).append(whole)
        waits: dict[int, list[int]] = {rank: [0, 0] for rank in counts}
        for (step, source, target), those in received.items():
            times = sent.get((step, source, target), [])
            if len(times) != len(those):
                continue  # one side's were not all recorded
            for when, (start, dur) in zip(times, those, strict=True):
                wait = min(max(when - start, 0), dur)
                pair = waits.setdefault(target, [0, 0])
                pair[0] += wait
                pair[1] += dur - wait
        return tuple(
            RankMessages(rank=rank, wait_ns=wait, transfer_ns=transfer, sent=dict(counts.get(rank, {})))
            for rank, (wait, transfer) in sorted(waits.items())
        )

    def _meetings_of(
        self, group: ProcessGroup, members: Sequence[tuple[int, _Program]], steps: Longs
    ) -> _Meetings:
        """Return the collectives of one group, found once for all ranks that run the same program."""
        names: dict[str, int] = {}
        programs: dict[_Program, tuple[NDArray[np.intp], Longs]] = {}
        for program in {program: None for _, program in members}:
            call, step = np.frombuffer(program[0], "<i4"), np.frombuffer(program[1], "<i8")
            numbers = [names.setdefault(one.name, len(names)) for one in program[2]]
            is_own = np.array([one.group == group and one.peer == NONE for one in program[2]], np.bool_)
            rows = np.flatnonzero(is_own[call] & among(step, steps))
            at = np.searchsorted(steps, step[rows])
            by_step = np.argsort(at, kind="stable")
            rows, at = rows[by_step], at[by_step]
            order = np.arange(len(rows)) - np.searchsorted(at, at)
            # Step, place in the step and name in one number: a step has fewer than 2**24 collectives.
            programs[program] = rows, (at << 40) | (order << 16) | np.array(numbers, np.int64)[call[rows]]
        keys = distinct(np.concatenate([key for _, key in programs.values()]))
        calls: list[CollectiveCall | None] = [None] * len(keys)
        shared: dict[_Program, _Rows] = {}
        for program, (rows, key) in programs.items():
            place = np.searchsorted(keys, key)
            shared[program] = _Rows(rows, place)
            for column, which in zip(
                place.tolist(), np.frombuffer(program[0], "<i4")[rows].tolist(), strict=True
            ):
                calls[column] = calls[column] or program[2][which]
        return _Meetings(
            places=[place for place, _ in members],
            rows=[shared[program] for _, program in members],
            step=keys >> 40,
            calls=[call for call in calls if call],
        )

    def _blocks(self, meetings: _Meetings, offsets_ns: Longs) -> Iterator[_Block]:
        """Yield a group's collectives in blocks, with clocks set right by the offsets."""
        places = meetings.places
        most = max(1, _BLOCK_ROWS // len(places))
        for first in range(0, len(meetings.calls), most):
            keys = slice(first, min(first + most, len(meetings.calls)))
            shape = len(places), keys.stop - first
            start_ns, dur_ns = np.full(shape, _LEAST, np.int64), np.zeros(shape, np.int64)
            cells: dict[int, _Rows] = {}
            of_members = []
            for line, (place, rows) in enumerate(zip(places, meetings.rows, strict=True)):
                if id(rows) not in cells:
                    here = slice(*np.searchsorted(rows.key, (keys.start, keys.stop)))
                    cells[id(rows)] = _Rows(rows.row[here], rows.key[here] - first)
                own = cells[id(rows)]
                start_ns[line, own.key] = self._start_ns[place][own.row] - offsets_ns[place]
                dur_ns[line, own.key] = self._dur_ns[place][own.row]
                of_members.append(own)
            yield _Block(places, keys, start_ns, dur_ns, start_ns > _LEAST, of_members)

    def _find_clock_offsets(self, meetings: Sequence[_Meetings]) -> Longs:
        """Return by how much each rank's clock is ahead: how much later its collectives end than the middle.

        Differences that collectives alone explain are no offset.
        """
        none = np.zeros(len(self._ranks), np.int64)
        late = [np.full(len(start), _LEAST, np.int64) for start in self._start_ns]
        for meeting in meetings:
            for block in self._blocks(meeting, none):
                middle = _middle_end(block)
                counts = block.took_part.sum(axis=0) > 1
                for line, (place, own) in enumerate(zip(block.places, block.cells, strict=True)):
                    lag = (block.start_ns[line] + block.dur_ns[line] - middle)[own.key]
                    late[place][own.row] = np.where(counts[own.key], lag, _LEAST)
        for place, lags in enumerate(late):
            known = lags[lags > _LEAST]
            lag = int(np.median(known)) if len(known) else 0
            none[place] = lag if abs(lag) > CLOCKS_APART_NS else 0
        return none


def _middle_end(block: _Block) -> Longs:
    """Return where each collective ended for the member in the middle, between two of them if need be."""
    ends = np.where(block.took_part, block.start_ns + block.dur_ns, _MOST)
    ends = np.sort(np.ascontiguousarray(ends.T), axis=1)  # those who took no part are last
    count, each = block.took_part.sum(axis=0), np.arange(ends.shape[0])
    low, high = ends[each, (count - 1) // 2], ends[each, count // 2]
    middle: Longs = low + (high - low) // 2
    return middle


def _waits_of(block: _Block) -> tuple[NDArray[np.intp], Longs, Longs]:
    """Return which member came last to each collective, when, and how long each of the others waited."""
    # Of those who come together the lowest rank is the last.
    latest = np.argmax(block.start_ns, axis=0)
    until = block.start_ns[latest, np.arange(block.start_ns.shape[1])]
    waited = np.minimum(until - block.start_ns, block.dur_ns)
    waited *= block.took_part & (block.took_part.sum(axis=0) > 1)
    return latest, until, waited


class _Waits:
    """Who waited and who was waited for, added up block by block."""

    def __init__(self, ranks: int) -> None:
        self.columns = tuple(np.zeros(ranks, np.int64) for _ in range(4))  # waited, caused, came last, met
        self.matched = 0

    def add(self, block: _Block) -> None:
        """Add the collectives of one block that two or more took part in."""
        wait, caused, last, met = self.columns
        count = block.took_part.sum(axis=0)
        counts = count > 1
        places = np.array(block.places)
        latest, _, waited = _waits_of(block)
        np.add.at(wait, places, waited.sum(axis=1))
        np.add.at(met, places, (block.took_part & counts).sum(axis=1))
        np.add.at(caused, places[latest[counts]], (waited // np.maximum(count - 1, 1)).sum(axis=0)[counts])
        np.add.at(last, places[latest[counts]], 1)
        self.matched += int(counts.sum())


class Rates:
    """How long data moved in collectives of each kind and size, and what exchanges brought to each rank."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = ranks
        self._sums: dict[CollectiveCall, Longs] = {}  # calls, time of a rank, waiting of a rank, moving
        self._received: dict[ProcessGroup, Longs] = {}
        self._exchanges: dict[ProcessGroup, Longs] = {}  # calls, waiting of a rank

    def add(self, block: _Block, calls: Sequence[CollectiveCall], received: Longs | None) -> None:
        """Add the collectives of one block that two or more took part in."""
        count = block.took_part.sum(axis=0)
        latest = block.start_ns.max(axis=0, initial=_LEAST)
        # The last to arrive waits for nobody: its time is what the data took, whatever the clocks say.
        moving = np.where(block.took_part, block.dur_ns, _MOST).min(axis=0, initial=_MOST)
        waited = np.minimum(latest - block.start_ns, block.dur_ns) * block.took_part
        whole = np.maximum(count, 1)
        columns = np.stack(
            [np.ones_like(moving), block.dur_ns.sum(axis=0) // whole, waited.sum(axis=0) // whole, moving],
            axis=1,
        )
        for place, call in enumerate(calls):
            if count[place] < 2:
                continue
            kind = CollectiveCall(name=call.name, group=call.group, bytes=call.bytes)
            self._sums[kind] = self._sums.get(kind, np.zeros(4, np.int64)) + columns[place]
            if received is not None and call.received != NONE:
                own = self._received.setdefault(call.group, np.zeros(len(self._ranks), np.int64))
                own[block.places] += received[:, place]
                row = columns[place, [0, 2]]
                self._exchanges[call.group] = self._exchanges.get(call.group, np.zeros(2, np.int64)) + row

    @property
    def collectives(self) -> tuple[CollectiveTime, ...]:
        """Return the collectives, longest first."""
        found = [
            collective_time(call, calls, total, wait_ms=wait / NS_PER_MS, moving_ms=moving / NS_PER_MS)
            for call, (calls, total, wait, moving) in ((c, s.tolist()) for c, s in self._sums.items())
        ]
        return tuple(sorted(found, key=lambda one: (-one.total_ms, one.name, one.bytes or 0.0)))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Return the exchanges of each group."""
        return tuple(
            Exchange(
                group=group.name,
                calls=float(self._exchanges[group][0]),
                wait_ms=int(self._exchanges[group][1]) / NS_PER_MS,
                ranks=tuple(self._ranks),
                received_bytes=tuple(map(float, received.tolist())),
            )
            for group, received in self._received.items()
        )


def collective_time(call: CollectiveCall, calls: int, total_ns: int, **times_ms: float) -> CollectiveTime:
    """Return so many calls of a collective with what they took a rank."""
    return CollectiveTime(
        name=call.name,
        group=call.group.name,
        group_size=call.group.size or None,
        ranks=call.group.ranks,
        bytes=None if call.bytes == NONE else float(call.bytes),
        calls=float(calls),
        total_ms=total_ns / NS_PER_MS,
        **times_ms,
    )


def collectives_of_rank(arrivals: Arrivals, steps: Sequence[int]) -> tuple[CollectiveTime, ...]:
    """Return the collectives of one rank in these steps, longest first."""
    call, step = np.frombuffer(arrivals.call, "<i4"), np.frombuffer(arrivals.step, "<i8")
    rows = among(step, np.array(steps, np.int64)) if len(steps) else np.zeros(len(step), np.bool_)
    dur_ns = np.frombuffer(arrivals.dur_ns, "<i8")
    count = np.bincount(call[rows], minlength=len(arrivals.calls))
    total = np.bincount(call[rows], dur_ns[rows], len(arrivals.calls))
    found = [
        collective_time(one, int(count[place]), int(total[place]))
        for place, one in enumerate(arrivals.calls)
        if count[place]
    ]
    return tuple(sorted(found, key=lambda one: (-one.total_ms, one.name, one.bytes or 0.0)))

"""Collectives across ranks: which rank waited for which, and how fast data moved.

A collective ends for all ranks soon after the last one has arrived. Before that the others wait (skew), from
then on data moves. Collectives of two ranks are the same if they have the same position in the order of their
process group within the same step.

A rank leaves columns of integers, and all ranks are compared in two passes over one process group after the
other: first how far the clocks are apart, then which rank waited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.columns import among, distinct, groups, median, narrow
from stepgrade.model.events import NONE, Longs
from stepgrade.model.ranks import CollectiveRow, ExpertUse, RankMessages
from stepgrade.model.tracks import CollectiveWait
from stepgrade.ranks.collectives import Arrivals, CollectiveCall, ProcessGroup, collective_row
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.intervals import NOTHING, Spans
from stepgrade.units import NS_PER_MS

CLOCKS_APART_NS = 1_000_000
STRAGGLER_SHARE = 0.01
# Some rank always comes last: one stands out if chance would seldom choose the same one so often.
_LIKELY_CHANCE = 0.05
_MOST_OF_THE_WAITING = 0.7
# Rows of a process group that are looked at together: more take memory, fewer take time.
_BLOCK_ROWS = 1 << 22
_LEAST, _MOST = np.iinfo(np.int64).min // 2, np.iinfo(np.int64).max  # halved: a difference must fit


class RankWait(Struct, frozen=True, kw_only=True):
    """How long one rank waited in collectives and made others wait, over the common steps."""

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
    rates: tuple[CollectiveRow, ...] = ()  # of one step
    experts: tuple[ExpertUse, ...] = ()
    messages: tuple[RankMessages, ...] = ()  # of a pipeline's stages
    waited_alone_ns: dict[int, int] = {}  # of each rank's waiting, that in which it does nothing else


class _Times(NamedTuple):
    """When one rank's collectives began and how long they took, in 32 bits each where that is enough.

    Ranks that run the same program differ little in when, once their first collectives are put together.
    """

    usual_ns: Longs  # starts of the first rank that runs the program
    ahead_ns: Longs  # one number: how much later this rank's first began
    start_ns: NDArray[Any]  # what is left
    dur_ns: NDArray[Any]

    def starts(self, rows: NDArray[np.intp]) -> Longs:
        """Return when these began on the rank's own clock."""
        found: Longs = self.usual_ns[rows] + self.start_ns[rows]
        found += self.ahead_ns
        return found


class _Program(Struct, kw_only=True, eq=False):
    """What ranks with the same collectives in the same order have in common."""

    columns: tuple[bytes, bytes]  # `call` and `step`, as they came
    call: NDArray[Any]
    step: Longs
    calls: tuple[CollectiveCall, ...]
    numbers: NDArray[np.intp]  # of the calls, in the run
    groups: dict[ProcessGroup, tuple[int, ...]]  # indices of their calls, messages left out

    def rows_of(self, calls: tuple[int, ...], names: tuple[int, ...], steps: Longs) -> _Rows:
        """Return the rows that are these calls; step, position in it and name of each are one number."""
        name = np.full(len(self.calls), NONE, np.int64)
        name[[*calls]] = names
        rows = np.flatnonzero((name[self.call] != NONE) & among(self.step, steps))
        at = np.searchsorted(steps, self.step[rows])
        by_step = np.argsort(at, kind="stable")
        rows, at = rows[by_step], at[by_step]
        order = np.arange(len(rows)) - np.searchsorted(at, at)
        # A step has fewer than 2**24 collectives.
        return _Rows(rows, (at << 40) | (order << 16) | name[self.call[rows]])


class _Rows(Struct, eq=False):
    """Which rows of a rank's columns are a group's collectives, and which of the group's each is."""

    row: NDArray[np.intp]
    key: NDArray[np.intp]


class _Meeting(NamedTuple):
    """The collectives of one process group in the common steps."""

    group: ProcessGroup
    members: list[tuple[int, _Rows]]  # in the order of ranks; those that run the same program share rows
    numbers: NDArray[np.intp]  # of the call that each collective is


class _Last(NamedTuple):
    """Of each collective of a group: how many took part, who came last, and when."""

    taking_part: NDArray[np.intp]
    member: NDArray[np.intp]  # its index
    start_ns: Longs


class Messages(NamedTuple):
    """One side of messages between ranks, in columns, in the order in which each rank issued them."""

    rank: Longs
    peer: Longs
    step: Longs
    start_ns: Longs
    dur_ns: Longs


class Matching:
    """The collectives of a run's ranks; those count that two or more took part in."""

    def __init__(self) -> None:
        self._ranks: list[int] = []
        self._times: list[_Times] = []
        self._program_of: list[_Program] = []
        self._programs: dict[tuple[bytes, bytes, tuple[CollectiveCall, ...]], _Program] = {}
        self._usual_ns: dict[tuple[bytes, bytes], Longs] = {}
        self._columns: dict[bytes, bytes] = {}  # kept once: ranks have most of them in common
        self._numbers: dict[CollectiveCall, int] = {}
        self._members: dict[ProcessGroup, list[int]] = {}

    def add(self, rank: int, arrivals: Arrivals) -> None:
        """Add what one rank leaves behind; ranks are added in order."""
        call, step = (self._columns.setdefault(column, column) for column in (arrivals.call, arrivals.step))
        program = self._programs.get((call, step, arrivals.calls))
        if program is None:
            groups: dict[ProcessGroup, tuple[int, ...]] = {}
            for index, one in enumerate(arrivals.calls):
                if one.peer == NONE:
                    groups[one.group] = (*groups.get(one.group, ()), index)
            program = self._programs[call, step, arrivals.calls] = _Program(
                columns=(call, step),
                call=np.frombuffer(call, "<i4"),
                step=np.frombuffer(step, "<i8"),
                calls=arrivals.calls,
                numbers=np.array(
                    [self._numbers.setdefault(one, len(self._numbers)) for one in arrivals.calls], np.intp
                ),
                groups=groups,
            )
        for group in program.groups:
            self._members.setdefault(group, []).append(len(self._ranks))
        start_ns = arrivals.starts_ns
        usual_ns = self._usual_ns.setdefault(program.columns, start_ns)
        ahead_ns = start_ns[:1] - usual_ns[:1]
        dur_ns = narrow(np.frombuffer(arrivals.dur_ns, "<i8"))
        self._ranks.append(rank)
        self._program_of.append(program)
        self._times.append(_Times(usual_ns, ahead_ns, narrow(start_ns - usual_ns - ahead_ns), dur_ns))

    def match(
        self, steps: Sequence[int], total_ns: int, alone: Callable[[int], Spans] = lambda _: NOTHING
    ) -> MatchedCollectives | None:
        """Return what the collectives in these steps show; None if no two ranks share any.

        `total_ns` is how long the steps took a rank: waiting that is small against it makes no straggler.
        `alone` returns when a rank communicates and does nothing else in these steps, on the ranks' clock.
        """
        numbers = np.array(sorted(steps), np.int64)
        meetings = list(self._meetings(numbers))
        offsets_ns = self._find_clock_offsets(meetings)
        sums = _Sums([*self._numbers], self._ranks, max(len(steps), 1))
        until_ns = [self._add_waits(meeting, offsets_ns, sums) for meeting in meetings]
        waits = [list[tuple[Longs, Longs]]() for _ in self._ranks]
        messages = self._match_messages(numbers, offsets_ns, waits)
        if not sums.matched and not messages:
            return None
        ranks = tuple(
            RankWait(rank=self._ranks[index], wait_ns=wait, caused_ns=caused, last=last)
            for index, (wait, caused, last, met) in enumerate(sums.of_ranks.T.tolist())
            if met
        )
        worst = max(ranks, key=lambda wait: (wait.caused_ns, -wait.rank), default=None)
        stands_out = worst is not None and (
            worst.caused_ns > STRAGGLER_SHARE * total_ns and sums.is_behind_the_waiting(worst, len(ranks))
        )
        return MatchedCollectives(
            matched=sums.matched,
            ranks=ranks,
            skew_ns=sum(wait.wait_ns for wait in ranks) // max(len(ranks), 1),
            straggler=worst if stands_out else None,
            clock_offsets_ns={
                rank: offset for rank, offset in zip(self._ranks, offsets_ns.tolist(), strict=True) if offset
            },
            rates=sums.collectives,
            experts=sums.experts,
            messages=messages,
            waited_alone_ns=self._waited_alone(meetings, until_ns, offsets_ns, waits, alone),
        )

    def _waited_alone(
        self,
        meetings: Sequence[_Meeting],
        until_ns: Sequence[Longs],
        offsets_ns: Longs,
        waits: list[list[tuple[Longs, Longs]]],
        alone: Callable[[int], Spans],
    ) -> dict[int, int]:
        """Return how long each rank waits and does nothing else; `waits` are those for messages."""
        met = [list[tuple[_Rows, Longs]]() for _ in self._ranks]
        for meeting, until in zip(meetings, until_ns, strict=True):
            for index, own in meeting.members:
                met[index].append((own, until))
        found = {}
        for index, rank in enumerate(self._ranks):
            for own, until in met[index]:
                start_ns = self._times[index].starts(own.row)
                end_ns = np.minimum(
                    until[own.key] + offsets_ns[index], start_ns + self._times[index].dur_ns[own.row]
                )
                waits[index].append((start_ns, end_ns))
            starts, ends = map(np.concatenate, zip(*waits[index], strict=True)) if waits[index] else NOTHING
            found[rank] = iv.total_ns(iv.intersect(alone(rank), iv.union(starts, ends)))
        return found

    def waits(
        self, steps: Sequence[int], offsets_ns: Mapping[int, int], ranks: Collection[int] | None = None
    ) -> Iterator[CollectiveWait]:
        """Yield each wait for the last one to arrive, in these steps, of all ranks or some."""
        offsets = np.array([offsets_ns.get(rank, 0) for rank in self._ranks], np.int64)
        calls = [*self._numbers]
        for meeting in self._meetings(np.array(sorted(steps), np.int64)):
            last = self._last_of(meeting, offsets)
            for index, own in meeting.members:
                if ranks is not None and self._ranks[index] not in ranks:
                    continue
                waited = self._waited(index, own, last, offsets)
                start_ns = self._times[index].starts(own.row) - offsets[index]
                for at in np.flatnonzero(waited).tolist():
                    key = own.key[at]
                    yield CollectiveWait(
                        rank=self._ranks[index],
                        start_ns=int(start_ns[at]),
                        dur_ns=int(waited[at]),
                        late=self._ranks[last.member[key]],
                        until_ns=int(last.start_ns[key]),
                        name=calls[meeting.numbers[key]].name,
                    )

    def _meetings(self, steps: Longs) -> Iterator[_Meeting]:
        """Yield the collectives of each group, found once for all ranks that run the same program.

        Those of other groups mostly have the same rows in the columns, and these are kept once as well.
        """
        names: dict[str, int] = {}
        parts: dict[tuple[object, ...], _Rows] = {}
        joined: dict[tuple[_Rows, ...], tuple[int, dict[_Rows, _Rows]]] = {}
        for group, indices in sorted(self._members.items()):
            if len(indices) < 2:
                continue
            own: dict[_Program, _Rows] = {}
            for program in {self._program_of[index]: None for index in indices}:
                calls = program.groups[group]
                numbers = tuple(names.setdefault(program.calls[at].name, len(names)) for at in calls)
                part = program.columns, calls, numbers
                if part not in parts:
                    parts[part] = program.rows_of(calls, numbers, steps)
                own[program] = parts[part]
            several = tuple(dict.fromkeys(own.values()))
            if several not in joined:
                keys = distinct(np.concatenate([rows.key for rows in several]))
                joined[several] = (
                    len(keys),
                    {rows: _Rows(rows.row, np.searchsorted(keys, rows.key)) for rows in several},
                )
            count, among_all = joined[several]
            found = np.zeros(count, np.intp)
            for program, rows in reversed(own.items()):  # a collective is what its first member calls it
                found[among_all[rows].key] = program.numbers[program.call[rows.row]]
            members = [(index, among_all[own[self._program_of[index]]]) for index in indices]
            yield _Meeting(group, members, found)

    def _find_clock_offsets(self, meetings: Sequence[_Meeting]) -> Longs:
        """Return by how much each rank's clock is ahead: how much later its collectives end than the middle.

        Differences that collectives alone explain are no offset.
        """
        offsets_ns = np.zeros(len(self._ranks), np.int64)
        of_ranks: list[list[tuple[_Rows, Longs]]] = [[] for _ in self._ranks]
        for meeting in meetings:
            middle = self._middle_ends(meeting)
            for index, own in meeting.members:
                of_ranks[index].append((own, middle))
        for index, parts in enumerate(of_ranks):
            late = [self._ends(index, own.row) - middle[own.key] for own, middle in parts]
            counts = [middle[own.key] > _LEAST for own, middle in parts]
            if any(found.any() for found in counts):
                lag = int(median(np.concatenate(late)[np.concatenate(counts)]))
                offsets_ns[index] = lag if abs(lag) > CLOCKS_APART_NS else 0
        return offsets_ns

    def _ends(self, index: int, rows: NDArray[np.intp]) -> Longs:
        ends: Longs = self._times[index].starts(rows) + self._times[index].dur_ns[rows]
        return ends

    def _middle_ends(self, meeting: _Meeting) -> Longs:
        """Return where each collective ended for the member in the middle, between two of them if need be.

        It is the least number where fewer than two took part.
        """
        middle = np.full(len(meeting.numbers), _LEAST, np.int64)
        most = max(1, _BLOCK_ROWS // len(meeting.members))
        for first in range(0, len(middle), most):
            keys = slice(first, min(first + most, len(middle)))
            ends = np.full((len(meeting.members), keys.stop - first), _MOST, np.int64)
            parts: dict[_Rows, _Rows] = {}
            for line, (index, own) in enumerate(meeting.members):
                if own not in parts:
                    inside = (own.key >= keys.start) & (own.key < keys.stop)
                    parts[own] = _Rows(own.row[inside], own.key[inside] - first)
                part = parts[own]
                ends[line, part.key] = self._ends(index, part.row)
            ends = np.ascontiguousarray(ends.T)
            ends.sort(axis=1)  # those who took no part are last
            count, each = (ends < _MOST).sum(axis=1), np.arange(len(ends))
            low, high = ends[each, (count - 1) // 2], ends[each, count // 2]
            middle[keys] = np.where(count > 1, low + (high - low) // 2, _LEAST)
        return middle

    def _last_of(self, meeting: _Meeting, offsets_ns: Longs) -> _Last:
        """Return who came last to each collective; of those who come together, the lowest rank."""
        size = len(meeting.numbers)
        last = _Last(np.zeros(size, np.intp), np.zeros(size, np.intp), np.full(size, _LEAST, np.int64))
        for index, own in meeting.members:
            start_ns = self._times[index].starts(own.row) - offsets_ns[index]
            is_later = start_ns > last.start_ns[own.key]
            later = own.key[is_later]
            last.start_ns[later], last.member[later] = start_ns[is_later], index
            last.taking_part[own.key] += 1
        return last

    def _waited(self, index: int, own: _Rows, last: _Last, offsets_ns: Longs) -> Longs:
        """Return how long one member waited in each of its collectives."""
        times = self._times[index]
        waited: Longs = last.start_ns[own.key] - times.starts(own.row) + offsets_ns[index]
        np.minimum(waited, times.dur_ns[own.row], out=waited)
        waited *= last.taking_part[own.key] > 1
        return waited

    def _add_waits(self, meeting: _Meeting, offsets_ns: Longs, sums: _Sums) -> Longs:
        """Add the collectives of a group that two or more took part in: who waited, and for whom.

        Return when the last rank arrived at each, the least number where nobody waited.
        """
        last = self._last_of(meeting, offsets_ns)
        size, is_shared = len(meeting.numbers), last.taking_part > 1
        is_exchange = is_shared & (sums.received[meeting.numbers] != NONE)
        total, waiting, caused = (np.zeros(size, np.int64) for _ in range(3))
        moving = np.full(size, _MOST, np.int64)
        for index, own in meeting.members:
            dur_ns = self._times[index].dur_ns[own.row]
            waited = self._waited(index, own, last, offsets_ns)
            total[own.key] += dur_ns
            waiting[own.key] += waited
            caused[own.key] += waited // np.maximum(last.taking_part[own.key] - 1, 1)
            # The last to arrive waits for nobody: its time is what the data took, whatever the clocks say.
            moving[own.key] = np.minimum(moving[own.key], dur_ns)
            sums.of_ranks[0, index] += waited.sum()
            sums.of_ranks[3, index] += is_shared[own.key].sum()
            if is_exchange.any():
                program = self._program_of[index]
                received = sums.received[program.numbers[program.call[own.row]]][is_exchange[own.key]]
                sums.add_received(meeting.group, index, int(np.maximum(received, 0).sum()))
        sums.matched += int(is_shared.sum())
        np.add.at(sums.of_ranks[1], last.member[is_shared], caused[is_shared])
        np.add.at(sums.of_ranks[2], last.member[is_shared], 1)
        sums.caused_ns += int(caused[is_shared].sum())
        sums.caused_squares += float((caused[is_shared].astype(np.float64) ** 2).sum())
        whole = np.maximum(last.taking_part, 1)
        columns = np.stack([np.ones_like(moving), total // whole, waiting // whole, moving], axis=1)
        sums.add_calls(meeting.numbers[is_shared], columns[is_shared])
        if is_exchange.any():
            sums.exchanged[meeting.group] = columns[is_exchange][:, [0, 2]].sum(axis=0)
        return np.where(is_shared, last.start_ns, _LEAST)

    def _match_messages(
        self, steps: Longs, offsets_ns: Longs, waits: list[list[tuple[Longs, Longs]]]
    ) -> tuple[RankMessages, ...]:
        """Return what each rank receives from its peers in these steps, split by when they sent it.

        When each rank waited for them is added to `waits`, on its own clock.
        """
        peer = np.array([one.peer for one in self._numbers], np.int64)
        is_send = np.array([one.peer != NONE and "send" in one.name for one in self._numbers], np.bool_)
        is_received = (peer != NONE) & ~is_send
        sent: dict[int, dict[int, int]] = {}
        count = np.zeros(len(self._ranks), np.int64)  # of what each rank receives
        for index, rank in enumerate(self._ranks if (peer != NONE).any() else ()):
            program = self._program_of[index]
            which = program.numbers[program.call[among(program.step, steps)]]
            count[index] = np.count_nonzero(is_received[which])
            peers = groups(peer[which[is_send[which]]])
            if len(peers.values):
                sent[rank] = dict(zip(peers.values.tolist(), peers.counts.tolist(), strict=True))
        times: dict[int, tuple[int, int]] = dict.fromkeys(sent, (0, 0))
        block_of = np.cumsum(count) // max(1, _BLOCK_ROWS // 8)  # each has many columns
        for block in distinct(block_of[count > 0]).tolist():
            indices = np.flatnonzero((block_of == block) & (count > 0)).tolist()
            to_these = among(peer, [self._ranks[index] for index in indices])
            received = match_messages(
                self._messages(is_send & to_these, range(len(self._ranks)), steps, offsets_ns),
                self._messages(is_received, indices, steps, offsets_ns),
            )
            for index in indices:
                own = received.rank == self._ranks[index]
                if own.any():
                    start_ns, waited_ns = received.start_ns[own] + offsets_ns[index], received.waited_ns[own]
                    waits[index].append((start_ns, start_ns + waited_ns))
                    wait_ns = int(waited_ns.sum())
                    times[self._ranks[index]] = wait_ns, int(received.dur_ns[own].sum()) - wait_ns
        return tuple(
            RankMessages(rank=rank, wait_ns=wait, transfer_ns=transfer, sent=sent.get(rank, {}))
            for rank, (wait, transfer) in sorted(times.items())
        )

    def _messages(
        self, wanted: NDArray[np.bool_], indices: Iterable[int], steps: Longs, offsets_ns: Longs
    ) -> Messages:
        """Return the messages of ranks that are one of the wanted calls, with clocks set right."""
        peer = np.array([one.peer for one in self._numbers], np.int64)
        found = [Messages(*(np.zeros(0, np.int64) for _ in Messages._fields))]
        for index in indices:
            program, times = self._program_of[index], self._times[index]
            if not wanted[program.numbers].any():
                continue
            which = program.numbers[program.call]
            rows = np.flatnonzero(wanted[which] & among(program.step, steps))
            found.append(
                Messages(
                    rank=np.full(len(rows), self._ranks[index], np.int64),
                    peer=peer[which[rows]],
                    step=program.step[rows],
                    start_ns=times.starts(rows) - offsets_ns[index],
                    dur_ns=times.dur_ns[rows].astype(np.int64),
                )
            )
        return Messages(*map(np.concatenate, zip(*found, strict=True)))


class Receipts(NamedTuple):
    """Messages as they are received: how long of each time the peer had not sent yet."""

    rank: Longs
    start_ns: Longs
    dur_ns: Longs
    waited_ns: Longs


def match_messages(sent: Messages, received: Messages) -> Receipts:
    """Return the messages that both sides recorded, with how long each was waited for.

    The messages of two ranks in one direction are in the same order on both sides.
    """
    source = np.concatenate([sent.rank, received.peer])
    target = np.concatenate([sent.peer, received.rank])
    step = np.concatenate([sent.step, received.step])
    start_ns = np.concatenate([sent.start_ns, received.start_ns])
    is_received = np.arange(len(step)) >= len(sent.step)
    order = np.lexsort((is_received, target, source, step))
    is_first = np.zeros(len(order), np.bool_)
    for column in (source, target, step):
        is_first[1:] |= np.diff(column[order]) != 0
    way = np.cumsum(is_first)
    on_both = np.bincount(way, is_received[order]) * 2 == np.bincount(way)  # else not all were recorded
    order = order[on_both[way]]
    sends, receives = order[~is_received[order]], order[is_received[order]]
    dur_ns = received.dur_ns[receives - len(sent.step)]
    waited = np.minimum(np.maximum(start_ns[sends] - start_ns[receives], 0), dur_ns)
    return Receipts(target[receives], start_ns[receives], dur_ns, waited)


def is_beyond_chance(share: float, count: float, ranks: int) -> bool:
    """Return whether a rank gets this share of that many random draws less than once in twenty times.

    Chernoff's bound of the binomial tail, for any of the ranks.
    """
    even = 1.0 / ranks
    surprise = share * math.log(share / even)
    if share < 1.0:
        surprise += (1.0 - share) * math.log((1.0 - share) / (1.0 - even))
    return share > even and ranks * math.exp(-count * surprise) < _LIKELY_CHANCE


class _Sums:
    """Who waited and who was waited for, how long data moved, and what exchanges brought to each rank."""

    def __init__(self, calls: Sequence[CollectiveCall], ranks: Sequence[int], steps: int) -> None:
        self._calls, self._ranks, self._steps = calls, ranks, steps
        self.of_ranks = np.zeros((4, len(ranks)), np.int64)  # waited, caused, came last, met
        self.matched = 0
        self.caused_ns, self.caused_squares = 0, 0.0  # waiting of all collectives, and its squares
        self.received = np.array([call.received for call in calls], np.int64)  # of each call
        self.exchanged: dict[ProcessGroup, Longs] = {}  # calls, waiting of a rank
        self._received_by: dict[ProcessGroup, list[int]] = {}
        self._of_kinds: dict[CollectiveCall, Longs] = {}  # calls, time of a rank, waiting of a rank, moving

    def is_behind_the_waiting(self, worst: RankWait, ranks: int) -> bool:
        """Return whether a rank causes more than half of the waiting, and more than chance explains.

        Chance makes each of the ranks the last one equally often. A few long waits weigh as few collectives:
        the effective number is that of equal waits with the same variance.
        """
        share = worst.caused_ns / max(self.caused_ns, 1)
        weighty = self.caused_ns**2 / max(self.caused_squares, 1.0)
        if share <= 0.5 or worst.last * ranks <= self.matched:
            return False
        return is_beyond_chance(share, weighty, ranks) or (
            share >= _MOST_OF_THE_WAITING and is_beyond_chance(worst.last / self.matched, self.matched, ranks)
        )

    def add_received(self, group: ProcessGroup, index: int, received_bytes: int) -> None:
        """Add what exchanges in a group brought to a rank."""
        self._received_by.setdefault(group, [0] * len(self._ranks))[index] += received_bytes

    def add_calls(self, numbers: NDArray[np.intp], columns: Longs) -> None:
        """Add collectives: which call each is, and its times."""
        found = groups(numbers)
        sums = np.zeros((len(found.values), columns.shape[1]), np.int64)
        np.add.at(sums, found.which, columns)
        for index in dict.fromkeys(found.which.tolist()):  # in the order in which they first occur
            call = self._calls[found.values[index]]
            kind = CollectiveCall(name=call.name, group=call.group, bytes=call.bytes)
            self._of_kinds[kind] = self._of_kinds.get(kind, 0) + sums[index]

    @property
    def collectives(self) -> tuple[CollectiveRow, ...]:
        """Return the collectives of a step, longest first."""
        steps_ms = self._steps * NS_PER_MS
        found = [
            collective_row(call, self._steps, calls, total, wait / steps_ms, moving / steps_ms)
            for call, (calls, total, wait, moving) in ((c, s.tolist()) for c, s in self._of_kinds.items())
        ]
        return tuple(sorted(found, key=lambda one: (-one.ms, one.name, one.bytes or 0.0)))

    @property
    def experts(self) -> tuple[ExpertUse, ...]:
        """Return the exchanges of each group in a step."""
        return tuple(
            ExpertUse(
                group=group.name,
                calls=float(self.exchanged[group][0]) / self._steps,
                wait_ms=int(self.exchanged[group][1]) / self._steps / NS_PER_MS,
                ranks=tuple(self._ranks),
                received_bytes=tuple(size / self._steps for size in received),
                max_over_mean=max(received) * len(received) / sum(received) if sum(received) else None,
                busiest_rank=self._ranks[received.index(max(received))],
            )
            for group, received in self._received_by.items()
        )

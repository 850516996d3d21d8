"""Collectives of one rank, and across ranks: who waited for whom, and what the transfer itself took.

Ranks meet in a collective: it ends for all soon after the last one has arrived. Before that the others
wait (skew), from then on data moves (transfer). Collectives of two ranks are the same one if they stand at
the same place in the order of their process group within the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from stepgrade.model.events import Collective
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.timeline import Timeline, is_communication

CLOCKS_APART_NS = 1_000_000
STRAGGLER_SHARE = 0.01
_ITEM_BYTES = {
    "double": 8,
    "float64": 8,
    "long": 8,
    "int64": 8,
    "float": 4,
    "float32": 4,
    "int": 4,
    "half": 2,
    "float16": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}


class CollectiveFacts(Struct, frozen=True, kw_only=True):
    """One kind of collective on one rank, in totals over the steady steps."""

    name: str
    group_size: int | None
    count: int
    total_ns: int
    bytes: int | None  # of the larger of the input and the output of one rank; None unless known for all


class Arrival(Struct, frozen=True, kw_only=True):
    """One collective on one rank, on the clock that ranks share."""

    name: str
    group: str
    step: int  # the step's number
    order: int  # its place in the step among those of its group
    start_ns: int
    end_ns: int


class RankWait(Struct, frozen=True, kw_only=True):
    """What one rank waited in collectives, and what it made others wait, over the steps all ranks have."""

    rank: int
    wait_ns: int  # from its arrival to the last rank's
    transfer_ns: int  # from the last arrival to its end
    caused_ns: int  # what the others waited for it, on average, when it came last
    last: int  # how often it came last


class Meetings(Struct, frozen=True, kw_only=True):
    """Collectives matched across ranks."""

    matched: int
    unmatched: int
    steps: int
    ranks: tuple[RankWait, ...]
    skew_ns: int  # mean wait of a rank, all collectives added up
    straggler: int | None  # the rank that the others waited for, if one stands out
    evidence: str | None
    clock_offsets_ns: dict[int, int]  # corrected differences of the ranks' clocks, where there were any


def sum_collectives(line: Timeline, pieces: Pieces) -> tuple[CollectiveFacts, ...]:
    """Return the collectives of the steady steps by kind, longest first."""
    if not _has_work(pieces):
        return ()
    groups: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for row in np.flatnonzero(is_communication(line)[pieces.work] & pieces.steady).tolist():
        said = _said(line, int(pieces.work[row]))
        groups[_name(line, pieces, row, said), said.group_size].append(row)
    found = [_kind_facts(line, pieces, key, members) for key, members in groups.items()]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.name)))


def _has_work(pieces: Pieces) -> bool:
    return bool(len(pieces.work)) and bool(pieces.work[0] >= 0)


def _said(line: Timeline, work: int) -> Collective:
    index = int(line.trace.work.collective[work])
    return line.trace.collectives[index] if index >= 0 else Collective()


def _name(line: Timeline, pieces: Pieces, row: int, said: Collective) -> str:
    """Return what the kernel says it is, else the operation's or the kernel's name."""
    return said.name or line.trace.strings[int(pieces.name[row])]


def _kind_facts(
    line: Timeline, pieces: Pieces, key: tuple[str, int | None], rows: list[int]
) -> CollectiveFacts:
    sizes = [message_bytes(_said(line, int(pieces.work[row]))) for row in rows]
    known = [size for size in sizes if size is not None]
    return CollectiveFacts(
        name=key[0],
        group_size=key[1],
        count=len(rows),
        total_ns=int(pieces.dur_ns[rows].sum()),
        bytes=sum(known) if len(known) == len(sizes) else None,
    )


def message_bytes(said: Collective) -> int | None:
    """Return the bytes of the larger side of a collective, None if it did not say."""
    size = _ITEM_BYTES.get((said.dtype or "").lower().removeprefix("c10::"))
    if size is None or said.in_elements is None or said.out_elements is None:
        return None
    return size * max(said.in_elements, said.out_elements)


def arrivals(line: Timeline, pieces: Pieces) -> tuple[Arrival, ...]:
    """Return the collectives of all steps in the order of their issue, on the clock that ranks share."""
    if not _has_work(pieces):
        return ()
    count = len(line.steps.number)
    usable = is_communication(line)[pieces.work] & (pieces.step >= 0) & (pieces.step < count)
    said = line.trace.work.collective[pieces.work] >= 0
    usable &= said | ~line.attribution.unlaunched[pieces.work]
    rows = np.flatnonzero(usable)
    issued = np.where(pieces.launch_ns >= 0, pieces.launch_ns, pieces.start_ns)
    rows = rows[np.lexsort((issued[rows], pieces.step[rows]))]
    seen: dict[tuple[int, str], int] = defaultdict(int)
    return tuple(_arrival(line, pieces, int(row), seen) for row in rows)


def _arrival(line: Timeline, pieces: Pieces, row: int, seen: dict[tuple[int, str], int]) -> Arrival:
    said = _said(line, int(pieces.work[row]))
    group = f"{said.group} {said.group_ranks}" if said.group_ranks or said.group else "all"
    step = int(line.steps.number[pieces.step[row]])
    order = seen[step, group]
    seen[step, group] += 1
    start = int(pieces.start_ns[row]) + (line.trace.base_ns or 0)
    return Arrival(
        name=_name(line, pieces, row, said),
        group=group,
        step=step,
        order=order,
        start_ns=start,
        end_ns=start + int(pieces.dur_ns[row]),
    )


Meeting = dict[int, Arrival]


def meet(of_ranks: Mapping[int, Sequence[Arrival]], steps: set[int], total_ns: int) -> Meetings | None:
    """Return what matching the ranks' collectives in these steps shows; None with fewer than two ranks.

    `total_ns` is how long the steps took a rank: waiting that is small against it makes no straggler.
    """
    meetings, unmatched = _match(of_ranks, steps)
    if len(of_ranks) < 2 or not meetings:
        return None
    offsets = _clock_offsets(meetings)
    waits = _waits(meetings, offsets)
    skew = sum(one.wait_ns for one in waits) // len(waits)
    straggler = _straggler(waits, len(meetings), total_ns)
    return Meetings(
        matched=len(meetings),
        unmatched=unmatched,
        steps=len(steps),
        ranks=waits,
        skew_ns=skew,
        straggler=straggler.rank if straggler else None,
        evidence=_evidence(straggler, len(meetings), len(steps)) if straggler else None,
        clock_offsets_ns=offsets,
    )


def _match(of_ranks: Mapping[int, Sequence[Arrival]], steps: set[int]) -> tuple[list[Meeting], int]:
    """Return the collectives that two ranks or more were seen in, and how many arrivals found no partner."""
    places: dict[tuple[int, str, int, str], Meeting] = defaultdict(dict)
    for rank, events in of_ranks.items():
        for one in events:
            if one.step in steps:
                places[one.step, one.group, one.order, one.name][rank] = one
    meetings = [one for one in places.values() if len(one) > 1]
    return meetings, sum(len(one) for one in places.values() if len(one) == 1)


def _clock_offsets(meetings: list[Meeting]) -> dict[int, int]:
    """Return how far each rank's clock is from the others', told from the common ends of collectives."""
    late: dict[int, list[float]] = defaultdict(list)
    for meeting in meetings:
        middle = float(np.median([one.end_ns for one in meeting.values()]))
        for rank, one in meeting.items():
            late[rank].append(one.end_ns - middle)
    offsets = {rank: int(np.median(values)) for rank, values in late.items()}
    return {rank: offset for rank, offset in sorted(offsets.items()) if abs(offset) > CLOCKS_APART_NS}


def _waits(meetings: list[Meeting], offsets: dict[int, int]) -> tuple[RankWait, ...]:
    wait: dict[int, int] = defaultdict(int)
    transfer: dict[int, int] = defaultdict(int)
    caused: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    for meeting in meetings:
        starts = {rank: one.start_ns - offsets.get(rank, 0) for rank, one in meeting.items()}
        latest = max(starts, key=lambda rank: (starts[rank], -rank))
        last[latest] += 1
        for rank, one in meeting.items():
            waited = min(starts[latest] - starts[rank], one.end_ns - one.start_ns)
            wait[rank] += waited
            transfer[rank] += one.end_ns - one.start_ns - waited
            caused[latest] += waited // max(len(meeting) - 1, 1)
    ranks = sorted({rank for meeting in meetings for rank in meeting})
    return tuple(
        RankWait(rank=r, wait_ns=wait[r], transfer_ns=transfer[r], caused_ns=caused[r], last=last[r])
        for r in ranks
    )


def _straggler(waits: tuple[RankWait, ...], meetings: int, total_ns: int) -> RankWait | None:
    """Return the rank that caused more than half of all waiting and came last more often than its share."""
    total = sum(one.caused_ns for one in waits)
    worst = max(waits, key=lambda one: (one.caused_ns, -one.rank))
    stands_out = 2 * worst.caused_ns > total and worst.last * len(waits) > meetings
    return worst if stands_out and worst.caused_ns > STRAGGLER_SHARE * total_ns else None


def _evidence(worst: RankWait, meetings: int, steps: int) -> str:
    per_step = worst.caused_ns / max(steps, 1) / 1e6
    return (
        f"Rank {worst.rank} arrives last in {worst.last} of {meetings} collectives; "
        f"the others wait {per_step:.1f} ms a step for it on average."
    )

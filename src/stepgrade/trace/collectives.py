"""Collectives of one rank, and across ranks: who waited for whom.

A collective ends for all ranks soon after the last one has arrived. Before that the others wait (skew), from
then on data moves. Collectives of two ranks are the same one if they have the same place in the order of
their process group within the same step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from stepgrade.model.activity import CollectiveTally
from stepgrade.model.events import Collective
from stepgrade.naming.torch_names import COMMUNICATION_RANGE, named
from stepgrade.naming.work_class import WorkClass
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.steps import steps_of
from stepgrade.trace.timeline import Driver, Timeline
from stepgrade.units import NS_PER_MS

CLOCKS_APART_NS = 1_000_000
STRAGGLER_SHARE = 0.01
_ITEM_BYTES = {
    name: size
    for size, names in (
        (1, ("byte", "char", "bool", "float8_e4m3fn", "float8_e5m2")),
        (2, ("half", "float16", "bfloat16", "short")),
        (4, ("float", "float32", "int")),
        (8, ("double", "float64", "long", "int64")),
    )
    for name in names
}


class Arrival(Struct, frozen=True, kw_only=True):
    """One rank's part in one collective, on the clock that the ranks share."""

    name: str
    group: str
    step: int  # the step's number
    order: int  # its place in the step among those of its group
    start_ns: int
    end_ns: int


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


def tally_collectives(timeline: Timeline, pieces: Pieces, steps: int) -> tuple[CollectiveTally, ...]:
    """Return the collectives of a steady step by kind, longest first."""
    if timeline.driver is not Driver.DEVICE:
        return ()
    kinds: dict[tuple[str, int | None], list[int]] = defaultdict(list)
    for row in np.flatnonzero((pieces.work_class == WorkClass.COMMUNICATION) & pieces.steady).tolist():
        name, described = describe(timeline, pieces, row)
        kinds[name, described.group_size].append(row)
    found = []
    for (name, group_size), rows in kinds.items():
        sizes = [message_bytes(describe(timeline, pieces, row)[1]) for row in rows]
        known = [size for size in sizes if size is not None]
        found.append(
            CollectiveTally(
                name=name,
                group_size=group_size,
                count=len(rows) / steps,
                ms=int(pieces.dur_ns[rows].sum()) / steps / NS_PER_MS,
                bytes=sum(known) / steps if len(known) == len(sizes) else None,
            )
        )
    return tuple(sorted(found, key=lambda kind: (-kind.ms, kind.name)))


def describe(timeline: Timeline, pieces: Pieces, row: int) -> tuple[str, Collective]:
    """Return the name of the collective (else of its operation or kernel), and its recorded description."""
    trace = timeline.trace
    index = int(trace.work.collective[pieces.work[row]])
    described = trace.collectives[index] if index >= 0 else Collective()
    return described.name or trace.strings[int(pieces.name[row])], described


def message_bytes(collective: Collective) -> int | None:
    """Return the bytes of the larger side of a collective, None if they were not recorded."""
    size = _ITEM_BYTES.get((collective.dtype or "").lower().removeprefix("c10::"))
    if size is None or collective.in_elements is None or collective.out_elements is None:
        return None
    return size * max(collective.in_elements, collective.out_elements)


def find_arrivals(timeline: Timeline, pieces: Pieces) -> tuple[Arrival, ...]:
    """Return the collectives of all steps in the order of their issue, on the clock that ranks share."""
    if timeline.driver is Driver.HOST:
        return arrivals_on_host(timeline)
    if timeline.driver is not Driver.DEVICE:
        return ()
    trace, numbers = timeline.trace, timeline.steps.number
    usable = (
        (pieces.work_class == WorkClass.COMMUNICATION) & (pieces.step >= 0) & (pieces.step < len(numbers))
    )
    usable &= (trace.work.collective[pieces.work] >= 0) | ~timeline.attribution.unlaunched[pieces.work]
    rows = np.flatnonzero(usable)
    issued = np.where(pieces.launch_ns >= 0, pieces.launch_ns, pieces.start_ns)
    rows = rows[np.lexsort((issued[rows], pieces.step[rows]))]
    issued_before: dict[tuple[int, str], int] = defaultdict(int)
    found = []
    for row in rows.tolist():
        name, described = describe(timeline, pieces, row)
        has_group = described.group_ranks or described.group
        group = f"{described.group} {described.group_ranks}" if has_group else "all"
        step = int(numbers[pieces.step[row]])
        start = int(pieces.start_ns[row]) + (trace.base_ns or 0)
        found.append(
            Arrival(
                name=name,
                group=group,
                step=step,
                order=issued_before[step, group],
                start_ns=start,
                end_ns=start + int(pieces.dur_ns[row]),
            )
        )
        issued_before[step, group] += 1
    return tuple(found)


def arrivals_on_host(timeline: Timeline) -> tuple[Arrival, ...]:
    """Return the collectives of a run without accelerators by the ranges that their backend writes."""
    trace, numbers = timeline.trace, timeline.steps.number
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, COMMUNICATION_RANGE))
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    steps = steps_of(ranges.start_ns[rows], timeline.steps)
    issued_before: dict[int, int] = defaultdict(int)
    found = []
    for row, index in zip(rows.tolist(), steps.tolist(), strict=True):
        if not 0 <= index < len(numbers):
            continue
        step, start = int(numbers[index]), int(ranges.start_ns[row]) + (trace.base_ns or 0)
        found.append(
            Arrival(
                name=trace.strings[int(ranges.name[row])],
                group="all",
                step=step,
                order=issued_before[step],
                start_ns=start,
                end_ns=start + int(ranges.dur_ns[row]),
            )
        )
        issued_before[step] += 1
    return tuple(found)


def match_collectives(
    of_ranks: Mapping[int, Sequence[Arrival]], steps: set[int], total_ns: int
) -> MatchedCollectives | None:
    """Return what matching the ranks' collectives in these steps shows; None with fewer than two ranks.

    `total_ns` is how long the steps took a rank: waiting that is small against it makes no straggler.
    """
    places: dict[tuple[int, str, int, str], dict[int, Arrival]] = defaultdict(dict)
    for rank, arrivals in of_ranks.items():
        for arrival in arrivals:
            if arrival.step in steps:
                places[arrival.step, arrival.group, arrival.order, arrival.name][rank] = arrival
    collectives = [by_rank for by_rank in places.values() if len(by_rank) > 1]
    if len(of_ranks) < 2 or not collectives:
        return None
    # Clocks that differ are corrected by the common ends of collectives.
    late: dict[int, list[float]] = defaultdict(list)
    for by_rank in collectives:
        middle = float(np.median([arrival.end_ns for arrival in by_rank.values()]))
        for rank, arrival in by_rank.items():
            late[rank].append(arrival.end_ns - middle)
    lags = {rank: int(np.median(values)) for rank, values in sorted(late.items())}
    offsets = {rank: lag for rank, lag in lags.items() if abs(lag) > CLOCKS_APART_NS}
    waits = _sum_waits(collectives, offsets)
    # A straggler caused more than half of all waiting and came last more often than its share.
    worst = max(waits, key=lambda wait: (wait.caused_ns, -wait.rank))
    stands_out = (
        2 * worst.caused_ns > sum(wait.caused_ns for wait in waits)
        and worst.last * len(waits) > len(collectives)
        and worst.caused_ns > STRAGGLER_SHARE * total_ns
    )
    return MatchedCollectives(
        matched=len(collectives),
        ranks=waits,
        skew_ns=sum(wait.wait_ns for wait in waits) // len(waits),
        straggler=worst if stands_out else None,
        clock_offsets_ns=offsets,
    )


def _sum_waits(collectives: list[dict[int, Arrival]], offsets: dict[int, int]) -> tuple[RankWait, ...]:
    wait: dict[int, int] = defaultdict(int)
    caused: dict[int, int] = defaultdict(int)
    last: dict[int, int] = defaultdict(int)
    for by_rank in collectives:
        starts = {rank: arrival.start_ns - offsets.get(rank, 0) for rank, arrival in by_rank.items()}
        latest = max(starts, key=lambda rank: (starts[rank], -rank))
        last[latest] += 1
        for rank, arrival in by_rank.items():
            waited = min(starts[latest] - starts[rank], arrival.end_ns - arrival.start_ns)
            wait[rank] += waited
            caused[latest] += waited // max(len(by_rank) - 1, 1)
    return tuple(
        RankWait(rank=rank, wait_ns=wait[rank], caused_ns=caused[rank], last=last[rank])
        for rank in sorted(wait)
    )

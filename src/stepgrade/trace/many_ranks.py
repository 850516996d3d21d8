"""Ranks together: by host, pipeline stage and process group, who is slow, always or in turns.

A rank is slow when what it does itself, all of a step but waiting for and moving data, takes longer than on
the quicker ranks: whoever waits for a slow one is not slow. A host or stage is slow when most of its ranks
are; a link when data of one size takes a group longer than others of its size.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.collectives import CollectiveTime
from stepgrade.model.many_ranks import ManyRanks, RankGroups, RankSpread, SlowPart
from stepgrade.model.notes import Note
from stepgrade.model.profile import LedgerTime, RankTime
from stepgrade.naming.collective_kind import CollectiveKind, collective_kind
from stepgrade.statistics import median, quantile
from stepgrade.trace.matching import Arrivals, ProcessGroup
from stepgrade.trace.mean_rank import show_numbers
from stepgrade.units import NS_PER_MS, show_share

LEAST_RANKS = 4  # below, a table says all there is to say
SLOWER = 0.1  # than the quicker ranks, for a rank to be slow
MOST_OF_A_PART = 0.8  # of a host's or stage's ranks, for all of it to be slow
SLOWER_LINK = 0.5  # than the middle of the groups of its size
LEAST_GROUPS = 3
IN_TURNS = 0.5  # of the steps with a slow rank: less than that for each rank
_MOST_LISTED = 8


class RankParts(Struct, frozen=True, kw_only=True):
    """What is known of the ranks' places: their process groups and how many devices a host has."""

    groups: frozenset[tuple[ProcessGroup, str]]  # and the name of a collective in it
    per_host: int | None

    @classmethod
    def of(cls, programs: Iterable[Arrivals], per_host: int | None) -> RankParts:
        """Return what the ranks' collectives tell."""
        groups = frozenset((call.group, call.name) for program in programs for call in program.calls)
        return cls(groups=groups, per_host=per_host)


def describe_ranks(
    times: Sequence[RankTime],
    ledgers: Mapping[int, Sequence[LedgerTime]],
    parts: RankParts,
    rates: Sequence[CollectiveTime],
) -> ManyRanks | None:
    """Return what the ranks tell together; None for few. `ledgers` are each rank's, of the common steps."""
    if len(times) < LEAST_RANKS:
        return None
    ranks = [time.rank for time in times]
    lengths = {len(of_rank) for of_rank in ledgers.values()}
    busy = np.zeros((len(ranks), 0))
    if set(ledgers) == set(ranks) and len(lengths) == 1:
        rows = [[one.total_ns - one.exposed_communication_ns for one in ledgers[rank]] for rank in ranks]
        busy = np.array(rows, np.float64).reshape(len(ranks), -1) / NS_PER_MS
    spreads = [_spread("step", ranks, [time.mean_step_ms for time in times])]
    if busy.shape[1]:
        spreads.append(_spread("busy", ranks, busy.mean(axis=1).tolist()))
    if all(time.wait_ms is not None for time in times):
        spreads.append(_spread("waiting", ranks, [time.wait_ms or 0.0 for time in times]))
    dimensions = _dimensions(parts, len(ranks))
    per_host = parts.per_host if parts.per_host and len(ranks) > parts.per_host else None
    slow = list(_slow_parts(ranks, busy, dimensions, per_host)) if busy.shape[1] else []
    return ManyRanks(
        ranks=len(ranks),
        hosts=len({rank // per_host for rank in ranks}) if per_host else None,
        per_host=per_host,
        spreads=tuple(spreads),
        groups=tuple(
            RankGroups(dimension=name, groups=len(rows), size=max(map(len, rows)))
            for name, rows in sorted(dimensions.items())
        ),
        slow=(*slow, *_slow_links(rates)),
        wandering=not slow and _is_wandering(busy),
    )


def notes_of(many: ManyRanks) -> Iterator[Note]:
    """Yield what is slow, in words."""
    for part in many.slow:
        times = "" if part.always is None else f", in {show_share(part.always)} of the steps"
        if part.kind == "link":
            text = f"{part.name} takes {show_share(part.slower)} longer than in the other groups of its size."
        else:
            text = f"{part.name} computes {show_share(part.slower)} longer than the quicker ranks{times}."
        yield Note(f"slow_{part.kind}", text[0].upper() + text[1:])
    if many.wandering:
        text = (
            "In nearly every step some rank is slow, and hardly ever the same: no host or rank is to blame."
        )
        yield Note("slow_in_turns", text)


def _spread(figure: str, ranks: Sequence[int], values: Sequence[float]) -> RankSpread:
    ordered = sorted(values)
    return RankSpread(
        figure=figure,
        least_ms=ordered[0],
        lower_ms=quantile(ordered, 0.25),
        median_ms=quantile(ordered, 0.5),
        upper_ms=quantile(ordered, 0.75),
        most_ms=ordered[-1],
        least_rank=ranks[values.index(ordered[0])],
        most_rank=ranks[values.index(ordered[-1])],
    )


def _dimensions(parts: RankParts, count: int) -> dict[str, list[tuple[int, ...]]]:
    """Return the groups of each parallel dimension, by what they send and how their ranks lie.

    Neighbours inside a host that are not all ranks share tensors; other groups hold copies of the same part.
    """
    found: dict[str, dict[tuple[int, ...], None]] = defaultdict(dict)
    for group, name in sorted(parts.groups):
        ranks = tuple(int(number) for number in re.findall(r"\d{1,7}", group.ranks))
        if len(ranks) < 2:
            continue
        kind = collective_kind(name)
        is_near = ranks[-1] - ranks[0] == len(ranks) - 1 and len(ranks) <= (parts.per_host or 1)
        if kind is CollectiveKind.SEND_RECEIVE:
            found["pipeline"][ranks] = None
        elif kind is CollectiveKind.ALL_TO_ALL:
            found["expert"][ranks] = None
        elif is_near and max(group.size, len(ranks)) < count:
            found["tensor"][ranks] = None
        else:
            found["data"][ranks] = None
    return {name: [*rows] for name, rows in found.items()}


def _slow_parts(
    ranks: Sequence[int],
    busy: NDArray[np.float64],
    dimensions: Mapping[str, Sequence[tuple[int, ...]]],
    per_host: int | None,
) -> Iterator[SlowPart]:
    """Yield slow stages, else slow hosts, then ranks that are slow by themselves."""
    own = busy.mean(axis=1)
    usual = quantile(sorted(own.tolist()), 0.25)
    each = np.quantile(busy, 0.25, axis=0)
    is_slow = dict(zip(ranks, (own > (1 + SLOWER) * usual).tolist(), strict=True))
    place = {rank: number for number, rank in enumerate(ranks)}

    def part(kind: str, name: str, members: Sequence[int]) -> SlowPart:
        rows = [place[rank] for rank in members]
        shown = show_numbers(members)
        return SlowPart(
            kind=kind,
            name=name if kind == "rank" else f"{name} (ranks {shown})",
            ranks=shown,
            slower=float(own[rows].mean() / usual - 1),
            always=float((busy[rows].mean(axis=0) > (1 + SLOWER) * each).mean()),
        )

    stages: dict[int, set[int]] = defaultdict(set)
    for row in dimensions.get("pipeline", ()):
        for stage, rank in enumerate(row):
            stages[stage].add(rank)
    hosts: dict[int, set[int]] = defaultdict(set)
    for rank in ranks if per_host else ():
        hosts[rank // (per_host or 1)].add(rank)
    explained: set[int] = set()
    for kind, found in (("stage", stages), ("host", hosts)):
        for number, members in sorted(found.items()):
            there = sorted(rank for rank in members if rank in place and rank not in explained)
            share = sum(is_slow[rank] for rank in there) / max(len(there), 1)
            if len(there) > 1 and len(there) < len(ranks) and share >= MOST_OF_A_PART:
                # A stage that is slow by one host alone is that host.
                outside = [rank for rank in there if kind == "stage" and not is_slow[rank]]
                if not outside:
                    yield part(kind, f"{kind} {number}", there)
                    explained.update(there)
    alone = [rank for rank in ranks if is_slow[rank] and rank not in explained]
    for rank in sorted(alone, key=lambda rank: -float(own[place[rank]]))[:_MOST_LISTED]:
        yield part("rank", f"rank {rank}", [rank])


def _is_wandering(busy: NDArray[np.float64]) -> bool:
    if busy.shape[1] < 2:
        return False
    late = busy.max(axis=0) > (1 + SLOWER) * np.quantile(busy, 0.25, axis=0)
    who = Counter(busy.argmax(axis=0)[late].tolist())
    return bool(late.mean() >= MOST_OF_A_PART and max(who.values()) <= IN_TURNS * busy.shape[1])


def _slow_links(rates: Iterable[CollectiveTime]) -> Iterator[SlowPart]:
    """Yield groups in which data of one size moves slower than in the others of that size."""
    alike: dict[tuple[str, int | None, float | None], list[tuple[float, CollectiveTime]]] = defaultdict(list)
    for one in rates:
        if one.moving_ms and one.calls:
            alike[one.name, one.group_size, one.bytes].append((one.moving_ms / one.calls, one))
    slow: list[tuple[float, CollectiveTime]] = []
    for rows in alike.values():
        if len(rows) >= LEAST_GROUPS:
            usual = median(ms for ms, _ in rows)
            slow += [(ms / usual - 1, one) for ms, one in rows if usual and ms > (1 + SLOWER_LINK) * usual]
    for slower, one in sorted(slow, key=lambda row: -row[0])[:_MOST_LISTED]:
        ranks = [int(number) for number in re.findall(r"\d{1,7}", one.ranks)]
        shown = show_numbers(ranks)
        yield SlowPart(kind="link", name=f"{one.name} between ranks {shown}", ranks=shown, slower=slower)

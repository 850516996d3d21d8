"""Many ranks together: which hosts, pipeline stages, groups or ranks are slow, always or in turns.

A rank is slow when what it does itself, all of a step but waiting for and moving data, takes longer than on
the quicker ranks: whoever waits for a slow one is not slow. A host or stage is slow when most of its ranks
are; a link when data of one size takes a group longer than others of its size. Hosts side by side that are
slow together, or whose links are, share something that is: a switch, a rack, its power.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.ledger import Ledger
from stepgrade.model.profile import RankRow
from stepgrade.model.ranks import CollectiveRow, ManyRanks, RankGroups, RankSpread, SlowPart
from stepgrade.naming.kernels import CollectiveKind, collective_kind
from stepgrade.ranks.collectives import Arrivals, ProcessGroup
from stepgrade.statistics import median, quantile
from stepgrade.units import NS_PER_MS, show_numbers

LEAST_RANKS = 4  # below, a table says all there is to say
SLOWER = 0.1  # than the quicker ranks, for a rank to be slow
MOST_OF_A_PART = 0.8  # of a host's or stage's ranks, for all of it to be slow
SLOWER_LINK = 0.5  # than the middle of the groups of its size
LEAST_GROUPS = 3
IN_TURNS = 0.5  # of the steps with a slow rank: less than that for each rank
LEAST_NEIGHBOURS = 4  # slow ranks with numbers in a row that are reported as one
_MOST_LISTED = 8
_MOST_NAMED = 4  # hosts of a row of them


class HostRanks(NamedTuple):
    """A host by its name, or its number where that is not known, and its ranks in order."""

    name: str
    ranks: list[int]


class RankParts(Struct, frozen=True, kw_only=True):
    """What is known of the ranks' positions: their process groups and their hosts."""

    groups: frozenset[tuple[ProcessGroup, str]]  # and the name of a collective in it
    hosts: tuple[HostRanks, ...]  # in the order of their ranks; none where they are not known
    per_host: int | None  # devices, as a trace lists them

    @classmethod
    def of(
        cls, programs: Iterable[Arrivals], names: Mapping[int, str | None], per_host: int | None
    ) -> RankParts:
        """Return the positions that collectives show; hosts come from names, else from rank numbers."""
        groups = frozenset((call.group, call.name) for program in programs for call in program.calls)
        ranks = sorted(names)
        known = [name for name in names.values() if name is not None]
        hosts: dict[str, list[int]] = {}
        # A name for each rank is one of a container, not of a host.
        if len(known) == len(ranks) and 1 < len(set(known)) < len(ranks):
            for rank in ranks:
                hosts.setdefault(names[rank] or "", []).append(rank)
        elif per_host and len(ranks) > per_host:
            for rank in ranks:
                hosts.setdefault(str(rank // per_host), []).append(rank)
        found = tuple(HostRanks(name, members) for name, members in hosts.items())
        return cls(groups=groups, hosts=found, per_host=per_host)


def describe_ranks(
    times: Sequence[RankRow],
    ledgers: Mapping[int, Sequence[Ledger]],
    parts: RankParts,
    rates: Sequence[CollectiveRow],
) -> ManyRanks | None:
    """Return what many ranks show together; None for few. `ledgers` are each rank's, of the common steps."""
    if len(times) < LEAST_RANKS:
        return None
    ranks = [time.rank for time in times]
    lengths = {len(own) for own in ledgers.values()}
    busy = np.zeros((len(ranks), 0))
    if set(ledgers) == set(ranks) and len(lengths) == 1:
        rows = [[step.total - (step.exposed_communication or 0) for step in ledgers[rank]] for rank in ranks]
        busy = np.array(rows, np.float64).reshape(len(ranks), -1) / NS_PER_MS
    spreads = [_spread("step", ranks, [time.step_ms for time in times])]
    if busy.shape[1]:
        spreads.append(_spread("busy", ranks, busy.mean(axis=1).tolist()))
    if all(time.wait_ms is not None for time in times):
        spreads.append(_spread("waiting", ranks, [time.wait_ms or 0.0 for time in times]))
    dimensions = _dimensions(parts, len(ranks))
    slow = list(_slow_parts(_Busy(ranks, busy), dimensions, parts.hosts)) if busy.shape[1] else []
    wandering = False  # most steps have a slow rank, but not the same one
    if not slow and busy.shape[1] > 1:
        late = busy.max(axis=0) > (1 + SLOWER) * np.quantile(busy, 0.25, axis=0)
        who = Counter(busy.argmax(axis=0)[late].tolist())
        wandering = bool(late.mean() >= MOST_OF_A_PART and max(who.values()) <= IN_TURNS * busy.shape[1])
    return ManyRanks(
        ranks=len(ranks),
        hosts=len(parts.hosts) or None,
        per_host=max((len(host.ranks) for host in parts.hosts), default=None),
        spreads=tuple(spreads),
        groups=tuple(
            RankGroups(dimension=name, groups=len(rows), size=max(map(len, rows)))
            for name, rows in sorted(dimensions.items())
        ),
        slow=(*slow, *_slow_links(rates, parts.hosts)),
        wandering=wandering,
    )


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


class _Busy:
    """How long each rank is at work itself in each step, and who is slow."""

    def __init__(self, ranks: Sequence[int], busy: NDArray[np.float64]) -> None:
        self.ranks = ranks
        self._busy, self._own = busy, busy.mean(axis=1)
        self._usual = quantile(sorted(self._own.tolist()), 0.25)
        self._usual_of_step = np.quantile(busy, 0.25, axis=0)
        self._index = {rank: number for number, rank in enumerate(ranks)}
        self.slow = {rank for rank in ranks if self.of(rank) > (1 + SLOWER) * self._usual}

    def of(self, rank: int) -> float:
        """Return the mean of a rank."""
        return float(self._own[self._index[rank]])

    def are_slow(self, members: Sequence[int], share: float = MOST_OF_A_PART) -> bool:
        """Return whether at least this share of the members is slow; never for one rank or for all."""
        count = sum(rank in self.slow for rank in members)
        return 1 < len(members) < len(self.ranks) and count >= share * len(members)

    def part(self, kind: str, name: str, members: Sequence[int]) -> SlowPart:
        """Return these ranks as one slow part."""
        rows = [self._index[rank] for rank in members]
        shown = show_numbers(members)
        late = self._busy[rows].mean(axis=0) > (1 + SLOWER) * self._usual_of_step
        return SlowPart(
            kind=kind,
            name=name if kind in ("rank", "neighbours") else f"{name} (ranks {shown})",
            ranks=shown,
            slower=float(self._own[rows].mean() / self._usual - 1),
            always=float(late.mean()),
        )


def _slow_parts(
    busy: _Busy, dimensions: Mapping[str, Sequence[tuple[int, ...]]], hosts: Sequence[HostRanks]
) -> Iterator[SlowPart]:
    """Yield slow stages, else slow hosts, those side by side as one, then ranks that are slow alone."""
    stages: dict[int, set[int]] = defaultdict(set)
    for row in dimensions.get("pipeline", ()):
        for stage, rank in enumerate(row):
            stages[stage].add(rank)
    explained: set[int] = set()
    for number, stage_ranks in sorted(stages.items()):
        members = sorted(stage_ranks.intersection(busy.ranks) - explained)
        if busy.are_slow(members, share=1.0):  # a stage that is slow by one host alone is that host
            yield busy.part("stage", f"stage {number}", members)
            explained.update(members)
    slow = [index for index, host in enumerate(hosts) if busy.are_slow(_left(host.ranks, explained))]
    for first, last in in_rows(slow)[:_MOST_LISTED]:
        together = hosts[first : last + 1]
        members = _left((rank for host in together for rank in host.ranks), explained)
        yield busy.part("hosts" if len(together) > 1 else "host", name_hosts(together), members)
        explained.update(members)
    alone = _left(busy.ranks, explained | (set(busy.ranks) - busy.slow))
    for first, last in in_rows(alone):
        if last - first + 1 >= LEAST_NEIGHBOURS:
            members = [*range(first, last + 1)]
            yield busy.part("neighbours", f"ranks {first} to {last}", members)
            explained.update(members)
    for rank in sorted(_left(alone, explained), key=lambda rank: -busy.of(rank))[:_MOST_LISTED]:
        yield busy.part("rank", f"rank {rank}", [rank])


def _left(ranks: Iterable[int], explained: set[int]) -> list[int]:
    return [rank for rank in ranks if rank not in explained]


def in_rows(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last of each row of numbers that follow each other."""
    rows: list[tuple[int, int]] = []
    for number in numbers:
        if rows and number == rows[-1][1] + 1:
            rows[-1] = rows[-1][0], number
        else:
            rows.append((number, number))
    return rows


def name_hosts(hosts: Sequence[HostRanks]) -> str:
    """Return the names of adjacent hosts, for display."""
    names = [host.name for host in hosts]
    if len(names) == 1:
        return f"host {names[0]}"
    if len(names) <= _MOST_NAMED:
        return f"hosts {', '.join(names[:-1])} and {names[-1]}"
    return f"hosts {names[0]} to {names[-1]}"


def _slow_links(rates: Iterable[CollectiveRow], hosts: Sequence[HostRanks]) -> Iterator[SlowPart]:
    """Yield groups in which data moves slower than in others of that size, or the switch that they share."""
    alike: dict[tuple[str, int | None, float | None], list[tuple[float, CollectiveRow]]] = defaultdict(list)
    for row in rates:
        if row.moving_ms and row.calls:
            alike[row.name, row.group_size, row.bytes].append((row.moving_ms / row.calls, row))
    slower = list[tuple[float, CollectiveRow]]()
    for rows in alike.values():
        usual = median(ms for ms, _ in rows)
        slower += [(ms / usual - 1, row) for ms, row in rows if usual and len(rows) >= LEAST_GROUPS]
    slow = [(share, row) for share, row in slower if share > SLOWER_LINK]
    host_of = {rank: index for index, host in enumerate(hosts) for rank in host.ranks}

    def hosts_of(row: CollectiveRow) -> set[int]:
        ranks = listed_ranks(row)
        is_whole = len(ranks) == row.group_size and all(rank in host_of for rank in ranks)
        return {host_of[rank] for rank in ranks} if is_whole else set()

    # Neighbouring hosts share a switch if all slow groups are among them, and no sound one is.
    between = [hosts_of(row) for _, row in slow]
    runs = in_rows(sorted(set[int]().union(*between)))
    if len(slow) > 1 and all(between) and len(runs) == 1 and runs[0][0] < runs[0][1]:
        first, last = runs[0]
        sound = [hosts_of(row) for share, row in slower if share <= SLOWER_LINK]
        if not any(len(own) > 1 and min(own) >= first and max(own) <= last for own in sound):
            shown = show_numbers(rank for host in hosts[first : last + 1] for rank in host.ranks)
            name = f"{name_hosts(hosts[first : last + 1])} (ranks {shown})"
            share = median(share for share, _ in slow)
            yield SlowPart(kind="switch", name=name, ranks=shown, slower=share)
            return
    for share, row in sorted(slow, key=lambda each: -each[0])[:_MOST_LISTED]:
        ranks = listed_ranks(row)
        shown = show_numbers(ranks)
        if row.group_size and row.group_size > len(ranks):  # Kineto lists the first 30
            shown = f"{show_numbers(ranks[:_MOST_NAMED])} and {row.group_size - _MOST_NAMED} more"
        yield SlowPart(kind="link", name=f"{row.name} between ranks {shown}", ranks=shown, slower=share)


def listed_ranks(row: CollectiveRow) -> list[int]:
    """Return the ranks of a collective's group, as far as they are listed."""
    return [int(number) for number in re.findall(r"\d{1,7}", row.ranks)]

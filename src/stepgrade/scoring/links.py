"""What crosses links: collectives with their bandwidth and latency, and copies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import structs

from stepgrade.hardware.ceilings import Figures
from stepgrade.model.activity import Activity, CopyRow
from stepgrade.model.collectives import CollectiveFit, CollectiveRow, Communication
from stepgrade.naming.collective_kind import CollectiveKind, collective_kind
from stepgrade.statistics import mean

# Of what an all-reduce moves, each byte crosses the links twice, once to be added and once to be told.
_TRIPS = {
    CollectiveKind.ALL_REDUCE: 2.0,
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
    CollectiveKind.ALL_TO_ALL: 1.0,
}
MOST_GROUPS_LISTED = 4  # of those that do the same
FEWEST_SIZES = 3  # for a line through them
_GB, _MS_PER_S = 1e9, 1e3


def collective_rows(links: Communication | None, figures: Figures) -> tuple[CollectiveRow, ...]:
    """Return the collectives with their rates, longest first."""
    if links is None:
        return ()
    found = []
    link = next((rate.per_s for rate in figures.link()), None)
    for one in _many_as_one(links.collectives, links.node_devices):
        seconds = (one.ms if one.moving_ms is None else one.moving_ms) / _MS_PER_S
        rate = one.bytes * one.calls / seconds / _GB if one.bytes and seconds > 0.0 else None
        bus = None if rate is None else rate * bus_factor(one.name, one.group_size)
        nodes = nodes_of(one, links.node_devices)
        found.append(
            structs.replace(
                one,
                nodes=nodes,
                algbw_gb_s=rate,
                busbw_gb_s=bus,
                # The link is that between the devices of one node.
                link_share=bus * _GB / link if bus and link and nodes != "several" else None,
                at_least=one.moving_ms is None,
                ranks="",
                moving_ms=None,
            )
        )
    return tuple(found)


def _many_as_one(collectives: Sequence[CollectiveRow], of_node: int | None) -> list[CollectiveRow]:
    """Return the collectives, of many groups alike the mean one.

    A group that is slower than those like it is told with the ranks.
    """
    alike: dict[tuple[object, ...], list[CollectiveRow]] = {}
    for one in collectives:
        key = one.name, one.group, one.group_size, one.bytes, one.moving_ms is None, nodes_of(one, of_node)
        alike.setdefault(key, []).append(one)
    found: list[CollectiveRow] = []
    for rows in alike.values():
        if len(rows) <= MOST_GROUPS_LISTED:
            found += rows
            continue
        mean_of = {
            name: mean([getattr(one, name) for one in rows])
            for name in ("calls", "ms", "wait_ms", "moving_ms")
            if getattr(rows[0], name) is not None
        }
        found.append(structs.replace(rows[0], groups=len(rows), **mean_of))
    return sorted(found, key=lambda row: -row.ms)


def copy_rows(activity: Activity | None) -> tuple[CopyRow, ...]:
    """Return the copies between host and device of a step, by direction and memory, longest first."""
    alike: dict[tuple[str, str | None], list[CopyRow]] = {}
    for tally in activity.copies if activity else ():
        alike.setdefault((tally.direction, tally.memory), []).append(tally)
    found = []
    for (direction, memory), tallies in alike.items():
        sized = [(tally.bytes, tally.ms) for tally in tallies if tally.bytes is not None]
        moved, took_ms = sum(size for size, _ in sized), sum(ms for _, ms in sized)
        found.append(
            CopyRow(
                direction=direction,
                memory=memory,
                calls=sum(tally.calls for tally in tallies),
                ms=sum(tally.ms for tally in tallies),
                bytes=moved if len(sized) == len(tallies) else None,
                gb_s=moved / took_ms * _MS_PER_S / _GB if took_ms > 0.0 else None,
            )
        )
    return tuple(sorted(found, key=lambda row: (-row.ms, row.direction, row.memory or "")))


def bus_factor(name: str, ranks: int | None) -> float:
    """Return how much of a message crosses each link, as NCCL's own tests count it."""
    trips = _TRIPS.get(collective_kind(name))
    return 1.0 if trips is None or not ranks else trips * (ranks - 1) / ranks


def nodes_of(one: CollectiveRow, of_node: int | None) -> str | None:
    """Return whether a group has one node or several; ranks are numbered node by node."""
    if not of_node or not one.group_size:
        return None
    members = [int(text) for text in re.findall(r"\d{1,9}", one.ranks[:2000])]
    if one.group_size > of_node:
        return "several"
    return ("one" if len({rank // of_node for rank in members}) == 1 else "several") if members else None


def collective_fits(links: Communication | None) -> tuple[CollectiveFit, ...]:
    """Return for each collective of a group the line t = latency + bytes / rate through its sizes.

    Only where the last arrival is known: before it, time is waiting.
    """
    alike: dict[tuple[str, str], list[CollectiveRow]] = {}
    for one in links.collectives if links else ():
        if one.bytes and one.moving_ms and one.calls:
            alike.setdefault((one.name, one.group), []).append(one)
    found = []
    for (name, group), those in alike.items():
        line = line_through(
            [(one.bytes or 0.0, (one.moving_ms or 0.0) / one.calls / _MS_PER_S) for one in those]
        )
        if line is not None:
            fit = CollectiveFit(
                name=name, group=group, latency_us=line[0] * 1e6, gb_s=1.0 / line[1] / _GB, sizes=len(those)
            )
            found.append(fit)
    return tuple(found)


def line_through(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return where the straight line through the points begins and how it rises; None if it does not."""
    if len({size for size, _ in points}) < FEWEST_SIZES:
        return None
    middle, height = mean([size for size, _ in points]), mean([time for _, time in points])
    spread = sum((size - middle) ** 2 for size, _ in points)
    rise = sum((size - middle) * (time - height) for size, time in points) / spread
    begin = height - rise * middle
    return (max(begin, 0.0), rise) if rise > 0.0 else None

"""What crosses links: collectives with their bandwidth and latency, and copies."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import structs

from stepgrade.hardware.ceilings import Figures
from stepgrade.model.activity import Activity, CopyRow
from stepgrade.model.ranks import CollectiveFit, CollectiveRow, Communication
from stepgrade.naming.kernels import CollectiveKind, collective_kind
from stepgrade.statistics import mean

# In an all-reduce each byte crosses the links twice: to be summed, and to return as part of the sum.
_TRIPS = {
    CollectiveKind.ALL_REDUCE: 2.0,
    CollectiveKind.ALL_GATHER: 1.0,
    CollectiveKind.REDUCE_SCATTER: 1.0,
    CollectiveKind.ALL_TO_ALL: 1.0,
}
MOST_GROUPS_LISTED = 4  # of groups that do the same
FEWEST_SIZES = 3  # for a line through them
_GB, _MS_PER_S = 1e9, 1e3


def collective_rows(links: Communication | None, figures: Figures) -> tuple[CollectiveRow, ...]:
    """Return the collectives with their rates, longest first."""
    if links is None:
        return ()
    found = []
    link = next((rate.per_s for rate in figures.link()), None)
    for row in _merge_alike(links.collectives, links.node_devices):
        seconds = (row.ms if row.moving_ms is None else row.moving_ms) / _MS_PER_S
        rate = row.bytes * row.calls / seconds / _GB if row.bytes and seconds > 0.0 else None
        bus = None if rate is None else rate * bus_factor(row.name, row.group_size)
        nodes = nodes_of(row, links.node_devices)
        found.append(
            structs.replace(
                row,
                nodes=nodes,
                algbw_gb_s=rate,
                busbw_gb_s=bus,
                # The link is that between the devices of one node.
                link_share=bus * _GB / link if bus and link and nodes != "several" else None,
                at_least=row.moving_ms is None,
                ranks="",
                moving_ms=None,
            )
        )
    return tuple(found)


def _merge_alike(collectives: Sequence[CollectiveRow], node_devices: int | None) -> list[CollectiveRow]:
    """Return the collectives, longest first, with the mean of many groups that do the same as one row.

    A group that is slower than the others is shown with the ranks.
    """
    alike: dict[tuple[object, ...], list[CollectiveRow]] = {}
    for row in collectives:
        key = (
            row.name,
            row.group,
            row.group_size,
            row.bytes,
            row.moving_ms is None,
            nodes_of(row, node_devices),
        )
        alike.setdefault(key, []).append(row)
    found: list[CollectiveRow] = []
    for rows in alike.values():
        if len(rows) <= MOST_GROUPS_LISTED:
            found += rows
            continue
        mean_of = {
            name: mean([getattr(row, name) for row in rows])
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


def nodes_of(row: CollectiveRow, node_devices: int | None) -> str | None:
    """Return whether a group has one node or several; ranks are numbered node by node."""
    if not node_devices or not row.group_size:
        return None
    members = [int(text) for text in re.findall(r"\d{1,9}", row.ranks[:2000])]
    if row.group_size > node_devices:
        return "several"
    return ("one" if len({rank // node_devices for rank in members}) == 1 else "several") if members else None


def collective_fits(links: Communication | None) -> tuple[CollectiveFit, ...]:
    """Return for each collective of a group the line t = latency + bytes / rate through its sizes.

    Only where the last arrival is known: before it, time is waiting.
    """
    alike: dict[tuple[str, str], list[CollectiveRow]] = {}
    for row in links.collectives if links else ():
        if row.bytes and row.moving_ms and row.calls:
            alike.setdefault((row.name, row.group), []).append(row)
    found = []
    for (name, group), rows in alike.items():
        line = line_through(
            [(row.bytes or 0.0, (row.moving_ms or 0.0) / row.calls / _MS_PER_S) for row in rows]
        )
        if line is not None:
            fit = CollectiveFit(
                name=name, group=group, latency_us=line[0] * 1e6, gb_s=1.0 / line[1] / _GB, sizes=len(rows)
            )
            found.append(fit)
    return tuple(found)


def line_through(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Return intercept and slope of the line through the points; None unless it rises."""
    if len({size for size, _ in points}) < FEWEST_SIZES:
        return None
    middle, height = mean([size for size, _ in points]), mean([time for _, time in points])
    spread = sum((size - middle) ** 2 for size, _ in points)
    rise = sum((size - middle) * (time - height) for size, time in points) / spread
    begin = height - rise * middle
    return (max(begin, 0.0), rise) if rise > 0.0 else None

"""The collectives of one rank: which they are, how long they take and how much they move."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from stepgrade.model.activity import CollectiveTally
from stepgrade.model.events import Collective
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.units import NS_PER_MS

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
    size = item_bytes(collective)
    if size is None or collective.in_elements is None or collective.out_elements is None:
        return None
    return size * max(collective.in_elements, collective.out_elements)


def item_bytes(collective: Collective) -> int | None:
    """Return how many bytes an element of its messages has."""
    return _ITEM_BYTES.get((collective.dtype or "").lower().removeprefix("c10::"))

"""What could be different in a step, and what that makes of the graph's edges."""

from __future__ import annotations

import math
import re
from fnmatch import translate
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from stepgrade.errors import BadOption, nearest
from stepgrade.model.events import Longs
from stepgrade.naming.torch_names import Mask
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.units import show_count
from stepgrade.whatif.graph import Edge, StepGraph

COMMUNICATION, SYNC, LINK, LAUNCHES = "communication", "sync", "link", "launches"
_HOST = {"host": Edge.HOST, "input": Edge.INPUT, "data": Edge.INPUT}
_CLASSES = {member.label: member for member in WorkClass}
_LONGEST = 4096  # kernels of templates have long names
_MOST_SPEED = 1e6
_NAME_SHOWN = 60


class AssumedChange(Struct, frozen=True, kw_only=True):
    """One hypothetical change: a kind of work, operation names, host, input, sync, link or launches."""

    what: str
    speed: float = math.inf  # how many times as fast; infinite is without it
    launches: int | None = None  # how many a step has left

    def __post_init__(self) -> None:
        if not self.what.strip() or len(self.what) > _LONGEST:
            raise BadOption(f"names what changes in 1 to {_LONGEST} characters", field="changes")
        if not (self.speed == math.inf or 1 / _MOST_SPEED <= self.speed <= _MOST_SPEED):
            raise BadOption(f"{self.speed:g} is no speed: write it like 2x or 1.5x", field="changes")
        if self.launches is not None and self.launches < 0:
            raise BadOption("a step has 0 launches or more", field="changes")

    def __str__(self) -> str:
        if self.what == LAUNCHES:
            return f"{show_count(self.launches or 0)} launches" if self.launches else "all launches as one"
        if self.speed == math.inf:
            return f"without {self.what}"
        return f"{self.what} {self.speed:g}x as fast"


class Changed(NamedTuple):
    """The graph's edges after changes."""

    lag_ns: Longs
    kept: Mask
    affected_ns: int  # what the changed parts took before, of one rank
    does_less: bool  # matrix products were left out: FLOPs are not what they were


def apply(graph: StepGraph, changes: tuple[AssumedChange, ...]) -> Changed:
    """Return the edges with all changes; raise BadOption for one that the step has nothing of."""
    edges = graph.edges
    lag, kept = edges.lag_ns.astype(np.float64), np.ones(len(edges.before), np.bool_)
    touched = np.zeros(len(edges.before), np.bool_)
    does_less = False
    for change in changes:
        rows = _rows_of(graph, change.what)
        if not rows.any():
            raise BadOption(f"nothing in the step is {change.what!r}", hint=_meant(graph, change.what))
        if change.what == SYNC:
            if change.speed != math.inf:
                raise BadOption("waits for the device are there or not: leave them out", field="changes")
            touched |= rows
            kept &= ~rows
            continue
        if change.what == COMMUNICATION and change.speed == math.inf:
            kept &= edges.kind != Edge.MEET
        speed, floor = change.speed, 0.0
        if change.what == LAUNCHES:
            speed = graph.launches / change.launches if change.launches else math.inf
        if change.what == LINK:
            # A faster link does not make the way shorter: the shortest message has its time for that.
            floor = float(edges.lag_ns[rows & (edges.lag_ns > 0)].min(initial=0))
        lag[rows] = np.minimum(lag[rows], floor) + np.maximum(lag[rows] - floor, 0.0) / speed
        touched |= rows
        classes = graph.pieces.work_class[edges.piece[rows & (edges.piece >= 0)]]
        does_less |= change.speed == math.inf and bool(np.isin(classes, MATMULS).any())
    affected = int(edges.lag_ns[touched].sum()) // graph.ranks
    return Changed(np.rint(lag).astype(np.int64), kept, affected, does_less)


def _rows_of(graph: StepGraph, what: str) -> Mask:
    """Return the edges that a change is about."""
    edges, pieces = graph.edges, graph.pieces
    if what == SYNC:
        waits: Mask = edges.kind == Edge.SYNC
        return waits
    if what in _HOST or what == LAUNCHES:
        of_host: Mask = (edges.kind == _HOST.get(what, Edge.HOST)) & (edges.lag_ns > 0)
        return of_host & (what != LAUNCHES or graph.launches > 0)
    wanted = _CLASSES.get(COMMUNICATION if what == LINK else what.lower())
    if wanted is not None:
        chosen = pieces.work_class == wanted
    else:
        text = what.lower()
        names = {name: name.lower() for name in {*pieces.label, *pieces.kernel} - {""}}
        fits = {name for name, low in names.items() if low == text}
        if not fits and set(text) & {"*", "?"}:
            pattern = re.compile(translate(text))
            fits = {name for name, low in names.items() if pattern.match(low)}
        elif not fits:
            fits = {name for name, low in names.items() if text in low}
        pairs = zip(pieces.label, pieces.kernel, strict=True)
        chosen = np.array([bool(fits & {*pair}) for pair in pairs], np.bool_)
    rows = edges.piece >= 0
    rows[rows] = chosen[edges.piece[rows]]
    return rows


def _meant(graph: StepGraph, what: str) -> str:
    """Return a hint: the nearest name, or the longest that there are."""
    kinds = [kind for kind in (*_CLASSES, *_HOST, SYNC) if _rows_of(graph, kind).any()]
    meant = nearest(what, [*kinds, *dict.fromkeys((*graph.pieces.label, *graph.pieces.kernel))])
    if meant is not None:
        return f"did you mean {meant[:_NAME_SHOWN]}?"
    return f"the longest are {', '.join(label[:_NAME_SHOWN] for label in longest_operations(graph, 5))}"


def longest_operations(graph: StepGraph, most: int) -> list[str]:
    """Return the names of the operations that take longest."""
    edges, total = graph.edges, dict[str, int]()
    rows = np.flatnonzero(edges.piece >= 0)
    for piece, ns in zip(edges.piece[rows].tolist(), edges.lag_ns[rows].tolist(), strict=True):
        label = graph.pieces.label[piece]
        total[label] = total.get(label, 0) + ns
    return sorted(total, key=lambda label: -total[label])[:most]

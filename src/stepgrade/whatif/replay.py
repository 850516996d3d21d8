"""Replay a step, with or without changes: after itself, until its duration converges."""

from __future__ import annotations

import math
import re
from collections import Counter
from fnmatch import translate
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from stepgrade.errors import BadOption, NotMeasured, nearest
from stepgrade.model.events import Longs
from stepgrade.naming.torch_names import Mask
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.timeline.ledger import DISPATCH_NS
from stepgrade.units import show_count
from stepgrade.whatif.graph import Edge, StepGraph

COMMUNICATION, SYNC, LINK, LAUNCHES = "communication", "sync", "link", "launches"
STRAGGLERS = "stragglers"
_HOST = {"host": Edge.HOST, "input": Edge.INPUT, "data": Edge.INPUT}
_CLASSES = {member.label: member for member in WorkClass}
_LONGEST_NAME, _NAME_SHOWN = 4096, 60  # template kernels have long names
_MOST_SPEED = 1e6
_MOST_ROUNDS = 12
_SETTLED = 1e-4  # rounds that differ by less have converged
_NAMES = {
    Edge.HOST: "host",
    Edge.INPUT: "input",
    Edge.MOVE: WorkClass.COMMUNICATION.label,
    Edge.SYNC: "sync",
}


class AssumedChange(Struct, frozen=True, kw_only=True):
    """One hypothetical change.

    Of a kind of work, operations by their names, host, input, sync, link, launches or stragglers.
    """

    what: str
    speed: float = math.inf  # speed-up; infinite leaves it out
    launches: int | None = None  # per step

    def __post_init__(self) -> None:
        if not self.what.strip() or len(self.what) > _LONGEST_NAME:
            raise BadOption(f"the name needs 1 to {_LONGEST_NAME} characters", field="changes")
        if not (self.speed == math.inf or 1 / _MOST_SPEED <= self.speed <= _MOST_SPEED):
            raise BadOption(f"{self.speed:g} is not a speed: write it like 2x or 1.5x", field="changes")
        if self.launches is not None and self.launches < 0:
            raise BadOption("launches per step must be 0 or more", field="changes")

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
    affected_ns: int  # time of the changed parts before, per rank
    does_less: bool  # matrix products were left out, so the FLOPs differ


def apply(graph: StepGraph, changes: tuple[AssumedChange, ...]) -> Changed:
    """Return the edges with all changes; raise BadOption if the step has nothing that one applies to."""
    edges = graph.edges
    lag, kept = edges.lag_ns.astype(np.float64), np.ones(len(edges.before), np.bool_)
    touched = np.zeros(len(edges.before), np.bool_)
    does_less = False
    for change in changes:
        rows = _rows_of(graph, change.what)
        if not rows.any():
            kinds = [kind for kind in (*_CLASSES, *_HOST, SYNC) if _rows_of(graph, kind).any()]
            meant = nearest(
                change.what, [*kinds, *dict.fromkeys((*graph.pieces.label, *graph.pieces.kernel))]
            )
            longest = ", ".join(label[:_NAME_SHOWN] for label in longest_operations(graph, 5))
            hint = f"did you mean {meant[:_NAME_SHOWN]}?" if meant else f"the longest are {longest}"
            raise BadOption(f"nothing in the step is {change.what!r}", hint=hint)
        if change.what == SYNC:
            if change.speed != math.inf:
                raise BadOption("waits for the device cannot be made faster, only removed", field="changes")
            touched |= rows
            kept &= ~rows
            continue
        if change.what == COMMUNICATION and change.speed == math.inf:
            kept &= edges.kind != Edge.MEET
        speed, floor = change.speed, 0.0
        if change.what == LAUNCHES:
            speed = graph.launches / change.launches if change.launches else math.inf
        if change.what == LINK:
            # A faster link does not lower the latency: the shortest message is taken for that.
            floor = float(edges.lag_ns[rows & (edges.lag_ns > 0)].min(initial=0))
        lag[rows] = np.minimum(lag[rows], floor) + np.maximum(lag[rows] - floor, 0.0) / speed
        touched |= rows
        classes = graph.pieces.work_class[edges.piece[rows & (edges.piece >= 0)]]
        does_less |= change.speed == math.inf and bool(np.isin(classes, MATMULS).any())
    affected = int(edges.lag_ns[touched].sum()) // graph.ranks
    return Changed(np.rint(lag).astype(np.int64), kept, affected, does_less)


def _rows_of(graph: StepGraph, what: str) -> Mask:
    """Return the edges that a change applies to."""
    edges, pieces = graph.edges, graph.pieces
    if what == SYNC:
        waits: Mask = edges.kind == Edge.SYNC
        return waits
    if what in _HOST or what == LAUNCHES:
        is_host: Mask = (edges.kind == _HOST.get(what, Edge.HOST)) & (edges.lag_ns > 0)
        return is_host & (what != LAUNCHES or graph.launches > 0)
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


def longest_operations(graph: StepGraph, most: int) -> list[str]:
    """Return the names of the operations that take longest."""
    edges, total = graph.edges, dict[str, int]()
    rows = np.flatnonzero(edges.piece >= 0)
    for piece, ns in zip(edges.piece[rows].tolist(), edges.lag_ns[rows].tolist(), strict=True):
        label = graph.pieces.label[piece]
        total[label] = total.get(label, 0) + ns
    return sorted(total, key=lambda label: -total[label])[:most]


class ReplayedStep(NamedTuple):
    """How long a step takes, and the parts of its critical path."""

    step_ns: float
    parts_ns: dict[str, float]  # longest first


class Replayer:
    """A graph prepared for replays with other edge lengths."""

    def __init__(self, graph: StepGraph) -> None:
        edges = graph.edges
        # Order the nodes so that each comes after those that it waits for.
        rows = np.flatnonzero(~edges.back)
        rows = rows[np.argsort(edges.before[rows], kind="stable")]
        first = np.searchsorted(edges.before[rows], np.arange(graph.nodes + 1)).tolist()
        targets = edges.after[rows].tolist()
        open_edges = np.bincount(edges.after[rows], minlength=graph.nodes).tolist()
        ready = [node for node, count in enumerate(open_edges) if not count]
        for node in ready:  # grows during the loop
            for target in targets[first[node] : first[node + 1]]:
                open_edges[target] -= 1
                if not open_edges[target]:
                    ready.append(target)
        if len(ready) < graph.nodes:
            problem = "the step cannot be replayed: its events wait for each other in a cycle"
            raise NotMeasured(problem, hint="the clocks of host and device, or of the ranks, may differ")
        rank = np.empty(graph.nodes, np.int64)
        rank[ready] = np.arange(graph.nodes)
        self._graph = graph
        self._rows = np.argsort(rank[edges.after], kind="stable")

    def replay(self, lag_ns: Longs, kept: Mask) -> ReplayedStep:
        """Return the step with these lengths and only the edges that are kept."""
        edges = self._graph.edges
        rows = self._rows[kept[self._rows]]
        before, after = edges.before[rows].tolist(), edges.after[rows].tolist()
        lag, back = lag_ns[rows].tolist(), edges.back[rows].tolist()
        rounds, times, chosen = list[int](), list[list[int]](), list[list[int]]()
        for number in range(_MOST_ROUNDS):
            now, via = [0] * self._graph.nodes, [-1] * self._graph.nodes
            earlier = times[-1] if times else now
            for index, (source, target, ns, is_back) in enumerate(zip(before, after, lag, back, strict=True)):
                if is_back and not number:
                    continue
                reached = (earlier if is_back else now)[source] + ns
                if reached > now[target] or via[target] < 0:
                    now[target], via[target] = max(reached, 0), index
            times.append(now)
            chosen.append(via)
            rounds.append(max(now, default=0))
            if number > 1 and abs(rounds[-1] - 2 * rounds[-2] + rounds[-3]) <= _SETTLED * rounds[0]:
                break
        step_ns = rounds[-1] - rounds[-2]
        parts = Counter[str]()
        node, left = int(np.argmax(times[-1])), step_ns
        while left > 0 and chosen and chosen[-1][node] >= 0:
            index = chosen[-1][node]
            kind, piece = Edge(int(edges.kind[rows[index]])), int(edges.piece[rows[index]])
            is_short = edges.lag_ns[rows[index]] <= DISPATCH_NS
            name = _NAMES.get(kind, "launch latency" if is_short else "unattributed")
            if kind is Edge.WORK:
                name = WorkClass(int(self._graph.pieces.work_class[piece])).label
            parts[name] += min(lag[index], left)
            left -= lag[index]
            node = before[index]
            if back[index]:
                chosen.pop()
        return ReplayedStep(step_ns, dict(parts.most_common()))

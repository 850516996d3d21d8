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
from stepgrade.model.columns import among
from stepgrade.model.events import Longs
from stepgrade.naming.torch_names import Mask
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.replay.graph import Edge, StepGraph
from stepgrade.timeline.ledger import DISPATCH_NS, stall_from_ns
from stepgrade.timeline.timeline import PHASES, Phase
from stepgrade.units import show_count

COMMUNICATION, SYNC, LINK, LAUNCHES = "communication", "sync", "link", "launches"
STRAGGLERS, COMPUTE, COPIES, STALLS = "stragglers", "compute", "copies", "stalls"
_HOST = {
    "host": Edge.HOST,
    STALLS: Edge.HOST,
    "input": Edge.INPUT,
    "data": Edge.INPUT,
    "dispatch": Edge.LAUNCH,
}
_PHASES = {f"phase {PHASES[phase]}": phase for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)}
_HOST_COPIES = (Phase.H2D, Phase.D2H)
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

    Of a kind of work, operations by their names, host, input, sync, link, launches, stragglers, or a phase:
    "phase optimizer" is what the device does in it, and what the host does to launch that.
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
            kinds = [kind for kind in (*_CLASSES, *_HOST, *_PHASES, SYNC) if _rows_of(graph, kind).any()]
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
    if what in _PHASES:
        return _rows_of_phase(graph, _PHASES[what])
    if what == SYNC:
        waits: Mask = edges.kind == Edge.SYNC
        return waits
    if what in _HOST or what == LAUNCHES:
        least_ns = stall_from_ns(graph.measured_ns) if what == STALLS else 0
        is_host: Mask = (edges.kind == _HOST.get(what, Edge.HOST)) & (edges.lag_ns > least_ns)
        return is_host & (what != LAUNCHES or graph.launches > 0)
    wanted = _CLASSES.get(COMMUNICATION if what == LINK else what.lower())
    if wanted is not None:
        chosen = pieces.work_class == wanted
    elif what in (COMPUTE, COPIES):
        chosen = among(pieces.phase, _HOST_COPIES)
        if what == COMPUTE:
            chosen = ~chosen & (pieces.work_class != WorkClass.COMMUNICATION)
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


def _rows_of_phase(graph: StepGraph, phase: Phase) -> Mask:
    """Return the edges of a phase's work, and of the host until it launches the work."""
    edges = graph.edges
    in_phase = graph.pieces.phase == phase
    rows = (edges.kind == Edge.WORK) & (edges.piece >= 0)
    launched = np.zeros(graph.nodes, np.bool_)  # moments of the host that launch work of the phase
    starts = edges.before[rows & np.append(in_phase, False)[edges.piece]]
    is_start = np.zeros(graph.nodes, np.bool_)
    is_start[starts] = True
    launches = edges.kind == Edge.LAUNCH
    launched[edges.before[launches & is_start[edges.after]]] = True
    rows[rows] = in_phase[edges.piece[rows]]
    chosen: Mask = rows | ((edges.kind == Edge.HOST) & (edges.lag_ns > 0) & launched[edges.after])
    return chosen


def longest_operations(graph: StepGraph, most: int) -> list[str]:
    """Return the names of the operations that take longest."""
    edges, total = graph.edges, dict[str, int]()
    rows = np.flatnonzero(edges.piece >= 0)
    for piece, ns in zip(edges.piece[rows].tolist(), edges.lag_ns[rows].tolist(), strict=True):
        label = graph.pieces.label[piece]
        total[label] = total.get(label, 0) + ns
    return sorted(total, key=lambda label: -total[label])[:most]


class ReplayedStep(NamedTuple):
    """How long a step takes, and the parts of its critical path where they were asked for."""

    step_ns: float
    parts_ns: dict[str, float] = {}  # longest first


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
        self._graph, self._rank = graph, rank
        self._rows = np.argsort(rank[edges.after], kind="stable")

    def replay(self, lag_ns: Longs, kept: Mask, *, with_parts: bool = False) -> ReplayedStep:
        """Return the step with these lengths and only the edges that are kept."""
        edges, nodes = self._graph.edges, self._graph.nodes
        rows = self._rows[kept[self._rows]]
        is_back = edges.back[rows]
        ahead, behind = rows[~is_back], rows[is_back]
        steps = [
            *zip(*(column[ahead].tolist() for column in (edges.before, edges.after, lag_ns)), strict=True)
        ]
        back = [
            *zip(*(column[behind].tolist() for column in (edges.before, edges.after, lag_ns)), strict=True)
        ]
        rounds, times = list[int](), list[list[int]]()
        for number in range(_MOST_ROUNDS):
            now = [0] * nodes
            for source, target, ns in back if number else ():
                reached = times[-1][source] + ns
                if reached > now[target]:  # noqa: PLR1730  # max() takes twice as long
                    now[target] = reached
            for source, target, ns in steps:
                reached = now[source] + ns
                if reached > now[target]:  # noqa: PLR1730  # max() takes twice as long
                    now[target] = reached
            times.append(now)
            rounds.append(max(now, default=0))
            if number > 1 and abs(rounds[-1] - 2 * rounds[-2] + rounds[-3]) <= _SETTLED * rounds[0]:
                break
        parts = self._path(rows, lag_ns, times) if with_parts else {}
        return ReplayedStep(rounds[-1] - rounds[-2], parts)

    def _path(self, rows: Longs, lag_ns: Longs, times: list[list[int]]) -> dict[str, float]:
        """Return what the critical path of the last round is made of, back to the length of a step."""
        edges = self._graph.edges
        left = max(times[-1], default=0) - max(times[-2], default=0)
        first = np.searchsorted(self._rank[edges.after[rows]], np.arange(self._graph.nodes + 1))
        parts, number = Counter[str](), len(times) - 1
        node, rank = int(np.argmax(times[-1])), self._rank.tolist()
        before, is_back, lag = edges.before.tolist(), edges.back.tolist(), lag_ns.tolist()
        starts, in_order = first.tolist(), rows.tolist()
        while left > 0 and number >= 0:
            into = in_order[starts[rank[node]] : starts[rank[node] + 1]]
            reached = [
                times[number - is_back[row]][before[row]] + lag[row]
                for row in into
                if number or not is_back[row]
            ]
            if not reached:
                break
            row = into[reached.index(max(reached))]
            kind, piece = Edge(int(edges.kind[row])), int(edges.piece[row])
            is_short = edges.lag_ns[row] <= DISPATCH_NS
            name = _NAMES.get(kind, "launch latency" if is_short else "unattributed")
            if kind is Edge.WORK:
                name = WorkClass(int(self._graph.pieces.work_class[piece])).label
            parts[name] += min(lag[row], left)
            left -= lag[row]
            node = before[row]
            number -= is_back[row]
        return dict(parts.most_common())

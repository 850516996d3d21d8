"""Replay a step: behind itself, until it takes as long as the time before."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from stepgrade.errors import NotMeasured
from stepgrade.model.events import Longs
from stepgrade.naming.torch_names import Mask
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline.ledger import DISPATCH_NS
from stepgrade.whatif.graph import Edge, StepGraph

MOST_ROUNDS = 12
_STILL = 1e-4  # two rounds that differ by less are alike
_NAMES = {
    Edge.HOST: "host",
    Edge.INPUT: "input",
    Edge.MOVE: WorkClass.COMMUNICATION.label,
    Edge.SYNC: "sync",
}
_DISPATCH, _UNKNOWN = "launch latency", "unattributed"


class ReplayedStep(NamedTuple):
    """How long a step takes, and what its time is made of: what the longest chain of waiting went through."""

    step_ns: float
    parts_ns: dict[str, float]  # longest first


class Replayer:
    """A graph made ready to be replayed with other lengths of its edges."""

    def __init__(self, graph: StepGraph) -> None:
        edges = graph.edges
        self._graph, self._order = graph, _order_of(graph)
        rank = np.empty(graph.nodes, np.int64)
        rank[self._order] = np.arange(graph.nodes)
        self._rows = np.argsort(rank[edges.after], kind="stable")

    def replay(self, lag_ns: Longs, kept: Mask) -> ReplayedStep:
        """Return the step with these lengths, of the edges that are kept."""
        edges = self._graph.edges
        rows = self._rows[kept[self._rows]]
        before, after = edges.before[rows].tolist(), edges.after[rows].tolist()
        lag, back = lag_ns[rows].tolist(), edges.back[rows].tolist()
        rounds, times, chosen = list[int](), list[list[int]](), list[list[int]]()
        for number in range(MOST_ROUNDS):
            now, via = [0] * self._graph.nodes, [-1] * self._graph.nodes
            earlier = times[-1] if times else now
            for place, (source, target, ns, is_back) in enumerate(zip(before, after, lag, back, strict=True)):
                if is_back and not number:
                    continue
                reached = (earlier if is_back else now)[source] + ns
                if reached > now[target] or via[target] < 0:
                    now[target], via[target] = max(reached, 0), place
            times.append(now)
            chosen.append(via)
            rounds.append(max(now, default=0))
            if number > 1 and abs(rounds[-1] - 2 * rounds[-2] + rounds[-3]) <= _STILL * rounds[0]:
                break
        step_ns = rounds[-1] - rounds[-2]
        parts = Counter[str]()
        node, left = int(np.argmax(times[-1])), step_ns
        while left > 0 and chosen and chosen[-1][node] >= 0:
            place = chosen[-1][node]
            parts[self._part(int(rows[place]))] += min(lag[place], left)
            left -= lag[place]
            node = before[place]
            if back[place]:
                chosen.pop()
        return ReplayedStep(step_ns, dict(parts.most_common()))

    def _part(self, edge: int) -> str:
        """Return what the time of an edge is called."""
        kind = Edge(int(self._graph.edges.kind[edge]))
        if kind is Edge.WORK:
            piece = int(self._graph.edges.piece[edge])
            return WorkClass(int(self._graph.pieces.work_class[piece])).label
        short = self._graph.edges.lag_ns[edge] <= DISPATCH_NS
        return _NAMES.get(kind, _DISPATCH if short else _UNKNOWN)


def _order_of(graph: StepGraph) -> Longs:
    """Return the nodes so that each comes after those that it waits for; raise NotMeasured without such."""
    edges = graph.edges
    rows = np.flatnonzero(~edges.back)
    rows = rows[np.argsort(edges.before[rows], kind="stable")]
    first = np.searchsorted(edges.before[rows], np.arange(graph.nodes + 1)).tolist()
    targets = edges.after[rows].tolist()
    open_edges = np.bincount(edges.after[rows], minlength=graph.nodes).tolist()
    ready = [node for node, count in enumerate(open_edges) if not count]
    for node in ready:  # which grows while it is walked
        for target in targets[first[node] : first[node + 1]]:
            open_edges[target] -= 1
            if not open_edges[target]:
                ready.append(target)
    if len(ready) < graph.nodes:
        problem = "the step cannot be replayed: its events wait for each other in a circle"
        raise NotMeasured(problem, hint="the clocks of host and device, or of the ranks, may be apart")
    return np.array(ready, np.int64)

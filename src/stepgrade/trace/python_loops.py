"""Loops in Python over small operations, as one repeats itself in the order of operations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepgrade.model.activity import LoopTally
from stepgrade.model.events import NONE, Ids, Longs
from stepgrade.naming.torch_names import BACKWARD, matching
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.frames import LoopFrames
from stepgrade.timeline.links import OP, pick
from stepgrade.timeline.timeline import IN_BACKWARD, IN_INPUT, IN_OPTIMIZER, Timeline
from stepgrade.trace.layers import match_forward
from stepgrade.units import NS_PER_MS

LONGEST_TURN = 32  # operations of one turn
FEWEST_TURNS = 64  # models have fewer layers than that, one behind the other, of so few operations
SHORT_TURN_NS = 1_000_000  # a layer takes longer


class Turns(NamedTuple):
    """Stretches of a sequence that repeat themselves: first and last place, and the length of a turn."""

    first: Longs
    last: Longs
    period: Longs

    @property
    def turns(self) -> Longs:
        """Return how many turns each stretch has."""
        turns: Longs = (self.last - self.first + 1) // self.period
        return turns


def find_turns(names: Ids, starts: Longs) -> Turns:
    """Return the stretches of equal short turns, the longest first, none overlapping another."""
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(LONGEST_TURN, len(names) // FEWEST_TURNS) + 1):
        same = names[:-period] == names[period:]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            turns = (stop - first) // period + 1
            last = first + turns * period - 1
            if turns >= FEWEST_TURNS and starts[last] - starts[first] <= turns * SHORT_TURN_NS:
                found.append((first, last, period))
    # A turn repeated twice is one of twice the length as well: the shorter one says it.
    kept: list[tuple[int, int, int]] = []
    taken = np.zeros(len(names), np.bool_)
    for first, last, period in sorted(found, key=lambda turn: (turn[0] - turn[1], turn[2])):
        # None that is kept is shorter: one that overlaps this stretch holds its first or its last place.
        if not (taken[first] or taken[last]):
            taken[first : last + 1] = True
            kept.append((first, last, period))
    columns = np.array(kept, np.int64).reshape(-1, 3).T
    return Turns(*columns)


def tally_loop(timeline: Timeline, frames: LoopFrames, steps: int) -> LoopTally | None:
    """Return the loops over small operations of a steady step, with their part of the backward pass."""
    tree, ops = timeline.tree, timeline.trace.ops
    outer = pick(tree.op, tree.parent) < 0
    apart = (timeline.context & (IN_BACKWARD | IN_INPUT | IN_OPTIMIZER)) > 0
    rows = tree.origin[np.flatnonzero((tree.kind == OP) & outer & ~apart)]
    rows = rows[(ops.thread[rows] == timeline.steps.thread) & timeline.in_steady_step(ops.start_ns[rows])]
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    if len(rows) < FEWEST_TURNS:
        return None
    start, end = ops.start_ns[rows], (ops.start_ns + ops.dur_ns)[rows]
    turns = find_turns(ops.name[rows], start)
    if not len(turns.first):
        return None
    spans = iv.union(start[turns.first], end[turns.last])
    # A node of the backward pass belongs to the loop that made it.
    node = matching(timeline.trace.strings, BACKWARD)[ops.name]
    above = pick(tree.op, tree.parent[tree.of_op])
    outermost = node & (above < 0) & timeline.in_steady_step(ops.start_ns)
    made = np.full(len(node), NONE, np.int32)
    made[node] = match_forward(timeline.trace, node)
    nodes = np.flatnonzero(outermost & (made >= 0))
    nodes = nodes[iv.span_at(spans, ops.start_ns[made[nodes]]) >= 0]
    longest = int((turns.last - turns.first).argmax())
    place = int(turns.first[longest])
    names = [
        timeline.trace.strings[name] for name in ops.name[rows[place : place + int(turns.period[longest])]]
    ]
    lines = frames.lines_of(spans, steps)
    return LoopTally(
        turns=float(turns.turns.sum()) / steps,
        ms=iv.total_ns(spans) / steps / NS_PER_MS,
        backward_ms=float(ops.dur_ns[nodes].sum()) / steps / NS_PER_MS,
        operations=tuple(dict.fromkeys(names)),
        line=lines[0] if lines else None,
    )

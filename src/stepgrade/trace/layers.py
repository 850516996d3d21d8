"""The layers of a model with their forward, backward and recomputed time.

Work of the forward pass belongs to the block around its launch. Work of the backward pass belongs to the
block of the forward operation that made its autograd node: the same sequence number, on the thread that the
node names. An operation that records gradients inside the backward pass is a forward operation done again
(activation checkpointing). What accumulates a gradient carries no number and goes with the node before it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import NONE, HostOps, Ids, Kinds, Longs, Trace
from stepgrade.naming.torch_names import BACKWARD, COMPILED, GRAPH_LAUNCH, Mask, matching, named
from stepgrade.trace.blocks import Blocks, LayerBasis, find_blocks
from stepgrade.trace.links import MODULE, OP, HostTree, inherit, nearest, pick
from stepgrade.trace.phases import PHASES
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.timeline import IN_BACKWARD, Driver, Timeline

SEQUENCES = 1 << 40
NO_NODE, UNMADE = -2, -3


class LayerFacts(Struct, frozen=True, kw_only=True):
    """One layer, in totals over the steady steps."""

    layer: int
    name: str
    forward_ns: int
    backward_ns: int
    recompute_ns: int
    ops_ns: dict[str, int]


class LayersFacts(Struct, frozen=True, kw_only=True):
    """All layers, and what lies outside of them."""

    basis: str | None  # None: the trace does not tell layers apart
    layers: tuple[LayerFacts, ...]
    outside_forward_ns: int
    outside_backward_ns: int
    recompute_ns: int  # in all: layers and outside
    note: str | None


class Passes(NamedTuple):
    """Which pieces belong to the forward pass, to the backward pass, and to forward done again."""

    forward: Mask
    backward: Mask
    recompute: Mask


def find_layers(line: Timeline, pieces: Pieces, phase: Kinds) -> LayersFacts:
    """Return the layers of the steady steps; without any, a note says what to record."""
    backward = pieces.steady & (phase == PHASES.index("backward"))
    again = pick(_recomputed(line).astype(np.int8), pieces.row) > 0
    forward = pieces.steady & (phase == PHASES.index("forward"))
    passes = Passes(forward, backward & ~again, backward & again)
    blocks = find_blocks(line, pieces) if line.driver is not Driver.UNSEEN else None
    if blocks is None:
        return _no_layers(line, pieces, passes)
    return _summed(line, pieces, blocks, _units(line, pieces, blocks, backward), passes)


def _recomputed(line: Timeline) -> Mask:
    """Tell which rows lie in a forward operation or module that runs inside the backward pass."""
    tree, ops = line.tree, line.trace.ops
    if not len(tree.kind):
        return np.zeros(0, np.bool_)
    inside = (line.context & IN_BACKWARD) > 0
    forward = np.zeros(len(tree.kind), np.bool_)
    forward[tree.of_op] = (ops.sequence >= 0) & (ops.forward_thread <= 0)
    forward &= ~matching(line.trace.strings, BACKWARD)[tree.name]
    forward |= tree.kind == MODULE
    return inherit(tree.parent, (forward & inside).astype(np.int8)) > 0


def _units(line: Timeline, pieces: Pieces, blocks: Blocks, backward: Mask) -> Ids:
    """Return the block of each piece, or NONE."""
    tree = line.tree
    opens = np.full(len(tree.kind), NONE, np.int32)
    opens[blocks.row] = blocks.unit
    unit_of_row = pick(opens, nearest(tree.parent, opens >= 0))
    own = pick(unit_of_row, pieces.row)
    by_node = _units_of_nodes(line, unit_of_row)
    of_node = pick(by_node, pick(nearest(tree.parent, by_node != NO_NODE), pieces.row))
    return np.where(backward & (own < 0), of_node, own)


def _units_of_nodes(line: Timeline, unit_of_row: Ids) -> Ids:
    """Return for each autograd node the block of its forward operation, NONE if outside; others NO_NODE."""
    tree, trace = line.tree, line.trace
    found = np.full(len(tree.kind), NO_NODE, np.int32)
    node = matching(trace.strings, BACKWARD)[trace.ops.name] if len(trace.ops.name) else np.zeros(0, np.bool_)
    rows = tree.of_op[node]
    maker = match_forward(trace, node)
    found[rows] = np.where(maker >= 0, pick(unit_of_row, pick(tree.of_op, maker)), UNMADE)
    return _carried(trace, tree, found)


def _carried(trace: Trace, tree: HostTree, found: Ids) -> Ids:
    """Give a node without a maker the block of the node before it on its thread."""
    rows = np.flatnonzero(found != NO_NODE)
    if not len(rows):
        return found
    known = np.where(found[rows] != UNMADE, np.arange(len(rows)), 0)
    before = rows[np.maximum.accumulate(known)]
    thread = trace.ops.thread[tree.origin[rows]]
    fits = (thread == trace.ops.thread[tree.origin[before]]) & (found[before] != UNMADE)
    found[rows] = np.where(fits, found[before], NONE)
    return found


def match_forward(trace: Trace, node: Mask) -> Ids:
    """Return for each autograd node the forward operation that made it, as a row in trace.ops, or NONE.

    Operations that make no node carry the number of the next node as well: the last to start made it.
    """
    ops = trace.ops
    numbered = (ops.sequence >= 0) & (ops.sequence < SEQUENCES)
    key, makers = _by_number(ops, numbered & (ops.forward_thread <= 0) & ~node)
    nodes = np.flatnonzero(node).astype(np.int32)
    number = ops.forward_thread[nodes]
    found = np.full(len(nodes), NONE, np.int32)
    for one in distinct(number).tolist():
        mine = (number == one) & numbered[nodes]
        found[mine] = _best_thread(trace, nodes[mine], key, makers)
    return found


def _by_number(ops: HostOps, usable: Mask) -> tuple[Longs, Ids]:
    """Return the usable operations by thread and sequence number, the last to start being the last."""
    rows = np.flatnonzero(usable).astype(np.int32)
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    key = ops.thread[rows].astype(np.int64)
    key *= SEQUENCES
    key += ops.sequence[rows]
    order = np.argsort(key, kind="stable").astype(np.int32)
    return key[order], rows[order]


def _best_thread(trace: Trace, nodes: Ids, key: Longs, makers: Ids) -> Ids:
    """Return the makers on the thread whose operations fit the nodes' numbers and names best."""
    sequence = trace.ops.sequence[nodes].astype(np.int64)
    best, most = np.full(len(nodes), NONE, np.int32), 0
    for thread in distinct(trace.ops.thread[makers]).tolist():
        wanted = thread * SEQUENCES + sequence
        place = np.maximum(np.searchsorted(key, wanted, side="right") - 1, 0)
        fits = key[place] == wanted
        found = np.where(fits, makers[place], NONE).astype(np.int32)
        score = int(fits.sum()) + 10 * _namesakes(trace, nodes[fits], found[fits])
        if score > most:
            best, most = found, score
    return best


def _namesakes(trace: Trace, nodes: Ids, makers: Ids) -> int:
    """Return how many nodes are called after the operation that would have made them."""
    strings = trace.strings
    pair = trace.ops.name[nodes].astype(np.int64) * len(strings) + trace.ops.name[makers]
    pairs, _, counts = groups(pair)
    named_after = [
        count
        for (node, maker), count in zip(
            (divmod(one, len(strings)) for one in pairs.tolist()), counts.tolist(), strict=True
        )
        if _stem(strings[maker]) in _stem(strings[node])
    ]
    return sum(named_after)


def _stem(name: str) -> str:
    last = name.rsplit(" ", 1)[-1].rsplit("::", 1)[-1]
    return last.replace("_", "").lower()


def _summed(line: Timeline, pieces: Pieces, blocks: Blocks, unit: Ids, passes: Passes) -> LayersFacts:
    count = len(blocks.names)
    forward, backward, recompute = (_per_unit(pieces, unit, chosen, count) for chosen in passes)
    ops = _ops_of_units(line.trace, pieces, unit, passes.forward | passes.backward | passes.recompute)
    layers = tuple(
        LayerFacts(
            layer=index,
            name=name,
            forward_ns=forward[index],
            backward_ns=backward[index],
            recompute_ns=recompute[index],
            ops_ns=ops.get(index, {}),
        )
        for index, name in enumerate(blocks.names)
    )
    return LayersFacts(
        basis=blocks.basis.value,
        layers=layers,
        outside_forward_ns=forward[count],
        outside_backward_ns=backward[count],
        recompute_ns=sum(recompute),
        note=_NOTES[blocks.basis],
    )


def _per_unit(pieces: Pieces, unit: Ids, chosen: Mask, count: int) -> list[int]:
    """Return the time of each block, and at the end that outside of all."""
    slot = np.where(unit >= 0, unit, count)[chosen]
    sums = np.bincount(slot, weights=pieces.dur_ns[chosen], minlength=count + 1)
    return [int(one) for one in sums.tolist()]


def _ops_of_units(trace: Trace, pieces: Pieces, unit: Ids, chosen: Mask) -> dict[int, dict[str, int]]:
    rows = np.flatnonzero(chosen & (unit >= 0))
    names = len(trace.strings)
    pairs, which, _ = groups(unit[rows].astype(np.int64) * names + pieces.name[rows])
    sums = np.bincount(which, weights=pieces.dur_ns[rows], minlength=len(pairs))
    found: dict[int, dict[str, int]] = {}
    for pair, ns in zip(pairs.tolist(), sums.tolist(), strict=True):
        index, name = divmod(pair, names)
        found.setdefault(index, {})[trace.strings[name]] = int(ns)
    return found


_NOTES = {
    LayerBasis.MODULES: None,
    LayerBasis.RANGES: "Layers are the record_function ranges whose names differ by a number.",
    LayerBasis.PATTERN: "Layers are told from the repeating pattern of operations: the trace names no "
    "modules. Record with with_stack=True to see them by name.",
}


def _replayed_share(line: Timeline) -> float:
    """Return the share of the device's work that graph launches started."""
    calls = line.links.call[line.chosen]
    if not len(calls) or not len(line.trace.calls.name):
        return 0.0
    replays = named(line.trace.strings, line.trace.calls.name, GRAPH_LAUNCH)
    return float(pick(replays.astype(np.int8), calls).clip(0).mean())


def _no_layers(line: Timeline, pieces: Pieces, passes: Passes) -> LayersFacts:
    compiled = bool(len(line.tree.name) and matching(line.trace.strings, COMPILED)[line.tree.name].any())
    return LayersFacts(
        basis=None,
        layers=(),
        outside_forward_ns=int(pieces.dur_ns[passes.forward].sum()),
        outside_backward_ns=int(pieces.dur_ns[passes.backward].sum()),
        recompute_ns=int(pieces.dur_ns[passes.recompute].sum()),
        note=_why_none(line, compiled=compiled),
    )


def _why_none(line: Timeline, *, compiled: bool) -> str:
    if _replayed_share(line) > 0.5:
        return (
            "Layers cannot be told apart: the kernels were replayed from a graph, which names no operations. "
            "Record a run without graphs."
        )
    if compiled:
        return (
            "Layers cannot be told apart: torch.compile merged them. Compile each block on its own inside a "
            "record_function range, or record an eager step with with_stack=True."
        )
    if not (line.tree.kind == OP).any():
        return "Layers cannot be told apart: no host operations were recorded. Record ProfilerActivity.CPU."
    return (
        "Layers cannot be told apart: no module frames, no numbered ranges, no repeating pattern. "
        "Record with with_stack=True."
    )

"""The layers of a model with their forward, backward and recomputed time.

A layer is a block that the model repeats: one of several instances of a kind, one behind the other, that
together hold most of the forward pass. Of blocks inside blocks the outer ones are the layers, unless they are
mere stacks of the inner ones. Blocks are found from module frames, from named ranges, or from a repeating
pattern of operations; where none hold most of the pass there are no layers.

Work of the forward pass belongs to the block around its launch. Work of the backward pass belongs to the
block of the forward operation that made its autograd node: the same sequence number, on the thread that the
node names. An operation that records gradients inside the backward pass is a forward operation done again
(activation checkpointing). What accumulates a gradient carries no number and goes with the node before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import among, distinct, groups, median
from stepgrade.model.events import NONE, Ids, Longs, Trace, Wholes
from stepgrade.model.notes import Note
from stepgrade.model.operations import LayerStep
from stepgrade.naming.torch_names import (
    BACKWARD,
    BACKWARD_RANGE,
    COMPILED,
    FORWARD_RANGE,
    FRAMEWORK_RANGE,
    GRAPH_LAUNCH,
    Mask,
    classes_of,
    matching,
    named,
)
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline.links import MODULE, OP, RANGE, compiled_of, in_direction, nearest, pick
from stepgrade.timeline.steps import repetitions, steps_of
from stepgrade.timeline.timeline import IN_BACKWARD, Driver, Phase, Pieces, Timeline
from stepgrade.units import NS_PER_MS

MODULE_PREFIX = "nn.Module: "
MODULE_NAME = re.compile(r"^nn\.Module: (.*)_(\d+)$")
HELD = 0.5  # of the forward pass, for blocks to be its layers
ENOUGH = 0.8  # of the time of the best kind of block
DEEPEST_STACK = 8  # of stacks in stacks
STACKED = 3  # blocks of one kind, one behind the other, make the module around them a stack
MOST_BLOCKS = 256  # more rounds of a pattern are a loop's, not a model's
CONTAINERS = frozenset({"nn.Module: Sequential", "nn.Module: ModuleList", "nn.Module: ModuleDict"})
SHORTEST_BLOCK = 4  # operations; shorter repetitions are not layers
FEWEST_BLOCKS = 3
SLOW_BLOCK = 3.0  # times the median: the block is slow, or no block
USUAL_BLOCKS = 0.75  # of the blocks, at least, are not slow
KINDS_OF_WORK = 3  # that blocks share, for a slow one to be known as one of them
LONGEST_SEQUENCE = 4000
SEQUENCES = 1 << 40
MOST_SAMPLES = 4  # for each piece of work: a block of a model has some in every step
MOST_THREADS = 32  # that may have made the nodes of one forward thread; a run has one or two
NO_NODE, UNMADE = -2, -3
_DIGITS = "0123456789"
_WEIGHTED = (WorkClass.GEMM, WorkClass.CONVOLUTION, WorkClass.ATTENTION)
_ACCUMULATE = re.compile(r"^torch::autograd::AccumulateGrad")


class LayerBasis(StrEnum):
    """What the layers were found from."""

    MODULES = "modules"
    RANGES = "ranges"
    PATTERN = "pattern"
    SCOPES = "scopes"


class Layers(NamedTuple):
    """All layers of the steady steps; without any, the note says what to record."""

    basis: LayerBasis | None
    times: tuple[LayerStep, ...]
    recompute_ns: int  # recomputed forward work, in layers and outside
    note: Note | None
    again: Mask  # of the pieces: recomputed forward work
    blocks: Blocks | None = None


class Blocks(NamedTuple):
    """The rows of the host tree that open a block, and which block it is."""

    basis: LayerBasis
    row: Ids
    block: Ids
    names: tuple[str, ...]


class Frames(NamedTuple):
    """Frames of one sort (modules, or ranges) as a forest of their own."""

    row: Ids  # in the host tree
    parent: Ids  # in this forest
    kind: list[str]
    own_ns: Longs  # device time launched in it and in no frame inside it, in the steady steps
    work_frame: Ids  # the frame of each piece of that time, in order
    work_indices: dict[int, Ids]  # the indices in that order of each kind of work
    by_parent: Ids  # the frames in the order of their parents


_NOTES = {
    LayerBasis.RANGES: "Layers are the record_function ranges whose names differ by a number.",
    LayerBasis.PATTERN: "Layers are found from the repeating pattern of operations: the trace names no "
    "modules. {}",
}


def find_layers(timeline: Timeline, pieces: Pieces) -> Layers:
    """Return the layers of the steady steps."""
    tree, ops = timeline.tree, timeline.trace.ops
    # A forward operation or module inside the backward pass is recomputed, with everything in it.
    again = pick(in_direction(timeline.trace, "recompute").astype(np.int8), pieces.op) > 0
    if len(tree.kind):
        is_forward = np.zeros(len(tree.kind), np.bool_)
        is_forward[tree.of_op] = (ops.sequence >= 0) & (ops.forward_thread <= 0)
        is_forward &= ~matching(timeline.trace.strings, BACKWARD)[tree.name]
        is_forward |= tree.kind == MODULE
        is_forward &= (timeline.context & IN_BACKWARD) > 0
        again |= pick(nearest(tree.parent, is_forward), pieces.row) >= 0
    in_backward = pieces.steady & (pieces.phase == Phase.BACKWARD)
    forward = pieces.steady & (pieces.phase == Phase.FORWARD)
    backward, recompute = in_backward & ~again, in_backward & again
    recompute_ns = int(pieces.dur_ns[recompute].sum())
    scoped = layers_by_scope(timeline.trace, pieces.op, pieces.dur_ns, forward)
    if scoped is not None:
        blocks, block = Blocks(LayerBasis.SCOPES, pieces.row[:0], pieces.row[:0], scoped[0]), scoped[1]
    else:
        found = find_blocks(timeline, pieces, forward) if timeline.driver is not Driver.UNSEEN else None
        if found is None:
            return Layers(None, (), recompute_ns, Note("no_layers", _why_none(timeline)), again)
        blocks, block = found, blocks_of_rows(timeline, found, pieces.row, in_backward)
    scale, steps = 1 / NS_PER_MS, max(1, int(timeline.windows.steady.sum()))
    forward_ns, backward_ns, again_ns = (
        np.bincount(block[inside], weights=pieces.dur_ns[inside], minlength=len(blocks.names)).tolist()
        for inside in (chosen & (block >= 0) for chosen in (forward, backward, recompute))
    )
    # A pattern is found in names: whether it holds most of the forward pass shows only here.
    total_forward_ns = int(pieces.dur_ns[forward].sum())
    if blocks.basis is LayerBasis.PATTERN and not sum(forward_ns) >= HELD * total_forward_ns > 0:
        return Layers(None, (), recompute_ns, Note("no_layers", _why_none(timeline)), again)
    # The time of each block in each steady step tells a slow block from one that was slow once. Thousands of
    # blocks in few of thousands of steps are not the layers of one model: they get no samples.
    steady_index = np.cumsum(timeline.windows.steady) - 1
    count = int(timeline.windows.steady.sum())
    if len(blocks.names) * count > MOST_SAMPLES * len(block):
        count = 0
    samples = [
        np.bincount(
            block[inside].astype(np.int64) * count + steady_index[pieces.step[inside]],
            weights=pieces.dur_ns[inside],
            minlength=len(blocks.names) * count,
        ).reshape(-1, count)
        * scale
        if count
        else np.zeros((len(blocks.names), 0))
        for inside in (chosen & (block >= 0) for chosen in (forward, backward))
    ]
    # The time of each operation in each block.
    labels = pieces.labels
    rows = np.flatnonzero((forward | in_backward) & (block >= 0))
    pairs, which, _ = groups(block[rows].astype(np.int64) * len(labels) + pieces.label[rows])
    sums = np.bincount(which, weights=pieces.dur_ns[rows], minlength=len(pairs))
    op_ms: dict[int, dict[str, float]] = {}
    for pair, ns in zip(pairs.tolist(), sums.tolist(), strict=True):
        index, label = divmod(pair, len(labels))
        op_ms.setdefault(index, {})[labels[label]] = int(ns) * scale / steps
    times = tuple(
        LayerStep(
            layer=index,
            name=name,
            fwd_ms=forward_ns[index] * scale / steps,
            bwd_ms=backward_ns[index] * scale / steps,
            recompute_ms=again_ns[index] * scale / steps,
            fwd_samples_ms=tuple(samples[0][index].tolist()),
            bwd_samples_ms=tuple(samples[1][index].tolist()),
            ops=op_ms.get(index, {}),
        )
        for index, name in enumerate(blocks.names)
    )
    text = _NOTES.get(blocks.basis, "").format(timeline.trace.profiler.record_layers)
    note = Note("layers_basis", text) if text else None
    return Layers(blocks.basis, times, recompute_ns, note, again, blocks)


def _why_none(timeline: Timeline) -> str:
    trace, tree = timeline.trace, timeline.tree
    calls = timeline.links.call[timeline.chosen]
    if len(calls) and len(trace.calls.name):
        replays = named(trace.strings, trace.calls.name, GRAPH_LAUNCH)
        if float(pick(replays.astype(np.int8), calls).clip(0).mean()) > 0.5:
            return (
                "Layers cannot be identified: the kernels were replayed from a graph, which names no "
                "operations. Record a run without graphs."
            )
    if len(tree.name) and matching(trace.strings, COMPILED)[tree.name].any():
        return (
            "Layers cannot be identified: torch.compile merged them. Compile each block on its own inside a "
            "record_function range, or record an eager step with with_stack=True."
        )
    if not (tree.kind == OP).any():
        how = trace.profiler.record_operations
        return f"Layers cannot be identified: no host operations were recorded. {how}"
    if (tree.kind == MODULE).any():
        return "No layers: no repeated module covers most of the forward pass."
    return (
        "Layers cannot be identified: no module frames, no numbered ranges, no repeating pattern that covers "
        f"most of the forward pass. {trace.profiler.record_layers}"
    )


def blocks_of_rows(timeline: Timeline, blocks: Blocks, rows: Ids, in_backward: Mask) -> Ids:
    """Return the block that each of these rows of the host tree is in, or NONE."""
    tree = timeline.tree
    opens = np.full(len(tree.kind), NONE, np.int32)
    opens[blocks.row] = blocks.block
    of_row = pick(opens, nearest(tree.parent, opens >= 0))
    own = pick(of_row, rows)
    # An autograd node belongs to the block of its forward operation: NONE if that lies outside of all.
    return np.where(in_backward & (own < 0), pick(of_row, makers_of_rows(timeline, rows)), own)


def makers_of_rows(timeline: Timeline, rows: Ids) -> Ids:
    """Return for rows inside an autograd node the row of the forward operation that made it, or NONE."""
    tree, trace = timeline.tree, timeline.trace
    of_node = np.full(len(tree.kind), NO_NODE, np.int32)
    node = matching(trace.strings, BACKWARD)[trace.ops.name] if len(trace.ops.name) else np.zeros(0, np.bool_)
    maker = match_forward(trace, node)
    of_node[tree.of_op[node]] = np.where(maker >= 0, pick(tree.of_op, maker), UNMADE)
    # A node without a forward operation goes with the node before it on its thread.
    nodes = np.flatnonzero(of_node != NO_NODE)
    if len(nodes):
        known = np.where(of_node[nodes] != UNMADE, np.arange(len(nodes)), 0)
        before = nodes[np.maximum.accumulate(known)]
        same_thread = trace.ops.thread[tree.origin[nodes]] == trace.ops.thread[tree.origin[before]]
        of_node[nodes] = np.where(same_thread & (of_node[before] != UNMADE), of_node[before], NONE)
    return pick(of_node, pick(nearest(tree.parent, of_node != NO_NODE), rows))


def match_forward(trace: Trace, node: Mask) -> Ids:
    """Return for each autograd node the forward operation that made it, as a row in trace.ops, or NONE.

    Operations that make no node carry the number of the next node as well: the last to start made it. All
    nodes of one forward thread get their makers from one host thread: the one whose operations fit the nodes'
    numbers and names best, among those with the most operations.
    """
    ops = trace.ops
    numbered = (ops.sequence >= 0) & (ops.sequence < SEQUENCES)
    makers = np.flatnonzero(numbered & (ops.forward_thread <= 0) & ~node).astype(np.int32)
    makers = makers[np.argsort(ops.start_ns[makers], kind="stable")]
    key = ops.thread[makers].astype(np.int64)
    key *= SEQUENCES
    key += ops.sequence[makers]
    order = np.argsort(key, kind="stable").astype(np.int32)
    key, makers = key[order], makers[order]
    nodes = np.flatnonzero(node).astype(np.int32)
    matched = np.full(len(nodes), NONE, np.int32)
    usable = np.flatnonzero(numbered[nodes])
    if not len(usable) or not len(makers):
        return matched

    def stem(name: int) -> str:
        last = trace.strings[name].rsplit(" ", 1)[-1].rsplit("::", 1)[-1]
        return last.replace("_", "").lower()

    nodes, width = nodes[usable], len(trace.strings)
    sequence = ops.sequence[nodes].astype(np.int64)
    forward = groups(ops.forward_thread[nodes])
    best = np.full(len(nodes), NONE, np.int32)
    most = np.zeros(len(forward.values), np.int64)
    threads, _, sizes = groups(ops.thread[makers])
    for thread in np.sort(threads[np.argsort(-sizes, kind="stable")[:MOST_THREADS]]).tolist():
        wanted = thread * SEQUENCES + sequence
        index = np.maximum(np.searchsorted(key, wanted, side="right") - 1, 0)
        fits = key[index] == wanted
        found = np.where(fits, makers[index], NONE).astype(np.int32)
        # Nodes named after the operation that would have made them count most.
        pairs, which, _ = groups(ops.name[nodes[fits]].astype(np.int64) * width + ops.name[found[fits]])
        alike = np.array([stem(pair % width) in stem(pair // width) for pair in pairs.tolist()], np.bool_)
        score = np.bincount(forward.which[fits], 1 + 10 * alike[which], minlength=len(most)).astype(np.int64)
        better = (score > most)[forward.which]
        best[better] = found[better]
        np.maximum(most, score, out=most)
    matched[usable] = best
    return matched


def find_blocks(timeline: Timeline, pieces: Pieces, forward: Mask) -> Blocks | None:
    """Return the repeating blocks of the forward pass; None where the trace does not show them."""
    is_module = timeline.tree.kind == MODULE
    modules = _find_frames(
        timeline, pieces, forward, is_module, lambda name: MODULE_NAME.sub(r"nn.Module: \1", name)
    )
    whole_ns = int(pieces.dur_ns[forward].sum())
    contains = np.zeros(len(modules.row), np.bool_)
    contains[modules.parent[modules.parent >= 0]] = True
    chosen = _best_kind(timeline, modules, contains, whole_ns)
    if chosen is not None:
        return _blocks_by_name(timeline, LayerBasis.MODULES, chosen, MODULE_PREFIX)
    usable = timeline.tree.kind == RANGE
    if usable.any():
        for pattern in (FRAMEWORK_RANGE, COMPILED, FORWARD_RANGE, BACKWARD_RANGE):
            usable &= ~matching(timeline.trace.strings, pattern)[timeline.tree.name]
        ranges = _find_frames(timeline, pieces, forward, usable, lambda name: re.sub(r"\d+", "#", name))
        chosen = _best_kind(timeline, ranges, np.ones(len(ranges.row), np.bool_), whole_ns)
        if chosen is not None:
            return _blocks_by_name(timeline, LayerBasis.RANGES, chosen)
    # Modules without modules of their own, if one kind of them has most of the forward pass.
    leaves = _best_kind(timeline, modules, np.ones(len(modules.row), np.bool_), whole_ns)
    if leaves is not None and len(distinct(timeline.tree.name[leaves])) >= FEWEST_BLOCKS:
        return _blocks_by_name(timeline, LayerBasis.MODULES, leaves, MODULE_PREFIX)
    found = None if len(modules.row) else _from_pattern(timeline)
    if found is None:
        return None
    opens = np.zeros(len(timeline.tree.kind), np.bool_)
    opens[found.row] = True
    inside = forward & (pick(nearest(timeline.tree.parent, opens), pieces.row) >= 0)
    return found if pieces.dur_ns[inside].sum() >= HELD * whole_ns else None


def _find_frames(
    timeline: Timeline, pieces: Pieces, forward: Mask, is_frame: Mask, kind_of: Callable[[str], str]
) -> Frames:
    """Return the frames, with the forward pieces that lie in each."""
    tree = timeline.tree
    rows = np.flatnonzero(is_frame).astype(np.int32)
    if not len(rows):
        return Frames(rows, rows, [], np.zeros(0, np.int64), rows, {}, rows)
    index = np.full(len(tree.kind), NONE, np.int32)
    index[rows] = np.arange(len(rows), dtype=np.int32)
    around = pick(index, nearest(tree.parent, is_frame))
    frame = pick(around, pieces.row)
    parent = pick(around, tree.parent[rows])
    del index, around
    inside = np.flatnonzero(forward & (frame >= 0)).astype(np.int32)
    held = frame[inside]
    if (held[1:] < held[:-1]).any():
        inside = inside[np.argsort(held, kind="stable").astype(np.int32)]
    del held
    frame = frame[inside]
    own = np.bincount(frame, weights=pieces.dur_ns[inside], minlength=len(rows)).astype(np.int64)
    kinds = {name: kind_of(timeline.trace.strings[name]) for name in distinct(tree.name[rows]).tolist()}
    names = [kinds[name] for name in tree.name[rows].tolist()]
    done = pieces.work_class[inside]
    indices = {number: np.flatnonzero(done == number).astype(np.int32) for number in distinct(done).tolist()}
    by_parent = np.argsort(parent, kind="stable").astype(np.int32)
    return Frames(rows, parent, names, own, frame, indices, by_parent)


class _Kind(NamedTuple):
    """The instances of one kind that lie in no other of it: how many there are, and the time they hold."""

    name: str
    instances: int
    held_ns: int
    members: Ids  # indices of frames


def _best_kind(timeline: Timeline, frames: Frames, usable: Mask, whole_ns: int) -> Ids | None:
    """Return the rows of the coarsest kind that holds most of `whole_ns`; None without one.

    Instances must have names of their own, and none may hold nearly everything.
    """
    kinds = [kind for kind in _kinds_of(timeline, frames, usable) if kind.held_ns >= HELD * whole_ns > 0]
    most = max((kind.held_ns for kind in kinds), default=0)
    enough = [kind for kind in kinds if kind.held_ns >= ENOUGH * most]
    if not enough:
        return None
    chosen = min(enough, key=lambda kind: (kind.instances, -kind.held_ns))
    composite = np.zeros(len(frames.row), np.bool_)
    composite[frames.parent[frames.parent >= 0]] = True
    block = chosen  # the last that is more than a container
    for _ in range(DEEPEST_STACK):
        # A module that only holds blocks one behind the other is a stack of them, one with a single module
        # inside a wrapper.
        is_inner = among(frames.parent, chosen.members)
        is_wrapper = int(is_inner.sum()) == len(chosen.members)
        is_inner &= composite
        inner = [
            kind
            for kind in _kinds_of(timeline, frames, is_inner)
            if kind.held_ns >= ENOUGH * chosen.held_ns
            and (chosen.name in CONTAINERS or is_wrapper or kind.instances >= STACKED * chosen.instances)
        ]
        if not inner:
            break
        chosen = max(inner, key=lambda kind: kind.held_ns)
        block = block if chosen.name in CONTAINERS else chosen
    # All of the kind: what is computed again in the backward pass lies in no stack.
    members: Mask = np.array(frames.kind, object) == block.name
    return frames.row[members & (pick(nearest(frames.parent, members), frames.parent) < 0)]


def _kinds_of(timeline: Timeline, frames: Frames, usable: Mask) -> list[_Kind]:
    """Return the kinds of frames that can be blocks: several, of comparable size, not one for each step."""
    numbers = {kind: number for number, kind in enumerate(sorted(set(frames.kind)))}
    kinds = np.array([numbers[kind] for kind in frames.kind], np.int32)
    names = timeline.tree.name[frames.row]
    step = steps_of(timeline.trace.ranges.start_ns[timeline.tree.origin[frames.row]], timeline.steps)
    several = int(timeline.windows.steady.sum()) > 1
    # Frames are in the order in which they open: those in a frame follow it, up to its last one.
    lasts, inside = list(range(len(frames.row))), frames.own_ns.tolist()
    for index, above in reversed([*enumerate(frames.parent.tolist())]):
        if above >= 0:
            lasts[above] = max(lasts[above], lasts[index])
            inside[above] += inside[index]
    last, inside_ns = np.array(lasts, np.int32), np.array(inside, np.int64)
    members = np.flatnonzero(usable).astype(np.int32)
    members = members[np.argsort(kinds[members], kind="stable")]
    edges = np.flatnonzero(np.diff(kinds[members])) + 1
    found = []
    for same in np.split(members, edges) if len(members) else []:
        ended = np.maximum.accumulate(last[same])
        outer = same[np.append(True, same[1:] > ended[:-1])]
        instances, which, _ = groups(names[outer])
        held = np.bincount(which, inside_ns[outer], len(instances)).astype(np.float64)
        if len(instances) < 2 or not held.any():
            continue
        pairs = distinct(which.astype(np.int64) * (len(timeline.steps.number) + 2) + step[outer] + 1)
        once_a_step = several and len(pairs) == len(instances) and len(distinct(step[outer])) > 1
        alike = (
            _are_of_one_size(held)
            or _differ_by_slow_blocks(frames, last, outer, which, held)
            or _are_built_alike(frames, names, outer, which, held)
        )
        if alike and not once_a_step:
            found.append(_Kind(frames.kind[int(outer[0])], len(instances), int(held.sum()), outer))
    return found


def _are_of_one_size(held: NDArray[np.float64]) -> bool:
    """Return whether the times are spread over at least half of the instances."""
    as_many_equal = float(held.sum() ** 2 / (held**2).sum())
    return as_many_equal >= max(1.5, len(held) / 2)


def _differ_by_slow_blocks(
    frames: Frames, last: Ids, outer: Ids, which: Wholes, held: NDArray[np.float64]
) -> bool:
    """Return whether all but a few slow instances are of one size, and those few are built like the others.

    Instances that do other kinds of work, or hold many more modules, are not slow layers.
    """
    slow = held > SLOW_BLOCK * median(held)
    usual = held[~slow]
    few_are_slow = len(usual) >= max(FEWEST_BLOCKS, USUAL_BLOCKS * len(held))
    if not few_are_slow or not usual.any() or not _are_of_one_size(usual):
        return False
    frames_inside = np.bincount(which, weights=last[outer] - outer) / np.bincount(which)
    if (frames_inside[slow] > 2 * frames_inside[~slow].max() + 1).any():
        return False
    edges = [np.searchsorted(frames.work_frame, edge) for edge in (outer, last[outer] + 1)]
    common = 0  # kinds of work that all do
    for work_class, indices in frames.work_indices.items():
        if work_class in (WorkClass.COPY, WorkClass.OTHER):  # all modules do these
            continue
        starts, ends = (np.searchsorted(indices, edge) for edge in edges)
        does = np.bincount(which, weights=ends > starts, minlength=len(held)) > 0
        if does[~slow].all() and not does[slow].all():
            return False
        common += bool(does.all())
    return common >= KINDS_OF_WORK


def _are_built_alike(
    frames: Frames, names: Ids, outer: Ids, which: Wholes, held: NDArray[np.float64]
) -> bool:
    """Return whether most instances are of one size, and all hold as many frames of each kind."""
    most = np.sort(held)[: len(held) // 2 + 1]
    if len(most) < FEWEST_BLOCKS or not most.any() or not _are_of_one_size(most):
        return False
    starts, ends = (
        np.searchsorted(frames.parent, outer, side=side, sorter=frames.by_parent)
        for side in ("left", "right")
    )
    parts: dict[int, dict[int, str]] = {}
    for instance, start, end in zip(which.tolist(), starts.tolist(), ends.tolist(), strict=True):
        for index in frames.by_parent[start:end].tolist():
            parts.setdefault(instance, {})[int(names[index])] = frames.kind[index]
    builds = {tuple(sorted(kinds.values())) for kinds in parts.values()}
    # A wrapper of a single module says nothing about that module.
    return len(parts) == len(distinct(which)) and len(builds) == 1 and len(builds.pop()) > 1


def _blocks_by_name(timeline: Timeline, basis: LayerBasis, rows: Ids, prefix: str = "") -> Blocks:
    """Return one block for each name, in the order in which they first run."""
    starts = timeline.trace.ranges.start_ns[timeline.tree.origin[rows]]
    order = rows[np.argsort(starts, kind="stable")]
    first: dict[int, int] = {}
    blocks = [first.setdefault(name, len(first)) for name in timeline.tree.name[order].tolist()]
    names = tuple(timeline.trace.strings[name].removeprefix(prefix) for name in first)
    return Blocks(basis, order, np.array(blocks, np.int32), names)


def _from_pattern(timeline: Timeline) -> Blocks | None:
    """Return blocks from the sequence of forward operations, if each steady step repeats the same one."""
    tree, ops = timeline.tree, timeline.trace.ops
    if not len(ops.name) or matching(timeline.trace.strings, COMPILED)[tree.name].any():
        return None
    rows = timeline.loop_operations()
    step = np.searchsorted(timeline.steps.start_ns, ops.start_ns[rows], side="right") - 1
    found: list[tuple[Ids, int, int]] = []
    for index in np.flatnonzero(timeline.windows.steady).tolist():
        own = rows[slice(*np.searchsorted(step, (index, index + 1)))]
        # The repetition that covers most of the step; of those that cover nearly the same the shortest, since
        # twice a period is a period as well.
        periods = range(SHORTEST_BLOCK, len(own) // FEWEST_BLOCKS + 1 if len(own) <= LONGEST_SEQUENCE else 0)
        covered = [
            (start, period, length // period)
            for start, period, length in repetitions(ops.name[own], periods)
            if length >= FEWEST_BLOCKS * period and length // period * period >= len(own) // 2
        ]
        most = max((period * count for _, period, count in covered), default=0)
        repeat = next((each for each in covered if each[1] * each[2] >= 0.9 * most), None)
        if repeat is None or (found and repeat[1:] != found[0][1:]):
            return None
        start, period, count = repeat
        found.append((own[start : start + period * count], period, count))
    if not found:
        return None
    block_rows, period, count = found[0]
    classes = classes_of(timeline.trace.strings, ops.name[block_rows[:period]])
    if count > MOST_BLOCKS or not among(classes, _WEIGHTED).any():
        return None
    accumulates = named(timeline.trace.strings, ops.name, _ACCUMULATE)
    in_step = steps_of(ops.start_ns, timeline.steps) == int(np.flatnonzero(timeline.windows.steady)[0])
    if accumulates.any() and int((accumulates & in_step).sum()) < count:
        return None  # a loop over the same weights: fewer gradients than blocks
    block = np.tile(np.repeat(np.arange(count, dtype=np.int32), period), len(found))
    names = tuple(f"block {number}" for number in range(count))
    opens = tree.of_op[np.concatenate([repeated for repeated, _, _ in found])]
    return Blocks(LayerBasis.PATTERN, opens, block, names)


def layers_by_scope(
    trace: Trace, op: Ids, dur_ns: Wholes, forward: Mask
) -> tuple[tuple[str, ...], Ids] | None:
    """Return a compiler's layers and that of each piece; None unless they hold most of the forward pass."""
    layers = [compiled.layer if compiled else None for compiled in compiled_of(trace)]
    kinds = Counter(layer.rstrip(_DIGITS) for layer in set(layers) if layer)
    kept = {layer for layer in layers if layer and kinds[layer.rstrip(_DIGITS)] > 1}
    if not kept:
        return None

    def order(layer: str) -> tuple[str, int, str]:
        kind = layer.rstrip(_DIGITS)
        number = layer[len(kind) :].lstrip("0")
        return kind, len(number), number  # longer is larger, with any number of digits

    names = tuple(sorted(kept, key=order))
    indices = {name: index for index, name in enumerate(names)}
    table = np.array([*(indices.get(layer or "", NONE) for layer in layers), NONE], np.int32)
    block = table[pick(trace.ops.inputs, op)]
    held = int(dur_ns[forward & (block >= 0)].sum())
    return (names, block) if held >= HELD * int(dur_ns[forward].sum()) else None

"""The blocks that a model repeats, found in what the host did: module frames, named ranges, or a pattern.

A block is what people call a layer: one of several instances of a kind, one behind the other, that together
hold most of the forward pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import among, distinct
from stepgrade.model.events import NONE, Ids, Longs
from stepgrade.naming.torch_names import (
    ANNOTATION_OP,
    BACKWARD_RANGE,
    COMPILED,
    FORWARD_RANGE,
    Mask,
    matching,
)
from stepgrade.trace.links import MODULE, OP, RANGE, HostTree, nearest, pick
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.timeline import IN_BACKWARD, IN_INPUT, IN_OPTIMIZER, Timeline

MODULE_NAME = re.compile(r"^nn\.Module: (.*)_(\d+)$")
ENOUGH = 0.8  # of the time that the best kind of block holds
SHORTEST_BLOCK = 4  # operations; shorter repetitions are not layers
FEWEST_BLOCKS = 3
LONGEST_SEQUENCE = 4000


class LayerBasis(StrEnum):
    """What the layers were found from."""

    MODULES = "modules"
    RANGES = "ranges"
    PATTERN = "pattern"


class Blocks(NamedTuple):
    """The rows of the host tree that open a block, and which block it is."""

    basis: LayerBasis
    row: Ids
    unit: Ids
    names: tuple[str, ...]


def find_blocks(line: Timeline, pieces: Pieces) -> Blocks | None:
    """Return the repeating blocks of the forward pass; None where the trace does not show them."""
    frames = _frames(line, pieces, line.tree.kind == MODULE, _kind)
    return (
        _from_modules(line, frames)
        or _from_ranges(line, pieces)
        or _from_leaves(line, frames)
        or _from_pattern(line)
    )


class Frames(NamedTuple):
    """Frames of one sort (modules, or ranges) as a forest of their own."""

    row: Ids  # in the host tree
    parent: Ids  # in this forest
    kind: list[str]
    own_ns: Longs  # device time launched in it and in no frame inside it, in the steady steps


def _frames(line: Timeline, pieces: Pieces, is_frame: Mask, kind_of: Callable[[str], str]) -> Frames:
    tree = line.tree
    rows = np.flatnonzero(is_frame).astype(np.int32)
    if not len(rows):
        return Frames(rows, rows, [], np.zeros(0, np.int64))
    place = np.full(len(tree.kind), NONE, np.int32)
    place[rows] = np.arange(len(rows), dtype=np.int32)
    around = pick(place, nearest(tree.parent, is_frame))
    holder = pick(around, pieces.row)
    inside = pieces.steady & (holder >= 0)
    own = np.bincount(holder[inside], weights=pieces.dur_ns[inside], minlength=len(rows)).astype(np.int64)
    kinds = {name: kind_of(line.trace.strings[name]) for name in distinct(tree.name[rows]).tolist()}
    names = [kinds[name] for name in tree.name[rows].tolist()]
    return Frames(rows, pick(around, tree.parent[rows]), names, own)


def _from_modules(line: Timeline, frames: Frames) -> Blocks | None:
    holds = np.zeros(len(frames.row), np.bool_)
    holds[frames.parent[frames.parent >= 0]] = True
    chosen = _best_kind(line.tree, frames, holds)
    return None if chosen is None else _by_name(line, LayerBasis.MODULES, chosen, prefix="nn.Module: ")


def _from_leaves(line: Timeline, frames: Frames) -> Blocks | None:
    """Return modules without modules of their own, if one kind of them holds most of the forward pass."""
    chosen = _best_kind(line.tree, frames, np.ones(len(frames.row), np.bool_))
    if chosen is None or len(distinct(line.tree.name[chosen])) < FEWEST_BLOCKS:
        return None
    inside = nearest(frames.parent, among(frames.row, chosen)) >= 0
    if frames.own_ns[inside].sum() * 2 < frames.own_ns.sum():
        return None
    return _by_name(line, LayerBasis.MODULES, chosen, prefix="nn.Module: ")


def _kind(name: str) -> str:
    match = MODULE_NAME.match(name)
    return match[1] if match else name


def _best_kind(tree: HostTree, frames: Frames, usable: Mask) -> Ids | None:
    """Return the rows of the finest kind that holds nearly as much device time as the best kind.

    Instances must be told apart by name, and none may lie in another of its kind.
    """
    labels = np.array(frames.kind, object)
    found = []
    for kind in sorted({frames.kind[index] for index in np.flatnonzero(usable).tolist()}):
        members = usable & (labels == kind)
        above = nearest(frames.parent, members)
        rows = frames.row[members & (pick(above, frames.parent) < 0)]
        name_count = len(distinct(tree.name[rows]))
        if name_count > 1:
            found.append((int(frames.own_ns[above >= 0].sum()), name_count, rows))
    most = max((one[0] for one in found), default=0)
    if most == 0:
        return None
    best: Ids = max((one for one in found if one[0] >= ENOUGH * most), key=lambda one: (one[1], one[0]))[2]
    return best


def _by_name(line: Timeline, basis: LayerBasis, rows: Ids, prefix: str = "") -> Blocks:
    """Return blocks told apart by name, in the order in which they first run."""
    starts = line.trace.ranges.start_ns[line.tree.origin[rows]]
    order = rows[np.argsort(starts, kind="stable")]
    first: dict[int, int] = {}
    units = [first.setdefault(name, len(first)) for name in line.tree.name[order].tolist()]
    names = tuple(line.trace.strings[name].removeprefix(prefix) for name in first)
    return Blocks(basis, order, np.array(units, np.int32), names)


def _from_ranges(line: Timeline, pieces: Pieces) -> Blocks | None:
    """Return blocks from ranges whose names differ by a number only."""
    strings, tree = line.trace.strings, line.tree
    known = matching(strings, ANNOTATION_OP) | matching(strings, COMPILED)
    known |= matching(strings, FORWARD_RANGE) | matching(strings, BACKWARD_RANGE)
    usable = tree.kind == RANGE
    if not usable.any():
        return None
    usable &= ~known[tree.name]
    frames = _frames(line, pieces, usable, lambda name: re.sub(r"\d+", "#", name))
    chosen = _best_kind(tree, frames, np.ones(len(frames.row), np.bool_))
    return None if chosen is None else _by_name(line, LayerBasis.RANGES, chosen)


def _from_pattern(line: Timeline) -> Blocks | None:
    """Return blocks from the sequence of forward operations, if each steady step repeats the same one."""
    if matching(line.trace.strings, COMPILED)[line.tree.name].any():
        return None
    rows = _forward_rows(line)
    starts = line.trace.ops.start_ns[line.tree.origin[rows]]
    step = np.searchsorted(line.steps.start_ns, starts, side="right") - 1
    wanted = np.flatnonzero(line.windows.steady)
    found: list[tuple[Ids, int, int]] = []
    for index in wanted.tolist():
        mine = rows[step == index]
        repeat = _repetition(line.tree.name[mine])
        if repeat is None or (found and (repeat[1], repeat[2]) != found[0][1:]):
            return None
        found.append((mine[repeat[0] : repeat[0] + repeat[1] * repeat[2]], repeat[1], repeat[2]))
    if not found:
        return None
    _, period, count = found[0]
    unit = np.tile(np.repeat(np.arange(count, dtype=np.int32), period), len(found))
    names = tuple(f"block {number}" for number in range(count))
    return Blocks(LayerBasis.PATTERN, np.concatenate([one[0] for one in found]), unit, names)


def _forward_rows(line: Timeline) -> Ids:
    """Return the outermost operations of the loop's thread outside input, backward and optimizer."""
    tree = line.tree
    outer = pick(nearest(tree.parent, tree.kind == OP), tree.parent) < 0
    apart = (line.context & (IN_BACKWARD | IN_INPUT | IN_OPTIMIZER)) > 0
    rows = np.flatnonzero((tree.kind == OP) & outer & ~apart).astype(np.int32)
    looping: Ids = rows[line.trace.ops.thread[tree.origin[rows]] == line.steps.thread]
    return looping


def _repetition(names: Ids) -> tuple[int, int, int] | None:
    """Return start, period and count of the repetition that covers most of the sequence.

    Of periods that cover nearly the same the shortest counts, for twice a period is one as well.
    """
    if not FEWEST_BLOCKS * SHORTEST_BLOCK <= len(names) <= LONGEST_SEQUENCE:
        return None
    covered = []
    for period in range(SHORTEST_BLOCK, len(names) // FEWEST_BLOCKS + 1):
        start, length = _longest_run(names, period)
        count = (length + period) // period
        if count >= FEWEST_BLOCKS and period * count >= len(names) // 2:
            covered.append((start, period, count))
    if not covered:
        return None
    most = max(period * count for _, period, count in covered)
    return next(one for one in covered if one[1] * one[2] >= 0.9 * most)


def _longest_run(names: Ids, period: int) -> tuple[int, int]:
    """Return start and length of the longest stretch that equals itself one period later."""
    same = np.append(names[:-period] == names[period:], False)
    breaks: Longs = np.flatnonzero(~same)
    lengths = np.diff(breaks, prepend=NONE) - 1
    longest = int(lengths.argmax())
    return int(breaks[longest] - lengths[longest]), int(lengths[longest])

"""The blocks that a model repeats, found in what the host did: module frames, named ranges, or a pattern.

A block is what people call a layer: one of several instances of a kind, one behind the other, that together
hold most of the forward pass.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stepgrade.analysis.trace.links import MODULE, OP, RANGE, HostTree, nearest, pick
from stepgrade.analysis.trace.pieces import Pieces
from stepgrade.analysis.trace.timeline import IN_BACKWARD, IN_INPUT, IN_OPTIMIZER, Timeline
from stepgrade.analysis.trace.vocabulary import (
    ANNOTATION_OP,
    BACKWARD_RANGE,
    COMPILED,
    FORWARD_RANGE,
    Mask,
    matching,
)
from stepgrade.model.events import NONE, Ids, Longs

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
    return _from_modules(line, pieces) or _from_ranges(line, pieces) or _from_pattern(line, pieces)


def _from_modules(line: Timeline, pieces: Pieces) -> Blocks | None:
    rows = np.flatnonzero(line.tree.kind == MODULE).astype(np.int32)
    kinds = [_kind(line.trace.strings[name]) for name in line.tree.name[rows].tolist()]
    holds = _holds_modules(line.tree, rows)
    candidates = _group(rows[holds], [kinds[i] for i in np.flatnonzero(holds).tolist()])
    chosen = _best_group(line.tree, pieces, candidates)
    if chosen is None:
        return None
    return _by_name(line, LayerBasis.MODULES, chosen, prefix="nn.Module: ")


def _kind(name: str) -> str:
    match = MODULE_NAME.match(name)
    return match[1] if match else name


def _holds_modules(tree: HostTree, rows: Ids) -> Mask:
    """Tell which module frames have another module frame inside."""
    above = pick(nearest(tree, tree.kind == MODULE), tree.parent[rows])
    return np.isin(rows, above)


def _group(rows: Ids, kinds: list[str]) -> dict[str, Ids]:
    """Return the rows of each kind."""
    found: dict[str, list[int]] = {}
    for row, kind in zip(rows.tolist(), kinds, strict=True):
        found.setdefault(kind, []).append(row)
    return {kind: np.array(members, np.int32) for kind, members in found.items()}


def _best_group(tree: HostTree, pieces: Pieces, groups: dict[str, Ids]) -> Ids | None:
    """Return the rows of the finest kind that holds nearly as much device time as the best kind.

    Instances must be told apart by name, and none may lie in another of its kind.
    """
    held = {}
    for kind in sorted(groups):
        rows = _outermost(tree, groups[kind])
        distinct = len(np.unique(tree.name[rows]))
        if distinct > 1:
            held[kind] = (_held_ns(tree, pieces, rows), distinct, rows)
    if not held or max(one[0] for one in held.values()) == 0:
        return None
    limit = ENOUGH * max(one[0] for one in held.values())
    return max((one for one in held.values() if one[0] >= limit), key=lambda one: (one[1], one[0]))[2]


def _outermost(tree: HostTree, rows: Ids) -> Ids:
    """Return those of the rows that lie in none of the others."""
    marked = np.zeros(len(tree.kind), np.bool_)
    marked[rows] = True
    return rows[pick(nearest(tree, marked), tree.parent[rows]) < 0]


def _held_ns(tree: HostTree, pieces: Pieces, rows: Ids) -> int:
    """Return the device time launched under these rows in the steady steps."""
    marked = np.zeros(len(tree.kind), np.bool_)
    marked[rows] = True
    inside = (pick(nearest(tree, marked), pieces.row) >= 0) & pieces.steady
    return int(pieces.dur_ns[inside].sum())


def _by_name(line: Timeline, basis: LayerBasis, rows: Ids, prefix: str = "") -> Blocks:
    """Return blocks told apart by name, in the order in which they first run."""
    order = rows[np.argsort(line.tree.start_ns[rows], kind="stable")]
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
    rows = np.flatnonzero(usable).astype(np.int32)
    kinds = [re.sub(r"\d+", "#", strings[name]) for name in tree.name[rows].tolist()]
    chosen = _best_group(tree, pieces, _group(rows, kinds))
    return None if chosen is None else _by_name(line, LayerBasis.RANGES, chosen)


def _from_pattern(line: Timeline, pieces: Pieces) -> Blocks | None:
    """Return blocks from the sequence of forward operations, if each steady step repeats the same one."""
    if matching(line.trace.strings, COMPILED)[line.tree.name].any():
        return None
    rows = _forward_rows(line)
    step = np.searchsorted(line.steps.start_ns, line.tree.start_ns[rows], side="right") - 1
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
    outer = pick(nearest(tree, tree.kind == OP), tree.parent) < 0
    apart = (line.context & (IN_BACKWARD | IN_INPUT | IN_OPTIMIZER)) > 0
    return np.flatnonzero((tree.kind == OP) & outer & ~apart & (tree.thread == line.steps.thread)).astype(
        np.int32
    )


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

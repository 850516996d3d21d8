"""Who made whom: host calls nested in operations, device work launched by calls.

Calls and operations of a thread nest in time: what starts while another runs is inside it. Device work
names its launching call by a correlation number. A graph launch is one call for many kernels.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepgrade.analysis.trace.vocabulary import Mask
from stepgrade.model.events import NONE, Ids, Kinds, Longs, RangeKind, Trace

RANGE, MODULE, OP, CALL = 0, 1, 2, 3
Whole = TypeVar("Whole", bound=np.signedinteger)


class HostTree(NamedTuple):
    """Everything that host threads did, sorted so that a parent stands before its children."""

    kind: Kinds  # RANGE, MODULE, OP or CALL
    origin: Ids  # row in its own table
    start_ns: Longs
    end_ns: Longs
    thread: Ids
    name: Ids
    parent: Ids  # row in this tree, or NONE
    of_op: Ids  # row in this tree of each operation
    of_call: Ids
    of_range: Ids


def grow_tree(trace: Trace) -> HostTree:
    """Return what the host did as one forest, one tree for each thread."""
    ranges, ops, calls = trace.ranges, trace.ops, trace.calls
    lengths = (len(ranges.name), len(ops.name), len(calls.name))
    range_kind = np.where(ranges.kind == RangeKind.MODULE, MODULE, RANGE)
    kind = np.concatenate([range_kind, np.full(lengths[1], OP), np.full(lengths[2], CALL)]).astype(np.int8)
    start = np.concatenate([ranges.start_ns, ops.start_ns, calls.start_ns])
    end = start + np.concatenate([ranges.dur_ns, ops.dur_ns, calls.dur_ns])
    thread = np.concatenate([ranges.thread, ops.thread, calls.thread])
    external = np.concatenate([ranges.external_id, ops.external_id, calls.external_id])
    index = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    order = np.lexsort((external, kind, -end, start, thread))
    row = np.empty(len(order), np.int32)
    row[order] = np.arange(len(order), dtype=np.int32)
    of_range, of_op, of_call = np.split(row, np.cumsum(lengths)[:2])
    name = np.concatenate([ranges.name, ops.name, calls.name])
    start, end, thread = start[order], end[order], thread[order]
    parent = _parents(start, end, thread)
    return HostTree(
        kind[order], index[order], start, end, thread, name[order], parent, of_op, of_call, of_range
    )


def _parents(start: Longs, end: Longs, thread: Ids) -> Ids:
    """Return for each row the last earlier row of its thread that still runs when it starts.

    Whoever has ended is skipped together with all it was found to skip, so that the number of rounds
    grows with the logarithm of the number of siblings.
    """
    parent = np.arange(-1, len(start) - 1, dtype=np.int32)
    if len(start):
        parent[1:][thread[1:] != thread[:-1]] = NONE
    open_rows = np.flatnonzero(parent >= 0)
    while len(open_rows):
        above = parent[open_rows]
        over = end[above] <= start[open_rows]
        open_rows = open_rows[over]
        parent[open_rows] = parent[above[over]]
        open_rows = open_rows[parent[open_rows] >= 0]
    return parent


def pick(column: NDArray[Whole], rows: Ids) -> NDArray[Whole]:
    """Return the column at `rows`, NONE where the row is NONE."""
    if not len(column):
        return np.full(len(rows), NONE, column.dtype)
    return np.where(rows >= 0, column[rows], column.dtype.type(NONE))


def nearest(parent: Ids, wanted: Mask) -> Ids:
    """Return for each row the nearest row at or above it for which `wanted` holds, or NONE."""
    found = np.where(wanted, np.arange(len(wanted), dtype=np.int32), np.int32(NONE))
    jump = parent.copy()
    open_rows = np.flatnonzero((found < 0) & (jump >= 0))
    while len(open_rows):
        above = jump[open_rows]
        found[open_rows], jump[open_rows] = found[above], jump[above]
        open_rows = open_rows[(found[open_rows] < 0) & (jump[open_rows] >= 0)]
    return found


def inherit(parent: Ids, bits: Kinds) -> Kinds:
    """Return the bits of each row together with those of every row above it."""
    gathered, jump = bits.copy(), parent.copy()
    open_rows = np.flatnonzero(jump >= 0)
    while len(open_rows):
        above = jump[open_rows]
        gathered[open_rows] |= gathered[above]
        jump[open_rows] = jump[above]
        open_rows = open_rows[jump[open_rows] >= 0]
    return gathered


class Links(NamedTuple):
    """For each piece of device work, the call that launched it and the operation around that call."""

    call: Ids  # row in trace.calls, or NONE where the launch was not recorded
    launch_ns: Longs  # start of that call, or NONE
    launched_ns: Longs  # end of that call, or NONE
    thread: Ids  # of that call, or NONE
    op: Ids  # row in trace.ops, or NONE
    row: Ids  # row in the tree of that call (or else of that operation), or NONE


def link_work(trace: Trace, tree: HostTree) -> Links:
    """Return the launching call and the operation of every piece of device work."""
    call = _rows_by_id(trace.calls.correlation, trace.work.correlation)
    launched = call >= 0
    call_row = pick(tree.of_call, call)
    op_row = pick(nearest(tree.parent, tree.kind == OP), call_row)
    op = pick(tree.origin, op_row)
    for external in (pick(trace.calls.external_id, call), trace.work.external_id):
        op = np.where(op >= 0, op, _rows_by_id(trace.ops.external_id, external))
    return Links(
        call=call,
        launch_ns=pick(trace.calls.start_ns, call),
        launched_ns=pick(trace.calls.start_ns + trace.calls.dur_ns, call),
        thread=pick(trace.calls.thread, call),
        op=op,
        row=np.where(launched, call_row, pick(tree.of_op, op)),
    )


def _rows_by_id(ids: Longs, wanted: Longs) -> Ids:
    """Return for each wanted id the row that carries it, or NONE."""
    if not len(ids):
        return np.full(len(wanted), NONE, np.int32)
    order = np.argsort(ids, kind="stable")
    place = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    found = order[place]
    return np.where((ids[found] == wanted) & (wanted >= 0), found, NONE).astype(np.int32)


def self_times(trace: Trace, tree: HostTree) -> Longs:
    """Return for each operation its time in ns without the operations nested in it."""
    above = pick(nearest(tree.parent, tree.kind == OP), tree.parent[tree.of_op])
    inside = above >= 0
    owner = tree.origin[above[inside]]
    nested = np.bincount(owner, weights=trace.ops.dur_ns[inside], minlength=len(trace.ops.name))
    return np.maximum(trace.ops.dur_ns - nested.astype(np.int64), 0)

"""Link events: host calls to the operations around them, device work to the calls that launched it.

Calls and operations of a thread nest in time: what starts while another runs is inside it. Device work
names its launching call by a correlation number. A graph launch is one call for many kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import once_if_constant
from stepgrade.model.events import NONE, Ids, Kinds, Longs, RangeKind, Trace, Wholes
from stepgrade.naming.torch_names import Mask

RANGE, MODULE, OP, CALL = 0, 1, 2, 3
BLOCK_ROWS = 1 << 15
_MOST_ROUNDS = 64
Whole = TypeVar("Whole", bound=np.signedinteger)


class HostTree(NamedTuple):
    """All events on host threads, sorted so that a parent comes before its children."""

    kind: Kinds  # RANGE, MODULE, OP or CALL
    origin: Ids  # row in its own table
    name: Ids
    parent: Ids  # row in this tree, or NONE
    op: Ids  # row in this tree of the nearest operation at or above, or NONE
    of_op: Ids  # row in this tree of each operation
    of_call: Ids


def build_tree(trace: Trace) -> HostTree:
    """Return the host's events as trees, one forest for each thread."""
    tables = (trace.ranges, trace.ops, trace.calls)
    lengths = [len(table.name) for table in tables]
    order = _nesting_order(trace)
    thread = np.concatenate([table.thread for table in tables])[order]
    row = np.empty(len(order), np.int32)
    row[order] = np.arange(len(order), dtype=np.int32)
    _, of_op, of_call = np.split(row, np.cumsum(lengths)[:2])
    parent = find_parents(_starts(trace)[order], _ends(trace)[order], thread)
    del thread
    kind = _kinds(trace)[order]
    return HostTree(
        kind=kind,
        origin=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])[order],
        name=np.concatenate([table.name for table in tables])[order],
        parent=parent,
        op=nearest(parent, kind == OP),
        of_op=of_op,
        of_call=of_call,
    )


def _starts(trace: Trace) -> Longs:
    return np.concatenate([table.start_ns for table in (trace.ranges, trace.ops, trace.calls)])


def _ends(trace: Trace) -> Longs:
    end = _starts(trace)
    end += np.concatenate([table.dur_ns for table in (trace.ranges, trace.ops, trace.calls)])
    return end


def _kinds(trace: Trace) -> Kinds:
    is_module = trace.ranges.kind == RangeKind.MODULE
    kind = np.full(len(is_module) + len(trace.ops.name) + len(trace.calls.name), CALL, np.int8)
    kind[: len(kind) - len(trace.calls.name)] = OP
    kind[: len(is_module)] = RANGE
    kind[: len(is_module)][is_module] = MODULE
    return kind


def _nesting_order(trace: Trace) -> Ids:
    """Return the order by thread, start, end (later first), kind, id.

    Only events that start together are sorted by more than their start: sorting all by everything would take
    three times the memory.
    """
    tables = (trace.ranges, trace.ops, trace.calls)
    start = _starts(trace)
    order = np.argsort(start, kind="stable").astype(np.int32)
    start = start[order]
    tied = start[1:] == start[:-1]
    places = np.flatnonzero(np.append(tied, False) | np.append(False, tied)).astype(np.int32)
    start = start[places]
    rows = order[places]
    external = np.concatenate([table.external_id for table in tables])[rows]
    keys = (external, _kinds(trace)[rows], -_ends(trace)[rows], start)
    order[places] = rows[np.lexsort(keys)]
    thread = np.concatenate([table.thread for table in tables])[order]
    if int(thread.max(initial=0)) <= np.iinfo(np.int16).max:
        thread = thread.astype(np.int16)  # numpy sorts these in one pass
    return order[np.argsort(thread, kind="stable")]


def find_parents(start: Longs, end: Longs, thread: Ids) -> Ids:
    """Return for each row the last earlier row of its thread that still runs when it starts.

    A row that has ended is skipped together with all the rows that it skipped itself, so that the number of
    rounds grows with the logarithm of the number of siblings. After a nest of thousands it grows with the
    depth instead, and the rows are walked one by one.
    """
    parent = np.arange(-1, len(start) - 1, dtype=np.int32)
    edges = (np.flatnonzero(thread[1:] != thread[:-1]) + 1).tolist()
    for first, after in pairwise([0, *edges, len(start)] if len(start) else []):
        # What starts after all before it have ended has no parent: no need to look.
        parent[first] = NONE
        reached = np.maximum.accumulate(end[first : after - 1])
        parent[first + 1 : after][start[first + 1 : after] >= reached] = NONE
    for block in _blocks(len(parent)):
        open_rows = np.flatnonzero(parent[block] >= 0) + block.start
        for round_number in count():
            if not len(open_rows):
                break
            if round_number == _MOST_ROUNDS:
                return _parents_one_by_one(start, end, thread)
            above = parent[open_rows]
            over = end[above] <= start[open_rows]
            open_rows = open_rows[over]
            parent[open_rows] = parent[above[over]]
            open_rows = open_rows[parent[open_rows] >= 0]
    return parent


def _parents_one_by_one(start: Longs, end: Longs, thread: Ids) -> Ids:
    parent, running, of_thread = [], list[int](), NONE
    for row, (begin, place) in enumerate(zip(start.tolist(), thread.tolist(), strict=True)):
        if place != of_thread:
            running, of_thread = [], place
        while running and end[running[-1]] <= begin:
            running.pop()
        parent.append(running[-1] if running else NONE)
        running.append(row)
    return np.array(parent, np.int32)


def _blocks(rows: int) -> Iterator[slice]:
    """Yield the rows in blocks: the results of one block are final before the next needs them.

    For all rows at once the intermediate columns would be the largest thing in memory.
    """
    for low in range(0, rows, BLOCK_ROWS):
        yield slice(low, min(rows, low + BLOCK_ROWS))


def pick(column: NDArray[Whole], rows: Ids) -> NDArray[Whole]:
    """Return the column at `rows`, NONE where the row is NONE."""
    if not len(column):
        return np.full(len(rows), NONE, column.dtype)
    found = column[rows]
    found[rows < 0] = NONE
    return found


def nearest(parent: Ids, wanted: Mask) -> Ids:
    """Return for each row the nearest row at or above it for which `wanted` holds, or NONE."""
    if not wanted.any():
        return np.broadcast_to(np.int32(NONE), len(wanted))
    found = np.arange(len(wanted), dtype=np.int32)
    found[~wanted] = NONE
    for block in _blocks(len(found)):
        here, jump = found[block], parent[block].copy()
        open_rows = np.flatnonzero((here < 0) & (jump >= 0))
        while len(open_rows):
            above = jump[open_rows]
            here[open_rows] = found[above]
            jump[open_rows] = _jumped(jump, above, block)
            open_rows = open_rows[(here[open_rows] < 0) & (jump[open_rows] >= 0)]
    return found


def _jumped(jump: Ids, above: Ids, block: slice) -> Ids:
    """Return where to look after `above`: nowhere if it lies in an earlier block, which is done."""
    inside = above >= block.start
    return np.where(inside, jump[np.where(inside, above - block.start, 0)], np.int32(NONE))


def inherit(parent: Ids, bits: Kinds) -> Kinds:
    """Return the bits of each row together with those of every row above it."""
    gathered = bits.copy()
    if not bits.any():
        return gathered
    for block in _blocks(len(gathered)):
        here, jump = gathered[block], parent[block].copy()
        open_rows = np.flatnonzero(jump >= 0)
        while len(open_rows):
            above = jump[open_rows]
            here[open_rows] |= gathered[above]
            jump[open_rows] = _jumped(jump, above, block)
            open_rows = open_rows[jump[open_rows] >= 0]
    return gathered


class Links(NamedTuple):
    """For each piece of device work, the call that launched it and the operation around that call."""

    call: Ids  # row in trace.calls, or NONE where the launch was not recorded
    launch_ns: Longs  # start of that call, or NONE
    thread: Ids  # of that call, or NONE
    op: Ids  # row in trace.ops, or NONE
    row: Ids  # row in the tree of that call (or else of that operation), or NONE


def link_work(trace: Trace, tree: HostTree) -> Links:
    """Return the launching call and the operation of every piece of device work."""
    call = _rows_by_id(trace.calls.correlation, trace.work.correlation)
    call_row = pick(tree.of_call, call)
    op = pick(tree.origin, pick(tree.op, call_row))
    for external in (pick(trace.calls.external_id, call), trace.work.external_id):
        missing = np.flatnonzero(op < 0)
        op[missing] = _rows_by_id(trace.ops.external_id, external[missing])
    return Links(
        call=call,
        launch_ns=pick(trace.calls.start_ns, call),
        thread=once_if_constant(pick(trace.calls.thread, call)),
        op=once_if_constant(op),
        row=np.where(call >= 0, call_row, pick(tree.of_op, op)),
    )


def _rows_by_id(ids: Wholes, wanted: Wholes) -> Ids:
    """Return for each wanted id the row that carries it, or NONE."""
    if not len(ids) or not len(wanted):
        return np.full(len(wanted), NONE, np.int32)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    place = np.searchsorted(ids, wanted, sorter=order)
    found = order[np.minimum(place, len(ids) - 1, out=place)]
    found[(ids[found] != wanted) | (wanted < 0)] = NONE
    return found


def self_times(trace: Trace, tree: HostTree) -> Longs:
    """Return for each operation its time in ns without the operations nested in it."""
    above = pick(tree.op, tree.parent[tree.of_op])
    inside = above >= 0
    owner = tree.origin[above[inside]]
    nested = np.bincount(owner, weights=trace.ops.dur_ns[inside], minlength=len(trace.ops.name))
    return np.maximum(trace.ops.dur_ns - nested.astype(np.int64), 0)

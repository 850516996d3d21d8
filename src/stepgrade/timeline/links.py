"""Link events: host calls to the operations around them, device work to its launches, times to Python lines.

Calls and operations of a thread nest in time: an event that starts while another runs is inside it. Device
work names its launching call by a correlation number; a graph launch is one call for many kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.activity import HostLine
from stepgrade.model.columns import distinct, groups, once_if_constant
from stepgrade.model.events import NONE, Compiled, Ids, Kinds, Longs, RangeKind, Trace, Wholes
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.torch_names import Mask
from stepgrade.timeline import intervals as iv
from stepgrade.units import NS_PER_MS

RANGE, MODULE, OP, CALL = 0, 1, 2, 3
BLOCK_ROWS = 1 << 15
LINES_KEPT = 3
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
    """Return the host's events as trees, by thread, start, end (later first), kind and id."""
    lengths = [len(table.name) for table in (trace.ranges, trace.ops, trace.calls)]
    kind = np.repeat(np.array([RANGE, OP, CALL], np.int8), lengths)
    kind[: lengths[0]][trace.ranges.kind == RangeKind.MODULE] = MODULE
    start = _column(trace, "start_ns")
    order = np.argsort(start, kind="stable").astype(np.int32)
    # Only events that start together need the other keys: sorting all by them takes three times the memory.
    start = start[order]
    tied = start[1:] == start[:-1]
    ties = np.flatnonzero(np.append(tied, False) | np.append(False, tied)).astype(np.int32)
    start, rows = start[ties], order[ties]
    ends = start + _column(trace, "dur_ns")[rows]
    order[ties] = rows[np.lexsort((_column(trace, "external_id")[rows], kind[rows], -ends, start))]
    del start, tied, ties, rows, ends
    thread = _column(trace, "thread")[order]
    if int(thread.max(initial=0)) <= np.iinfo(np.int16).max:
        thread = thread.astype(np.int16)  # numpy sorts these in one pass
    order = order[np.argsort(thread, kind="stable")]
    thread = _column(trace, "thread")[order]
    row = np.empty(len(order), np.int32)
    row[order] = np.arange(len(order), dtype=np.int32)
    _, of_op, of_call = np.split(row, np.cumsum(lengths)[:2])
    start = _column(trace, "start_ns")[order]
    parent = find_parents(start, start + _column(trace, "dur_ns")[order], thread)
    del start, thread
    kind = kind[order]
    return HostTree(
        kind=kind,
        origin=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])[order],
        name=_column(trace, "name")[order],
        parent=parent,
        op=nearest(parent, kind == OP),
        of_op=of_op,
        of_call=of_call,
    )


def _column(trace: Trace, name: str) -> NDArray[Any]:
    return np.concatenate([getattr(table, name) for table in (trace.ranges, trace.ops, trace.calls)])


def find_parents(start: Longs, end: Longs, thread: Ids) -> Ids:
    """Return for each row the last earlier row of its thread that still runs when it starts.

    A row that has ended is skipped together with all the rows that it skipped itself, so the number of rounds
    grows with the logarithm of the number of siblings. After a nest of thousands it grows with the depth
    instead, and the rows are walked one by one.
    """
    parent = np.arange(-1, len(start) - 1, dtype=np.int32)
    edges = (np.flatnonzero(thread[1:] != thread[:-1]) + 1).tolist()
    for first, after in pairwise([0, *edges, len(start)] if len(start) else []):
        # A row that starts after all earlier ones have ended has no parent: no need to look.
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
    parent, running, current = [], list[int](), NONE
    for row, (begin, own_thread) in enumerate(zip(start.tolist(), thread.tolist(), strict=True)):
        if own_thread != current:
            running, current = [], own_thread
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


def pick(column: NDArray[Whole], rows: Ids | Longs) -> NDArray[Whole]:
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
            # What lies in an earlier block is done: there is nowhere to look after it.
            inside = above >= block.start
            jump[open_rows] = np.where(inside, jump[np.where(inside, above - block.start, 0)], NONE)
            open_rows = open_rows[(here[open_rows] < 0) & (jump[open_rows] >= 0)]
    return found


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
    index = np.searchsorted(ids, wanted, sorter=order)
    found = order[np.minimum(index, len(ids) - 1, out=index)]
    found[(ids[found] != wanted) | (wanted < 0)] = NONE
    return found


def compiled_of(trace: Trace) -> list[Compiled | None]:
    """Return the whole-program compiler's description of each of the trace's inputs; empty without any.

    Such a program runs without host calls or autograd nodes around its operations: the compiler itself
    recorded their pass, layer and scope.
    """
    found = [inputs.compiled for inputs in trace.inputs]
    return found if any(found) else []


def in_direction(trace: Trace, *directions: str) -> Mask:
    """Return which operations a compiler assigned to one of these passes."""
    known = [compiled is not None and compiled.direction in directions for compiled in compiled_of(trace)]
    if not any(known):
        return np.zeros(len(trace.ops.name), np.bool_)
    return np.array([*known, False], np.bool_)[trace.ops.inputs]


class LoopFrames(NamedTuple):
    """One thread cut at every call and return; for each stretch, the user's function and what that called."""

    start_ns: Longs
    end_ns: Longs
    user: Ids  # name of the innermost function of the user's code, or NONE
    called: Ids  # name of what it called outside of it, or NONE
    strings: tuple[str, ...]

    def at(self, times: Longs) -> Longs:
        """Return the stretch that each time lies in, or NONE."""
        return iv.span_at(iv.Spans(self.start_ns, self.end_ns), times)

    def lines_of(self, spans: iv.Spans, steps: int) -> tuple[HostLine, ...]:
        """Return the user's lines that the thread was in during `spans`, longest first, in ms per step."""
        inside = iv.covered_within(spans, self.start_ns, self.end_ns)
        return self._lines(self.user, self.called, inside, steps)

    def lines_at(self, times: Longs, weights: Longs, steps: int) -> tuple[HostLine, ...]:
        """Return the user's lines that the thread was in at `times`, by the sum of their weights in ns."""
        index = self.at(times)
        return self._lines(pick(self.user, index), pick(self.called, index), weights, steps)

    def _lines(self, user: Ids, called: Ids, ns: Longs, steps: int) -> tuple[HostLine, ...]:
        chosen = (user >= 0) & (ns > 0)
        user, called, ns = user[chosen], called[chosen], ns[chosen]
        values, which, _ = groups(user.astype(np.int64))
        total = np.bincount(which, weights=ns, minlength=len(values))
        found = []
        for index in np.argsort(-total, kind="stable")[:LINES_KEPT].tolist():
            frame = read_frame(self.strings[int(values[index])])
            is_line = which == index
            names, inner, _ = groups(called[is_line])
            longest = int(names[np.bincount(inner, weights=ns[is_line]).argmax()])
            found.append(
                HostLine(
                    where=frame.where or "",
                    function=frame.name,
                    calls=None if longest == NONE else read_frame(self.strings[longest]).name,
                    ms=float(total[index]) / steps / NS_PER_MS,
                )
            )
        return tuple(found)


NO_FRAMES = LoopFrames(*(np.empty(0, np.int64),) * 2, *(np.empty(0, np.int32),) * 2, ())


def find_loop_frames(trace: Trace, thread: int) -> LoopFrames:
    """Return the thread's Python functions over time; nothing where no stacks were recorded."""
    frames = trace.frames
    rows = np.flatnonzero(frames.thread == thread) if frames is not None else np.empty(0, np.int64)
    if frames is None or not len(rows):
        return NO_FRAMES
    start, end = frames.start_ns[rows], frames.end_ns[rows]
    name = frames.name[rows]
    parent = find_parents(start, end, np.zeros(len(rows), np.int32))
    is_user = np.zeros(max(len(trace.strings), 1), np.bool_)
    used = distinct(name)
    is_user[used] = [read_frame(trace.strings[index]).is_user for index in used.tolist()]
    user_row = nearest(parent, is_user[name])
    enters = ~is_user[name] & ((parent < 0) | is_user[name[np.maximum(parent, 0)]])
    called_row = np.where(is_user[name], NONE, nearest(parent, enters)).astype(np.int32)
    # At each call and return: which function runs from then on. Returns come before calls at the same time.
    size = len(rows)
    time = np.concatenate([start, end])
    owner = np.concatenate([np.arange(size, dtype=np.int32), parent])
    turn = np.concatenate([np.arange(size), -np.arange(size)])
    order = np.lexsort((turn, np.repeat([1, 0], size), time))
    time, owner = time[order], owner[order]
    ends = np.append(time[1:], time[-1:])
    real = (ends > time) & (owner >= 0)
    time, ends, owner = time[real], ends[real], owner[real]
    return LoopFrames(time, ends, pick(name, user_row[owner]), pick(name, called_row[owner]), trace.strings)

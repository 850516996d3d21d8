"""Why the device waited for its host in long gaps: what the host was in, and the work that ended each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.activity import StallRow
from stepgrade.model.events import NONE, Ids, Longs
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.stalls import StallCause, cause_of_stall
from stepgrade.naming.torch_names import STEP
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.links import OP
from stepgrade.timeline.timeline import Timeline
from stepgrade.units import NS_PER_MS

_MOST_GAPS = 2000  # the longest of them have nearly all of the time


def tally_stalls(
    timeline: Timeline, gaps: iv.Spans, own_ns: NDArray[np.float64], steps: int
) -> tuple[StallRow, ...]:
    """Return the long gaps of a steady step by cause, longest first; `own_ns` is the host's part of each."""
    trace, rows = timeline.trace, np.flatnonzero(timeline.chosen)
    rows = rows[np.argsort(trace.work.start_ns[rows], kind="stable")]
    order = np.argsort(-own_ns, kind="stable")[:_MOST_GAPS]
    start, end = gaps.starts[order], gaps.ends[order]
    after = np.searchsorted(trace.work.start_ns[rows], end, side="left")
    ends = rows[np.minimum(after, len(rows) - 1)]
    ended_by = np.where(after < len(rows), trace.work.name[ends], NONE)
    # The thread that launches what ends the gap is the one that was late.
    thread = np.where(timeline.links.thread[ends] >= 0, timeline.links.thread[ends], timeline.steps.thread)
    causes = _causes_at(timeline, thread.astype(np.int32), (start + end) // 2)
    found: dict[tuple[str, str | None, str | None], tuple[int, float]] = {}
    for (cause, inside), work, ns in zip(causes, ended_by.tolist(), own_ns[order].tolist(), strict=True):
        key = (cause.value, inside, None if work == NONE else trace.strings[work])
        count, total = found.get(key, (0, 0.0))
        found[key] = count + 1, total + ns
    tallies = (
        StallRow(cause=cause, inside=inside, ended_by=last, count=count / steps, ms=ns / steps / NS_PER_MS)
        for (cause, inside, last), (count, ns) in found.items()
    )
    return tuple(sorted(tallies, key=lambda row: (-row.ms, row.cause, row.inside or "", row.ended_by or "")))


def _causes_at(timeline: Timeline, threads: Ids, times: Longs) -> Iterator[tuple[StallCause, str | None]]:
    """Yield what keeps each of the threads at each of the times, and the name that shows it."""
    tree, trace, frames = timeline.tree, timeline.trace, timeline.frames
    start, end = np.zeros((2, len(tree.name)), np.int64)
    thread = np.zeros(len(tree.name), np.int32)
    of_range = np.flatnonzero(tree.kind < OP)
    tables = (
        (tree.of_op, trace.ops, slice(None)),
        (tree.of_call, trace.calls, slice(None)),
        (of_range, trace.ranges, tree.origin[of_range]),
    )
    for at, table, rows in tables:
        start[at], end[at], thread[at] = table.start_ns[rows], table.end_ns[rows], table.thread[rows]
    frame_at = frames.at(times).tolist()
    for number, time, frame in zip(threads.tolist(), times.tolist(), frame_at, strict=True):
        first, last = np.searchsorted(thread, [number, number + 1])  # the tree is in the order of its threads
        row = int(first + np.searchsorted(start[first:last], time, side="right")) - 1
        names, operation = [], None
        while row >= first:
            name = trace.strings[tree.name[row]]
            if end[row] > time and not STEP.match(name):
                names.append(name)
                if operation is None and tree.kind[row] == OP:
                    operation = name
            row = int(tree.parent[row])
        of_frame = () if frame == NONE else (int(frames.called[frame]), int(frames.user[frame]))
        functions = [read_frame(frames.strings[index]).name for index in of_frame if index != NONE]
        cause, shown = cause_of_stall([*names, *functions])
        if cause is StallCause.UNKNOWN and operation is not None:
            cause, shown = StallCause.OPERATION, operation
        elif cause is StallCause.UNKNOWN and functions:
            cause, shown = StallCause.PYTHON, functions[0]
        yield cause, shown or next(iter(names), None)

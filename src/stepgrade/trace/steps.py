"""Find the steps on the host: from the profiler's marks, else from what a training loop does."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import groups
from stepgrade.model.events import NONE, DeviceWork, HostCalls, HostOps, HostRanges, Ids, Longs, Trace
from stepgrade.naming.torch_names import (
    BACKWARD,
    LOADER,
    OPTIMIZER_STEP,
    STEP,
    Mask,
    matching,
    named,
)
from stepgrade.trace.links import HostTree


class StepBasis(StrEnum):
    """What the steps were found from."""

    PROFILER_STEP = "profiler_step"
    OPTIMIZER = "optimizer"
    LOADER = "loader"
    BACKWARD = "backward"
    SPAN = "span"


NOTES = {
    StepBasis.OPTIMIZER: "The trace marks no steps: each ends with an Optimizer.step.",
    StepBasis.LOADER: "The trace marks no steps: each begins with the loader's next batch.",
    StepBasis.BACKWARD: "The trace marks no steps: each begins with the forward pass after a backward pass.",
    StepBasis.SPAN: "The trace marks no steps and shows no repetition: the whole trace is taken as one step.",
}


class HostSteps(NamedTuple):
    """Steps on the host's clock, in order; `end_ns` is the next start where steps follow each other."""

    basis: StepBasis
    number: Longs
    start_ns: Longs
    end_ns: Longs
    joined: Mask  # whether the next step follows at once
    thread: int  # the thread that runs the loop, or NONE


def find_steps(trace: Trace, tree: HostTree) -> HostSteps:
    """Return the steps of the trace; without any sign of them the whole span is one step."""
    found = _from_marks(trace) or _from_optimizer(trace) or _from_loader(trace) or _from_backward(trace, tree)
    if found is not None:
        return found
    threads = np.concatenate([table.thread for table in (trace.ranges, trace.ops, trace.calls)])
    busiest = int(np.bincount(threads).argmax()) if len(threads) else NONE
    extent = _extent(trace.ops, trace.calls, trace.work, trace.ranges)
    return _chain(StepBasis.SPAN, np.array(extent, np.int64), busiest)


def _chain(basis: StepBasis, edges: Longs, thread: int) -> HostSteps:
    """Return steps that follow each other from edge to edge, numbered from 0."""
    count = len(edges) - 1
    joined = np.ones(count, np.bool_)
    joined[-1:] = False
    return HostSteps(basis, np.arange(count), edges[:-1], edges[1:], joined, thread)


def _extent(*tables: HostOps | HostCalls | HostRanges | DeviceWork) -> tuple[int, int]:
    """Return when the first event of the tables starts and the last one ends."""
    starts = [int(table.start_ns.min()) for table in tables if len(table.name)]
    ends = [int((table.start_ns + table.dur_ns).max()) for table in tables if len(table.name)]
    return min(starts, default=0), max(ends, default=0)


def _from_marks(trace: Trace) -> HostSteps | None:
    """Return the steps that `ProfilerStep#n` ranges mark."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, STEP))
    if not len(rows):
        return None
    thread = int(np.bincount(ranges.thread[rows]).argmax())
    rows = rows[ranges.thread[rows] == thread]
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    marks = [STEP.search(trace.strings[name]) for name in ranges.name[rows].tolist()]
    number = np.array([min(int(mark[1]), 2**62) if mark else NONE for mark in marks], np.int64)
    start = ranges.start_ns[rows]
    own_end = start + ranges.dur_ns[rows]
    # The next step follows at once if its number is the next one and recording did not pause in between.
    longest_pause = np.maximum(own_end[:-1] - start[:-1], 1_000_000) // 2
    follows = (np.diff(number) == 1) & (start[1:] - own_end[:-1] <= longest_pause)
    joined = np.append(follows, False)
    end = np.where(joined, np.append(start[1:], NONE), own_end)
    return HostSteps(StepBasis.PROFILER_STEP, number, start, end, joined, thread)


def _from_optimizer(trace: Trace) -> HostSteps | None:
    """Return steps that end where the optimizer's step ends; of several optimizers the busiest counts."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, OPTIMIZER_STEP))
    if not len(rows):
        return None
    ends = ranges.start_ns[rows] + ranges.dur_ns[rows]
    names, which, counts = groups(ranges.name[rows])
    last = np.full(len(names), NONE, np.int64)
    np.maximum.at(last, which, ends)
    chosen = names[np.lexsort((last, counts))[-1]]
    of_chosen = ranges.name[rows] == chosen
    thread = int(np.bincount(ranges.thread[rows[of_chosen]]).argmax())
    edges = np.append(_extent(trace.ops, trace.calls, ranges)[0], np.sort(ends[of_chosen]))
    return _chain(StepBasis.OPTIMIZER, edges.astype(np.int64), thread)


def _from_loader(trace: Trace) -> HostSteps | None:
    """Return steps that begin where the loop asks the loader for the next batch."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, LOADER))
    if len(rows) < 2:
        return None
    thread = int(np.bincount(ranges.thread[rows]).argmax())
    starts = np.sort(ranges.start_ns[rows][ranges.thread[rows] == thread])
    edges = np.append(starts, _extent(trace.ops, trace.calls, ranges)[1])
    return _chain(StepBasis.LOADER, edges.astype(np.int64), thread)


def _from_backward(trace: Trace, tree: HostTree) -> HostSteps | None:
    """Return steps that begin with the first differentiable operation after a backward pass."""
    if not len(trace.ops.name):
        return None
    is_backward = matching(trace.strings, BACKWARD)[trace.ops.name]
    top = tree.parent[tree.of_op] < 0
    forward = top & ~is_backward & (trace.ops.sequence >= 0)
    starts = np.append(trace.ops.start_ns[forward], trace.ops.start_ns[is_backward & top])
    backward = np.append(np.zeros(forward.sum(), np.bool_), np.ones((is_backward & top).sum(), np.bool_))
    order = np.argsort(starts, kind="stable")
    starts, backward = starts[order], backward[order]
    begins = ~backward & np.append(True, backward[:-1])
    if begins.sum() < 2 or not backward.any():
        return None
    edges = np.append(starts[begins], _extent(trace.ops, trace.calls, trace.ranges)[1])
    thread = int(np.bincount(trace.ops.thread[forward]).argmax())
    return _chain(StepBasis.BACKWARD, edges.astype(np.int64), thread)


def steps_of(times: Longs, steps: HostSteps) -> Ids:
    """Return the index of the step in which each time lies; the count of steps after the last, else NONE."""
    found = np.searchsorted(steps.start_ns, times, side="right").astype(np.int32)
    found -= 1
    outside = (found < 0) | (times >= steps.end_ns[found])
    after = (found == len(steps.start_ns) - 1) & outside & (times >= 0)
    found[outside] = NONE
    found[after] = len(steps.start_ns)
    return found

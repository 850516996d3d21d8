"""Steps as the host saw them: from what the profiler wrote, else from what a training loop does."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import groups
from stepgrade.model.events import NONE, Ids, Longs, Trace
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
    for find in (_from_marks, _from_optimizer, _from_loader):
        found = find(trace)
        if found is not None:
            return found
    found = _from_backward(trace, tree)
    if found is not None:
        return found
    start, end = _extent(trace)
    return _chain(StepBasis.SPAN, np.array([start, end], np.int64), _busiest_thread(trace))


def _chain(basis: StepBasis, edges: Longs, thread: int) -> HostSteps:
    """Return steps that follow each other from edge to edge, numbered from 0."""
    count = len(edges) - 1
    joined = np.ones(count, np.bool_)
    joined[-1:] = False
    return HostSteps(basis, np.arange(count), edges[:-1], edges[1:], joined, thread)


def _extent(trace: Trace) -> tuple[int, int]:
    """Return when the first event starts and the last one ends."""
    tables = [table for table in (trace.ops, trace.calls, trace.work, trace.ranges) if len(table.name)]
    if not tables:
        return 0, 0
    starts = [int(table.start_ns.min()) for table in tables]
    ends = [int((table.start_ns + table.dur_ns).max()) for table in tables]
    return min(starts), max(ends)


def _host_extent(trace: Trace) -> tuple[int, int]:
    tables = [table for table in (trace.ops, trace.calls, trace.ranges) if len(table.name)]
    starts = [int(table.start_ns.min()) for table in tables]
    ends = [int((table.start_ns + table.dur_ns).max()) for table in tables]
    return min(starts), max(ends)


def _busiest_thread(trace: Trace) -> int:
    """Return the thread with the most host events of its own, or NONE."""
    threads = np.concatenate([table.thread for table in (trace.ranges, trace.ops, trace.calls)])
    return int(np.bincount(threads).argmax()) if len(threads) else NONE


def _from_marks(trace: Trace) -> HostSteps | None:
    """Return the steps that `ProfilerStep#n` ranges mark."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, STEP))
    if not len(rows):
        return None
    thread = int(np.bincount(ranges.thread[rows]).argmax())
    rows = rows[ranges.thread[rows] == thread]
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    number = np.array([_step_number(trace.strings[name]) for name in ranges.name[rows].tolist()], np.int64)
    start = ranges.start_ns[rows]
    own_end = start + ranges.dur_ns[rows]
    joined = np.append(_follows(number, start, own_end), False)
    end = np.where(joined, np.append(start[1:], NONE), own_end)
    return HostSteps(StepBasis.PROFILER_STEP, number, start, end, joined, thread)


def _step_number(name: str) -> int:
    match = STEP.search(name)
    return min(int(match[1]), 2**62) if match else NONE


def _follows(number: Longs, start: Longs, end: Longs) -> Mask:
    """Tell for each step but the last whether the next one follows it without a pause in recording."""
    pause = start[1:] - end[:-1]
    follows: Mask = (np.diff(number) == 1) & (pause <= np.maximum(end[:-1] - start[:-1], 1_000_000) // 2)
    return follows


def _from_optimizer(trace: Trace) -> HostSteps | None:
    """Return steps that end where the optimizer's step ends; of several optimizers the busiest counts."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, OPTIMIZER_STEP))
    if not len(rows):
        return None
    ends = ranges.start_ns[rows] + ranges.dur_ns[rows]
    names, _, counts = groups(ranges.name[rows])
    last = np.array([ends[ranges.name[rows] == name].max() for name in names])
    chosen = names[np.lexsort((last, counts))[-1]]
    of_chosen = ranges.name[rows] == chosen
    thread = int(np.bincount(ranges.thread[rows[of_chosen]]).argmax())
    edges = np.append(_host_extent(trace)[0], np.sort(ends[of_chosen]))
    return _chain(StepBasis.OPTIMIZER, edges.astype(np.int64), thread)


def _from_loader(trace: Trace) -> HostSteps | None:
    """Return steps that begin where the loader is asked for the next batch."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, LOADER))
    if len(rows) < 2:
        return None
    thread = int(np.bincount(ranges.thread[rows]).argmax())
    starts = np.sort(ranges.start_ns[rows][ranges.thread[rows] == thread])
    edges = np.append(starts, _host_extent(trace)[1])
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
    edges = np.append(starts[begins], _host_extent(trace)[1])
    thread = int(np.bincount(trace.ops.thread[forward]).argmax())
    return _chain(StepBasis.BACKWARD, edges.astype(np.int64), thread)


def steps_of(times: Longs, steps: HostSteps) -> Ids:
    """Return the step in which each time lies: its index, the count of steps after the last, else NONE."""
    found = np.searchsorted(steps.start_ns, times, side="right").astype(np.int32)
    found -= 1
    outside = (found < 0) | (times >= steps.end_ns[found])
    after = (found == len(steps.start_ns) - 1) & outside & (times >= 0)
    found[outside] = NONE
    found[after] = len(steps.start_ns)
    return found

"""What torch.compile did while it was recorded, by the names that it writes into every trace.

`entire_frame_compile` and `entire_backward_compile` are around all that a compilation does, `Torch-Compiled
Region: F/N` is a call of what the N-th compilation of frame F made. A graph that breaks goes on in a function
called `torch_dynamo_resume_in_NAME_at_LINE`, or in a region inside its own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np

from stepgrade.model.columns import groups
from stepgrade.model.compilation import Compilation, CompiledFrame, GraphBreak, StepCompilation
from stepgrade.model.events import Trace
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.torch_names import Mask, matching
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.timeline import Timeline
from stepgrade.timeline.windows import StepMark, compile_spans
from stepgrade.units import NS_PER_MS

_FRAMES_LOOKED_UP = 50
_STEPS_KEPT = 100
_FRAME = re.compile(r"^entire_frame_compile$")
_REGION = re.compile(r"^Torch-Compiled Region: (\d{1,9})/(\d{1,9})(?!\d)")
_LOOKUP = re.compile(r"^TorchDynamo Cache Lookup$")
_GRAPH_RECORD = re.compile(r"CUDAGraphNode\.record|^cudagraphify\b")
_COMPILE_ID = re.compile(r"^entire_frame_compile_data: .*compile_id=(\d{1,9})/(\d{1,9})(?!\d)")
_RESUME = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d{1,9})$")


def find_compilation(timeline: Timeline) -> Compilation | None:
    """Return what was compiled; None where torch.compile left no trace."""
    trace, windows = timeline.trace, timeline.windows
    ops, strings = trace.ops, trace.strings
    regions = matching(strings, _REGION)[ops.name]
    spans = compile_spans(trace)
    if not len(spans.starts) and not regions.any():
        return None
    steps = max(int(windows.steady.sum()), 1)
    steady = timeline.in_steady_step(ops.start_ns)
    frames = compiled_frames(trace)
    breaks = graph_breaks(timeline, regions & steady, steps)
    lookups = matching(strings, _LOOKUP)[ops.name] & steady
    return Compilation(
        ms_per_step=float(windows.in_steady(spans).sum()) / steps / NS_PER_MS,
        total_ms=iv.total_ns(spans) / NS_PER_MS,
        recorded_ms=float(windows.dur_ns.sum()) / NS_PER_MS,
        steps_left_out=windows.mark.count(StepMark.COMPILING),
        compiles=sum(frame.compiles for frame in frames),
        recompiles=sum(frame.recompiles for frame in frames),
        graph_breaks=sum(one.per_step or 0.0 for one in breaks),
        guard_ms=float(ops.dur_ns[lookups].sum()) / steps / NS_PER_MS,
        cudagraph_records=int(matching(strings, _GRAPH_RECORD)[ops.name].sum()),
        frames=frames,
        breaks=breaks,
        steps=compiling_steps(timeline, spans),
    )


def compiling_steps(timeline: Timeline, spans: iv.Spans) -> tuple[StepCompilation, ...]:
    """Return how much was compiled in each step that compiled anything, the longest first."""
    windows = timeline.windows
    spent = iv.covered_within(spans, windows.start_ns, windows.end_ns)
    longest = np.argsort(-spent, kind="stable")[: min(int((spent > 0).sum()), _STEPS_KEPT)]
    return tuple(
        StepCompilation(step=int(timeline.steps.number[row]), ms=float(spent[row]) / NS_PER_MS)
        for row in longest.tolist()
    )


def compiled_frames(trace: Trace) -> tuple[CompiledFrame, ...]:
    """Return the frames that were compiled, longest first.

    The number of a compilation is in an annotation inside it, in older traces that of the next region.
    """
    ops, ranges, strings = trace.ops, trace.ranges, trace.strings
    compiles = np.flatnonzero(matching(strings, _FRAME)[ops.name])
    told: list[tuple[int, str, int]] = [
        (int(ranges.start_ns[row]), found[1], int(found[2]))
        for row in np.flatnonzero(matching(strings, _COMPILE_ID)[ranges.name]).tolist()
        if (found := _COMPILE_ID.match(strings[int(ranges.name[row])]))
    ]
    told += [
        (int(ops.start_ns[row]), found[1], int(found[2]))
        for row in np.flatnonzero(matching(strings, _REGION)[ops.name]).tolist()
        if (found := _REGION.match(strings[int(ops.name[row])]))
    ]
    told.sort(key=lambda each: each[0])
    starts = np.array([time for time, _, _ in told], np.int64)
    spent: dict[str, list[float]] = defaultdict(list)
    again: Counter[str] = Counter()
    first_at: dict[str, int] = {}
    for row in compiles.tolist():
        place = int(np.searchsorted(starts, ops.start_ns[row]))
        _, frame, number = told[place] if place < len(told) else (0, "?", 0)
        spent[frame].append(float(ops.dur_ns[row]) / NS_PER_MS)
        again[frame] += number > 0
        first_at.setdefault(frame, row)
    longest = sorted(spent, key=lambda frame: (-sum(spent[frame]), frame))
    return tuple(
        CompiledFrame(
            frame=frame,
            compiles=len(spent[frame]),
            recompiles=again[frame],
            ms=sum(spent[frame]),
            # Looking for a line takes a walk through all frames: thousands of compiled ones get none.
            where=_where(trace, first_at[frame]) if place < _FRAMES_LOOKED_UP else None,
        )
        for place, frame in enumerate(longest)
    )


def _where(trace: Trace, row: int) -> str | None:
    """Return the line of the user's function that an operation was called in; None without stacks."""
    frames, ops = trace.frames, trace.ops
    if frames is None or not len(frames.name):
        return None
    start = int(ops.start_ns[row])
    around = (frames.start_ns <= start) & (frames.start_ns + frames.dur_ns >= start + ops.dur_ns[row])
    around &= frames.thread == ops.thread[row]
    for frame in np.flatnonzero(around)[::-1].tolist():
        seen = read_frame(trace.strings[int(frames.name[frame])])
        if seen.is_user:
            return seen.where
    return None


def graph_breaks(timeline: Timeline, regions: Mask, steps: int) -> tuple[GraphBreak, ...]:
    """Return where graphs break in a steady step, the most frequent first."""
    trace = timeline.trace
    frames, strings = trace.frames, trace.strings
    if frames is not None and len(frames.name):
        chosen = timeline.in_steady_step(frames.start_ns)
        names, _, counts = groups(frames.name[chosen])
        found = []
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            resumed = _RESUME.search(strings[name])
            if resumed:
                seen = read_frame(strings[name])
                found.append(GraphBreak(where=seen.where, function=resumed[1], per_step=count / steps))
        if found:
            return tuple(sorted(found, key=lambda one: (-(one.per_step or 0.0), one.where or "")))
    # Without stacks: a region inside another one is what comes after a break.
    rows = np.flatnonzero(regions)
    start, end = trace.ops.start_ns[rows], (trace.ops.start_ns + trace.ops.dur_ns)[rows]
    order = np.lexsort((-end, start, trace.ops.thread[rows]))
    thread = trace.ops.thread[rows][order]
    reach = np.maximum.accumulate(np.append(-1, end[order][:-1])) if len(rows) else end
    inside = (start[order] < reach) & np.append(False, thread[1:] == thread[:-1])
    if not inside.any():
        return ()
    return (GraphBreak(where=None, function=None, per_step=float(inside.sum()) / steps),)

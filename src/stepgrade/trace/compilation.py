"""What torch.compile did, by the names that it writes into every trace, and by its own logs.

`entire_frame_compile` and `entire_backward_compile` span a compilation, `Torch-Compiled Region: F/N` is a
call of the result of the N-th compilation of frame F. After a graph break, execution goes on in a function
called `torch_dynamo_resume_in_NAME_at_LINE`, or in a nested region.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec import structs

from stepgrade.model.columns import groups
from stepgrade.model.compilation import Compilation, CompiledFrame, CompileLog, GraphBreak, StepCompilation
from stepgrade.model.events import Trace
from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile, Source
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.torch_names import Mask, matching
from stepgrade.patterns import regex
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import StepMark, compile_spans
from stepgrade.timeline.timeline import Timeline
from stepgrade.units import NS_PER_MS, show_count, show_ms

_FRAMES_LOOKED_UP = 50
_STEPS_KEPT = 100
_FRAME = regex(r"^entire_frame_compile$")
_REGION = regex(r"^Torch-Compiled Region: (\d{1,9})/(\d{1,9})(?!\d)")
_LOOKUP = regex(r"^TorchDynamo Cache Lookup$")
_GRAPH_RECORD = regex(r"CUDAGraphNode\.record|^cudagraphify\b")
_COMPILE_ID = regex(r"^entire_frame_compile_data: .*compile_id=(\d{1,9})/(\d{1,9})(?!\d)")
_RESUME = regex(r"torch_dynamo_resume_in_(.+)_at_(\d{1,9})$")


def find_compilation(timeline: Timeline) -> Compilation | None:
    """Return what was compiled; None where torch.compile left no trace."""
    trace, windows = timeline.trace, timeline.windows
    ops, strings = trace.ops, trace.strings
    regions = matching(strings, _REGION)[ops.name]
    spans = compile_spans(trace)
    if not len(spans.starts) and not regions.any():
        return None
    count = max(int(windows.steady.sum()), 1)
    steady = timeline.in_steady_step(ops.start_ns)
    frames = compiled_frames(trace)
    breaks = graph_breaks(timeline, regions & steady, count)
    lookups = matching(strings, _LOOKUP)[ops.name] & steady
    spent = iv.covered_within(spans, windows.start_ns, windows.end_ns)
    longest = np.argsort(-spent, kind="stable")[: min(int((spent > 0).sum()), _STEPS_KEPT)]
    return Compilation(
        ms_per_step=float(windows.in_steady(spans).sum()) / count / NS_PER_MS,
        total_ms=iv.total_ns(spans) / NS_PER_MS,
        recorded_ms=float(windows.dur_ns.sum()) / NS_PER_MS,
        steps_left_out=windows.mark.count(StepMark.COMPILING),
        compiles=sum(frame.compiles for frame in frames),
        recompiles=sum(frame.recompiles for frame in frames),
        graph_breaks=sum(each.per_step or 0.0 for each in breaks),
        guard_ms=float(ops.dur_ns[lookups].sum()) / count / NS_PER_MS,
        cudagraph_records=int(matching(strings, _GRAPH_RECORD)[ops.name].sum()),
        frames=frames,
        breaks=breaks,
        steps=tuple(
            StepCompilation(step=int(timeline.steps.number[row]), ms=float(spent[row]) / NS_PER_MS)
            for row in longest.tolist()
        ),
    )


def compiled_frames(trace: Trace) -> tuple[CompiledFrame, ...]:
    """Return the frames that were compiled, longest first.

    An annotation inside a compilation carries its number; in older traces the next region does.
    """
    strings = trace.strings
    compiles = np.flatnonzero(matching(strings, _FRAME)[trace.ops.name])
    numbered = [
        (int(table.start_ns[row]), found[1], int(found[2]))
        for pattern, table in ((_COMPILE_ID, trace.ranges), (_REGION, trace.ops))
        for row in np.flatnonzero(matching(strings, pattern)[table.name]).tolist()
        if (found := pattern.match(strings[int(table.name[row])]))
    ]
    numbered.sort(key=lambda each: each[0])
    starts = np.array([time for time, _, _ in numbered], np.int64)
    spent: dict[str, list[float]] = defaultdict(list)
    again: Counter[str] = Counter()
    first_row: dict[str, int] = {}
    for row in compiles.tolist():
        index = int(np.searchsorted(starts, trace.ops.start_ns[row]))
        _, frame, number = numbered[index] if index < len(numbered) else (0, "?", 0)
        spent[frame].append(float(trace.ops.dur_ns[row]) / NS_PER_MS)
        again[frame] += number > 0
        first_row.setdefault(frame, row)
    longest = sorted(spent, key=lambda frame: (-sum(spent[frame]), frame))
    return tuple(
        CompiledFrame(
            frame=frame,
            compiles=len(spent[frame]),
            recompiles=again[frame],
            ms=sum(spent[frame]),
            # Looking up a line takes a walk through all frames: of thousands only the longest get it.
            where=_where(trace, first_row[frame]) if index < _FRAMES_LOOKED_UP else None,
        )
        for index, frame in enumerate(longest)
    )


def _where(trace: Trace, row: int) -> str | None:
    """Return the line of the user's function that an operation was called in; None without stacks."""
    frames, ops = trace.frames, trace.ops
    if frames is None or not len(frames.name):
        return None
    around = (frames.start_ns <= ops.start_ns[row]) & (frames.end_ns >= ops.end_ns[row])
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
    start, end = trace.ops.start_ns[rows], trace.ops.end_ns[rows]
    if not len(rows):
        return ()
    # Threads one behind the other: a region of one reaches into none of another.
    after = groups(trace.ops.thread[rows]).which * (end.max() - start.min() + 1)
    order = np.lexsort((-end, start + after))
    start, end = (start + after)[order], (end + after)[order]
    inside = start[1:] < np.maximum.accumulate(end[:-1])
    if not inside.any():
        return ()
    return (GraphBreak(where=None, function=None, per_step=float(inside.sum()) / steps),)


def profile_of_compile_logs(logs: Sequence[CompileLog]) -> Profile:
    """Return a profile without steps: what was compiled on the rank that compiled the longest.

    The other ranks wait for it.
    """
    log = max(logs, key=lambda each: each.total_ms)
    notes = []
    if len(logs) > 1:
        who = log.file if log.rank is None else f"rank {log.rank}"
        least = min(each.total_ms for each in logs)
        text = (
            f"Compilation is shown for {who}, which took the longest of {len(logs)}: "
            f"{show_ms(log.total_ms)}; the shortest took {show_ms(least)}."
        )
        notes.append(Note("compile_log_of_rank", text))
    if unread := sum(each.unread for each in logs):
        notes.append(
            Note("compile_log_damaged", f"{show_count(unread)} records of the log could not be read.")
        )
    text = "Logs of torch.compile tell what was compiled, not how long steps take: nothing is graded."
    return Profile(
        source=Source(
            format="torch_trace",
            files=tuple(each.file for each in logs),
            producer="torch.compile (TORCH_TRACE)",
        ),
        compilation=Compilation(
            total_ms=log.total_ms,
            compiles=log.compiles,
            recompiles=log.recompiles,
            cudagraph_records=log.cudagraph_records,
            cudagraph_rerecords=log.cudagraph_rerecords,
            logged_ms=log.total_ms,
            frames=log.frames,
            breaks=log.breaks,
        ),
        contents={"ranks": show_count(len(logs)), "compilations": show_count(log.compiles)},
        notes=tuple(notes),
        warnings=(Note("no_step_times", text, fatal=True),),
    )


def with_compile_logs(profile: Profile, logs: Sequence[CompileLog]) -> Profile:
    """Return the profile of a trace with its logs: failed guards, and the reasons of graph breaks."""
    alone = profile_of_compile_logs(logs)
    logged, traced = alone.compilation, profile.compilation
    if traced is not None and logged is not None:
        # A trace shows how often a break is met, the log why it is there. A profiler leaves the directory of
        # a module out of its path: file, line and function identify a break.
        met = {_where_broken(each): each for each in traced.breaks if each.where is not None}
        breaks = []
        for each in logged.breaks:
            same = met.pop(_where_broken(each), None)
            breaks.append(structs.replace(each, per_step=same.per_step if same else None))
        breaks += met.values()
        breaks.sort(key=lambda each: (-(each.per_step or 0.0), -(each.compiles or 0), each.where or ""))
        logged = structs.replace(
            traced,
            compiles=logged.compiles,
            recompiles=logged.recompiles,
            cudagraph_records=logged.cudagraph_records,
            cudagraph_rerecords=logged.cudagraph_rerecords,
            logged_ms=logged.logged_ms,
            frames=logged.frames,
            breaks=tuple(breaks),
        )
    source = structs.replace(profile.source, files=(*profile.source.files, *alone.source.files))
    return structs.replace(profile, source=source, compilation=logged, notes=(*profile.notes, *alone.notes))


def _where_broken(each: GraphBreak) -> tuple[str, str | None]:
    return (each.where or "").rsplit("/", 1)[-1], each.function

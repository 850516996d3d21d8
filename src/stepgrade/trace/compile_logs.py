"""What torch.compile logged, beside the traces of the same run or alone."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from stepgrade.model.compilation import Compilation, CompileLog, GraphBreak
from stepgrade.model.notes import Note
from stepgrade.model.profile import Profile, Source
from stepgrade.units import show_count, show_ms


def profile_of_compile_logs(logs: Sequence[CompileLog]) -> Profile:
    """Return a profile that holds no steps: only what was compiled, on the rank that compiled the longest."""
    log, notes = longest_log(logs)
    text = "Logs of torch.compile tell what was compiled, not how long steps take: nothing is graded."
    return Profile(
        source=Source(
            format="torch_trace",
            files=tuple(one.file for one in logs),
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
        notes=notes,
        warnings=(Note("no_step_times", text, fatal=True),),
    )


def with_compile_logs(profile: Profile, logs: Sequence[CompileLog]) -> Profile:
    """Return the profile of a trace with what its logs say: guards that failed, and why graphs break."""
    alone = profile_of_compile_logs(logs)
    logged, traced = alone.compilation, profile.compilation
    if traced is not None and logged is not None:
        logged = structs.replace(
            traced,
            compiles=logged.compiles,
            recompiles=logged.recompiles,
            cudagraph_records=logged.cudagraph_records,
            cudagraph_rerecords=logged.cudagraph_rerecords,
            logged_ms=logged.logged_ms,
            frames=logged.frames,
            breaks=breaks_of_both(traced.breaks, logged.breaks),
        )
    source = structs.replace(profile.source, files=(*profile.source.files, *alone.source.files))
    return structs.replace(profile, source=source, compilation=logged, notes=(*profile.notes, *alone.notes))


def longest_log(logs: Sequence[CompileLog]) -> tuple[CompileLog, tuple[Note, ...]]:
    """Return the log of the rank that compiled the longest, for which the others wait, and notes on all."""
    log = max(logs, key=lambda one: one.total_ms)
    notes = []
    if len(logs) > 1:
        who = log.file if log.rank is None else f"rank {log.rank}"
        least = min(one.total_ms for one in logs)
        text = (
            f"What was compiled is told of {who}, which took the longest of {len(logs)}: "
            f"{show_ms(log.total_ms)}; the shortest took {show_ms(least)}."
        )
        notes.append(Note("compile_log_of_rank", text))
    if unread := sum(one.unread for one in logs):
        notes.append(
            Note("compile_log_damaged", f"{show_count(unread)} records of the log could not be read.")
        )
    return log, tuple(notes)


def breaks_of_both(traced: Sequence[GraphBreak], logged: Sequence[GraphBreak]) -> tuple[GraphBreak, ...]:
    """Return the breaks of both: a trace says how often they are met, the log why there is one.

    A profiler leaves the directory of a module out of its path: file, line and function tell them.
    """
    met = {_place(one): one for one in traced if one.where is not None}
    found = []
    for one in logged:
        same = met.pop(_place(one), None)
        found.append(structs.replace(one, per_step=same.per_step if same else None))
    found += met.values()
    return tuple(
        sorted(found, key=lambda one: (-(one.per_step or 0.0), -(one.compiles or 0), one.where or ""))
    )


def _place(one: GraphBreak) -> tuple[str, str | None]:
    return (one.where or "").rsplit("/", 1)[-1], one.function

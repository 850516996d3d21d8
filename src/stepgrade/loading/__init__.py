"""Read a run or a baseline: find its files, read each, and combine what they hold into a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import structs

from stepgrade.config import DialectTable
from stepgrade.errors import BadInput, BadOption, UnknownFormat
from stepgrade.model import Note, Profile
from stepgrade.model.scorecard import Baseline
from stepgrade.readers import registry
from stepgrade.readers.base import Kind, Part
from stepgrade.readers.discover import RunFile, RunFiles, discover
from stepgrade.readers.source import (
    DEFAULT_MAX_BYTES,
    MOST_UNREADABLE,
    ByteSource,
    PathLike,
    Progress,
    ReadOptions,
)
from stepgrade.statistics import median
from stepgrade.units import show_ms, show_share

if TYPE_CHECKING:
    from stepgrade.model.events import Trace
# Closer than this, the two agree.
_AGREE = 0.05
# Beyond this factor they are not of the same run, or not of the same steps.
_TOO_FAR = 5.0


def load(
    *sources: PathLike,
    input_format: str | None = None,
    steps: tuple[int, int] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
    max_memory: int | None = None,
    progress: Progress | None = None,
    rank_progress: Progress | None = None,
    dialects: Sequence[DialectTable] = (),
    engine: str | None = None,
    workers: int | None = None,
    most_unreadable: float = MOST_UNREADABLE,
    sample_ranks: int | None = None,
    cache: bool = True,
) -> Profile:
    """Read a run from a path, or from standard input for `-`; the format is detected from the content.

    Several traces, or a directory of them, are the ranks of one run, with its log if given. `steps` is the
    first and last step to read; `max_memory` limits decoded bytes (default: a quarter of the machine's
    memory); `progress` is called with bytes read and total, `rank_progress` with ranks; `dialects` describe
    your own log lines (`load_config`). `engine` is "here", "pool", "dask" or "dask://HOST:PORT"; unreadable
    ranks are skipped up to the share `most_unreadable`; `sample_ranks` limits how many ranks are read.
    The profile of each trace and log is cached unless `cache` is False.
    """
    if workers is not None and workers < 1:
        raise BadOption("must be 1 or more", field="workers")
    if sample_ranks is not None and sample_ranks < 2:
        raise BadOption("must be 2 or more", field="sample_ranks")
    if not 0.0 <= most_unreadable <= 1.0:
        raise BadOption("must be a share from 0 to 1", field="most_unreadable")
    options = ReadOptions(
        steps=steps,
        max_bytes=max_bytes,
        max_memory=max_memory,
        progress=progress,
        rank_progress=rank_progress,
        dialects=tuple(dialects),
        engine=engine,
        workers=workers,
        most_unreadable=most_unreadable,
        sample_ranks=sample_ranks,
        cache=cache,
    )
    with discover(sources, input_format, options) as run:
        found = read_run(run, options)
    if isinstance(found, Baseline):
        supply = "it as {baseline}, or the profile that it was made from"
        raise UnknownFormat("is a scorecard, not a profile", where=found.name, supply=supply)
    return found


def load_baseline(
    source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES, max_memory: int | None = None
) -> Baseline | Profile:
    """Read a baseline: a scorecard's JSON or any profile."""
    options = ReadOptions(max_bytes=max_bytes, max_memory=max_memory)
    with discover([source], None, options) as run:
        return read_run(run, options)


def read_json_text(
    source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES, max_memory: int | None = None
) -> bytes:
    """Return the JSON text of a file, or of the profile inside a log, as contract v1 takes it."""
    with ByteSource(source, ReadOptions(max_bytes=max_bytes, max_memory=max_memory)) as opened:
        if opened.json_keys is not None:
            return opened.document()
        from stepgrade.readers.log import find_profile  # not needed for most sources

        return find_profile(opened).text


def profile_given(given: object) -> Profile:
    """Return the profile, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Profile):
        return given
    if isinstance(given, str | os.PathLike):
        return load(given)
    problem = f"{type(given).__name__} is not a profile"
    raise BadOption(problem, hint="give a path, or what stepgrade.load returns")


def baseline_given(given: object) -> Baseline | Profile:
    """Return the earlier run, read from its file where a path is given; raise BadOption for anything else."""
    if isinstance(given, Baseline | Profile):
        return given
    if isinstance(given, str | os.PathLike):
        return load_baseline(given)
    problem = f"{type(given).__name__} is not an earlier run"
    raise BadOption(problem, hint="give a path, a scorecard, or what stepgrade.load_baseline returns")


@contextmanager
def traces_given(given: PathLike | Iterable[Trace]) -> Iterator[Iterable[Trace]]:
    """Give the traces of a run's ranks, read from their file or directory where a path is given.

    Afterwards their files are closed, also those of traces that were not asked for.
    """
    from stepgrade.readers.ranks import read_ranks  # needs numpy

    traces = read_ranks([given]) if isinstance(given, str | os.PathLike) else given
    try:
        yield traces
    finally:
        if isinstance(traces, Generator):
            traces.close()


def read_run(run: RunFiles, options: ReadOptions) -> Profile | Baseline:
    """Return the profile of a run from what its files hold, or the baseline that its only file is."""
    if run.read is not None:
        parts = [run.read]
    elif run.opened is not None and run.files[0].kind in ("traces", "log"):
        from stepgrade.loading.cached import read_once  # a step profile is read sooner without it

        parts = [read_once(run.opened, run.files[0], options, combine)]
    elif run.opened is not None:
        parts = [registry.read_source(run.opened, run.files[0].format)]
    elif run.files[0].kind == "traces":
        from stepgrade.loading.ranks import profile_of_files  # only for several files

        parts = [Part(profile=profile_of_files(run.files, options))]
    else:
        parts = _read(run.files, structs.replace(options, progress=None))
    whole = structs.replace(options, steps=None)
    quiet = structs.replace(whole, progress=None)
    found = combine([*parts, *_read(run.logs, whole), *_read(run.compile_logs, quiet)])
    if not run.logs_beside or isinstance(found, Baseline):
        return found
    try:
        return combine([Part(profile=found), *_read(run.logs_beside, quiet)])
    except BadInput as error:  # nobody asked for them
        note = Note("compile_log_unread", f"A torch.compile log among the traces was ignored: {error}")
        return structs.replace(found, notes=(*found.notes, note))


def _read(files: Iterable[RunFile], options: ReadOptions) -> list[Part]:
    parts = []
    for file in files:
        with ByteSource(file.path, options, file.name) as source:
            parts.append(registry.read_source(source, file.format))
    return parts


def combine(parts: Sequence[Part]) -> Profile | Baseline:
    """Return the profile that the parts make up together, or the baseline that is among them."""
    kinds: tuple[Kind, ...] = ("baseline", "profile", "traces", "hang", "memory", "log", "compile_log")
    held = {kind: [found for part in parts if (found := getattr(part, kind)) is not None] for kind in kinds}
    main = next(kind for kind in kinds if held[kind])
    if len(parts) == 1 and main in ("baseline", "profile", "log"):
        only: Profile | Baseline = held[main][0]
        return only
    # What needs numpy is imported only here: it takes longer than a step profile to score.
    from stepgrade.ranks.hang import profile_of_flight_records
    from stepgrade.ranks.recorded_ranks import merge_recordings
    from stepgrade.trace.compilation import profile_of_compile_logs, with_compile_logs
    from stepgrade.trace.memory import profile_of_memory
    from stepgrade.trace.profile import profile_of_traces

    becomes: dict[Kind, Callable[[list[Any]], Profile]] = {
        "profile": lambda ranks: ranks[0] if len(ranks) == 1 else merge_recordings(ranks),
        "traces": lambda files: profile_of_traces(files[0]),
        "hang": profile_of_flight_records,
        "memory": lambda recordings: profile_of_memory(recordings[0]),
        "log": lambda logs: logs[0],
        "compile_log": profile_of_compile_logs,
    }
    adds: dict[Kind, Callable[[Profile, list[Any]], Profile]] = {
        "log": lambda profile, logs: with_log(profile, logs[0]),
        "compile_log": with_compile_logs,
    }
    profile = becomes[main](held[main])
    for kind, add in adds.items():
        if held[kind] and kind != main:
            profile = add(profile, held[kind])
    return profile


def with_log(trace: Profile, log: Profile) -> Profile:
    """Return the trace's profile with the step times, tokens and wall time of the log.

    The parts of a step are shares of the trace's steps, shown for a step as long as the log's.
    """
    if not log.samples_ms or not trace.mean_step_ms:
        hint = "score them one by one"
        raise BadInput("the trace or the log has no step times", where=log.source.shown, hint=hint)
    in_log_ms, in_trace_ms = median(log.samples_ms), median(trace.samples_ms or (trace.mean_step_ms,))
    factor = max(in_trace_ms, in_log_ms) / min(in_trace_ms, in_log_ms)
    doubts: tuple[Note, ...] = ()
    if factor >= _TOO_FAR:
        text = f"the steps of log and trace differ by {factor:.0f} times: are they of the same run?"
        doubts = (Note("log_of_another_run", text, fatal=True),)
    more = in_trace_ms / in_log_ms - 1.0
    why = f"what a run does between steps, or on other ranks, makes it {show_share(-more)} longer than traced"
    if abs(more) <= _AGREE:
        why = "they agree, and the log's counts"
    elif more > 0.0:
        why = f"profiling makes it {show_share(more)} longer, and the log's counts"
    both = f"a step takes {show_ms(in_log_ms)} in the log and {show_ms(in_trace_ms)} in the trace"
    tokens, ranks = log.tokens_per_step, log.counted_ranks
    if tokens is None:
        tokens, ranks = trace.tokens_per_step, trace.counted_ranks
    return structs.replace(
        trace,
        source=structs.replace(trace.source, files=(*trace.source.files, *log.source.files)),
        work="training" if log.work == "training" else trace.work,
        samples_ms=log.samples_ms,
        recorded_steps=log.recorded_steps or log.steps,
        tokens_per_step=tokens,
        samples_per_step=log.samples_per_step or trace.samples_per_step,
        counted_ranks=ranks,
        world_size=log.world_size or trace.world_size,
        device=trace.device or log.device,
        facts=log.facts,
        log=log.log,
        peak_memory_bytes=max(filter(None, (trace.peak_memory_bytes, log.peak_memory_bytes)), default=None),
        notes=(*trace.notes, *log.notes, Note("log_and_trace", f"{both}: {why}")),
        warnings=(*trace.warnings, *log.warnings, *doubts),
    )

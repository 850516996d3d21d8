"""Read a run or a baseline: the format is found by content, and traces become a profile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from stepgrade.config import DialectTable
from stepgrade.errors import BadInput, BadOption, UnknownFormat
from stepgrade.files import scratch_folder
from stepgrade.model import Baseline, Note, Profile
from stepgrade.readers import registry
from stepgrade.readers.base import one_by_one
from stepgrade.readers.source import (
    DEFAULT_MAX_BYTES,
    MOST_UNREADABLE,
    ByteSource,
    PathLike,
    Progress,
    ReadOptions,
)

if TYPE_CHECKING:
    from stepgrade.readers.base import Traces

_LOGS = ("log", "metrics")
_COMPILE_LOG = "torch_trace"


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
    """Read a run from a path, or from standard input for `-`; the format is found by content.

    Several PyTorch traces, or a directory of them, are the ranks of one run; a log beside them is that of the
    same run. `steps` keeps only the steps from the first to the last number; `max_memory` is how many bytes
    what is decoded may take, by default a quarter of the machine's; `progress` is called with the bytes read
    and the bytes to read, `rank_progress` with the ranks; `dialects` say what the lines of one's own logs
    mean, as `load_config` reads them. Ranks are read where `engine` says, "here", "pool", "dask" or
    "dask://HOST:PORT", by so many `workers`; a run goes on without ranks that cannot be read while those are
    no larger a share than `most_unreadable`; `sample_ranks` looks at so many of them only. What is made of a
    rank's file is kept in the user's cache directory for the next time, unless `cache` is False.
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
    found = _read(sources, input_format, options)
    if isinstance(found, Profile) and input_format is None:
        found = _with_logs_beside(found, sources, options)
    if isinstance(found, Baseline):
        supply = "it as {baseline}, or the profile that it was made from"
        raise UnknownFormat("is a scorecard, not a profile", where=found.name, supply=supply)
    return found


def load_baseline(
    source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES, max_memory: int | None = None
) -> Baseline | Profile:
    """Read what to compare with: a scorecard's JSON or any profile."""
    return _read([source], None, ReadOptions(max_bytes=max_bytes, max_memory=max_memory))


def read_json_text(
    source: PathLike, *, max_bytes: int = DEFAULT_MAX_BYTES, max_memory: int | None = None
) -> bytes:
    """Return the JSON text of a file, or of the profile inside a log, as contract v1 takes it."""
    with ByteSource(source, ReadOptions(max_bytes=max_bytes, max_memory=max_memory)) as opened:
        if opened.json_keys is not None:
            return opened.document()
        from stepgrade.readers.log import find_profile  # not needed for most sources

        return find_profile(opened).text


def _read(sources: Sequence[PathLike], input_format: str | None, options: ReadOptions) -> Profile | Baseline:
    if len(sources) > 1 and input_format is None:
        told = read_with_logs(sources, options)
        if told is not None:
            return told
    if len(sources) == 1 and input_format in (None, "metrics") and _has_metrics(os.fspath(sources[0])):
        from stepgrade.readers.logs.directories import run_in  # only for such directories

        told = run_in(os.fspath(sources[0]), options)
        if told is not None:
            return told
    # pathlib takes longer to import than a step profile to score.
    only = os.fspath(sources[0])
    if len(sources) > 1 or os.path.isdir(only) or ("://" in only and is_remote_folder(only)):
        return _read_several(sources, input_format, options)
    with ByteSource(only, options) as source:
        if input_format is None and source.is_archive:
            return read_archive(source, options)
        found = registry.read_source(source, input_format)
        if not isinstance(found, Profile | Baseline):
            return _profile_of(found, options)
        if options.steps is not None:
            raise BadOption("picks steps from a trace, which this source is not", field="steps")
        return found


def read_with_logs(sources: Sequence[PathLike], options: ReadOptions) -> Profile | Baseline | None:
    """Return a run of which there are logs beside the traces; None where there are none."""
    formats = [format_of(source, options) for source in sources]
    compiled = [source for source, name in zip(sources, formats, strict=True) if name == _COMPILE_LOG]
    logs = [source for source, name in zip(sources, formats, strict=True) if name in _LOGS]
    if 0 < len(compiled) < len(sources):
        explained = _read([source for source in sources if source not in compiled], None, options)
        if isinstance(explained, Profile):
            return _join_compile_logs(explained, compiled, options)
    elif len(logs) == 1:
        from stepgrade.trace import with_log  # only for a log beside a trace

        explained = _read([source for source in sources if source not in logs], None, options)
        long_run = _read(logs, None, structs.replace(options, steps=None))
        if isinstance(explained, Profile) and isinstance(long_run, Profile):
            return with_log(explained, long_run)
    return None


def _with_logs_beside(profile: Profile, sources: Sequence[PathLike], options: ReadOptions) -> Profile:
    """Return the profile with what torch.compile logged in the directories that its traces are in."""
    if profile.source.format == _COMPILE_LOG:
        return profile
    beside = [
        os.path.join(folder, name)
        for folder in [os.fspath(source) for source in sources]
        if not has_compile_logs(folder)  # one of nothing else was read as a source of its own
        for name in sorted(compile_logs_in(folder))
    ]
    try:
        return _join_compile_logs(profile, beside, options) if beside else profile
    except BadInput as error:  # nobody asked for them
        note = Note("compile_log_unread", f"A log of torch.compile beside the traces is left out: {error}")
        return structs.replace(profile, notes=(*profile.notes, note))


def _join_compile_logs(profile: Profile, logs: Sequence[PathLike], options: ReadOptions) -> Profile:
    from stepgrade.model.compilation import CompileLog  # only for such logs
    from stepgrade.readers.ranks import find_rank_files, read_recordings
    from stepgrade.trace import with_compile_logs

    files = find_rank_files(logs, _COMPILE_LOG, options)
    found = read_recordings(files, structs.replace(options, steps=None))
    return with_compile_logs(profile, [log for log in found if isinstance(log, CompileLog)])


def _read_several(sources: Sequence[PathLike], input_format: str | None, options: ReadOptions) -> Profile:
    from stepgrade.model.compilation import CompileLog  # only for several files
    from stepgrade.model.hang import FlightRecord
    from stepgrade.readers.ranks import are_traces, find_rank_files, read_recordings

    files = find_rank_files(sources, input_format, options)
    if are_traces(files):
        from stepgrade.readers.many import profile_of_files

        return profile_of_files(files, options)
    from stepgrade.trace import (
        merge_recordings,
        profile_of_compile_logs,
        profile_of_flight_records,
    )

    run = read_recordings(files, options)
    if dumps := [rank for rank in run if isinstance(rank, FlightRecord)]:
        return profile_of_flight_records(dumps)
    if logs := [rank for rank in run if isinstance(rank, CompileLog)]:
        return profile_of_compile_logs(logs)
    return merge_recordings([rank for rank in run if isinstance(rank, Profile)])


def read_archive(source: ByteSource, options: ReadOptions) -> Profile:
    """Return the run whose ranks are in an archive, which is unpacked for as long as they are read."""
    from stepgrade.readers.archives import unpack
    from stepgrade.readers.foreign import ARCHIVES, refusal, what_it_is
    from stepgrade.readers.many import profile_of_files
    from stepgrade.readers.ranks import traces_among

    known = what_it_is(source.head)
    if known is None or known.what not in ARCHIVES:  # weights and arrays are zip archives too
        raise refusal(source)
    with scratch_folder() as folder:
        unpacked = [(one.path, one.name) for one in unpack(source, folder)]
        files = traces_among(unpacked, None)
        if not files:
            raise refusal(source)
        return profile_of_files(files, options)


def is_remote_folder(source: str) -> bool:
    """Tell whether a URL stands for several files: a directory of a store, or a pattern."""
    from stepgrade.readers.remote import find, is_url  # few sources are

    return is_url(source) and find(source) is not None


def _has_metrics(path: str) -> bool:
    """Tell by the names in a directory whether it may be a run of MLflow, TensorBoard or W&B."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
    except (OSError, ValueError):  # no directory, or no path
        return False
    files = any("tfevents" in name or name.endswith(".wandb") or name == "meta.yaml" for name in names)
    return files or os.path.basename(os.path.normpath(path)) == "mlruns"


def format_of(source: PathLike, options: ReadOptions) -> str | None:
    """Return the format of a file; of a directory only whether it holds logs of torch.compile."""
    if os.path.isdir(source):
        return _COMPILE_LOG if has_compile_logs(os.fspath(source)) else None
    with ByteSource(source, structs.replace(options, progress=None)) as opened:
        return registry.reader_for(opened).name


def has_compile_logs(folder: str) -> bool:
    """Tell whether all files of a directory have the names that TORCH_TRACE gives."""
    logs = compile_logs_in(folder)
    return bool(logs) and len(logs) == len(os.listdir(folder))


def compile_logs_in(folder: str) -> list[str]:
    """Return the names of the files in a directory that have names as TORCH_TRACE gives them."""
    try:
        names = os.listdir(folder)
    except (OSError, ValueError):  # no directory, or no path; whoever reads it says why
        return []
    logs = [name for name in names if name.startswith("dedicated_log_torch_trace_")]
    return [name for name in logs if os.path.isfile(os.path.join(folder, name))]


def _profile_of(found: Traces, options: ReadOptions) -> Profile:
    """Turn traces into a profile: the one place where reading goes on in `trace`."""
    # What needs numpy is imported only here: it takes longer than a step profile to score.
    from stepgrade.model.allocations import MemoryRecording, MemoryTimeline
    from stepgrade.model.compilation import CompileLog
    from stepgrade.model.events import Trace
    from stepgrade.model.hang import FlightRecord
    from stepgrade.trace import (
        profile_of_compile_logs,
        profile_of_flight_records,
        profile_of_memory,
        profile_of_traces,
    )

    if isinstance(found, MemoryRecording | MemoryTimeline | FlightRecord | CompileLog):
        if options.steps is not None:
            raise BadOption("picks steps from a trace, which this source is not", field="steps")
        if isinstance(found, FlightRecord):
            return profile_of_flight_records([found])
        if isinstance(found, CompileLog):
            return profile_of_compile_logs([found])
        return profile_of_memory(found)
    traces = one_by_one([found]) if isinstance(found, Trace) else found
    del found
    if options.steps is None:
        return profile_of_traces(traces)
    from stepgrade.readers.steps import only_steps

    return profile_of_traces(only_steps(traces, options.steps))

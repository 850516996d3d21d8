"""Several files, or a directory of them, as the ranks of one run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from stepgrade.errors import BadInput, BadOption
from stepgrade.model import Baseline, Profile
from stepgrade.model.allocations import MemoryRecording
from stepgrade.model.events import Trace
from stepgrade.model.hang import FlightRecord
from stepgrade.readers import registry
from stepgrade.readers.base import one_by_one
from stepgrade.readers.source import ByteSource, PathLike, ReadOptions

RankFile: TypeAlias = tuple[str, str]  # its path and the name of its format
_RECORDINGS = frozenset({"step_profile", "journal"})  # profiles already, each of one rank
_DUMPS = "flight_recorder"


def read_ranks(
    sources: Sequence[PathLike],
    input_format: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> Iterator[Trace]:
    """Yield the ranks of one run, each read when it is asked for; a directory stands for the traces in it.

    A rank is what the file says of itself, else what its name says, else None.
    """
    return _read_all(_all_files(sources, input_format, options), options)


def read_run(
    sources: Sequence[PathLike], input_format: str | None, options: ReadOptions
) -> Iterator[Trace] | list[Profile] | list[FlightRecord]:
    """Return the traces of a run's ranks or, where there are none, what was recorded or dumped of each."""
    files = _all_files(sources, input_format, options)
    formats = {name for _, name in files}
    if formats - _RECORDINGS and formats != {_DUMPS}:
        return _read_all(files, options)
    if options.steps is not None:
        raise BadOption("picks steps from a trace, which recordings are not", field="steps")
    profiles, dumps = list[Profile](), list[FlightRecord]()
    for path, name in files:
        with ByteSource(path, replace(options, progress=None)) as source:
            found = registry.read_source(source, name)
        if isinstance(found, Profile):
            profiles.append(found)
        elif isinstance(found, FlightRecord):
            dumps.append(found)
        else:
            raise _not_a_trace(path)
    return dumps or profiles


def _all_files(sources: Sequence[PathLike], input_format: str | None, options: ReadOptions) -> list[RankFile]:
    """Return every file with its format; all are looked at first, so that a wrong one is refused at once."""
    files = [file for source in sources for file in _rank_files(os.fspath(source), input_format, options)]
    if not files:
        raise BadInput("no trace files given")
    return files


class _Recording(NamedTuple):
    """What tells a trace from those of other processes: its file, rank and process, and when it was."""

    path: str
    rank: int | None
    process: str | None  # as the operating system numbers it
    worker: str | None  # as tensorboard_trace_handler names files: host and process
    start_ns: int | None  # since the epoch
    end_ns: int | None

    def is_apart(self, other: _Recording) -> bool:
        """Tell whether both say when they were, and one was over before the other began."""
        if self.start_ns is None or self.end_ns is None or other.start_ns is None or other.end_ns is None:
            return False
        return self.end_ns <= other.start_ns or other.end_ns <= self.start_ns

    def is_of_process(self, other: _Recording) -> bool:
        """Tell whether both are recordings of one process, one after the other."""
        if self.rank != other.rank or not self.is_apart(other):
            return False
        if self.worker is not None and other.worker is not None:
            return self.worker == other.worker
        return self.process is not None and self.process == other.process


def _read_all(files: list[RankFile], options: ReadOptions) -> Iterator[Trace]:
    """Yield the traces and keep none of them; raise BadInput for those that are of different runs."""
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path, _ in files]  # noqa: PTH113, PTH202
    seen: dict[int | None, list[_Recording]] = {}
    all_bytes = sum(sizes)
    for (path, input_format), before in zip(files, accumulate(sizes, initial=0), strict=False):

        def report(done_bytes: int, _: int, before_bytes: int = before) -> None:
            if options.progress is not None:
                options.progress(before_bytes + done_bytes, all_bytes)

        with ByteSource(path, replace(options, progress=report)) as source:
            found = registry.read_source(source, input_format)
            if isinstance(found, Profile | Baseline | MemoryRecording | FlightRecord):
                raise _not_a_trace(path)
            waiting = one_by_one([found]) if isinstance(found, Trace) else found
            del found  # who takes a trace decides how long it is kept
            while trace := list(islice(waiting, 1)):
                if len(files) > 1:
                    trace[0] = _with_rank(trace[0], path, seen)
                yield trace.pop()


def _with_rank(trace: Trace, path: str, seen: dict[int | None, list[_Recording]]) -> Trace:
    """Return the trace with its rank, and with the process where an earlier file is of the same one."""
    # pathlib takes longer to import than a small trace to read.
    name = os.path.basename(path)  # noqa: PTH119
    if trace.rank is None:
        match = re.search(r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)", name, re.IGNORECASE)
        trace = replace(trace, rank=int(match[1]) if match else None)
    own = _recording_of(trace, path, name)
    alike = seen.setdefault(own.rank, [])
    of_process = next((place for place, other in enumerate(alike) if own.is_of_process(other)), None)
    for other in alike if of_process is None else ():
        if other.path != path:
            if own.is_apart(other):
                problem = f"{other.path} and {path} are of different runs: one was over when the other began"
                raise BadInput(problem, hint="score them one by one")
            if own.rank is not None:
                problem = f"{other.path} and {path} both say they are rank {own.rank}"
                raise BadInput(problem, hint="give the files of one capture, one for each rank")
    alike.append(own)
    return replace(trace, process=f"{own.rank} {len(alike) - 1 if of_process is None else of_process}")


def _recording_of(trace: Trace, path: str, name: str) -> _Recording:
    worker = re.fullmatch(r"(.+_\d+)\.\d+\.pt\.trace\.json(?:\.gz)?", name)
    tables = [table for table in (trace.ops, trace.calls, trace.work, trace.ranges) if len(table.name)]
    start = end = None
    if tables and trace.base_ns is not None:
        start = trace.base_ns + min(int(table.start_ns.min()) for table in tables)
        end = trace.base_ns + max(int((table.start_ns + table.dur_ns).max()) for table in tables)
    threads = trace.ops.thread if len(trace.ops.name) else trace.calls.thread
    process = trace.threads[int(threads[0])].process if len(threads) and trace.threads else None
    return _Recording(path, trace.rank, process, worker[1] if worker else None, start, end)


def _not_a_trace(source: str) -> BadInput:
    hint = "several sources are the ranks of one run, and only traces have ranks"
    return BadInput("is not a trace", where=source, hint=hint)


def _rank_files(source: str, input_format: str | None, options: ReadOptions) -> list[RankFile]:
    """Return the file, or the files of the first format that has any in the directory, rank10 after rank9."""
    if not os.path.isdir(source):  # noqa: PTH112
        with ByteSource(source, replace(options, progress=None)) as opened:
            only = registry.reader_for(opened, input_format)
        if not only.rank_files:
            raise _not_a_trace(source)
        return [(source, only.name)]
    try:
        with os.scandir(source) as entries:
            # Unlike entry.is_file(), this does not raise for a link that leads to itself.
            paths = [entry.path for entry in entries if os.path.isfile(entry.path)]  # noqa: PTH113
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=source) from error
    paths.sort(key=lambda path: [(len(part), part) for part in re.split(r"(\d+)", path)])
    for reader in registry.readers():
        files = []
        if input_format in (None, reader.name):
            for path in paths:
                if path.endswith(reader.rank_files):
                    # What cannot be read is not a trace.
                    with suppress(BadInput), ByteSource(path) as opened:
                        if reader.recognises(opened):
                            files.append((path, reader.name))
        if files:
            return files
    raise BadInput("holds no trace files", where=source, hint=_what_is_there(paths))


def _what_is_there(paths: list[str]) -> str:
    """Return what one of the first files of a directory is, if that is known, else what is looked for."""
    from stepgrade.readers.foreign import what_it_is  # noqa: PLC0415  only for what cannot be read

    for path in paths[:8]:
        with suppress(BadInput), ByteSource(path) as opened:
            if found := what_it_is(opened.head):
                return f"{os.path.basename(path)} is {found.what}"  # noqa: PTH119  pathlib imports slowly
    return "give a directory with the trace of each rank, or one trace"

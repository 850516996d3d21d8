"""Several files, or a directory of them, as the ranks of one run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from stepgrade.errors import BadInput, BadOption
from stepgrade.model import Baseline, Profile
from stepgrade.model.allocations import MemoryRecording, MemoryTimeline
from stepgrade.model.compilation import CompileLog
from stepgrade.model.events import Trace
from stepgrade.model.hang import FlightRecord
from stepgrade.readers import registry
from stepgrade.readers.base import one_by_one
from stepgrade.readers.remote import find, is_url, shown_url
from stepgrade.readers.source import ByteSource, PathLike, ReadOptions, shown_path

_RECORDINGS = frozenset({"step_profile", "journal"})  # profiles already, each of one rank
# Of each rank too, but not of its time: last collectives, and what was compiled.
_WITHOUT_STEPS = frozenset({"flight_recorder", "torch_trace"})
_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
_MOST_OF_A_HOST = 64  # letters, as POSIX allows a name at most


class RankFile(Struct, frozen=True, kw_only=True):
    """One file of a run's ranks."""

    path: str  # or URL
    format: str | None  # None where whoever reads it looks first whether it is a trace at all
    name: str  # as it is shown
    size_bytes: int = 0  # 0 where it is not known


def read_ranks(
    sources: Sequence[PathLike],
    input_format: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> Iterator[Trace]:
    """Yield the ranks of one run, each read when it is asked for; a directory stands for the traces in it.

    A rank is what the file says of itself, else what its name says, else None.
    """
    return traces_of(find_rank_files(sources, input_format, options), options)


def are_traces(files: Sequence[RankFile]) -> bool:
    """Tell whether the files are traces: neither recordings of ours nor dumps or logs without steps."""
    formats = {file.format for file in files}
    return bool(formats - _RECORDINGS) and not (len(formats) == 1 and formats <= _WITHOUT_STEPS)


def read_recordings(
    files: Sequence[RankFile], options: ReadOptions
) -> list[Profile] | list[FlightRecord] | list[CompileLog]:
    """Return what was recorded by us, dumped or logged of each rank."""
    if options.steps is not None:
        raise BadOption("picks steps from a trace, which recordings are not", field="steps")
    profiles, dumps, logs = list[Profile](), list[FlightRecord](), list[CompileLog]()
    for file in files:
        with ByteSource(file.path, replace(options, progress=None), file.name) as source:
            found = registry.read_source(source, file.format)
        if isinstance(found, Profile):
            profiles.append(found)
        elif isinstance(found, FlightRecord):
            dumps.append(found)
        elif isinstance(found, CompileLog):
            logs.append(found)
        else:
            raise _not_a_trace(file.name)
    return dumps or logs or profiles


def find_rank_files(
    sources: Sequence[PathLike], input_format: str | None, options: ReadOptions
) -> list[RankFile]:
    """Return every file with its format; all are looked at first, so that a wrong one is refused at once."""
    files = [file for source in sources for file in _rank_files(os.fspath(source), input_format, options)]
    if not files:
        raise BadInput("no trace files given")
    return files


class RankRecording(Struct, frozen=True, kw_only=True):
    """What tells a trace from those of other processes: its file, rank and process, and when it was."""

    name: str
    rank: int | None
    process: str | None  # as the operating system numbers it
    worker: str | None  # as tensorboard_trace_handler names files: host and process
    start_ns: int | None  # since the epoch
    end_ns: int | None

    @classmethod
    def of(cls, trace: Trace, name: str) -> RankRecording:
        """Return what the trace in a file of that name says; its rank is else what the name says."""
        # pathlib takes longer to import than a small trace to read.
        base = os.path.basename(name)
        match = _RANK_IN_NAME.search(base)
        named = int(match[1]) if match else None
        worker = re.fullmatch(r"(.+_\d+)\.\d+\.pt\.trace\.json(?:\.gz|\.zst)?", base)
        tables = [table for table in (trace.ops, trace.calls, trace.work, trace.ranges) if len(table.name)]
        start = end = None
        if tables and trace.base_ns is not None:
            start = trace.base_ns + min(int(table.start_ns.min()) for table in tables)
            end = trace.base_ns + max(int((table.start_ns + table.dur_ns).max()) for table in tables)
        threads = trace.ops.thread if len(trace.ops.name) else trace.calls.thread
        return cls(
            name=name,
            rank=named if trace.rank is None else trace.rank,
            process=trace.threads[int(threads[0])].process if len(threads) and trace.threads else None,
            worker=worker[1] if worker else None,
            start_ns=start,
            end_ns=end,
        )

    @property
    def host(self) -> str | None:
        """Return the host, where PyTorch named the file by it: host_process.time.pt.trace.json."""
        return self.worker.rpartition("_")[0][:_MOST_OF_A_HOST] if self.worker else None

    def is_apart(self, other: RankRecording) -> bool:
        """Tell whether both say when they were, and one was over before the other began."""
        if self.start_ns is None or self.end_ns is None or other.start_ns is None or other.end_ns is None:
            return False
        return self.end_ns <= other.start_ns or other.end_ns <= self.start_ns

    def is_of_process(self, other: RankRecording) -> bool:
        """Tell whether both are recordings of one process, one after the other."""
        if self.rank != other.rank or not self.is_apart(other):
            return False
        if self.worker is not None and other.worker is not None:
            return self.worker == other.worker
        return self.process is not None and self.process == other.process


class Processes:
    """The processes of a run, told apart by their recordings in the order of the files."""

    def __init__(self) -> None:
        self._of_rank: dict[int | None, list[RankRecording]] = {}

    def process_of(self, own: RankRecording) -> str:
        """Return which process a recording is of; raise BadInput where it is of another run."""
        alike = self._of_rank.setdefault(own.rank, [])
        of_process = next((place for place, other in enumerate(alike) if own.is_of_process(other)), None)
        for other in alike if of_process is None else ():
            if other.name != own.name:
                if own.is_apart(other):
                    both = f"{other.name} and {own.name}"
                    problem = f"{both} are of different runs: one was over when the other began"
                    raise BadInput(problem, hint="score them one by one")
                if own.rank is not None:
                    problem = f"{other.name} and {own.name} both say they are rank {own.rank}"
                    raise BadInput(problem, hint="give the files of one capture, one for each rank")
        alike.append(own)
        return f"{own.rank} {len(alike) - 1 if of_process is None else of_process}"


def traces_in(source: ByteSource, input_format: str | None) -> Iterator[Trace]:
    """Return the ranks of one file; raise BadInput for what is no trace."""
    found = registry.read_source(source, input_format)
    if isinstance(found, Profile | Baseline | MemoryRecording | MemoryTimeline | FlightRecord | CompileLog):
        raise _not_a_trace(source.name)
    return one_by_one([found]) if isinstance(found, Trace) else found


def traces_of(files: list[RankFile], options: ReadOptions) -> Iterator[Trace]:
    """Yield the traces and keep none of them; raise BadInput for those that are of different runs."""
    processes = Processes()
    for file in files:
        with ByteSource(file.path, options, file.name) as source:
            waiting = traces_in(source, file.format)
            while trace := list(islice(waiting, 1)):
                if len(files) > 1:
                    own = RankRecording.of(trace[0], file.name)
                    trace[0] = replace(trace[0], rank=own.rank, process=processes.process_of(own))
                yield trace.pop()


def _not_a_trace(source: str) -> BadInput:
    hint = "traces are of torch.profiler, Nsight Systems, JAX or ROCm; several are the ranks of one run"
    return BadInput("is not a trace", where=source, hint=hint)


def _single_file(source: str, input_format: str | None, options: ReadOptions) -> RankFile:
    if input_format in registry.BUILT_IN:
        only = registry.built_in(input_format)
    else:
        with ByteSource(source, replace(options, progress=None)) as opened:
            only = registry.reader_for(opened, input_format)
    if not only.rank_files:
        raise _not_a_trace(source)
    size = os.path.getsize(source) if os.path.isfile(source) else 0
    name = shown_url(source) if is_url(source) else shown_path(source)
    return RankFile(path=source, format=only.name, name=name, size_bytes=size)


def _rank_files(source: str, input_format: str | None, options: ReadOptions) -> list[RankFile]:
    """Return the file, or the files of the first format that has any in the directory, rank10 after rank9."""
    if is_url(source):
        return remote_files(source, input_format, options)
    if not os.path.isdir(source):
        return [_single_file(source, input_format, options)]
    try:
        with os.scandir(source) as entries:
            # Unlike entry.is_file(), this does not raise for a link that leads to itself.
            paths = [entry.path for entry in entries if os.path.isfile(entry.path)]
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=source) from error
    paths.sort(key=_naturally)
    files = traces_among([(path, shown_path(path)) for path in paths], input_format)
    if not files:
        raise BadInput("holds no trace files", where=source, hint=_what_is_there(paths))
    return files


def _naturally(path: str) -> list[tuple[int, str]]:
    """Return what sorts rank10 after rank9."""
    return [(len(part), part) for part in re.split(r"(\d+)", path)]


def remote_files(source: str, input_format: str | None, options: ReadOptions) -> list[RankFile]:
    """Return the file of a store, or those that a directory or pattern stands for; none of them is opened."""
    found = find(source)
    if found is None:
        return [_single_file(source, input_format, options)]
    endings = tuple(
        ending
        for reader in registry.readers()
        if input_format in (None, reader.name)
        for ending in reader.rank_files
    )
    files = [
        RankFile(path=one.url, format=input_format, name=one.name, size_bytes=one.size_bytes)
        for one in sorted(found, key=lambda one: _naturally(one.name))
        if one.name.endswith(endings)
    ]
    if not files:
        raise BadInput("holds no trace files", where=shown_url(source))
    return files


def traces_among(paths: Sequence[tuple[str, str]], input_format: str | None) -> list[RankFile]:
    """Return the files of the first format that has any, given their paths and names."""
    for reader in registry.readers():
        files, found = [], False
        for path, name in paths if input_format in (None, reader.name) else ():
            if not path.endswith(reader.rank_files):
                continue
            try:
                with ByteSource(path) as opened:
                    is_trace = reader.recognises(opened)
                found = found or is_trace
            except BadInput:
                # What cannot be read is no trace; what is called as a rank beside others is listed as unread.
                is_trace = _RANK_IN_NAME.search(os.path.basename(path)) is not None
            if is_trace:
                size = os.path.getsize(path)
                files.append(RankFile(path=path, format=reader.name, name=name, size_bytes=size))
        if found:
            return files
    return []


def _what_is_there(paths: list[str]) -> str:
    """Return what one of the first files of a directory is, if that is known, else what is looked for."""
    from stepgrade.readers.foreign import what_it_is  # only for what cannot be read

    for path in paths[:8]:
        with suppress(BadInput), ByteSource(path) as opened:
            if found := what_it_is(opened.head):
                return f"{os.path.basename(path)} is {found.what}"
    return "give a directory with the trace of each rank, or one trace"

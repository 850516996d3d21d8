"""The traces of a run's ranks, and which rank and process each of them is of."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from msgspec import Struct
from msgspec.structs import replace

from stepgrade.errors import BadInput, BadOption
from stepgrade.model import Source
from stepgrade.model.events import Trace
from stepgrade.readers import registry
from stepgrade.readers.discover import RANK_IN_NAME, RunFiles, discover, not_a_trace
from stepgrade.readers.source import ByteSource, PathLike, ReadOptions

_MOST_OF_A_HOST = 64  # letters, as POSIX allows a name at most


def read_ranks(
    sources: Sequence[PathLike],
    input_format: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008
) -> Iterator[Trace]:
    """Yield the ranks of one run, each read when it is needed; a directory means the traces in it.

    The rank comes from the file, else from its name, else it is None.
    """
    with discover(sources, input_format, options) as run:
        yield from _traces_of(run, options)


@contextmanager
def read_again(
    sources: Sequence[PathLike], read: Source, input_format: str | None, options: ReadOptions
) -> Iterator[Iterator[Trace]]:
    """Give the traces that a run was read from once more: a profile keeps their sums, not their events."""
    with discover(sources, input_format, replace(options, progress=None)) as run:
        files = tuple(file for file in run.files if file.name in read.files and file.kind == "traces")
        if not files:
            raise BadOption("only a trace has a timeline", where=read.files[0], field="to")
        yield _traces_of(replace(run, files=files, opened=None), options)


def traces_in(source: ByteSource, input_format: str | None) -> Iterator[Trace]:
    """Return the ranks of one file; raise BadInput where it is not a trace."""
    traces = registry.read_source(source, input_format).traces
    if traces is None:
        raise not_a_trace(source.name)
    return traces


def _traces_of(run: RunFiles, options: ReadOptions) -> Iterator[Trace]:
    """Yield the traces and keep none of them; raise BadInput for those that are of different runs."""
    processes = Processes()
    for file in run.files:
        with run.opened or ByteSource(file.path, options, file.name) as source:
            waiting = traces_in(source, file.format)
            while trace := list(islice(waiting, 1)):
                if len(run.files) > 1:
                    own = RankRecording.of(trace[0], file.name)
                    trace[0] = replace(trace[0], rank=own.rank, process=processes.process_of(own))
                yield trace.pop()


class RankRecording(Struct, frozen=True, kw_only=True):
    """What identifies the process of a trace: file, rank, process id and time."""

    name: str
    rank: int | None
    process: str | None  # as the operating system numbers it
    worker: str | None  # as tensorboard_trace_handler names files: host and process
    start_ns: int | None  # since the epoch
    end_ns: int | None

    @classmethod
    def of(cls, trace: Trace, name: str) -> RankRecording:
        """Return the recording of the trace in a file of that name, which may hold the rank."""
        base = os.path.basename(name)
        match = RANK_IN_NAME.search(base)
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
    """The processes of a run, distinguished by their recordings in the order of the files."""

    def __init__(self) -> None:
        self._of_rank: dict[int | None, list[RankRecording]] = {}

    def process_of(self, own: RankRecording) -> str:
        """Return which process a recording is of; raise BadInput where it is of another run."""
        alike = self._of_rank.setdefault(own.rank, [])
        of_process = next((index for index, other in enumerate(alike) if own.is_of_process(other)), None)
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

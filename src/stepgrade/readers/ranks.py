"""Several files, or a directory of them, as the ranks of one run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, islice
from typing import TypeAlias

from msgspec.structs import replace

from stepgrade.errors import BadInput, BadOption
from stepgrade.model import Baseline, Profile
from stepgrade.model.events import Trace
from stepgrade.readers import registry
from stepgrade.readers.base import one_by_one
from stepgrade.readers.source import ByteSource, PathLike, ReadOptions

RankFile: TypeAlias = tuple[str, str]  # its path and the name of its format
_RECORDINGS = frozenset({"step_profile", "journal"})  # profiles already, each of one rank


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
) -> Iterator[Trace] | list[Profile]:
    """Return the traces of a run's ranks or, where they were recorded by us, the profile of each."""
    files = _all_files(sources, input_format, options)
    if any(name not in _RECORDINGS for _, name in files):
        return _read_all(files, options)
    if options.steps is not None:
        raise BadOption("picks steps from a trace, which recordings are not", field="steps")
    profiles = []
    for path, name in files:
        with ByteSource(path, replace(options, progress=None)) as source:
            found = registry.read_source(source, name)
        if not isinstance(found, Profile):
            raise _not_a_trace(path)
        profiles.append(found)
    return profiles


def _all_files(sources: Sequence[PathLike], input_format: str | None, options: ReadOptions) -> list[RankFile]:
    """Return every file with its format; all are looked at first, so that a wrong one is refused at once."""
    files = [file for source in sources for file in _rank_files(os.fspath(source), input_format, options)]
    if not files:
        raise BadInput("no trace files given")
    return files


def _read_all(files: list[RankFile], options: ReadOptions) -> Iterator[Trace]:
    """Yield the traces and keep none of them; raise BadInput for two that say they are the same rank."""
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path, _ in files]  # noqa: PTH113, PTH202
    seen: dict[int, str] = {}
    all_bytes = sum(sizes)
    for (path, input_format), before in zip(files, accumulate(sizes, initial=0), strict=False):

        def report(done_bytes: int, _: int, before_bytes: int = before) -> None:
            if options.progress is not None:
                options.progress(before_bytes + done_bytes, all_bytes)

        with ByteSource(path, replace(options, progress=report)) as source:
            found = registry.read_source(source, input_format)
            if isinstance(found, Profile | Baseline):
                raise _not_a_trace(path)
            waiting = one_by_one([found]) if isinstance(found, Trace) else found
            del found  # who takes a trace decides how long it is kept
            while trace := list(islice(waiting, 1)):
                if len(files) > 1:
                    trace[0] = _with_rank(trace[0], path, seen)
                yield trace.pop()


def _with_rank(trace: Trace, path: str, seen: dict[int, str]) -> Trace:
    if trace.rank is None:
        pattern = r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)"
        # pathlib takes longer to import than a small trace to read.
        match = re.search(pattern, os.path.basename(path), re.IGNORECASE)  # noqa: PTH119
        trace = replace(trace, rank=int(match[1]) if match else None)
    if trace.rank is None:
        return trace
    if trace.rank in seen:
        problem = f"{seen[trace.rank]} and {path} both say they are rank {trace.rank}"
        raise BadInput(problem, hint="give the files of one capture, one for each rank")
    seen[trace.rank] = path
    return trace


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
    raise BadInput("holds no trace files", where=source)

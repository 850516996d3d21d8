"""Several files, a directory or a merged file as the ranks of one run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from stepgrade.errors import BadInput
from stepgrade.model.events import Trace
from stepgrade.readers.kineto.reader import Progress, Steps, read_file
from stepgrade.readers.kineto.sniff import looks_like_kineto
from stepgrade.readers.kineto.source import MAX_TEXT_BYTES

PathLike: TypeAlias = str | os.PathLike[str]
_SUFFIXES: Final = (".json", ".json.gz")
_HEAD_BYTES: Final = 1 << 16


def read_traces(
    paths: PathLike | Iterable[PathLike],
    *,
    steps: Steps | None = None,
    progress: Progress | None = None,
    max_bytes: int = MAX_TEXT_BYTES,
) -> Iterator[Trace]:
    """Yield the ranks of one run, each read when it is asked for; a directory stands for the traces in it.

    A rank is what the file says of itself, else what its name says, else None.
    """
    files = _files([paths] if isinstance(paths, str | os.PathLike) else list(paths))

    reports = _of_all(progress, files)

    def read(file: str) -> list[Trace]:
        return read_file(file, steps=steps, progress=next(reports), max_bytes=max_bytes)

    return iter(read(files[0])) if len(files) == 1 else _told_apart(files, read)


def _told_apart(files: Iterable[str], read: Callable[[str], list[Trace]]) -> Iterator[Trace]:
    """Yield the traces and keep none of them; raise BadInput for two that say they are the same rank."""
    seen: dict[int, str] = {}
    for file in files:
        waiting = [_named(trace) for trace in read(file)]
        ranks = [trace.rank for trace in waiting if trace.rank is not None]
        for rank in ranks:
            if rank in seen:
                problem = f"{seen[rank]} and {file} both say they are rank {rank}"
                raise BadInput(problem, hint="give the files of one capture, one for each rank")
            seen[rank] = file
        while waiting:
            yield waiting.pop(0)


def _named(trace: Trace) -> Trace:
    return trace if trace.rank is not None else replace(trace, rank=_rank_in_name(trace.file))


def _rank_in_name(file: str) -> int | None:
    pattern = r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)"
    match = re.search(pattern, os.path.basename(file), re.IGNORECASE)  # noqa: PTH119  pathlib loads slowly
    return int(match[1]) if match else None


def _of_all(progress: Progress | None, files: Sequence[str]) -> Iterator[Progress | None]:
    """Yield for each file what to tell how far it is: the files are told as one."""
    sizes = [os.path.getsize(file) if os.path.isfile(file) else 0 for file in files]  # noqa: PTH113, PTH202
    for place in range(len(files)):
        yield progress and partial(_tell, progress, sum(sizes[:place]), sum(sizes))


def _tell(progress: Progress, before_bytes: int, all_bytes: int, done_bytes: int, _: int) -> None:
    progress(before_bytes + done_bytes, all_bytes)


def _files(paths: Sequence[PathLike]) -> list[str]:
    names = [os.fspath(path) for path in paths]
    files = [file for name in names for file in (_traces_in(name) if os.path.isdir(name) else [name])]  # noqa: PTH112
    if not files:
        problem = "no trace files given" if not names else "holds no trace files"
        raise BadInput(problem, where=names[0] if names else None)
    return files


def _traces_in(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            files = [entry.path for entry in entries if entry.name.endswith(_SUFFIXES)]
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=directory) from error
    return sorted(filter(_is_trace, filter(os.path.isfile, files)), key=_natural)


def _is_trace(file: str) -> bool:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123  as above
            return looks_like_kineto(opened.read(_HEAD_BYTES))
    except OSError:
        return False


def _natural(file: str) -> list[tuple[int, str]]:
    """Order names so that rank10 comes after rank9."""
    return [(len(part), part) for part in re.split(r"(\d+)", file)]

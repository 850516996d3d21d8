"""Several files, a directory or a merged file as the ranks of one run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from stepgrade.errors import BadInput
from stepgrade.model.events import Trace
from stepgrade.readers.kineto.reader import Progress, Steps, read_file
from stepgrade.readers.kineto.sniff import looks_like_kineto

_SUFFIXES: Final = (".json", ".json.gz")
_RANK: Final = re.compile(r"(?:^|[^a-z])rank[-_. ]?(\d{1,6})(?!\d)", re.IGNORECASE)
_HEAD_BYTES: Final = 1 << 16


def read_traces(
    paths: str | Path | Iterable[str | Path], *, steps: Steps | None = None, progress: Progress | None = None
) -> list[Trace]:
    """Read the ranks of one run, in order of rank; a directory stands for the traces in it.

    A rank is what the file says of itself, else what its name says, else its place in the order given.
    """
    files = _files([paths] if isinstance(paths, str | Path) else list(paths))
    traces = [trace for file in files for trace in read_file(file, steps=steps, progress=progress)]
    return traces if len(traces) == 1 else _numbered(traces)


def _files(paths: Sequence[str | Path]) -> list[Path]:
    files = [file for path in map(Path, paths) for file in (_traces_in(path) if path.is_dir() else [path])]
    if not files:
        raise BadInput("no trace files given" if not paths else "holds no trace files", where=_where(paths))
    return files


def _where(paths: Sequence[str | Path]) -> str | None:
    return str(paths[0]) if paths else None


def _traces_in(directory: Path) -> list[Path]:
    files = [file for file in directory.iterdir() if file.name.endswith(_SUFFIXES) and file.is_file()]
    found = [file for file in files if looks_like_kineto(_head(file))]
    return sorted(found, key=lambda file: [(len(part), part) for part in re.split(r"(\d+)", file.name)])


def _head(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            return opened.read(_HEAD_BYTES)
    except OSError:
        return b""


def _numbered(traces: list[Trace]) -> list[Trace]:
    named = [
        trace if trace.rank is not None else replace(trace, rank=_rank_in_name(trace.file))
        for trace in traces
    ]
    held = [trace.rank for trace in named if trace.rank is not None]
    for rank in held:
        if held.count(rank) > 1:
            files = [trace.file for trace in named if trace.rank == rank]
            hint = "give the files of one capture, one for each rank"
            raise BadInput(f"{files[0]} and {files[1]} both say they are rank {rank}", hint=hint)
    free = (number for number in range(len(named)) if number not in held)
    numbered = [trace if trace.rank is not None else replace(trace, rank=next(free)) for trace in named]
    return sorted(numbered, key=lambda trace: trace.rank or 0)


def _rank_in_name(file: str) -> int | None:
    match = _RANK.search(Path(file).name)
    return int(match[1]) if match else None

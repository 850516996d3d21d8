"""Traces out of paths, bytes and streams, as the reader of PyTorch traces gives them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from stepgrade.model.events import Trace
from stepgrade.readers import kineto
from stepgrade.readers.kineto.reader import read_traces
from stepgrade.readers.ranks import read_ranks
from stepgrade.readers.source import ByteSource, Readable, ReadOptions
from tests.samples import shared

__all__ = [
    "KINETO",
    "looks_like_kineto",
    "read_file",
    "read_ranks",
    "read_sample",
    "read_trace",
    "sample_names",
]
KINETO = "samples/kineto"


def read_file(source: Readable, processes: int | None = None, **options: Any) -> list[Trace]:
    """Return the traces of all ranks in one file."""
    with ByteSource(source, ReadOptions(**options)) as opened:
        return read_traces(opened, processes)


def read_trace(source: Readable, **options: Any) -> Trace:
    """Return the trace of the only, or of the first rank in one file."""
    return read_file(source, **options)[0]


def looks_like_kineto(text: bytes) -> bool:
    """Tell whether bytes are recognised as a trace."""
    with ByteSource(text) as opened:
        return kineto.READER.recognises(opened)


def sample_names() -> list[str]:
    """Return the names of the real traces."""
    return sorted(path.name for path in shared(KINETO).glob("*.json*"))


@lru_cache(maxsize=4)
def read_sample(name: str) -> Trace:
    """Return a real trace, read once."""
    return read_file(shared(KINETO) / name)[0]

"""Read what Nsight Systems exports as SQLite: `nsys export --type sqlite`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepgrade.readers.base import Reader, one_by_one
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.model.events import Trace

_MAGIC = b"SQLite format 3\0"


def recognises(source: ByteSource) -> bool:
    """Tell by the table of names that every export has."""
    if not source.head.startswith(_MAGIC):
        return False
    from stepgrade.readers.sqlite import SqliteFile  # noqa: PLC0415  needs numpy

    with SqliteFile.opened(source) as file:
        return file.has("StringIds", "id", "value")


def read(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each process that used a device: they are the ranks of one run."""
    from stepgrade.readers.nsys.reader import read_traces  # noqa: PLC0415  needs numpy

    return one_by_one(read_traces(source))


READER = Reader(
    name="nsys",
    summary="SQLite exports of Nsight Systems, of every version; its processes are the ranks of one run",
    recognises=recognises,
    read=read,
    rank_files=(".sqlite",),
)

"""What a reader is: how a format is recognised, and how a source becomes a Profile or Traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from stepgrade.model import Baseline, Profile
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.model.allocations import MemoryRecording, MemoryTimeline  # needs numpy
    from stepgrade.model.compilation import CompileLog
    from stepgrade.model.events import Trace
    from stepgrade.model.hang import FlightRecord

    Traces: TypeAlias = Trace | Iterator[Trace] | MemoryRecording | MemoryTimeline | FlightRecord | CompileLog


class Reader(Struct, frozen=True, kw_only=True):
    """One format. Built-in readers are `READER` of a module in this package, plug-ins an entry point.

    `recognises` tells by the bytes, never by the file's name, whether a source is in the format.

    `read` returns what the source holds: a Profile where it holds sums or averages, a Trace where it holds
    a timeline, an iterator of Traces (see `one_by_one`) where it holds several ranks, a MemoryRecording where
    it holds allocations only, a FlightRecord where it holds the last collectives of a rank, a CompileLog
    where it holds what was compiled, a Baseline where it holds the result of a run. It raises BadInput with
    the place of what is wrong and, for a file that the user can turn into one that is read, a hint that says
    how.
    """

    name: str
    summary: str
    recognises: Callable[[ByteSource], bool]
    read: Callable[[ByteSource], Profile | Baseline | Traces]
    # How the names of files end that are ranks of one run when a directory is given; () for no ranks.
    rank_files: tuple[str, ...] = ()
    # What to install where `read` finds a package missing, such as "stepgrade[xplane]".
    requires: str | None = None


def one_by_one(traces: list[Trace]) -> Iterator[Trace]:
    """Yield the traces and keep none of them alive: they are large."""
    while traces:
        yield traces.pop(0)


def text_of(value: object, longest: int = 200) -> str:
    """Return a text or a number as text, nothing for the rest: lists that hold each other have no end."""
    return str(value)[:longest] if isinstance(value, str | int | float) else ""

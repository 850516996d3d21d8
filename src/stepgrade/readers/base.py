"""What a reader is: how a format is recognised, and which part of a run a source holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

from msgspec import Struct

from stepgrade.model import Profile
from stepgrade.model.scorecard import Baseline
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.model.allocations import MemoryRecording, MemoryTimeline  # needs numpy
    from stepgrade.model.compilation import CompileLog
    from stepgrade.model.events import Trace
    from stepgrade.model.ranks import FlightRecord

Kind: TypeAlias = Literal["traces", "profile", "log", "memory", "hang", "compile_log", "baseline"]


class Part(Struct, frozen=True, kw_only=True):
    """The content of one file; a reader sets one of the fields."""

    traces: Iterator[Trace] | None = None  # one per rank, each read when it is needed (see `one_by_one`)
    profile: Profile | None = None  # sums or averages of a rank
    log: Profile | None = None  # step by step, without what the steps consist of
    memory: MemoryRecording | MemoryTimeline | None = None
    hang: FlightRecord | None = None  # the last collectives of a rank
    compile_log: CompileLog | None = None  # what one process compiled
    baseline: Baseline | None = None  # the result of a run, to compare with


class Reader(Struct, frozen=True, kw_only=True):
    """One format. Built-in readers are `READER` of a module in this package, plug-ins an entry point.

    `recognises` decides by the bytes, never by the file's name. `read` fills the field of `Part` that `kind`
    names; it raises BadInput with the position of the problem, and a hint where the file can be converted.
    """

    name: str
    summary: str
    recognises: Callable[[ByteSource], bool]
    read: Callable[[ByteSource], Part]
    kind: Kind = "profile"
    # File suffixes of the ranks of one run in a directory; () if there are no rank files.
    rank_files: tuple[str, ...] = ()
    # What to install if `read` finds a package missing, such as "stepgrade[xplane]".
    requires: str | None = None


def one_by_one(traces: list[Trace]) -> Iterator[Trace]:
    """Yield the traces without keeping references: they are large."""
    while traces:
        yield traces.pop(0)


def text_of(value: object, longest: int = 200) -> str:
    """Return a text or a number as text, "" for anything else: nested lists may be endless."""
    return str(value)[:longest] if isinstance(value, str | int | float) else ""

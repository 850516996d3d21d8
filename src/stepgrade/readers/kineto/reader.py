"""The public way in: the bytes of one trace file to the trace of a rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final, TypeAlias

from msgspec.structs import replace

from stepgrade.errors import BadInput
from stepgrade.model.events import Trace
from stepgrade.readers.kineto.assemble import FileFacts, assemble
from stepgrade.readers.kineto.crew import Crew, HelperLost
from stepgrade.readers.kineto.header import MAX_TAIL_BYTES, Head, header_of, read_head, read_tail
from stepgrade.readers.kineto.lane import Lane
from stepgrade.readers.kineto.source import MAX_TEXT_BYTES, Readable, Source
from stepgrade.readers.kineto.split import Splitter
from stepgrade.readers.kineto.steps import only_steps

Progress: TypeAlias = Callable[[int, int], None]  # bytes of the file read, bytes of the file
_BYTES_WORTH_A_LANE: Final = 50_000_000
_MOST_LANES: Final = 4
Steps: TypeAlias = tuple[int, int]  # the first and the last `ProfilerStep#`


def read_trace(source: Readable, *, steps: Steps | None = None, progress: Progress | None = None) -> Trace:
    """Read a trace, of a merged file its first rank; raise BadInput when nothing in it is usable."""
    traces = read_file(source, steps=steps, progress=progress)
    if len(traces) == 1:
        return traces[0]
    others = ", ".join(str(trace.rank) for trace in traces[1:])
    note = f"this is rank {traces[0].rank} of a merged file; ranks {others} are left out"
    return replace(traces[0], lost=(*traces[0].lost, note))


def read_file(
    source: Readable,
    *,
    steps: Steps | None = None,
    progress: Progress | None = None,
    max_bytes: int = MAX_TEXT_BYTES,
    lanes: int | None = None,
) -> list[Trace]:
    """Read a trace file and return a trace for each rank it holds: one, but for merged files.

    `lanes` is how many processes may read at once; by default as many as the size of the file is worth.
    More than `max_bytes` of text raise TooLarge.
    """
    lanes = _lanes_for(source) if lanes is None else lanes
    try:
        lane, facts = _read_source(source, progress, max_bytes, lanes)
    except HelperLost:
        lane, facts = _read_source(source, progress, max_bytes, 1)
    traces = assemble(lane.tables, facts)
    if lanes > 1:
        _return_memory()
    if not traces:
        hint = "; ".join(facts.lost) or None
        raise BadInput("holds no events of the PyTorch profiler", where=facts.name, hint=hint)
    return [only_steps(trace, steps) for trace in traces] if steps else traces


def _return_memory() -> None:
    """Give what reading took back to the system: the allocator keeps a third of it otherwise."""
    import ctypes  # noqa: PLC0415  small traces should not wait for it

    if os.name == "posix":  # elsewhere there is no such library to ask, and on some systems no such function
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


def _lanes_for(source: Readable) -> int:
    """Return how many processes pay: in the time that a helper takes to start, one reads about 50 MB."""
    if os.name != "posix" or not sys.executable or not isinstance(source, str | os.PathLike | bytes):
        return 1
    text_bytes = Source.estimate_text_bytes(source)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _MOST_LANES, text_bytes // _BYTES_WORTH_A_LANE))


def _read_source(
    source: Readable, progress: Progress | None, max_bytes: int, lanes: int
) -> tuple[Lane, FileFacts]:
    lane = Lane()
    with Source(source, limit_bytes=max_bytes) as text, ExitStack() as stack:
        head = read_head(text)
        crew = Crew.of(lanes, stack)
        splitter = Splitter(text, head.text, head.offset, crew.slots)
        tail = _read_events(
            splitter, lane, crew, lambda: progress and progress(text.done_bytes, text.size_bytes)
        )
        crew.finish(lane)
        return lane, _facts(text, head, tail, lane)


def _facts(text: Source, head: Head, tail: bytes | None, lane: Lane) -> FileFacts:
    keys, tail_lost = _tail_keys(head, tail)
    lost = [f"{note} (after {text.text_bytes} bytes of text)" for note in (text.damage,) if note]
    lost += [note for note in (head.lost, tail_lost) if note]
    return FileFacts(
        name=text.name,
        header=header_of(head.keys | keys),
        is_list=head.is_list,
        text_times=lane.text_times,
        lost=(*lost, *lane.losses.words()),
    )


def _read_events(splitter: Splitter, lane: Lane, crew: Crew, report: Callable[[], None]) -> bytes | None:
    """Read all chunks and return the text after the array of events, None if the array never closes."""
    while chunk := splitter.next_chunk():
        report()
        if crew.offer(chunk):
            continue
        lane.read(chunk.view, chunk.offset)
        if lane.end is not None:
            return bytes(chunk.view[lane.end - chunk.offset + 1 : -1]) + splitter.text_after(MAX_TAIL_BYTES)
        splitter.release(chunk)
    lane.read_pieces(splitter.rest, splitter.offset)
    return None if lane.end is None else splitter.rest[lane.end - splitter.offset :]


def _tail_keys(head: Head, tail: bytes | None) -> tuple[dict[str, object], str | None]:
    if tail is None:
        return {}, "the end of the file: it stops among the events"
    if head.is_list:
        extra = len(tail.strip(b" \t\r\n\0"))
        return {}, f"{extra} bytes after the end of the JSON" if extra else None
    return read_tail(tail)

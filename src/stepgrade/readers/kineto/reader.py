"""The bytes of one trace file to the traces of its ranks."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from stepgrade.errors import BadInput
from stepgrade.model.events import Trace
from stepgrade.readers.kineto.assemble import FileFacts, assemble
from stepgrade.readers.kineto.chunks import ChunkReader
from stepgrade.readers.kineto.header import MAX_TAIL_BYTES, header_of, read_head, read_tail
from stepgrade.readers.kineto.split import Slots, Splitter, WorkerLost
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.readers.kineto.workers import Worker

_BYTES_WORTH_A_PROCESS: Final = 50_000_000
_MOST_PROCESSES: Final = 4


def read_traces(source: ByteSource, processes: int | None = None) -> list[Trace]:
    """Return a trace for each rank that the file holds: one, except for merged files.

    `processes` is how many may read at once; the default depends on the file's size.
    """
    if processes is None:
        processes = 1
        if os.name == "posix" and sys.executable and source.can_restart:
            # A process reads about 50 MB in the time that another takes to start.
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            worth = source.expected_text_bytes // _BYTES_WORTH_A_PROCESS
            processes = max(1, min(cores, _MOST_PROCESSES, worth))
    try:
        reader, facts = _read_file(source, processes)
    except WorkerLost:
        source.restart()
        reader, facts = _read_file(source, 1)
    traces = assemble(reader.tables, facts)
    if processes > 1:
        # Return freed memory to the system: the allocator would keep a third of it.
        # Only Linux supports this; elsewhere, or without ctypes, nothing is lost.
        with suppress(ImportError, OSError, TypeError, AttributeError):
            import ctypes  # small traces should not wait for it

            ctypes.CDLL(None).malloc_trim(0)
    if not traces:
        late = "was it exported after the schedule had ended, or before it began?"
        hint = "; ".join(facts.lost) or late
        raise BadInput("holds no events of the PyTorch profiler", where=facts.name, hint=hint)
    return traces


def _read_file(source: ByteSource, processes: int) -> tuple[ChunkReader, FileFacts]:
    reader = ChunkReader(source.memory_bytes)
    with ExitStack() as stack:
        head = read_head(source)
        workers: list[Worker] = []
        if processes < 2:
            slots = Slots.private()
        else:
            # Small traces should not wait for the modules that only large ones need.
            from stepgrade.readers.kineto.workers import start

            slots, workers = start(processes, source.memory_bytes // processes, stack)
        tail = _read_events(Splitter(source, head.text, head.offset, slots), reader, slots, workers)
        for worker in workers:
            worker.finish(reader)
    keys, tail_lost = read_tail(head, tail)
    damage = f"{source.damage} (after {source.text_bytes} bytes of text)" if source.damage else None
    return reader, FileFacts(
        name=source.name,
        header=header_of(head.keys | keys),
        is_list=head.is_list,
        text_times=reader.text_times,
        lost=(*(note for note in (damage, head.lost, tail_lost) if note), *reader.losses.sentences()),
    )


def _read_events(
    splitter: Splitter, reader: ChunkReader, slots: Slots, workers: list[Worker]
) -> bytes | None:
    """Read all chunks and return the text after the array of events, None if the array never closes."""
    while chunk := splitter.next_chunk():
        if any(worker.offer(chunk, slots) for worker in workers):
            continue
        reader.read(chunk.view, chunk.offset)
        if reader.end is not None:
            rest = bytes(chunk.view[reader.end - chunk.offset + 1 : -1])
            return rest + splitter.text_after(MAX_TAIL_BYTES)
        splitter.release(chunk)
    reader.read_pieces(splitter.rest, splitter.offset)
    return None if reader.end is None else splitter.rest[reader.end - splitter.offset :]

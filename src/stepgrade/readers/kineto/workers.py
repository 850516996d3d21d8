"""Worker processes that read some of the chunks of a large file.

Chunks are in slots of shared memory. A worker receives the number of a slot, answers when it has read it, and
sends its columns at the end. The worker process runs this module.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Final, Self

import msgspec
import numpy as np
from msgspec import Struct

from stepgrade.decoding import from_msgpack
from stepgrade.model.events import NONE, Collective, Ids
from stepgrade.readers.kineto import chunks
from stepgrade.readers.kineto.chunks import Chunk, ChunkReader, WorkerLost
from stepgrade.readers.kineto.decode import Json
from stepgrade.readers.kineto.tables import BLOCK_ROWS, REFERENCES

MODULE: Final = "stepgrade.readers.kineto.workers"
SLOTS_EACH: Final = 3
ORDER: Final = struct.Struct("<qqq")  # slot, bytes, offset of a chunk; slot FINISH asks for the columns
LENGTH: Final = struct.Struct("<q")
FINISH: Final = -1
READY: Final = 255  # one byte each: the worker has started, or the number of a slot that it has read
COLUMNS: Final = 254


class Findings(Struct, kw_only=True):
    """What a worker returns besides its columns."""

    strings: list[str]
    threads: list[tuple[Json, Json]]
    inputs: list[bytes]
    collectives: list[Collective]
    launches: list[tuple[float | bytes | None, ...]]
    thread_names: list[tuple[str, str, str]]
    pid_ranks: list[tuple[Json, int]]
    categories: dict[str, int]
    losses: dict[str, tuple[int, int]]
    text_times: bool
    end: int | None
    row_counts: dict[str, int]  # of each table; its rows follow in blocks, column by column


class Worker:
    """A worker process, as its parent sees it."""

    def __init__(self, slots_file: int, slots: int, most_bytes: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603 (our own module, no input in the command)
            [
                sys.executable,
                "-P",
                "-m",
                MODULE,
                *map(str, (slots_file, slots, chunks.SLOT_BYTES, most_bytes)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(slots_file,),
            bufsize=0,
        )
        assert self._process.stdin and self._process.stdout  # noqa: S101, PT018 (both are pipes)
        self._orders: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        os.set_blocking(self._answers.fileno(), False)
        self._is_ready = False
        self._slots_held = 0

    def offer(self, chunk: Chunk, free: list[int]) -> bool:
        """Hand a chunk over if the worker is free; add the slots that it has read to `free`."""
        answers = self._answers.read(64)
        if answers == b"":
            raise WorkerLost
        for answer in answers or b"":
            if answer == READY:
                self._is_ready = True
            else:
                free.append(answer)
                self._slots_held -= 1
        if not self._is_ready or self._slots_held == SLOTS_EACH or chunk.slot is None:
            return False
        self._order(chunk.slot, len(chunk.view), chunk.offset)
        self._slots_held += 1
        return True

    def _order(self, *numbers: int) -> None:
        try:
            self._orders.write(ORDER.pack(*numbers))
        except OSError as error:
            raise WorkerLost from error

    def finish(self, reader: ChunkReader) -> None:
        """Add all that the worker has read to `reader`."""
        self._order(FINISH, 0, 0)
        os.set_blocking(self._answers.fileno(), True)
        try:
            with open(self._answers.fileno(), "rb", closefd=False) as answers:
                while answers.read(1)[0] != COLUMNS:
                    pass
                (length,) = LENGTH.unpack(answers.read(LENGTH.size))
                findings = from_msgpack(answers.read(length), Findings)
                if findings.end is not None:
                    raise WorkerLost
                _merge(reader, findings, answers)
        except (OSError, ValueError, EOFError, struct.error, IndexError, msgspec.MsgspecError) as error:
            raise WorkerLost from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _merge(reader: ChunkReader, findings: Findings, answers: IO[bytes]) -> None:
    """Add a worker's findings; its string and thread ids are mapped to ours."""
    tables = reader.tables
    ours: dict[str, Ids] = {}
    for reference, field in REFERENCES.items():
        numbers = map(getattr(tables, field).__getitem__, getattr(findings, field))
        ours[reference] = np.array([*numbers, NONE], dtype=np.int32)  # NONE (-1) indexes the last entry
    for process, thread, name in findings.thread_names:
        tables.thread_names.setdefault((process, thread), name)
    tables.pid_ranks.update(dict(findings.pid_ranks))
    tables.categories.update(findings.categories)
    for reason, loss in findings.losses.items():
        reader.lose(reason, *loss)
    reader.text_times |= findings.text_times
    for table_name, row_count in findings.row_counts.items():
        table = tables.tables[table_name]
        # Both processes together never hold more than one block twice.
        for low in range(0, row_count, BLOCK_ROWS):
            count = min(BLOCK_ROWS, row_count - low)
            block = {}
            for name, dtype in table.dtypes.items():
                column = np.frombuffer(answers.read(count * dtype.itemsize), dtype=dtype, count=count)
                block[name] = ours[name][column] if name in ours else column
            table.append(block)


def start(processes: int, most_bytes: int, stack: ExitStack) -> tuple[mmap.mmap, list[Worker]]:
    """Start a worker for each further process and the shared slots; `stack` ends them.

    A worker that would exceed `most_bytes` of memory exits.
    """
    count = 1 + SLOTS_EACH * (processes - 1)
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stepgrade")
    else:
        with tempfile.TemporaryFile() as nameless:
            file = os.dup(nameless.fileno())
    stack.callback(os.close, file)
    os.ftruncate(file, count * chunks.SLOT_BYTES)
    try:
        workers = [stack.enter_context(Worker(file, count, most_bytes)) for _ in range(processes - 1)]
    except OSError as error:
        raise WorkerLost from error
    return mmap.mmap(file, count * chunks.SLOT_BYTES), workers


def main() -> None:
    """Read chunks as a worker until the parent asks for the columns, or until the parent exits."""
    slots_file, count, slot_bytes, most_bytes = map(int, sys.argv[1:5])
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    slots = memoryview(mmap.mmap(slots_file, count * slot_bytes))
    reader = ChunkReader(most_bytes)
    number = READY
    while True:
        answers.write(bytes((number,)))
        answers.flush()
        order = orders.read(ORDER.size)
        if len(order) < ORDER.size:
            return
        number, size, offset = ORDER.unpack(order)
        if number == FINISH:
            break
        reader.read(slots[number * slot_bytes : number * slot_bytes + size], offset)
    reader.flush()
    tables = reader.tables
    findings = Findings(
        **{field: list(getattr(tables, field)) for field in REFERENCES.values()},
        thread_names=[(*thread, name) for thread, name in tables.thread_names.items()],
        pid_ranks=list(tables.pid_ranks.items()),
        categories=dict(tables.categories),
        losses=reader.losses,
        text_times=reader.text_times,
        end=reader.end,
        row_counts={name: table.row_count for name, table in tables.tables.items()},
    )
    encoded = msgspec.msgpack.encode(findings)
    answers.write(bytes((COLUMNS,)) + LENGTH.pack(len(encoded)) + encoded)
    for table in tables.tables.values():
        for block in table.take_blocks():
            for column in block.values():
                answers.write(column.data)
    answers.flush()


if __name__ == "__main__":
    main()

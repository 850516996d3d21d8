"""A second process that reads some of the chunks: it shares the slots and sends back its columns."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from types import TracebackType
from typing import IO, Any, Final, Self

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.events import NONE, Collective, Ids
from stepgrade.readers.kineto import split
from stepgrade.readers.kineto.columns import BLOCK_ROWS, Table
from stepgrade.readers.kineto.crew import HelperLost
from stepgrade.readers.kineto.lane import Lane
from stepgrade.readers.kineto.losses import Losses
from stepgrade.readers.kineto.split import Chunk, Slots

CHILD: Final = "stepgrade.readers.kineto.child"
SLOTS_EACH: Final = 3
ORDER: Final = struct.Struct("<qqq")  # slot, bytes, offset of a chunk; slot FINISH asks for the columns
LENGTH: Final = struct.Struct("<q")
FINISH: Final = -1
READY: Final = 255  # one byte each: the helper has started, or the number of a slot it has read
COLUMNS: Final = 254
_LOST: Final = (OSError, ValueError, EOFError, struct.error)


class Findings(Struct, kw_only=True):
    """What a lane found beside its columns."""

    strings: list[str]
    threads: list[tuple[Any, Any]]
    inputs: list[bytes]
    collectives: list[Collective]
    thread_names: list[tuple[str, str, str]]
    pid_ranks: list[tuple[Any, int]]
    categories: dict[str, int]
    losses: Losses
    text_times: bool
    end: int | None
    row_counts: dict[str, int]  # of each table; its rows follow in blocks, column by column


class Helper:
    """The reading process, as its parent sees it."""

    def __init__(self, slots_file: int, slots: int) -> None:
        self._process = subprocess.Popen(  # noqa: S603 (our own module, no input in the command)
            [sys.executable, "-m", CHILD, str(slots_file), str(slots), str(split.SLOT_BYTES)],
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

    def offer(self, chunk: Chunk, slots: Slots) -> bool:
        """Hand a chunk over if the helper is free to take it; slots that it has read become free."""
        self._collect(slots)
        if not self._is_ready or self._slots_held == SLOTS_EACH or chunk.slot is None:
            return False
        self._order(chunk.slot, len(chunk.view), chunk.offset)
        self._slots_held += 1
        return True

    def _order(self, *numbers: int) -> None:
        try:
            self._orders.write(ORDER.pack(*numbers))
        except OSError as error:
            raise HelperLost from error

    def _collect(self, slots: Slots) -> None:
        answers = self._answers.read(64)
        if answers == b"":
            raise HelperLost
        for answer in answers or b"":
            if answer == READY:
                self._is_ready = True
            else:
                slots.free.append(answer)
                self._slots_held -= 1

    def finish(self, lane: Lane) -> None:
        """Add all that the helper has read to `lane`."""
        self._order(FINISH, 0, 0)
        os.set_blocking(self._answers.fileno(), True)
        try:
            with open(self._answers.fileno(), "rb", closefd=False) as answers:
                while answers.read(1)[0] != COLUMNS:
                    pass
                (length,) = LENGTH.unpack(answers.read(LENGTH.size))
                findings = msgspec.msgpack.decode(answers.read(length), type=Findings)
                if findings.end is not None:
                    raise HelperLost
                _merge(lane, findings, answers)
        except (*_LOST, IndexError, msgspec.MsgspecError) as error:
            raise HelperLost from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


def _merge(lane: Lane, findings: Findings, answers: IO[bytes]) -> None:
    tables = lane.tables
    places = {
        "name": [tables.strings[text] for text in findings.strings],
        "thread": [tables.threads[thread] for thread in findings.threads],
        "inputs": [tables.inputs[inputs] for inputs in findings.inputs],
        "collective": [tables.collectives[one] for one in findings.collectives],
    }
    for process, thread, name in findings.thread_names:
        tables.thread_names.setdefault((process, thread), name)
    tables.pid_ranks.update(dict(findings.pid_ranks))
    tables.categories.update(findings.categories)
    lane.losses.merge(findings.losses)
    lane.text_times |= findings.text_times
    for name, row_count in findings.row_counts.items():
        for low in range(0, row_count, BLOCK_ROWS):
            _receive(tables.tables[name], min(BLOCK_ROWS, row_count - low), places, answers)


def _receive(table: Table, count: int, places: dict[str, list[int]], answers: IO[bytes]) -> None:
    """Add one block of rows; both processes together never hold more than one block twice."""
    batch = {}
    for name, dtype in table.dtypes.items():
        received = np.frombuffer(answers.read(count * dtype.itemsize), dtype=dtype, count=count)
        batch[name] = _renumbered(received, places.get(name))
    table.append(batch)


def _renumbered(column: NDArray[Any], places: list[int] | None) -> NDArray[Any]:
    """Point a column of the helper's numbers into our tables; NONE (-1) finds itself at the end."""
    if places is None:
        return column
    ours: Ids = np.array([*places, NONE], dtype=np.int32)[column]
    return ours


def start(lanes: int, stack: ExitStack) -> tuple[Slots, list[Helper]]:
    """Start the helpers of `lanes` readers, ourselves being the first, and share slots with them."""
    count = 1 + SLOTS_EACH * (lanes - 1)
    file = _memory_file(count * split.SLOT_BYTES)
    stack.callback(os.close, file)
    try:
        helpers = [stack.enter_context(Helper(file, count)) for _ in range(lanes - 1)]
    except OSError as error:
        raise HelperLost from error
    return Slots(mmap.mmap(file, count * split.SLOT_BYTES), count), helpers


def _memory_file(size: int) -> int:
    """Return a descriptor of memory that another process can map."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("stepgrade")
    else:
        with tempfile.TemporaryFile() as nameless:
            file = os.dup(nameless.fileno())
    os.ftruncate(file, size)
    return file

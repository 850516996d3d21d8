"""The reading process itself: chunks in by slot, columns out at the end."""

from __future__ import annotations

import mmap
import sys
from typing import IO

import msgspec

from stepgrade.readers.kineto.helper import COLUMNS, FINISH, LENGTH, ORDER, READY, Findings
from stepgrade.readers.kineto.lane import Lane


def main() -> None:
    """Read chunks until told to finish, or until the parent is gone."""
    slots_file, count, slot_bytes = map(int, sys.argv[1:4])
    orders, answers = sys.stdin.buffer, sys.stdout.buffer
    slots = memoryview(mmap.mmap(slots_file, count * slot_bytes))
    lane = Lane()
    _answer(answers, READY)
    while len(order := orders.read(ORDER.size)) == ORDER.size:
        slot, size, offset = ORDER.unpack(order)
        if slot == FINISH:
            _send(lane, answers)
            return
        lane.read(slots[slot * slot_bytes : slot * slot_bytes + size], offset)
        _answer(answers, slot)


def _answer(answers: IO[bytes], number: int) -> None:
    answers.write(bytes((number,)))
    answers.flush()


def _send(lane: Lane, answers: IO[bytes]) -> None:
    findings = msgspec.msgpack.encode(_findings(lane))
    answers.write(bytes((COLUMNS,)) + LENGTH.pack(len(findings)) + findings)
    for table in lane.tables.tables.values():
        for block in table.take_blocks():
            for column in block.values():
                answers.write(column.data)
    answers.flush()


def _findings(lane: Lane) -> Findings:
    tables = lane.tables
    return Findings(
        strings=list(tables.strings),
        threads=list(tables.threads),
        inputs=list(tables.inputs),
        collectives=list(tables.collectives),
        thread_names=[(*thread, name) for thread, name in tables.thread_names.items()],
        pid_ranks=list(tables.pid_ranks.items()),
        categories=dict(tables.categories),
        losses=lane.losses,
        text_times=lane.text_times,
        end=lane.end,
        row_counts={name: table.row_count for name, table in tables.tables.items()},
    )


if __name__ == "__main__":
    main()

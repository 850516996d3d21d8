"""rocprofv3's CSV: the table of kernels, and beside it those of calls, copies, ranges and agents."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from stepgrade.errors import BadInput
from stepgrade.memory import check
from stepgrade.model.events import NONE, Longs, Trace, TraceDevice
from stepgrade.readers.annotations import Annotations
from stepgrade.readers.processes import Events
from stepgrade.readers.rocprof.facts import direction_of, kinds_of, traces_of
from stepgrade.readers.source import ByteSource

_KERNELS: Final = "kernel_trace"
_BESIDE: Final = ("hip_api_trace", "memory_copy_trace", "marker_api_trace", "agent_info")
_ROW_BYTES: Final = 600


class _Table:
    """A table by the names of its columns."""

    def __init__(self, rows: Iterator[list[str]], memory_bytes: int, name: str) -> None:
        self.columns: dict[str, list[str]] = {}
        header = next(rows, [])
        columns: list[list[str]] = [[] for _ in header]
        for number, row in enumerate(rows):
            if number % 4096 == 0:
                check(number * _ROW_BYTES, memory_bytes, name)
            if len(row) == len(header):
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
        self.columns = dict(zip(header, columns, strict=True))
        self.rows = len(columns[0]) if columns else 0

    def texts(self, name: str) -> list[str]:
        """Return a column, empty texts where it is missing."""
        return self.columns.get(name, [""] * self.rows)

    def numbers(self, name: str) -> Longs:
        """Return the number in each text of a column, as in "Agent 1"; -1 without one."""
        found = (re.search(r"\d{1,18}", text) for text in self.texts(name))
        return np.array([int(number[0]) if number else NONE for number in found], np.int64)


def read_trace(source: ByteSource) -> Iterator[Trace]:
    """Yield the trace of the process; tables of the same name next to it are read with it."""
    text = b"".join(source.chunks())
    check(len(text) * 8, source.memory_bytes, source.name)
    tables = {_KERNELS: _read(text, source)}
    if source.name.endswith(f"_{_KERNELS}.csv") and os.path.isfile(source.name):
        stem = source.name.removesuffix(f"{_KERNELS}.csv")
        for name in _BESIDE:
            if os.path.isfile(f"{stem}{name}.csv"):
                with ByteSource(f"{stem}{name}.csv", source.options) as beside:
                    tables[name] = _read(b"".join(beside.chunks()), beside)
    events = Events()
    kernels = tables[_KERNELS]
    calls = tables.get("hip_api_trace")
    pids = calls.numbers("Process_Id") if calls else np.empty(0, np.int64)
    # The table of kernels does not name the process: one writes it.
    pid = int(pids[0]) if len(pids) and pids[0] >= 0 else 0
    names = np.array([events.name_id(name) for name in kernels.texts("Kernel_Name")], np.int32)
    numbers = kernels.numbers("Agent_Id")
    devices = np.maximum(0, numbers - numbers[numbers >= 0].min(initial=1 << 20))
    events.add("work", process=pid, name=names, kind=kinds_of(events, names), device=devices,
               stream=kernels.numbers("Queue_Id"), **_times(kernels))  # fmt: skip
    if copies := tables.get("memory_copy_trace"):
        found = [direction_of(text) for text in copies.texts("Direction")]
        events.add("work", process=pid, name=np.array([events.name_id(word) for _, word in found], np.int32),
                   kind=np.array([kind for kind, _ in found], np.int8), device=0,
                   stream=copies.numbers("Stream_Id"), **_times(copies))  # fmt: skip
    if calls:
        events.add("calls", process=pid, thread=calls.numbers("Thread_Id"),
                   name=np.array([events.name_id(name) for name in calls.texts("Function")], np.int32),
                   **_times(calls))  # fmt: skip
    annotations = Annotations(events)
    if ranges := tables.get("marker_api_trace"):
        marks = zip(
            *(ranges.numbers(name).tolist() for name in ("Thread_Id", "Start_Timestamp", "End_Timestamp")),
            ranges.texts("Function"),
            strict=True,
        )
        for thread, start, end, name in marks:
            if end > start >= 0:
                annotations.add(pid, thread, start, end, name)
    annotations.write()
    listed: tuple[TraceDevice, ...] = ()
    if agents := tables.get("agent_info"):
        rows = zip(
            agents.texts("Agent_Type"), agents.texts("Product_Name"), agents.texts("Name"), strict=True
        )
        gpus = [(product or name)[:200] for kind, product, name in rows if kind == "GPU"]
        listed = tuple(TraceDevice(index=index, name=name or None) for index, name in enumerate(gpus))
    return traces_of(events, source.name, "rocprofv3 CSV", lambda _: listed)


def _read(text: bytes, source: ByteSource) -> _Table:
    lines = text.decode("utf-8", "replace").replace("\0", "").splitlines()
    try:
        return _Table(csv.reader(lines), source.memory_bytes, source.name)
    except csv.Error as error:
        raise BadInput(f"is not a rocprofv3 table: {error}", where=source.name) from error


def _times(table: _Table) -> dict[str, Longs]:
    return {
        "start": table.numbers("Start_Timestamp"),
        "end": table.numbers("End_Timestamp"),
        "correlation": table.numbers("Correlation_Id"),
    }

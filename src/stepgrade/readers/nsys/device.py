"""Device work and the calls that launched it, from the CUPTI tables of an export."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np

from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import NONE, DeviceEvent, Longs, RangeKind
from stepgrade.readers.processes import Events
from stepgrade.readers.sqlite import SqliteFile

CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_SHARED: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_DIRECTIONS: Final = {
    1: (DeviceEvent.COPY_H2D, "HtoD"),
    2: (DeviceEvent.COPY_D2H, "DtoH"),
    8: (DeviceEvent.COPY_D2D, "DtoD"),
    9: (DeviceEvent.COPY_OTHER, "HtoH"),
    10: (DeviceEvent.COPY_D2D, "PtoP"),
}
_COPY_KINDS: Final = ("copyKind", "srcKind", "dstKind")
_MEMORY: Final = {0: "Pageable", 1: "Pinned", 2: "Device", 4: "Managed"}
PID_BITS: Final = 24
PID_MASK: Final = 0xFFFFFF
_UNKNOWN: Final = 1 << 30  # not a real process id: for reduced exports without process columns


def process_of(numbers: Any) -> Any:
    """Return the process in a globalPid or globalTid; or the placeholder above."""
    return np.where(numbers < 0, _UNKNOWN, np.asarray(numbers, np.int64) >> PID_BITS & PID_MASK)


def texts_of(file: SqliteFile, *columns: Longs) -> dict[int, str]:
    """Return only the texts of these numbers: the table also holds environment variables."""
    used = distinct(np.concatenate([np.empty(0, np.int64), *(distinct(column) for column in columns)]))
    return file.texts("StringIds", ("id", "value"), used)


def add_device_work(file: SqliteFile, events: Events) -> None:
    """Add kernels, copies, memsets, graphs, runtime and driver calls, and the profiler's own work."""
    calls = file.whole_numbers(CALLS, ("start", "end", "globalTid", "nameId", "correlationId"))
    functions = texts_of(file, calls["nameId"])
    # cudaLaunchKernel_v7000: the version that the function came with.
    plain = {number: re.sub(r"_v\d+$", "", text) for number, text in functions.items()}
    call_names = events.name_ids(calls["nameId"], plain)
    _add_host(events, "calls", calls, call_names, correlation=calls["correlationId"])
    del calls
    kernels = file.whole_numbers(KERNELS, (*_SHARED, "demangledName"))
    names = kernels["demangledName"]
    if len(names) and names.min() < 0:
        short = file.whole_numbers(KERNELS, ("start", "shortName"))["shortName"]
        names = np.where(names >= 0, names, short)
    _add_work(events, kernels, names=events.name_ids(names, texts_of(file, names)))
    del kernels, names
    copies = file.whole_numbers(COPIES, (*_SHARED, "bytes", *_COPY_KINDS))
    # The kinds are small numbers: three are packed into one.
    kind, source, target = (np.asarray(copies[name], np.int64) & 0xFF for name in _COPY_KINDS)
    kinds = groups(kind << 16 | source << 8 | target)
    directions, name_ids = [], []
    for number in kinds.values.tolist():
        direction, word = _DIRECTIONS.get(number >> 16, (DeviceEvent.COPY_OTHER, "other"))
        first, last = number >> 8 & 0xFF, number & 0xFF
        ends = f" ({_MEMORY.get(first, '?')} -> {_MEMORY.get(last, '?')})" if first != 0xFF else ""
        directions.append(direction)
        name_ids.append(events.name_id(f"Memcpy {word}{ends}"))
    which = kinds.which
    _add_work(
        events,
        copies,
        names=np.array(name_ids, np.int32)[which],
        kind=np.array(directions, np.int8)[which],
        bytes=copies["bytes"],
    )
    memsets = file.whole_numbers(MEMSETS, (*_SHARED, "bytes"))
    _add_work(
        events,
        memsets,
        names=events.name_id("Memset (Device)"),
        kind=int(DeviceEvent.MEMSET),
        bytes=memsets["bytes"],
    )
    # Graphs recorded as a whole: busy time without kernels.
    graphs = file.whole_numbers(GRAPHS, (*_SHARED, "graphExecId"))
    replayed = distinct(graphs["graphExecId"]).tolist()
    titles = {number: f"CUDA graph {number}" for number in replayed}
    _add_work(events, graphs, names=events.name_ids(graphs["graphExecId"], titles))
    overhead = file.whole_numbers("PROFILER_OVERHEAD", ("start", "end", "globalTid", "nameId"))
    titles = texts_of(file, overhead["nameId"])
    ids = events.name_ids(overhead["nameId"], titles)
    _add_host(events, "ranges", overhead, ids, kind=int(RangeKind.OVERHEAD))


def _add_host(events: Events, sort: str, table: dict[str, Longs], names: Any, **more: Any) -> None:
    threads = table["globalTid"]
    times = {"start": table["start"], "end": table["end"]}
    events.add(sort, process=process_of(threads), thread=threads, name=names, **times, **more)


def _add_work(events: Events, table: dict[str, Longs], names: Any, **more: Any) -> None:
    events.add(
        "work",
        process=process_of(table["globalPid"]),
        name=names,
        start=table["start"],
        end=table["end"],
        device=np.maximum(0, table["deviceId"]),
        stream=table["streamId"],
        correlation=table["correlationId"],
        **more,
    )


def settle_process(events: Events) -> None:
    """Assign work without a process to the only process with calls, else to one of its own."""
    work, calls = events.table("work"), events.table("calls")
    known = distinct(calls["process"][calls["process"] != _UNKNOWN])
    only = int(known[0]) if len(known) == 1 else NONE
    if only >= 0:
        for table in (work, calls, events.table("ranges"), events.table("ops")):
            table["process"] = np.where(table["process"] == _UNKNOWN, only, table["process"])

"""ROCm's tables: rocprofv3's CSV files, rocpd databases (since ROCm 7) and rpd of rocmProfileData.

Only the tables of databases are read: views of rocpd leave out rows whose thread, queue or name is missing,
and those of rpd leave out the work that a graph replayed.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from stepgrade.errors import BadInput
from stepgrade.memory import check
from stepgrade.model.events import NONE, DeviceEvent, Longs, Profiler, Trace, TraceDevice
from stepgrade.readers.processes import Events, copy_direction
from stepgrade.readers.source import ByteSource
from stepgrade.readers.sqlite import SqliteFile, json_object

_RECORD: Final = "rocprofv3 --kernel-trace --hip-trace --memory-copy-trace --marker-trace -- python train.py"
PROFILER: Final = Profiler(
    format="rocprof",
    producer="ROCm",
    mark_steps="Put each iteration into a roctx range (torch.cuda.nvtx.range_push('step') is one on ROCm), "
    f"and record with {_RECORD}.",
    record_operations="Train inside torch.autograd.profiler.emit_nvtx(record_shapes=True), which writes "
    f"roctx ranges on ROCm, and record with {_RECORD}.",
    record_device=f"Record with {_RECORD}.",
    record_layers="Put each layer into a roctx range with its number.",
)
_KERNELS: Final = "kernel_trace"
_BESIDE: Final = ("hip_api_trace", "memory_copy_trace", "marker_api_trace", "agent_info")
_ROW_BYTES: Final = 600
_DISPATCH: Final = "rocpd_kernel_dispatch"
_MOST_CAPTURES: Final = 4096
# Calls of the tracer itself.
_OWN_CALLS: Final = frozenset({"hcc_activity_callback", "ApiTable::writeRows"})


def traces_of(
    events: Events, name: str, era: str, devices: Callable[[int], tuple[TraceDevice, ...]]
) -> Iterator[Trace]:
    """Yield the traces of all processes that used a device; raise BadInput if there is none."""
    events.join()
    is_torch = any(text.startswith(("aten::", "void at::native")) for text in events.strings)
    profiler = replace(PROFILER, producer="ROCm, of PyTorch") if is_torch else PROFILER
    backend = "nccl" if any(text.startswith("nccl") for text in events.strings) else None
    facts = {"file": name, "profiler": profiler, "era": era, "backend": backend}
    work, found = events.table("work"), []
    for process in events.processes():
        first = int(work["device"][work["process"] == process].min())
        found.append((process, facts | {"devices": devices(process)}, first))
    if not found:
        hint = f"record with {_RECORD}"
        raise BadInput("a ROCm profile without any kernels", where=name, hint=hint)
    del work
    yield from events.traces(found)


class _Table:
    """A table by the names of its columns."""

    def __init__(self, text: bytes, source: ByteSource) -> None:
        lines = text.decode("utf-8", "replace").replace("\0", "").splitlines()
        check(len(lines) * _ROW_BYTES, source.memory_bytes, source.name)
        try:
            header, *rows = [*csv.reader(lines)] or [[]]
        except csv.Error as error:
            raise BadInput(f"is not a rocprofv3 table: {error}", where=source.name) from error
        rows = [row for row in rows if len(row) == len(header)]
        self.rows = len(rows)
        self.columns = {name: [row[index] for row in rows] for index, name in enumerate(header)}

    def texts(self, name: str) -> list[str]:
        """Return a column, empty texts where it is missing."""
        return self.columns.get(name, [""] * self.rows)

    def numbers(self, name: str) -> Longs:
        """Return the number in each text of a column, as in "Agent 1"; -1 without one."""
        found = (re.search(r"\d{1,18}", text) for text in self.texts(name))
        return np.array([int(number[0]) if number else NONE for number in found], np.int64)


def read_csv(source: ByteSource) -> Iterator[Trace]:
    """Yield the trace of the process; tables of the same name next to it are read with it."""
    text = b"".join(source.chunks())
    check(len(text) * 8, source.memory_bytes, source.name)
    tables = {_KERNELS: _Table(text, source)}
    if source.name.endswith(f"_{_KERNELS}.csv") and os.path.isfile(source.name):
        stem = source.name.removesuffix(f"{_KERNELS}.csv")
        for name in _BESIDE:
            if os.path.isfile(f"{stem}{name}.csv"):
                with ByteSource(f"{stem}{name}.csv", source.options) as beside:
                    tables[name] = _Table(b"".join(beside.chunks()), beside)
    events = Events()
    kernels = tables[_KERNELS]
    calls = tables.get("hip_api_trace")
    pids = calls.numbers("Process_Id") if calls else np.empty(0, np.int64)
    # The table of kernels does not name the process: one writes it.
    pid = int(pids[0]) if len(pids) and pids[0] >= 0 else 0
    names, kinds = events.kernels(kernels.texts("Kernel_Name"))
    numbers = kernels.numbers("Agent_Id")
    devices = np.maximum(0, numbers - numbers[numbers >= 0].min(initial=1 << 20))
    streams = kernels.numbers("Queue_Id")
    events.add("work", process=pid, name=names, kind=kinds, device=devices, stream=streams, **_times(kernels))
    if copies := tables.get("memory_copy_trace"):
        found = [copy_direction(text) for text in copies.texts("Direction")]
        events.add(
            "work",
            process=pid,
            name=[word for _, word in found],
            kind=[kind for kind, _ in found],
            device=0,
            stream=copies.numbers("Stream_Id"),
            **_times(copies),
        )
    if calls:
        functions, threads = calls.texts("Function"), calls.numbers("Thread_Id")
        events.add("calls", process=pid, thread=threads, name=functions, **_times(calls))
    if ranges := tables.get("marker_api_trace"):
        marks = zip(
            *(ranges.numbers(name).tolist() for name in ("Thread_Id", "Start_Timestamp", "End_Timestamp")),
            ranges.texts("Function"),
            strict=True,
        )
        for thread, start, end, name in marks:
            if end > start >= 0:
                events.annotate(pid, thread, start, end, name)
    listed: tuple[TraceDevice, ...] = ()
    if agents := tables.get("agent_info"):
        rows = zip(
            agents.texts("Agent_Type"), agents.texts("Product_Name"), agents.texts("Name"), strict=True
        )
        gpus = [(product or name)[:200] for kind, product, name in rows if kind == "GPU"]
        listed = tuple(TraceDevice(index=index, name=name or None) for index, name in enumerate(gpus))
    return traces_of(events, source.name, "rocprofv3 CSV", lambda _: listed)


def _times(table: _Table) -> dict[str, Longs]:
    return {
        "start": table.numbers("Start_Timestamp"),
        "end": table.numbers("End_Timestamp"),
        "correlation": table.numbers("Correlation_Id"),
    }


def read_database(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each process in a file of either kind."""
    events = Events()
    devices: dict[int, tuple[TraceDevice, ...]] = {}
    with SqliteFile.opened(source) as file:
        if file.has("rocpd_op"):
            era = "rpd of rocmProfileData"
            _add_rpd(file, events)
        else:
            era = "rocpd"
            # One set of tables for each process that was merged into the file; their numbers are their own.
            suffixes = [name.removeprefix(_DISPATCH) for name in file.tables if name.startswith(_DISPATCH)]
            for suffix in sorted(suffixes)[:_MOST_CAPTURES]:
                devices |= _add_rocpd(file, suffix, events)
    return traces_of(events, source.name, era, lambda process: devices.get(process, ()))


def _add_rocpd(file: SqliteFile, suffix: str, events: Events) -> dict[int, tuple[TraceDevice, ...]]:
    """Add the tables of one capture; return the devices of its processes."""

    def table(name: str) -> str:
        return f"rocpd_{name}{suffix}"

    def by_id(name: str, column: str) -> dict[Any, Any]:
        return dict(file.rows(table(name), ("id", column)))

    strings = {key: text for key, text in by_id("string", "string").items() if isinstance(text, str)}
    pids = {key: pid for key, pid in by_id("info_process", "pid").items() if isinstance(pid, int)}
    threads = {key: tid for key, tid in by_id("info_thread", "tid").items() if isinstance(tid, int)}
    symbols = by_id("info_kernel_symbol", "display_name")
    columns = ("id", "type", "type_index", "product_name", "name", "extdata")
    numbers: dict[Any, int] = {}
    listed = []
    for key, kind, index, product, name, extra in file.rows(table("info_agent"), columns):
        if kind == "GPU":
            numbers[key] = index if isinstance(index, int) and 0 <= index < 1 << 16 else len(numbers)
            properties, title = json_object(extra), product or name
            banks, units = properties.get("mem_banks"), properties.get("cu_count")
            known = [bank for bank in banks if isinstance(bank, dict)] if isinstance(banks, list) else []
            memory = sum(size for bank in known if isinstance(size := bank.get("size_in_bytes"), int))
            device = TraceDevice(
                index=numbers[key],
                name=title[:200] if isinstance(title, str) and title else None,
                memory_bytes=memory if memory > 0 else None,
                sm_count=units if isinstance(units, int) and units > 0 else None,
            )
            listed.append(device)
    # Kernel and call belong together by the stack of their events; the correlation is 0 in every row.
    event = file.whole_numbers(table("event"), ("id", "stack_id", "category_id"))
    stacks = dict(zip(event["id"].tolist(), event["stack_id"].tolist(), strict=True))
    categories = dict(zip(event["id"].tolist(), event["category_id"].tolist(), strict=True))

    def add_work(name: str, more: str, texts: dict[Any, Any], agent: str) -> None:
        wanted = ("pid", agent, "queue_id", "start", "end", "event_id", more, "size")
        rows = file.whole_numbers(table(name), wanted)
        names: Any = [str(texts.get(number) or "?") for number in rows[more].tolist()]
        kinds: Any
        if name == "memory_copy":
            kinds, names = [*zip(*map(copy_direction, names), strict=True)] or ((), ())
        else:
            names, kinds = events.kernels(names)
        events.add(
            "work",
            process=[pids.get(number, number) for number in rows["pid"].tolist()],
            name=names,
            kind=kinds,
            device=[numbers.get(number, 0) for number in rows[agent].tolist()],
            stream=rows["queue_id"],
            correlation=[stacks.get(number, NONE) for number in rows["event_id"].tolist()],
            start=rows["start"],
            end=rows["end"],
            bytes=rows["size"],
        )

    add_work("kernel_dispatch", "kernel_id", symbols, "agent_id")
    add_work("memory_copy", "name_id", strings, "dst_agent_id")
    calls = []
    regions = file.whole_numbers(table("region"), ("pid", "tid", "start", "end", "name_id", "event_id"))
    # The texts of roctx ranges, which their events carry as JSON.
    rows = file.rows(table("event"), ("id", "extdata"), "where extdata like '%message%'")
    messages = {key: json_object(extra).get("message") for key, extra in rows}
    for pid, tid, start, end, name, of in zip(*(column.tolist() for column in regions.values()), strict=True):
        category = strings.get(categories.get(of, NONE), "")
        process, thread = pids.get(pid, pid), threads.get(tid, tid)
        if category.startswith("MARKER") and end > start:
            text = messages.get(of)
            events.annotate(
                process, thread, start, end, text if isinstance(text, str) else strings.get(name, "?")
            )
        elif not category.startswith(("MARKER", "HSA", "KERNEL")):
            name_id = events.name_id(strings.get(name, "?"))
            calls.append((process, thread, start, end, name_id, stacks.get(of, NONE)))
    _add_calls(events, calls)
    return dict.fromkeys(pids.values(), tuple(listed))


def _add_rpd(file: SqliteFile, events: Events) -> None:
    """Add operations and calls of rpd; what a graph replayed has neither a call nor a name."""
    strings = {
        key: text for key, text in file.rows("rocpd_string", ("id", "string")) if isinstance(text, str)
    }
    links = file.whole_numbers("rocpd_api_ops", ("api_id", "op_id"))
    call_of = dict(zip(links["op_id"].tolist(), links["api_id"].tolist(), strict=True))
    apis = file.whole_numbers("rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id", "args_id"))
    pid_of = dict(zip(apis["id"].tolist(), apis["pid"].tolist(), strict=True))
    only = int(apis["pid"][0]) if len(apis["pid"]) else 0
    ops = file.whole_numbers(
        "rocpd_op", ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    )
    names, kinds, processes, correlations = [], [], [], []
    rows = zip(*(ops[name].tolist() for name in ("id", "description_id", "opType_id")), strict=True)
    for key, description, sort in rows:
        text, kind = strings.get(description, ""), strings.get(sort, "")
        if kind.startswith("Copy"):
            direction, title = copy_direction(kind)
        elif kind.startswith("Fill"):
            direction, title = DeviceEvent.MEMSET, "Memset (Device)"
        else:
            direction, title = DeviceEvent.KERNEL, text or f"({kind or '?'} without a name)"
        call = call_of.get(key, NONE)
        names.append(title)
        kinds.append(direction)
        correlations.append(call)
        processes.append(pid_of.get(call, only))
    events.add(
        "work",
        process=processes,
        name=names,
        kind=kinds,
        device=np.maximum(0, ops["gpuId"]),
        stream=ops["queueId"],
        correlation=correlations,
        start=ops["start"],
        end=ops["end"],
    )
    calls = []
    for key, pid, tid, start, end, name, args in zip(
        *(column.tolist() for column in apis.values()), strict=True
    ):
        title = strings.get(name, "?")
        if title == "UserMarker":
            if end > start:
                events.annotate(pid, tid, start, end, strings.get(args, "?"))
        elif title not in _OWN_CALLS:
            calls.append((pid, tid, start, end, events.name_id(title), key))
    _add_calls(events, calls)


def _add_calls(events: Events, rows: list[tuple[int, int, int, int, int, int]]) -> None:
    process, thread, start, end, name, correlation = np.array(rows, np.int64).reshape(-1, 6).T
    events.add(
        "calls", process=process, thread=thread, start=start, end=end, name=name, correlation=correlation
    )

"""ROCm's SQLite files: rocpd, which rocprofv3 writes since ROCm 7, and rpd of rocmProfileData.

Only the tables are read: views of rocpd leave out rows whose thread, queue or name is missing, and those of
rpd leave out what a graph replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from stepgrade.model.events import NONE, DeviceEvent, Trace, TraceDevice
from stepgrade.readers.annotations import Annotations
from stepgrade.readers.processes import Events
from stepgrade.readers.rocprof.facts import direction_of, kinds_of, traces_of
from stepgrade.readers.source import ByteSource
from stepgrade.readers.sqlite import SqliteFile, json_object

_DISPATCH: Final = "rocpd_kernel_dispatch"
_MOST_CAPTURES: Final = 4096
# Calls of the tracer itself.
_OWN_CALLS: Final = frozenset({"hcc_activity_callback", "ApiTable::writeRows"})


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
            annotations = Annotations(events)
            # One set of tables for each process that was merged into the file; their numbers are their own.
            suffixes = [name.removeprefix(_DISPATCH) for name in file.tables if name.startswith(_DISPATCH)]
            for suffix in sorted(suffixes)[:_MOST_CAPTURES]:
                devices |= _add_rocpd(file, suffix, events, annotations)
            annotations.write()
    return traces_of(events, source.name, era, lambda process: devices.get(process, ()))


def _add_rocpd(
    file: SqliteFile, suffix: str, events: Events, annotations: Annotations
) -> dict[int, tuple[TraceDevice, ...]]:
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
            listed.append(_agent(numbers[key], product or name, extra))
    # Kernel and call belong together by the stack of their events; the correlation is 0 in every row.
    event = file.whole_numbers(table("event"), ("id", "stack_id", "category_id"))
    stacks = dict(zip(event["id"].tolist(), event["stack_id"].tolist(), strict=True))
    categories = dict(zip(event["id"].tolist(), event["category_id"].tolist(), strict=True))

    def add_work(name: str, more: str, texts: dict[Any, Any], agent: str) -> None:
        wanted = ("pid", agent, "queue_id", "start", "end", "event_id", more, "size")
        rows = file.whole_numbers(table(name), wanted)
        found = [str(texts.get(number) or "?") for number in rows[more].tolist()]
        is_copy = name == "memory_copy"
        kinds = [direction_of(text) for text in found] if is_copy else []
        titles = [word for _, word in kinds] if is_copy else found
        names = np.array([events.name_id(title) for title in titles], np.int32)
        events.add(
            "work",
            process=np.array([pids.get(number, number) for number in rows["pid"].tolist()], np.int64),
            name=names,
            kind=np.array([kind for kind, _ in kinds], np.int8) if is_copy else kinds_of(events, names),
            device=np.array([numbers.get(number, 0) for number in rows[agent].tolist()], np.int32),
            stream=rows["queue_id"],
            correlation=np.array(
                [stacks.get(number, NONE) for number in rows["event_id"].tolist()], np.int64
            ),
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
    messages = (
        {key: json_object(extra).get("message") for key, extra in rows} if len(regions["start"]) else {}
    )
    for pid, tid, start, end, name, of in zip(*(column.tolist() for column in regions.values()), strict=True):
        category = strings.get(categories.get(of, NONE), "")
        process, thread = pids.get(pid, pid), threads.get(tid, tid)
        if category.startswith("MARKER"):
            if end > start:
                text = messages.get(of)
                text = text if isinstance(text, str) else strings.get(name, "?")
                annotations.add(process, thread, start, end, text)
        elif not category.startswith(("HSA", "KERNEL")):
            name_id = events.name_id(strings.get(name, "?"))
            calls.append((process, thread, start, end, name_id, stacks.get(of, NONE)))
    _add_calls(events, calls)
    return dict.fromkeys(pids.values(), tuple(listed))


def _agent(index: int, name: object, extra: object) -> TraceDevice:
    """Return a device, with what the JSON beside its row says."""
    properties = json_object(extra)
    banks = properties.get("mem_banks")
    sizes = (
        [bank.get("size_in_bytes") for bank in banks if isinstance(bank, dict)]
        if isinstance(banks, list)
        else []
    )
    memory = sum(size for size in sizes if isinstance(size, int))
    units = properties.get("cu_count")
    return TraceDevice(
        index=index,
        name=name[:200] if isinstance(name, str) and name else None,
        memory_bytes=memory if memory > 0 else None,
        sm_count=units if isinstance(units, int) and units > 0 else None,
    )


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
            direction, title = direction_of(kind)
        elif kind.startswith("Fill"):
            direction, title = DeviceEvent.MEMSET, "Memset (Device)"
        else:
            direction, title = DeviceEvent.KERNEL, text or f"({kind or '?'} without a name)"
        call = call_of.get(key, NONE)
        names.append(events.name_id(title))
        kinds.append(direction)
        correlations.append(call)
        processes.append(pid_of.get(call, only))
    events.add(
        "work",
        process=np.array(processes, np.int64),
        name=np.array(names, np.int32),
        kind=np.array(kinds, np.int8),
        device=np.maximum(0, ops["gpuId"]),
        stream=ops["queueId"],
        correlation=np.array(correlations, np.int64),
        start=ops["start"],
        end=ops["end"],
    )
    annotations = Annotations(events)
    calls = []
    for key, pid, tid, start, end, name, args in zip(
        *(column.tolist() for column in apis.values()), strict=True
    ):
        title = strings.get(name, "?")
        if title == "UserMarker":
            if end > start:
                annotations.add(pid, tid, start, end, strings.get(args, "?"))
        elif title not in _OWN_CALLS:
            calls.append((pid, tid, start, end, events.name_id(title), key))
    annotations.write()
    _add_calls(events, calls)


def _add_calls(events: Events, rows: list[tuple[int, int, int, int, int, int]]) -> None:
    process, thread, start, end, name, correlation = np.array(rows, np.int64).reshape(-1, 6).T
    events.add(
        "calls", process=process, thread=thread, start=start, end=end, name=name, correlation=correlation
    )

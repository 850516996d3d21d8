"""The same two-process training as each of ROCm's profilers would write it: steps of 10 ms, half computing."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

MS = 1_000_000
BOOT = 342_331_000_000_000
SECRET = "HF_TOKEN=hf_canaryTOKEN0123456789"  # noqa: S105
GEMM = "Cijk_Ailk_Bljk_BBS_BH_MT128x128x64"
FILL = "__amd_rocclr_fillBufferAligned"


class Event(NamedTuple):
    """One event of a process: what it is, when, and the number that joins a launch to its work."""

    kind: str  # kernel, copy, call, range
    name: str
    start: int
    end: int
    number: int


def training(steps: int = 8) -> list[Event]:
    """Return the events of one process."""
    found = []
    for step in range(steps):
        at, number = BOOT + step * 10 * MS, step * 10 + 1
        found += [
            Event("range", f"step {step}", at, at + 9 * MS, number + 5),
            Event("range", "aten::mm, seq = 3, op_id = 9, sizes = [[256, 512], [512, 128]]", at + 5000, at + 90_000, number + 6),
            Event("call", "hipModuleLaunchKernel", at + 10_000, at + 20_000, number),
            Event("kernel", GEMM, at + MS, at + 6 * MS, number),
            Event("call", "hipMemcpyAsync", at + 100_000, at + 110_000, number + 1),
            Event("copy", "HOST_TO_DEVICE", at + 6 * MS, at + 7 * MS, number + 1),
            Event("call", "hipMemsetAsync", at + 120_000, at + 130_000, number + 2),
            Event("kernel", FILL, at + 7 * MS, at + 7 * MS + 1000, number + 2),
        ]  # fmt: skip
    return found


def of_kind(events: list[Event], *kinds: str) -> list[Event]:
    return [event for event in events if event.kind in kinds]


def write_json(path: Path, pids: tuple[int, ...] = (100, 200), steps: int = 8) -> Path:
    names = sorted({event.name for event in training(steps)})
    operations = [{"kind": "NONE", "operations": names}]

    def record(event: Event, **more: Any) -> dict[str, Any]:
        return {
            "kind": 0,
            "operation": names.index(event.name),
            "thread_id": 7,
            "correlation_id": {"internal": event.number, "external": 0},
            "start_timestamp": event.start,
            "end_timestamp": event.end,
            **more,
        }

    processes = []
    for place, pid in enumerate(pids):
        events = training(steps)
        agents = [
            {"id": {"handle": 10}, "type": 1, "product_name": "AMD EPYC"},
            *(
                {"id": {"handle": 20 + number}, "type": 2, "logical_node_type_id": number,
                 "product_name": "AMD Instinct MI300X", "cu_count": 304, "mem_banks": [{"size_in_bytes": 192 << 30}]}
                for number in range(2)
            ),
        ]  # fmt: skip
        dispatch = {"agent_id": {"handle": 20 + place}, "queue_id": {"handle": 3}}
        processes.append(
            {
                "metadata": {"pid": pid, "command": [SECRET], "node": {"hostname": SECRET}},
                "agents": agents,
                "strings": {
                    "buffer_records": operations,
                    "marker_api": [{"key": event.number, "value": event.name} for event in of_kind(events, "range")],
                },
                "kernel_symbols": [{"kernel_id": index, "formatted_kernel_name": name} for index, name in enumerate(names)],
                "buffer_records": {
                    "kernel_dispatch": [
                        record(event, dispatch_info=dispatch | {"kernel_id": names.index(event.name)})
                        for event in of_kind(events, "kernel")
                    ],
                    "hip_api": [record(event) for event in of_kind(events, "call")],
                    "marker_api": [record(event) for event in of_kind(events, "range")],
                    "memory_copy": [
                        record(event, dst_agent_id={"handle": 20 + place}, bytes=4096) for event in of_kind(events, "copy")
                    ],
                },
            }
        )  # fmt: skip
    path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}))
    return path


def write_csv(folder: Path, steps: int = 8) -> Path:
    """Return the table of kernels; the others lie beside it."""
    events = training(steps)

    def write(name: str, header: str, rows: list[tuple[object, ...]]) -> Path:
        text = io.StringIO()
        writer = csv.writer(text, quoting=csv.QUOTE_ALL)
        writer.writerow(header.split())
        writer.writerows(rows)
        (folder / f"run_{name}.csv").write_text(text.getvalue())
        return folder / f"run_{name}.csv"

    times = "Start_Timestamp End_Timestamp"
    write("hip_api_trace", f"Domain Function Process_Id Thread_Id Correlation_Id {times}",
          [("HIP", e.name, 100, 7, e.number, e.start, e.end) for e in of_kind(events, "call")])  # fmt: skip
    write("marker_api_trace", f"Domain Function Process_Id Thread_Id Correlation_Id {times}",
          [("MARKER", e.name, 100, 7, e.number, e.start, e.end) for e in of_kind(events, "range")])  # fmt: skip
    write("memory_copy_trace", f"Kind Direction Stream_Id Correlation_Id {times}",
          [("MEMORY_COPY", e.name, 0, e.number, e.start, e.end) for e in of_kind(events, "copy")])  # fmt: skip
    write("agent_info", "Node_Id Agent_Type Product_Name Name",
          [(0, "CPU", "AMD EPYC", ""), (1, "GPU", "AMD Instinct MI300X", "gfx942")])  # fmt: skip
    return write("kernel_trace", f"Kind Agent_Id Queue_Id Stream_Id Thread_Id Kernel_Name Correlation_Id {times}",
                 [("KERNEL_DISPATCH", "Agent 1", 3, 0, 7, e.name, e.number, e.start, e.end)
                  for e in of_kind(events, "kernel")])  # fmt: skip


def write_rocpd(path: Path, pids: tuple[int, ...] = (100, 200), steps: int = 8) -> Path:
    """Return a file into which the captures of several processes were merged; its views are a trap."""
    connection = sqlite3.connect(path)
    for place, pid in enumerate(pids):
        suffix = f"_0000_{place}"
        names = [
            "",
            "MARKER_CORE_RANGE_API",
            "HIP_RUNTIME_API_EXT",
            "KERNEL_DISPATCH",
            "MEMORY_COPY",
            "roctxRangePushA",
        ]
        names += sorted({event.name for event in training(steps)})
        tables = {
            "string": "id integer primary key, string text",
            "info_process": "id integer primary key, pid integer, environment text, command text",
            "info_thread": "id integer primary key, tid integer",
            "info_agent": "id integer primary key, type text, type_index integer, product_name text, name text, extdata text",
            "info_kernel_symbol": "id integer primary key, display_name text",
            "event": "id integer primary key, category_id integer, stack_id integer, correlation_id integer, extdata text",
            "region": "id integer primary key, pid integer, tid integer, start bigint, end bigint, name_id integer, event_id integer",
            "kernel_dispatch": "id integer primary key, pid integer, agent_id integer, kernel_id integer, queue_id integer, "
            "start bigint, end bigint, event_id integer",
            "memory_copy": "id integer primary key, pid integer, dst_agent_id integer, queue_id integer, start bigint, end bigint, "
            "name_id integer, event_id integer, size integer",
        }  # fmt: skip
        for name, columns in tables.items():
            connection.execute(f'create table "rocpd_{name}{suffix}" ({columns})')

        def add(table: str, *values: object, suffix: str = suffix) -> None:
            marks = ", ".join("?" * len(values))
            connection.execute(f'insert into "rocpd_{table}{suffix}" values ({marks})', values)  # noqa: S608

        for number, text in enumerate(names):
            add("string", number, text)
            add("info_kernel_symbol", number, text)
        add("info_process", 1, pid, json.dumps({"PATH": SECRET}), SECRET)
        add("info_thread", 1, 7)
        add("info_agent", 1, "CPU", 0, "AMD EPYC", "", "{}")
        for number in range(2):
            more = json.dumps({"cu_count": 304, "mem_banks": [{"size_in_bytes": 192 << 30}]})
            add("info_agent", 2 + number, "GPU", number, "AMD Instinct MI300X", "gfx942", more)
        for number, event in enumerate(training(steps), 1):
            category = {"range": 1, "call": 2, "kernel": 3, "copy": 4}[event.kind]
            add(
                "event",
                number,
                category,
                event.number,
                0,
                json.dumps({"message": event.name}) if category == 1 else "{}",
            )
            if category < 3:
                title = 5 if category == 1 else names.index(event.name)
                add("region", number, 1, 1, event.start, event.end, title, number)
            elif category == 3:
                add(
                    "kernel_dispatch",
                    number,
                    1,
                    2 + place,
                    names.index(event.name),
                    3,
                    event.start,
                    event.end,
                    number,
                )
            else:
                add(
                    "memory_copy",
                    number,
                    1,
                    2 + place,
                    3,
                    event.start,
                    event.end,
                    names.index(event.name),
                    number,
                    4096,
                )
    connection.execute(
        "create view kernels as with recursive n(i) as (select 1 union all select i + 1 from n) select i from n"
    )
    connection.execute('create view rocpd_kernel_dispatch as select * from "rocpd_kernel_dispatch_0000_0"')
    connection.commit()
    connection.close()
    return path


def write_rpd(path: Path, steps: int = 8) -> Path:
    """Return a file in which one kernel of each step was replayed from a graph: no call, no name."""
    connection = sqlite3.connect(path)
    connection.executescript(
        "create table rocpd_string (id integer primary key, string text);"
        "create table rocpd_op (id integer primary key, gpuId integer, queueId integer, start integer, end integer, "
        "description_id integer, opType_id integer);"
        "create table rocpd_api (id integer primary key, pid integer, tid integer, start integer, end integer, "
        "apiName_id integer, args_id integer);"
        "create table rocpd_api_ops (id integer primary key, api_id integer, op_id integer);"
        "create table rocpd_metadata (id integer primary key, tag text, value text);"
    )
    names = ["", "UserMarker", "KernelExecution", "CopyHostToDevice", "Task", "FillBuffer", SECRET]
    names += sorted({event.name for event in training(steps)})
    connection.executemany("insert into rocpd_string values (?, ?)", list(enumerate(names)))
    calls = {event.number: row for row, event in enumerate(training(steps)) if event.kind == "call"}
    for row, event in enumerate(training(steps)):
        name = names.index(event.name)
        if event.kind in ("call", "range"):
            api, args = (1, name) if event.kind == "range" else (name, 6)
            values = (row, 100, 7, event.start, event.end, api, args)
            connection.execute("insert into rocpd_api values (?, ?, ?, ?, ?, ?, ?)", values)
            continue
        sort = 3 if event.kind == "copy" else 5 if event.name == FILL else 2
        values = (row, 2, 3, event.start, event.end, name, sort)
        connection.execute("insert into rocpd_op values (?, ?, ?, ?, ?, ?, ?)", values)
        connection.execute(
            "insert into rocpd_api_ops (api_id, op_id) values (?, ?)", (calls[event.number], row)
        )
    for step in range(steps):
        at = BOOT + step * 10 * MS + 8 * MS
        connection.execute("insert into rocpd_op (gpuId, queueId, start, end, description_id, opType_id) values (2, 3, ?, ?, 0, 4)",
                           (at, at + 1000))  # fmt: skip
    connection.commit()
    connection.close()
    return path

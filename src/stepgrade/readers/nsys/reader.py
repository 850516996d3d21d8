"""An export of Nsight Systems to the traces of its processes.

Tables and columns come and go with the version: each is asked for by name. Correlation numbers are unique
within a process only, and a kernel's device is numbered as its process sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from stepgrade.errors import BadInput
from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import (
    NONE,
    Collective,
    DeviceEvent,
    DeviceWork,
    HostCalls,
    HostOps,
    HostRanges,
    Ids,
    Longs,
    Profiler,
    RangeKind,
    Trace,
    TraceDevice,
    TraceThread,
)
from stepgrade.readers.nsys.collectives import Communicators, call_at
from stepgrade.readers.nsys.nvtx import NvtxRanges, read_ranges
from stepgrade.readers.source import ByteSource
from stepgrade.readers.sqlite import SqliteFile

Table: TypeAlias = dict[str, NDArray[Any]]

_KERNELS: Final = "CUPTI_ACTIVITY_KIND_KERNEL"
_COPIES: Final = "CUPTI_ACTIVITY_KIND_MEMCPY"
_MEMSETS: Final = "CUPTI_ACTIVITY_KIND_MEMSET"
_GRAPHS: Final = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_CALLS: Final = "CUPTI_ACTIVITY_KIND_RUNTIME"
_PLACE: Final = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
_DIRECTIONS: Final = {
    1: (DeviceEvent.COPY_H2D, "HtoD"),
    2: (DeviceEvent.COPY_D2H, "DtoH"),
    8: (DeviceEvent.COPY_D2D, "DtoD"),
    9: (DeviceEvent.COPY_OTHER, "HtoH"),
    10: (DeviceEvent.COPY_D2D, "PtoP"),
}
_MEMORY: Final = {0: "Pageable", 1: "Pinned", 2: "Device", 4: "Managed"}
_PID_BITS: Final = 24
_LONGEST_NAME: Final = 4000
_AT_ONCE: Final = 900  # values that older SQLite takes in one statement
_EXPORT: Final = "nsys profile --trace=cuda,nvtx,osrt … python train.py"


_PROFILER: Final = Profiler(
    format="nsys",
    producer="Nsight Systems",
    mark_steps="Put each iteration into an NVTX range while recording, such as nvtx.range_push('step').",
    record_operations="NVTX ranges name them.",
    record_device="Record with nsys profile --trace=cuda,nvtx.",
)
_PROFILER_OF_TORCH: Final = replace(
    _PROFILER,
    producer="Nsight Systems, of PyTorch",
    mark_steps="Put each iteration between torch.cuda.nvtx.range_push('step') and range_pop().",
    record_operations="Train inside torch.autograd.profiler.emit_nvtx(record_shapes=True).",
)


class _Export:
    """The tables of a file that matter, with texts interned."""

    def __init__(self, file: SqliteFile) -> None:
        self.places: dict[str, int] = {}
        calls = file.whole_numbers(_CALLS, ("start", "end", "globalTid", "nameId", "correlationId"))
        kernels = file.whole_numbers(_KERNELS, (*_PLACE, "demangledName", "shortName"))
        texts = file.whole_numbers("NVTX_EVENTS", ("textId", "jsonTextId"), "where eventType in (59, 60)")
        strings = _strings(
            file, [calls["nameId"], kernels["demangledName"], kernels["shortName"], *texts.values()]
        )
        self.ranges: NvtxRanges = read_ranges(file, strings)
        name_ids = np.where(kernels["demangledName"] >= 0, kernels["demangledName"], kernels["shortName"])
        parts = [
            _device_table(kernels, self._named(name_ids, strings), DeviceEvent.KERNEL),
            self._copies(file),
            self._memsets(file),
            self._graphs(file),
        ]
        self.work: Table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self.calls: Table = {
            "name": self._named(calls["nameId"], {key: _unversioned(text) for key, text in strings.items()}),
            "start_ns": calls["start"],
            "dur_ns": np.maximum(0, calls["end"] - calls["start"]),
            "thread": calls["globalTid"],
            "correlation": calls["correlationId"],
            "pid": _pids(calls["globalTid"]),
        }
        # Reduced copies of exports leave the process out: where there is only one, it is that one.
        processes = distinct(self.calls["pid"])
        if len(processes) == 1:
            self.work["pid"][self.work["pid"] < 0] = processes[0]

    def place(self, text: str) -> int:
        """Return the place of a text, which is kept once."""
        return self.places.setdefault(text, len(self.places))

    def _named(self, ids: Longs, strings: dict[int, str]) -> Ids:
        found = groups(ids)
        table = [self.place(strings.get(number, "?")[:_LONGEST_NAME]) for number in found.values.tolist()]
        return np.array(table, np.int32)[found.which]

    def _copies(self, file: SqliteFile) -> Table:
        table = file.whole_numbers(_COPIES, (*_PLACE, "bytes", "copyKind", "srcKind", "dstKind"))
        kinds, names = [], []
        for kind, source, target in zip(
            *(table[name].tolist() for name in ("copyKind", "srcKind", "dstKind")), strict=True
        ):
            direction, word = _DIRECTIONS.get(kind, (DeviceEvent.COPY_OTHER, "other"))
            ends = f" ({_MEMORY.get(source, '?')} -> {_MEMORY.get(target, '?')})" if source >= 0 else ""
            kinds.append(direction)
            names.append(self.place(f"Memcpy {word}{ends}"))
        made = _device_table(table, np.array(names, np.int32), DeviceEvent.COPY_OTHER)
        return made | {"kind": np.array(kinds, np.int8), "bytes": table["bytes"]}

    def _memsets(self, file: SqliteFile) -> Table:
        table = file.whole_numbers(_MEMSETS, (*_PLACE, "bytes"))
        names = np.full(len(table["start"]), self.place("Memset (Device)"), np.int32)
        return _device_table(table, names, DeviceEvent.MEMSET) | {"bytes": table["bytes"]}

    def _graphs(self, file: SqliteFile) -> Table:
        """Return graphs that were recorded as a whole: busy time of which no kernel is known."""
        table = file.whole_numbers(_GRAPHS, (*_PLACE, "graphExecId"))
        names = [self.place(f"CUDA graph {number}") for number in table["graphExecId"].tolist()]
        return _device_table(table, np.array(names, np.int32), DeviceEvent.KERNEL)


def read_traces(source: ByteSource) -> list[Trace]:
    """Return a trace for each process that used a device, in the order of their ranks."""
    with SqliteFile.opened(source) as file:
        export = _Export(file)
        facts = {"file": source.name, **_facts_of(file)}
        # Whoever only set memory did not compute.
        busy = export.work["kind"] != DeviceEvent.MEMSET
        processes = distinct(export.work["pid"][busy]).tolist()
        if not processes:
            problem, hint = _why_empty(file)
            raise BadInput(problem, where=source.name, hint=hint)
        traces = [_trace_of(export, pid, {**facts, "devices": _devices(file, pid)}) for pid in processes]
    if len(traces) > 1 and any(trace.rank is None for trace in traces):
        # In the order of their devices, which launchers number by rank.
        order = sorted(
            traces, key=lambda trace: (int(trace.work.device.min(initial=0)), trace.threads[0].process)
        )
        traces = [_as_rank(trace, rank, len(traces)) for rank, trace in enumerate(order)]
    return sorted(traces, key=lambda trace: trace.rank or 0)


def _trace_of(export: _Export, pid: int, facts: dict[str, Any]) -> Trace:
    """Return the timeline of one process."""
    work, calls = (_of_process(table, pid) for table in (export.work, export.calls))
    zero_ns = _first_start(export)
    ranges, ops = _host_ranges(export, pid, zero_ns), _emitted_ops(export, pid, zero_ns)
    threads = distinct(np.concatenate([table["thread"] for table in (calls, ranges, ops)]))
    nccl = {
        thread: found
        for thread, found in export.ranges.calls.items()
        if thread >> _PID_BITS & 0xFFFFFF == pid
    }
    communicators = Communicators(nccl)
    collectives = _describe(export, communicators, nccl, calls, work)
    for table in (work, calls):
        table["start_ns"] = table["start_ns"] - zero_ns
    for table in (calls, ranges, ops):
        table["thread"] = np.searchsorted(threads, table["thread"]).astype(np.int32)
    base_ns = facts.pop("base_ns")
    strings, inputs = tuple(export.places), tuple(export.ranges.ops.inputs)
    is_torch = any(text.startswith(("aten::", "void at::native")) for text in strings)
    counts = {
        "kernel": int((work["kind"] == DeviceEvent.KERNEL).sum()),
        "gpu_memcpy": int(among(work["kind"], range(DeviceEvent.COPY_H2D, DeviceEvent.MEMSET)).sum()),
        "gpu_memset": int((work["kind"] == DeviceEvent.MEMSET).sum()),
        "cuda_runtime": len(calls["name"]),
        "user_annotation": len(ranges["name"]),
        "cpu_op": len(ops["name"]),
    }
    return Trace(
        rank=communicators.rank,
        world_size=communicators.world_size,
        backend="nccl" if nccl else None,
        base_ns=None if base_ns is None else base_ns + zero_ns,
        file_zero_ns=zero_ns,
        profiler=_PROFILER_OF_TORCH if is_torch else _PROFILER,
        strings=strings,
        inputs=inputs,
        collectives=collectives,
        ops=HostOps(**_sorted(ops)),
        calls=HostCalls(**_sorted(calls)),
        work=DeviceWork(**_sorted(work)),
        ranges=HostRanges(**_sorted(ranges)),
        recorded=frozenset({"shapes"} if inputs else ()),
        threads=tuple(
            TraceThread(process=str(pid), thread=str(thread & 0xFFFFFF)) for thread in threads.tolist()
        ),
        categories={name: count for name, count in counts.items() if count},
        **facts,
    )


def _device_table(table: dict[str, Longs], names: Ids, kind: DeviceEvent) -> Table:
    """Return rows of device work as the model has them, with the process of each."""
    rows = len(table["start"])
    return {
        "name": names,
        "kind": np.full(rows, kind, np.int8),
        "start_ns": table["start"],
        "dur_ns": np.maximum(0, table["end"] - table["start"]),
        "device": np.maximum(0, table["deviceId"]).astype(np.int32),
        "stream": table["streamId"],
        "correlation": table["correlationId"],
        "external_id": np.full(rows, NONE, np.int32),
        "bytes": np.full(rows, NONE, np.int64),
        "collective": np.full(rows, NONE, np.int32),
        "pid": _pids(table["globalPid"]),
    }


def _describe(
    export: _Export,
    communicators: Communicators,
    nccl: dict[int, list[Any]],
    calls: Table,
    work: Table,
) -> tuple[Collective, ...]:
    """Join NCCL's kernels to NCCL's calls by the launch, and return what is known of each."""
    texts = list(export.places)
    is_nccl = np.array([text.startswith("nccl") for text in texts], np.bool_)
    rows = np.flatnonzero((work["kind"] == DeviceEvent.KERNEL) & is_nccl[work["name"]])
    if not len(rows) or not nccl:
        return ()
    by_correlation = dict(zip(calls["correlation"].tolist(), range(len(calls["name"])), strict=True))
    starts = {thread: [call.start_ns for call in found] for thread, found in nccl.items()}
    found: dict[Collective, int] = {}
    places = work["collective"].copy()
    for row in rows.tolist():
        launch = by_correlation.get(int(work["correlation"][row]))
        thread = NONE if launch is None else int(calls["thread"][launch])
        if launch is None or thread not in nccl:
            continue
        call = call_at(nccl[thread], starts[thread], int(calls["start_ns"][launch]))
        if call is not None:
            made = communicators.describe(texts[int(work["name"][row])], call)
            places[row] = found.setdefault(made, len(found))
    work["collective"] = places
    return tuple(found)


def _host_ranges(export: _Export, pid: int, zero_ns: int) -> Table:
    names = [export.place(name) for name in export.ranges.names]
    table = _host_table(names, export.ranges.rows, 3, (pid, zero_ns))
    table.pop("more")
    rows = len(table["name"])
    none = np.full(rows, NONE, np.int32)
    return {
        **table,
        "kind": np.full(rows, RangeKind.ANNOTATION, np.int8),
        "external_id": none,
        "python_id": none,
        "python_parent": none,
    }


def _emitted_ops(export: _Export, pid: int, zero_ns: int) -> Table:
    ops = export.ranges.ops
    table = _host_table([export.place(name) for name in ops.names], ops.rows, 5, (pid, zero_ns))
    sequence, inputs = table.pop("more").T
    # Autograd's nodes name the number of the operation whose gradient they are, on a thread of their own.
    is_node = np.array(["Backward" in text for text in export.places], np.bool_)
    backward = is_node[table["name"]] if len(is_node) else np.zeros(0, np.bool_)
    return {
        **table,
        "external_id": np.full(len(sequence), NONE, np.int32),
        "sequence": sequence,
        "forward_thread": np.where(backward & (sequence >= 0), 1, np.where(sequence >= 0, 0, NONE)),
        "inputs": inputs.astype(np.int32),
    }


def _host_table(names: list[int], rows: Sequence[tuple[int, ...]], width: int, of: tuple[int, int]) -> Table:
    """Return ranges of one process from its first event on; what was open before starts there."""
    pid, zero_ns = of
    table = np.array(rows, np.int64).reshape(len(rows), width)
    own = _pids(table[:, 2]) == pid
    start = np.maximum(table[own, 0], zero_ns)
    return {
        "name": np.array(names, np.int32)[own],
        "start_ns": start - zero_ns,
        "dur_ns": np.maximum(0, table[own, 1] - start),
        "thread": table[own, 2],
        "more": table[own, 3:],
    }


def _first_start(export: _Export) -> int:
    starts = [table["start_ns"].min() for table in (export.work, export.calls) if len(table["start_ns"])]
    return int(min(starts))


def _of_process(table: Table, pid: int) -> Table:
    own = table["pid"] == pid
    return {name: column[own] for name, column in table.items() if name != "pid"} | (
        {} if "external_id" in table else {"external_id": np.full(int(own.sum()), NONE, np.int32)}
    )


def _sorted(table: Table) -> Table:
    """Return the rows by start, the longer first of those that start together."""
    order = np.lexsort((-table["dur_ns"], table["start_ns"]))
    return {name: column[order] for name, column in table.items()}


def _pids(numbers: Longs) -> Longs:
    """Return the process in a globalPid or globalTid; -1 where there is none."""
    return np.where(numbers < 0, NONE, numbers >> _PID_BITS & 0xFFFFFF)


def _unversioned(name: str) -> str:
    return re.sub(r"_v\d+$", "", name)


def _strings(file: SqliteFile, columns: Iterable[Longs]) -> dict[int, str]:
    """Return the texts of these numbers and of no others: the table also holds whole environments."""
    wanted = distinct(
        np.concatenate([np.empty(0, np.int64), *(distinct(column) for column in columns)])
    ).tolist()
    found: dict[int, str] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        some = ", ".join(str(int(number)) for number in wanted[start : start + _AT_ONCE])
        rows = file.rows("StringIds", ("id", "value"), f"where id in ({some})")
        found |= {number: text for number, text in rows if isinstance(text, str)}
    return found


def _facts_of(file: SqliteFile) -> dict[str, Any]:
    """Return the version of the exporter and the time base: nothing else of what the export says of itself."""
    wanted = ("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION", "EXPORT_PARAM_TIME_NORMALIZE")
    shifts = ("EXPORT_PARAM_TIME_SHIFT", "EXPORT_CONFIG_TIME_SHIFT")
    said: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        for name, value in file.rows(table, ("name", "value")):
            if name in (*wanted, *shifts):
                said[name] = str(value)[:40]
    version = said.get("EXPORT_PRODUCT_VERSION")
    version = version if version and re.fullmatch(r"[\d.]+", version) else None
    schema = said.get("EXPORT_SCHEMA_VERSION", "")
    is_shifted = said.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() in ("1", "true") or any(
        said.get(name, "0") not in ("", "0") for name in shifts
    )
    epochs = [row[0] for row in file.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))]
    is_known = not is_shifted and len(epochs) == 1 and isinstance(epochs[0], int)
    return {
        "base_ns": epochs[0] if is_known else None,
        "versions": {"nsys": version} if version else {},
        "era": f"Nsight Systems {version or 'of an unknown version'}"
        + (f", schema {schema}" if re.fullmatch(r"[\d.]+", schema) else ""),
    }


def _devices(file: SqliteFile, pid: int) -> tuple[TraceDevice, ...]:
    """Return the devices by the number that this process has for them."""
    columns = ("id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor", "cuDevice")
    gpus = {row[0]: row for row in file.rows("TARGET_INFO_GPU", columns)}
    rows = file.rows("TARGET_INFO_CUDA_DEVICE", ("cudaId", "gpuId", "pid"))
    numbers = {cuda: gpu for cuda, gpu, process in rows if process == pid}
    if not numbers:
        numbers = {row[6] if isinstance(row[6], int) else 0: gpu for gpu, row in gpus.items()}
    if len(gpus) == 1:
        numbers = dict.fromkeys(numbers or (0,), next(iter(gpus)))
    return tuple(
        TraceDevice(
            index=index,
            name=_text(gpus[gpu][1]),
            memory_bytes=_number(gpus[gpu][2]),
            sm_count=_number(gpus[gpu][3]),
            capability=f"{gpus[gpu][4]}.{gpus[gpu][5]}" if isinstance(gpus[gpu][4], int) else None,
        )
        for index, gpu in sorted(numbers.items(), key=str)
        if gpu in gpus and isinstance(index, int)
    )


def _text(value: object) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None


def _why_empty(file: SqliteFile) -> tuple[str, str]:
    """Return why an export has no work of a device, and what to do."""
    has_calls = next(file.rows(_CALLS, ("start",)), None) is not None
    has_ranges = next(file.rows("NVTX_EVENTS", ("start",)), None) is not None
    if has_calls:
        return (
            "an Nsight Systems export with CUDA calls but no kernels: the device was not traced",
            "record with an nsys as new as the driver, and end the capture before the program ends",
        )
    if has_ranges:
        return "an Nsight Systems export with NVTX ranges only: CUDA was not traced", f"record with {_EXPORT}"
    return (
        "an Nsight Systems export without any events: aborted, or of a program that used no device",
        f"export again with nsys export --type sqlite, or record with {_EXPORT}",
    )


def _as_rank(trace: Trace, rank: int, ranks: int) -> Trace:
    return replace(trace, rank=rank, world_size=trace.world_size or ranks)

"""rocprofv3's JSON: records of each process, decoded into the few fields that matter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from stepgrade.decoding import from_builtins
from stepgrade.model.events import NONE, Trace, TraceDevice
from stepgrade.readers.processes import Events, copy_direction
from stepgrade.readers.rocprof.tables import traces_of
from stepgrade.readers.source import ByteSource

_GPU: Final = 2
# Of a record of 850 bytes, ten numbers and their objects stay.
_MEMORY_PER_BYTE: Final = 3
_MOST: Final = (1 << 62) - 1
_MOST_DIGITS: Final = 20  # of a number of 64 bits


class _Handle(Struct, frozen=True):
    handle: int = 0


class _Correlation(Struct, frozen=True):
    internal: int = NONE


class _Dispatch(Struct, frozen=True):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = NONE


class _Record(Struct, frozen=True):
    """One record of any kind."""

    start_timestamp: int = 0
    end_timestamp: int = 0
    thread_id: int = 0
    operation: int = NONE
    kind: int = NONE
    correlation_id: _Correlation = _Correlation()
    dispatch_info: _Dispatch | None = None
    stream_id: _Handle | None = None
    dst_agent_id: _Handle | None = None
    src_agent_id: _Handle | None = None
    bytes: int = NONE


class _Records(Struct, frozen=True):
    kernel_dispatch: list[_Record] = []
    hip_api: list[_Record] = []
    marker_api: list[_Record] = []
    memory_copy: list[_Record] = []


class _Bank(Struct, frozen=True):
    size_in_bytes: int = 0


class _Agent(Struct, frozen=True):
    id: _Handle = _Handle()
    type: int = 0
    logical_node_type_id: int = NONE
    product_name: str = ""
    name: str = ""
    cu_count: int = 0
    mem_banks: list[_Bank] = []


class _Symbol(Struct, frozen=True):
    kernel_id: int = NONE
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _Operations(Struct, frozen=True):
    operations: list[str] = []


class _Text(Struct, frozen=True):
    key: int = NONE
    value: str = ""


class _Strings(Struct, frozen=True):
    buffer_records: list[_Operations] = []
    marker_api: Any = None


class _Metadata(Struct, frozen=True):
    pid: int = 0


class _Process(Struct, frozen=True):
    """The fields of a process that are kept; not its command, node or configuration."""

    metadata: _Metadata = _Metadata()
    agents: list[_Agent] = []
    strings: _Strings = _Strings()
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = _Records()


class _File(Struct, frozen=True, rename={"processes": "rocprofiler-sdk-tool"}):
    processes: list[_Process]


def read_traces(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each process."""
    file = source.decoded(_File, "rocprofv3's JSON", _MEMORY_PER_BYTE)
    events = Events()
    devices: dict[int, tuple[TraceDevice, ...]] = {}
    for process in file.processes:
        pid = process.metadata.pid & 0x7FFFFFFF
        gpus = [agent for agent in process.agents if agent.type == _GPU]
        node_ids = [agent.logical_node_type_id for agent in gpus]
        are_ordinals = len(set(node_ids)) == len(node_ids) and all(0 <= node < 1 << 16 for node in node_ids)
        ordinals = node_ids if are_ordinals else range(len(gpus))
        numbers = {agent.id.handle: number for agent, number in zip(gpus, ordinals, strict=True)}
        devices[pid] = tuple(
            TraceDevice(
                index=numbers[agent.id.handle],
                name=(agent.product_name or agent.name)[:200] or None,
                memory_bytes=sum(bank.size_in_bytes for bank in agent.mem_banks) or None,
                sm_count=agent.cu_count or None,
            )
            for agent in gpus
        )
        records = process.buffer_records
        symbols = {
            symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name or "?"
            for symbol in process.kernel_symbols
        }
        infos = [record.dispatch_info or _Dispatch() for record in records.kernel_dispatch]
        names, kinds = events.kernels(symbols.get(info.kernel_id, "?") for info in infos)
        events.add(
            "work",
            process=pid,
            name=names,
            kind=kinds,
            device=[numbers.get(info.agent_id.handle, 0) for info in infos],
            stream=[info.queue_id.handle & _MOST for info in infos],
            **_columns(records.kernel_dispatch),
        )
        copies = records.memory_copy
        found = [copy_direction(_operation(process, record)) for record in copies]
        handles = (
            [each.handle for each in (record.dst_agent_id, record.src_agent_id) if each] for record in copies
        )
        events.add(
            "work",
            process=pid,
            name=[word for _, word in found],
            kind=[kind for kind, _ in found],
            device=[next((numbers[key] for key in keys if key in numbers), 0) for keys in handles],
            stream=[record.stream_id.handle & _MOST if record.stream_id else NONE for record in copies],
            bytes=[_time(record.bytes) for record in copies],
            **_columns(copies),
        )
        events.add(
            "calls",
            process=pid,
            name=[_operation(process, record) for record in records.hip_api],
            thread=[record.thread_id & _MOST for record in records.hip_api],
            **_columns(records.hip_api),
        )
        texts = _marker_texts(process.strings.marker_api)
        for record in records.marker_api:
            if record.end_timestamp > record.start_timestamp:
                message = texts.get(record.correlation_id.internal) or _operation(process, record)
                start, end = _time(record.start_timestamp), _time(record.end_timestamp)
                events.annotate(pid, record.thread_id & _MOST, start, end, message)
    del file
    return traces_of(events, source.name, "rocprofv3 JSON", lambda pid: devices.get(pid, ()))


def _time(value: int) -> int:
    return min(max(value, -_MOST), _MOST)


def _columns(records: Sequence[_Record]) -> dict[str, Any]:
    return {
        "start": [_time(record.start_timestamp) for record in records],
        "end": [_time(record.end_timestamp) for record in records],
        "correlation": [record.correlation_id.internal & _MOST for record in records],
    }


def _operation(process: _Process, record: _Record) -> str:
    kinds = process.strings.buffer_records
    operations = kinds[record.kind].operations if 0 <= record.kind < len(kinds) else []
    return operations[record.operation] if 0 <= record.operation < len(operations) else "?"


def _marker_texts(found: Any) -> dict[int, str]:
    """Return the texts of roctx ranges by correlation, written as pairs of key and value or as an object."""
    if isinstance(found, dict):
        pairs = ((str(key), text) for key, text in found.items() if isinstance(text, str))
        return {int(key): text for key, text in pairs if key.isdecimal() and len(key) < _MOST_DIGITS}
    try:
        return {text.key: text.value for text in from_builtins(found or [], list[_Text])}
    except msgspec.ValidationError:
        return {}

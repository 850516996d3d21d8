"""Columns of a whole file into the traces of its ranks, sorted by time and with a common zero."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.columns import distinct, narrow, order_by_start
from stepgrade.model.events import (
    NONE,
    DeviceCounters,
    DeviceEvent,
    DeviceRanges,
    DeviceWork,
    HostCalls,
    HostFrames,
    HostOps,
    HostRanges,
    Ids,
    Inputs,
    KernelLaunch,
    MemoryEvents,
    Profiler,
    Trace,
    TraceThread,
)
from stepgrade.readers.kineto import categories
from stepgrade.readers.kineto.header import Header
from stepgrade.readers.kineto.tables import EventTable, Tables, split_inputs

Columns: TypeAlias = dict[str, NDArray[Any]]

_MODELS: Final = {
    "ops": HostOps,
    "calls": HostCalls,
    "work": DeviceWork,
    "ranges": HostRanges,
    "frames": HostFrames,
    "device_ranges": DeviceRanges,
    "memory": MemoryEvents,
    "counters": DeviceCounters,
}
# Columns that index tables shared by the whole file.
_REFERENCES: Final = {
    "name": "strings",
    "thread": "threads",
    "inputs": "inputs",
    "collective": "collectives",
    "launch": "launches",
}
_BLOCK: Final = re.compile(rb"\[\s*(\d{1,5})\s*,\s*(\d{1,5})\s*,\s*(\d{1,5})\s*\]")
# Epoch times are above 10**18 ns; clocks that start with the machine stay far below.
_EPOCH_NS: Final = 10**18
PROFILER: Final = Profiler(
    format="kineto",
    producer="torch.profiler",
    mark_steps="Call prof.step() once in each iteration while recording.",
    record_operations="Record ProfilerActivity.CPU.",
    record_device="Record ProfilerActivity.CUDA.",
    record_layers="Record with with_stack=True.",
)
_COPY_WORDS: Final = (
    (DeviceEvent.COPY_H2D, ("HtoD", "HostToDevice")),
    (DeviceEvent.COPY_D2H, ("DtoH", "DeviceToHost")),
    (DeviceEvent.COPY_D2D, ("DtoD", "DeviceToDevice", "PtoP", "PeerToPeer")),
)


class FileFacts(Struct, frozen=True, kw_only=True):
    """What is known about the file besides its events."""

    name: str
    header: Header
    is_list: bool
    text_times: bool
    lost: tuple[str, ...]


def assemble(tables: Tables, facts: FileFacts) -> list[Trace]:
    """Return one trace for each rank that the file holds, in order; none if it holds no events."""
    columns = {name: _take_sorted(tables.tables[name]) for name in _MODELS}
    # Functions that were running when recording began started long before it.
    starts = [
        table["start_ns"].min()
        for name, table in columns.items()
        if len(table["start_ns"]) and name not in {"frames", "memory", "counters"}
    ]
    if not starts:
        return []
    zero_ns = int(min(starts))
    for table in columns.values():
        table["start_ns"] -= zero_ns
    found = {rank for table in columns.values() for rank in distinct(table["rank"]).tolist()}
    ranks = sorted(found - {NONE})
    # Threads are compared by their ids as text: traces of 2021 have the same id as text and as a number.
    labels = [(str(process), str(thread)) for process, thread in tables.threads]
    threads = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    for name in ("ops", "calls", "ranges", "frames", "memory"):
        _renumber(columns[name], "thread", [threads[label] for label in labels])
    inputs, strings, counts = (
        _renumber_inputs(tables, (columns["ops"], columns["ranges"])),
        tuple(tables.strings),
        tables.categories,
    )
    if counts[categories.LEGACY_KERNELS]:
        columns["work"] = _innermost(columns["work"])
    _set_copy_directions(columns["work"], strings)
    # The settings that the events themselves prove.
    evidence = {
        "shapes": any(len(shapes.dims) > 2 for shapes in inputs),
        "stacks": any(counts[category] for category in categories.FRAME_CATEGORIES),
        "memory": counts[categories.MEMORY_CATEGORY] > 0,
        "modules": any(text.startswith(categories.MODULE_PREFIX) for text in strings),
    }
    header, base_ns = facts.header, zero_ns if zero_ns > _EPOCH_NS else None
    shared: dict[str, Any] = {
        "file": facts.name,
        "profiler": PROFILER,
        "world_size": header.world_size,
        "backend": header.backend,
        "base_ns": base_ns if header.base_ns is None else header.base_ns + zero_ns,
        "file_zero_ns": zero_ns,
        "devices": header.devices,
        "versions": header.versions,
        "strings": strings,
        "inputs": inputs,
        "collectives": tuple(tables.collectives),
        "launches": tuple(launch_of(*launch) for launch in tables.launches),
        "threads": tuple(
            TraceThread(process=process, thread=thread, name=tables.thread_names.get((process, thread)))
            for process, thread in threads
        ),
        "recorded": header.recorded | {name for name, is_proven in evidence.items() if is_proven},
        "era": categories.era_name(
            is_list=facts.is_list,
            keys=header.names,
            categories=counts,
            text_times=facts.text_times,
            merged=bool(ranks),
        ),
        "lost": facts.lost,
        "categories": {name: n for name, n in sorted(counts.items()) if name in categories.SEEN_CATEGORIES},
    }
    if len(ranks) < 2:
        return [Trace(rank=ranks[0] if ranks else header.rank, **shared, **_models(columns))]
    # Sorted once, the rows of a rank are contiguous.
    for table in columns.values():
        by_rank = np.argsort(table["rank"], kind="stable")
        table.update({field: column[by_rank] for field, column in table.items()})
    return [Trace(rank=rank, **(shared | _of_rank(columns, shared, rank))) for rank in ranks]


def _innermost(work: Columns) -> Columns:
    """Return the rows without those that nested rows mostly fill: operations, not kernels."""
    order = np.lexsort((-work["dur_ns"], work["start_ns"], work["device"]))
    ends = (work["start_ns"] + work["dur_ns"]).tolist()
    starts, devices, lengths = (work[name].tolist() for name in ("start_ns", "device", "dur_ns"))
    filled = [0] * len(order)
    around: list[int] = []
    for row in order.tolist():
        while around and (devices[around[-1]] != devices[row] or ends[around[-1]] <= starts[row]):
            around.pop()
        if around:
            filled[around[-1]] += lengths[row]
        around.append(row)
    kept = np.flatnonzero(2 * np.array(filled) <= work["dur_ns"])
    return {name: column[kept] for name, column in work.items()}


def _models(columns: dict[str, Columns]) -> dict[str, Any]:
    """Return the tables as model types."""
    return {
        name: model(**{field: columns[name][field] for field in model.__struct_fields__})
        for name, model in _MODELS.items()
    }


def _of_rank(columns: dict[str, Columns], shared: dict[str, Any], rank: int) -> dict[str, Any]:
    """Return the tables of one rank, and the shared entries that they use."""
    own: dict[str, Columns] = {}
    for name, table in columns.items():
        rows = slice(*np.searchsorted(table["rank"], (rank, rank + 1)))
        own[name] = {field: column[rows] for field, column in table.items()}
    kept: dict[str, Any] = {}
    for field, things in _REFERENCES.items():
        tables = [table for table in own.values() if field in table]
        used = distinct(np.concatenate([table[field] for table in tables]))
        used = used[used >= 0]
        for table in tables:
            indices = np.searchsorted(used, table[field]).astype(np.int32)
            table[field] = np.where(table[field] >= 0, indices, np.int32(NONE))
        kept[things] = tuple(shared[things][index] for index in used.tolist())
    return kept | _models(own)


def _take_sorted(table: EventTable) -> Columns:
    """Take the columns out of a table, sorted by start, longer first, in 32 bits if they fit."""
    start_ns, dur_ns = table.take("start_ns"), table.take("dur_ns")
    order = order_by_start(start_ns, dur_ns)
    in_order = bool((np.diff(order) > 0).all())
    columns = {"start_ns": start_ns, "dur_ns": narrow(dur_ns)}
    del start_ns, dur_ns
    for name in table.dtypes:
        column = columns[name] if name in columns else narrow(table.take(name))
        columns[name] = column if in_order else column[order]
    return columns


def launch_of(
    occupancy: float | None,
    blocks: float | None,
    registers: float | None,
    shared: float | None = None,
    block: bytes = b"",
) -> KernelLaunch:
    """Return how a kernel was launched. An occupancy of 0 means that Kineto could not compute it."""
    sound = [
        None if value is None or not 0 < value < 1 << 40 else value
        for value in (occupancy, blocks, registers)
    ]
    sizes = _BLOCK.fullmatch(block)
    return KernelLaunch(
        occupancy=None if sound[0] is None else min(sound[0] / 100.0, 1.0),
        blocks_per_sm=None if sound[1] is None else float(sound[1]),
        registers=None if sound[2] is None else int(sound[2]),
        block_threads=math.prod(map(int, sizes.groups())) or None if sizes else None,
        shared_bytes=None if shared is None or not 0 <= shared < 1 << 40 else int(shared),
    )


def _renumber_inputs(tables: Tables, host_tables: Sequence[Columns]) -> tuple[Inputs, ...]:
    kept: dict[Inputs, int] = {}
    indices = []
    for joined in tables.inputs:
        inputs = split_inputs(joined)
        indices.append(NONE if inputs is None else kept.setdefault(inputs, len(kept)))
    for table in host_tables:
        _renumber(table, "inputs", indices)
    return tuple(kept)


def _renumber(table: Columns, name: str, indices: list[int]) -> None:
    if indices != list(range(len(indices))):
        table[name] = np.array(indices, dtype=np.int32)[table[name]]


def _set_copy_directions(work: Columns, strings: tuple[str, ...]) -> None:
    """Set the kind of each copy by its name."""
    copies = work["kind"] == DeviceEvent.COPY_OTHER
    if not copies.any():
        return
    names: Ids = work["name"][copies]
    kinds_by_name = dict.fromkeys(distinct(names).tolist(), DeviceEvent.COPY_OTHER)
    for name in kinds_by_name:
        for kind, words in _COPY_WORDS:
            if any(word in strings[name] for word in words):
                kinds_by_name[name] = kind
                break
    kinds = work["kind"].copy()
    kinds[copies] = [kinds_by_name[name] for name in names.tolist()]
    work["kind"] = kinds

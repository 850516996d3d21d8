"""The bytes of one trace file to the traces of its ranks, sorted by time and with a common zero."""

from __future__ import annotations

import math
import mmap
import os
import re
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stepgrade.errors import BadInput
from stepgrade.model.columns import distinct, narrow, order_by_start
from stepgrade.model.events import NONE, DeviceEvent, Inputs, KernelLaunch, Profiler, Trace, TraceThread
from stepgrade.readers import compiled
from stepgrade.readers.kineto import categories, chunks
from stepgrade.readers.kineto.chunks import ChunkReader, Splitter, WorkerLost
from stepgrade.readers.kineto.header import MAX_TAIL_BYTES, Head, fields_of, read_head, read_tail
from stepgrade.readers.kineto.tables import INPUT_SEPARATOR, MODELS, REFERENCES, EventTable, Tables
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.readers.kineto.workers import Worker

Columns: TypeAlias = dict[str, NDArray[Any]]

_BYTES_WORTH_A_PROCESS: Final = 50_000_000
_MOST_PROCESSES: Final = 4
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
_COPY_WORDS: Final = {
    DeviceEvent.COPY_H2D: ("HtoD", "HostToDevice"),
    DeviceEvent.COPY_D2H: ("DtoH", "DeviceToHost"),
    DeviceEvent.COPY_D2D: ("DtoD", "DeviceToDevice", "PtoP", "PeerToPeer"),
}


def read_traces(source: ByteSource, processes: int | None = None) -> list[Trace]:
    """Return a trace for each rank that the file holds: one, except for merged files.

    `processes` is how many may read at once; the default depends on the file's size, and is one with the
    compiled lane, which reads faster than another process starts.
    """
    if processes is None:
        processes = 1
        if compiled.load() is None and os.name == "posix" and sys.executable and source.can_restart:
            # A process reads about 50 MB in the time that another takes to start.
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            worth = source.expected_text_bytes // _BYTES_WORTH_A_PROCESS
            processes = max(1, min(cores, _MOST_PROCESSES, worth))
    try:
        reader, head, tail = _read_file(source, processes)
    except WorkerLost:
        source.restart()
        reader, head, tail = _read_file(source, 1)
    traces = _assemble(source, reader, head, tail)
    if processes > 1:
        # Return freed memory to the system: the allocator would keep a third of it.
        # Only Linux supports this; elsewhere, or without ctypes, nothing is lost.
        with suppress(ImportError, OSError, TypeError, AttributeError):
            import ctypes  # small traces should not wait for it

            ctypes.CDLL(None).malloc_trim(0)
    return traces


def _read_file(source: ByteSource, processes: int) -> tuple[ChunkReader, Head, bytes | None]:
    """Read all chunks; return also the text before and after the array of events, None if it never closes."""
    reader = ChunkReader(source.memory_bytes)
    with ExitStack() as stack:
        head = read_head(source)
        workers: list[Worker] = []
        if processes < 2:
            buffer = mmap.mmap(-1, chunks.SLOT_BYTES)
        else:
            # Small traces should not wait for the modules that only large ones need.
            from stepgrade.readers.kineto.workers import start

            buffer, workers = start(processes, source.memory_bytes // processes, stack)
        splitter = Splitter(source, head.text, head.offset, buffer)
        tail = None
        while chunk := splitter.next_chunk():
            if any(worker.offer(chunk, splitter.free) for worker in workers):
                continue
            reader.read(chunk.view, chunk.offset)
            if reader.end is not None:
                rest = bytes(chunk.view[reader.end - chunk.offset + 1 : -1])
                tail = rest + splitter.text_after(MAX_TAIL_BYTES)
                break
            if chunk.slot is not None:
                splitter.free.append(chunk.slot)
        else:
            reader.read_pieces(splitter.rest, splitter.offset)
            if reader.end is not None:
                tail = splitter.rest[reader.end - splitter.offset :]
        for worker in workers:
            worker.finish(reader)
    return reader, head, tail


def _assemble(source: ByteSource, reader: ChunkReader, head: Head, tail: bytes | None) -> list[Trace]:
    """Return a trace for each rank; raise BadInput if there are no events."""
    tail_keys, tail_lost = read_tail(head, tail)
    damage = f"{source.damage} (after {source.text_bytes} bytes of text)" if source.damage else None
    losses = sorted(reader.losses.items(), key=lambda loss: -loss[1][0])
    lost = (
        *(note for note in (damage, head.lost, tail_lost) if note),
        *(
            f"{count} event{'s' * (count > 1)} left out, {reason}, the first at byte {first} of the text"
            for reason, (count, first) in losses
        ),
    )
    tables, keys = reader.tables, head.keys | tail_keys
    columns = {name: _take_sorted(table) for name, table in tables.tables.items()}
    # Functions that were running when recording began started long before it.
    starts = [
        table["start_ns"].min()
        for name, table in columns.items()
        if len(table["start_ns"]) and name not in {"frames", "memory", "counters"}
    ]
    if not starts:
        hint = "; ".join(lost) or "was it exported after the schedule had ended, or before it began?"
        raise BadInput("contains no events of the PyTorch profiler", where=source.name, hint=hint)
    zero_ns = int(min(starts))
    for table in columns.values():
        table["start_ns"] -= zero_ns
    # Traces do not record the PyTorch version: their content shows the era.
    is_merged = any(table["rank"].max(initial=NONE) > NONE for table in columns.values())
    eras = (
        (head.is_list, "2020"),
        (is_merged and not keys, "merged"),
        ("baseTimeNanoseconds" in keys, "2024-05"),
        (reader.text_times, "2024-04"),
        (categories.CAPITALISED & tables.categories.keys(), "2021"),
        (categories.OLD_FLOWS & tables.categories.keys(), "2022"),
        (True, "2023"),
    )
    header, evidence = fields_of(keys), _tidy(tables, columns)
    base_ns = header.pop("base_ns")
    if base_ns is None:
        base_ns = 0 if zero_ns > _EPOCH_NS else None
    shared = {
        **header,
        **evidence,
        "file": source.name,
        "profiler": PROFILER,
        "base_ns": None if base_ns is None else base_ns + zero_ns,
        "file_zero_ns": zero_ns,
        "recorded": header["recorded"] | evidence["recorded"],
        "era": next(name for holds, name in eras if holds),
        "lost": lost,
    }
    return _by_rank(columns, shared)


def _tidy(tables: Tables, columns: dict[str, Columns]) -> dict[str, Any]:
    """Return what the columns refer to, and the settings they prove; columns are renumbered and cleaned."""
    # Threads are compared by their ids as text: traces of 2021 have the same id as text and as a number.
    labels = [(str(process), str(thread)) for process, thread in tables.threads]
    threads = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    inputs: dict[Inputs, int] = {}
    input_ids = []
    for joined in tables.inputs:
        *parts, backend = joined.split(INPUT_SEPARATOR)
        dims, dims_old, types, concrete, strides = (part or b"[]" for part in parts)
        dims = dims_old if dims == b"[]" else dims
        found = Inputs(
            dims=dims, types=types, concrete=concrete, strides=strides, is_triton=backend == b'"triton"'
        )
        is_empty = dims == types == concrete == b"[]"
        input_ids.append(NONE if is_empty else inputs.setdefault(found, len(inputs)))
    for name, indices in (("thread", [threads[label] for label in labels]), ("inputs", input_ids)):
        for table in columns.values():
            if name in table and indices != [*range(len(indices))]:
                table[name] = np.array(indices, dtype=np.int32)[table[name]]
    strings, counts = tuple(tables.strings), tables.categories
    if counts[categories.LEGACY_KERNELS]:
        columns["work"] = _innermost(columns["work"])
    work = columns["work"]
    copies = work["kind"] == DeviceEvent.COPY_OTHER
    if copies.any():  # whose names have the direction
        kinds = np.full(len(strings), DeviceEvent.COPY_OTHER, np.int8)
        for name in distinct(work["name"][copies]).tolist():
            matches = (kind for kind, words in _COPY_WORDS.items() if any(w in strings[name] for w in words))
            kinds[name] = next(matches, DeviceEvent.COPY_OTHER)
        work["kind"] = np.where(copies, kinds[work["name"]], work["kind"])
    proven = {
        "shapes": any(len(shapes.dims) > 2 for shapes in inputs),
        "stacks": any(counts[category] for category in categories.FRAME_CATEGORIES),
        "memory": counts[categories.MEMORY_CATEGORY] > 0,
        "modules": any(text.startswith(categories.MODULE_PREFIX) for text in strings),
    }
    return {
        "strings": strings,
        "inputs": tuple(inputs),
        "collectives": tuple(tables.collectives),
        "launches": tuple(_launch(*launch) for launch in tables.launches),
        "threads": tuple(
            TraceThread(process=process, thread=thread, name=tables.thread_names.get((process, thread)))
            for process, thread in threads
        ),
        "recorded": {name for name, is_proven in proven.items() if is_proven},
        "categories": {name: n for name, n in sorted(counts.items()) if name in categories.SEEN_CATEGORIES},
    }


def _by_rank(columns: dict[str, Columns], shared: dict[str, Any]) -> list[Trace]:
    """Return the trace of each rank in order, with only the shared entries that it uses."""
    found = {number for table in columns.values() for number in distinct(table["rank"]).tolist()}
    ranks = sorted(found - {NONE})
    if len(ranks) < 2:
        own_rank = {"rank": ranks[0]} if ranks else {}
        return [Trace(**(shared | _models(columns) | own_rank))]
    # Sorted once, the rows of a rank are contiguous.
    for table in columns.values():
        by_rank = np.argsort(table["rank"], kind="stable")
        table.update({field: column[by_rank] for field, column in table.items()})
    traces = []
    for number in ranks:
        own: dict[str, Columns] = {}
        for name, table in columns.items():
            rows = slice(*np.searchsorted(table["rank"], (number, number + 1)))
            own[name] = {field: column[rows] for field, column in table.items()}
        kept: dict[str, Any] = {}
        for field, things in REFERENCES.items():
            tables = [table for table in own.values() if field in table]
            used = distinct(np.concatenate([table[field] for table in tables]))
            used = used[used >= 0]
            for table in tables:
                indices = np.searchsorted(used, table[field]).astype(np.int32)
                table[field] = np.where(table[field] >= 0, indices, np.int32(NONE))
            kept[things] = tuple(shared[things][index] for index in used.tolist())
        traces.append(Trace(**(shared | kept | _models(own) | {"rank": number})))
    return traces


def _models(columns: dict[str, Columns]) -> dict[str, Any]:
    return {
        name: model(**{field: columns[name][field] for field in model.__struct_fields__})
        for name, model in MODELS.items()
    }


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


def _take_sorted(table: EventTable) -> Columns:
    """Take the columns out of a table, sorted by start, longer first, in 32 bits if they fit."""
    columns = {"start_ns": table.take("start_ns")}
    if "dur_ns" in table.dtypes:
        columns["dur_ns"] = narrow(table.take("dur_ns"))
        order = order_by_start(columns["start_ns"], columns["dur_ns"])
    else:
        order = np.argsort(columns["start_ns"], kind="stable")
    in_order = bool((np.diff(order) > 0).all())
    for name in table.dtypes:
        column = columns[name] if name in columns else narrow(table.take(name))
        columns[name] = column if in_order else column[order]
    return columns


def _launch(
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

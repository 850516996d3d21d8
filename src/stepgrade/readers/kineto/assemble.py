"""Columns of a whole file into the traces of its ranks, in order of time and counted from one zero."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.columns import distinct
from stepgrade.model.events import (
    NONE,
    DeviceEvent,
    DeviceRanges,
    DeviceWork,
    HostCalls,
    HostOps,
    HostRanges,
    Ids,
    Inputs,
    Longs,
    Trace,
    TraceThread,
)
from stepgrade.readers.kineto import categories
from stepgrade.readers.kineto.header import Header
from stepgrade.readers.kineto.tables import Tables, split_inputs

Columns: TypeAlias = dict[str, NDArray[Any]]

_MODELS: Final = {
    "ops": HostOps,
    "calls": HostCalls,
    "work": DeviceWork,
    "ranges": HostRanges,
    "device_ranges": DeviceRanges,
}
# Times of today count 10**18 ns from 1970; clocks that start with the machine stay far below.
_EPOCH_NS: Final = 10**18
# On Windows numpy 1 adds 32-bit integers up in 32 bits.
_SUMS_ARE_LONG: Final = np.dtype(int).itemsize == 8
_COPY_WORDS: Final = (
    (DeviceEvent.COPY_H2D, ("HtoD", "HostToDevice")),
    (DeviceEvent.COPY_D2H, ("DtoH", "DeviceToHost")),
    (DeviceEvent.COPY_D2D, ("DtoD", "DeviceToDevice", "PtoP", "PeerToPeer")),
)


class FileFacts(Struct, frozen=True, kw_only=True):
    """What is known of the file beside its events."""

    name: str
    header: Header
    is_list: bool
    text_times: bool
    lost: tuple[str, ...]


def assemble(tables: Tables, facts: FileFacts) -> list[Trace]:
    """Return one trace for each rank that the file holds, in order; none if it holds no events."""
    columns = {name: _take_all(tables, name) for name in _MODELS}
    starts = [table["start_ns"].min() for table in columns.values() if len(table["start_ns"])]
    if not starts:
        return []
    zero_ns = int(min(starts))
    shared = _shared(tables, columns, facts, zero_ns)
    ranks = _ranks(columns)
    return [_trace(columns, rank, shared, facts, alone=len(ranks) == 1) for rank in ranks]


def _take_all(tables: Tables, name: str) -> Columns:
    table = tables.tables[name]
    columns: Columns = {"start_ns": table.take("start_ns"), "dur_ns": table.take("dur_ns")}
    order = _order(columns["start_ns"], columns["dur_ns"])
    columns = {key: _sorted(column, order) for key, column in columns.items()}
    columns["dur_ns"] = _narrow(columns["dur_ns"])
    for key in table.dtypes.keys() - columns.keys():
        columns[key] = _sorted(_narrow(table.take(key)), order)
    return columns


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    """Return the integers in 32 bits if all of them fit, as nearly always all but times do."""
    limits = np.iinfo(np.int32)
    if column.dtype != np.int64 or not _SUMS_ARE_LONG:
        return column
    fits = column.min(initial=0) >= limits.min and column.max(initial=0) <= limits.max
    return column.astype(np.int32) if fits else column


def _sorted(column: NDArray[Any], order: NDArray[np.intp] | None) -> NDArray[Any]:
    return column if order is None else column[order]


def _order(start_ns: Longs, dur_ns: Longs) -> NDArray[np.intp] | None:
    """Return the order by start, longer first among equals; None when the rows are in order already."""
    order = np.argsort(start_ns, kind="stable")
    starts, durs = start_ns[order], dur_ns[order]
    tied = starts[1:] == starts[:-1]
    if (tied & (durs[1:] > durs[:-1])).any():
        members = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
        order[members] = order[members[np.lexsort((-durs[members], starts[members]))]]
    elif (np.diff(order) > 0).all():
        return None
    return order


def _ranks(columns: dict[str, Columns]) -> list[int]:
    held = set()
    for table in columns.values():
        held.update(distinct(table["rank"]).tolist())
    return sorted(held - {NONE}) or [NONE]


def _trace(
    columns: dict[str, Columns], rank: int, shared: dict[str, Any], facts: FileFacts, *, alone: bool
) -> Trace:
    rows = {name: _of_rank(table, None if alone else rank) for name, table in columns.items()}
    tables = {
        name: model(**{f: rows[name][f] for f in model.__struct_fields__}) for name, model in _MODELS.items()
    }
    known = facts.header.rank if rank == NONE else rank
    return Trace(rank=known, **shared, **tables)


def _of_rank(table: Columns, rank: int | None) -> Columns:
    if rank is None:
        return table
    mine = table["rank"] == rank
    return {name: column[mine] for name, column in table.items()}


def _shared(tables: Tables, columns: dict[str, Columns], facts: FileFacts, zero_ns: int) -> dict[str, Any]:
    """Return what all ranks of the file have in common, and point the columns into it."""
    for table in columns.values():
        table["start_ns"] -= zero_ns
    threads = _point_to_threads(tables, columns)
    inputs = _point_to_inputs(tables, columns["ops"])
    strings = tuple(tables.strings)
    _tell_copies_apart(columns["work"], strings)
    header = facts.header
    return {
        "file": facts.name,
        "world_size": header.world_size,
        "backend": header.backend,
        "base_ns": _base_ns(header.base_ns, zero_ns),
        "file_zero_ns": zero_ns,
        "devices": header.devices,
        "versions": header.versions,
        "strings": strings,
        "inputs": inputs,
        "collectives": tuple(tables.collectives),
        "threads": threads,
        "recorded": header.recorded | _evidence(tables, inputs),
        "era": _era(tables, facts, columns),
        "lost": facts.lost,
        "categories": {c: n for c, n in sorted(tables.categories.items()) if c in categories.SEEN_CATEGORIES},
    }


def _base_ns(base_ns: int | None, zero_ns: int) -> int | None:
    if base_ns is not None:
        return base_ns + zero_ns
    return zero_ns if zero_ns > _EPOCH_NS else None


def _era(tables: Tables, facts: FileFacts, columns: dict[str, Columns]) -> str:
    return categories.era_name(
        is_list=facts.is_list,
        keys=facts.header.names,
        categories=tables.categories,
        text_times=facts.text_times,
        merged=_ranks(columns) != [NONE],
    )


def _evidence(tables: Tables, inputs: tuple[Inputs, ...]) -> frozenset[str]:
    """Return the settings that the events themselves prove."""
    seen = tables.categories
    found = {
        "shapes": any(len(one.dims) > 2 for one in inputs),
        "stacks": any(seen[category] for category in categories.FRAME_CATEGORIES),
        "memory": seen[categories.MEMORY_CATEGORY] > 0,
        "modules": any(text.startswith(categories.MODULE_PREFIX) for text in tables.strings),
    }
    return frozenset(name for name, held in found.items() if held)


def _point_to_threads(tables: Tables, columns: dict[str, Columns]) -> tuple[TraceThread, ...]:
    """Tell threads by their ids as text: 2021 wrote the same id as text and as a number."""
    labels = [(str(process), str(thread)) for process, thread in tables.threads]
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    _renumber(
        [columns["ops"], columns["calls"], columns["ranges"]], "thread", [numbers[label] for label in labels]
    )
    names = tables.thread_names
    return tuple(TraceThread(process=p, thread=t, name=names.get((p, t))) for p, t in numbers)


def _point_to_inputs(tables: Tables, ops: Columns) -> tuple[Inputs, ...]:
    kept: dict[Inputs, int] = {}
    places = []
    for joined in tables.inputs:
        dims, types, concrete = split_inputs(joined)
        bare = dims == types == concrete == b"[]"
        inputs = Inputs(dims=dims, types=types, concrete=concrete)
        places.append(NONE if bare else kept.setdefault(inputs, len(kept)))
    _renumber([ops], "inputs", places)
    return tuple(kept)


def _renumber(tables: list[Columns], name: str, places: list[int]) -> None:
    if places == list(range(len(places))):
        return
    lookup = np.array(places, dtype=np.int32)
    for table in tables:
        table[name] = lookup[table[name]]


def _tell_copies_apart(work: Columns, strings: tuple[str, ...]) -> None:
    copies = work["kind"] == DeviceEvent.COPY_OTHER
    if not copies.any():
        return
    names: Ids = work["name"][copies]
    ways = {name: _copy_kind(strings[name]) for name in distinct(names).tolist()}
    kinds = work["kind"].copy()
    kinds[copies] = [ways[name] for name in names.tolist()]
    work["kind"] = kinds


def _copy_kind(name: str) -> DeviceEvent:
    return next(
        (kind for kind, words in _COPY_WORDS if any(w in name for w in words)), DeviceEvent.COPY_OTHER
    )

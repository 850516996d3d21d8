"""Events of one chunk, sorted by kind into columns that grow chunk by chunk."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import chain
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from stepgrade.model.events import (
    NONE,
    Collective,
    DeviceCounters,
    DeviceEvent,
    DeviceRanges,
    DeviceWork,
    HostCalls,
    HostFrames,
    HostOps,
    HostRanges,
    Ids,
    Longs,
    MemoryEvents,
    RangeKind,
)
from stepgrade.naming.python_frames import read_frame, without_address
from stepgrade.readers.kineto import categories
from stepgrade.readers.kineto.decode import Args, Clock, Event, Json, from_ns

Key = TypeVar("Key")
Events: TypeAlias = Sequence[Event]
Batch: TypeAlias = dict[str, Any]
Sorted: TypeAlias = dict[str, list[Event]]

BLOCK_ROWS: Final = 1 << 18
# The tables of a Trace; ours have the same columns, and the rank.
MODELS: Final = {
    "ops": HostOps,
    "calls": HostCalls,
    "ranges": HostRanges,
    "frames": HostFrames,
    "work": DeviceWork,
    "device_ranges": DeviceRanges,
    "memory": MemoryEvents,
    "counters": DeviceCounters,
}
# Columns of indices, and the fields of Tables and of Trace that they refer to.
REFERENCES: Final = {
    "name": "strings",
    "thread": "threads",
    "inputs": "inputs",
    "collective": "collectives",
    "launch": "launches",
}
_HOST_TABLES: Final = ("ops", "calls", "ranges", "frames")
_LONG: Final = np.dtype(np.int64)
_INDEX_DTYPES: Final = dict.fromkeys((*REFERENCES, "rank"), np.dtype(np.int32))
_DTYPES: Final[dict[str, np.dtype[Any]]] = _INDEX_DTYPES | {
    "device": np.dtype(np.int32),
    "kind": np.dtype(np.int8),
    "value": np.dtype(np.float64),
}
# Columns of each table that are copied from arguments; comprehensions are twice as fast as attrgetter.
_COPIED: Final[dict[str, dict[str, Callable[[Sequence[Args]], list[Json]]]]] = {
    "ops": {
        "sequence": lambda args: [arg.sequence for arg in args],
        "forward_thread": lambda args: [arg.forward_thread for arg in args],
    },
    "calls": {"correlation": lambda args: [arg.correlation for arg in args]},
    "ranges": {
        "python_id": lambda args: [arg.python_id for arg in args],
        "python_parent": lambda args: [arg.python_parent for arg in args],
    },
    "work": {
        "correlation": lambda args: [arg.correlation for arg in args],
        "bytes": lambda args: [arg.size for arg in args],
    },
    "memory": {
        "kind": lambda args: [arg.memory_kind for arg in args],
        "device": lambda args: [arg.memory_device for arg in args],
        "bytes": lambda args: [arg.memory_bytes for arg in args],
        "address": lambda args: [arg.address for arg in args],
        "allocated": lambda args: [arg.allocated for arg in args],
        "reserved": lambda args: [arg.reserved for arg in args],
        "order": lambda args: [arg.order for arg in args],
    },
}
# Which categories become rows of which table and kind; tables of the host come first.
ROWS: Final = (
    ("ops", 0, categories.OP_CATEGORIES),
    ("calls", 0, categories.CALL_CATEGORIES),
    ("ranges", RangeKind.ANNOTATION, categories.ANNOTATION_CATEGORIES),
    ("ranges", RangeKind.OVERHEAD, categories.OVERHEAD_CATEGORIES),
    ("frames", 0, ()),
    ("work", DeviceEvent.KERNEL, categories.KERNEL_CATEGORIES),
    ("work", DeviceEvent.COPY_OTHER, categories.COPY_CATEGORIES),  # the direction is in the name
    ("work", DeviceEvent.MEMSET, categories.MEMSET_CATEGORIES),
    ("device_ranges", 0, categories.DEVICE_RANGE_CATEGORIES),
)
LONG_FRAME_US: Final = 100.0  # shorter library frames explain no wait
# Measured from the file to the written result, and rounded up.
ROW_BYTES: Final = 200
_NAME_BYTES: Final = 2000  # each may be an operation of the result
_THING_BYTES: Final = 500
_CHARACTER_BYTES: Final = 4
# Inputs are numbered by their joined texts; a NUL cannot occur in JSON.
INPUT_SEPARATOR: Final = b"\0"
_FIGURES: Final = frozenset((int, float, bytes, type(None)))
_COUNTERS_OF: Final = re.compile(r"GPU (\d{1,4}) Counters\Z")
_LARGEST_VALUE: Final = 1e300
_LONGEST_BLOCK: Final = 64  # of the text [x, y, z]


class Interner(dict[Key, int], Generic[Key]):
    """Number each new key; `interner[key]` is its number."""

    text_bytes = 0  # of the keys that are text

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        if isinstance(key, str | bytes):
            self.text_bytes += len(key)
        return number


class EventTable:
    """Equally long columns, in blocks large enough that freed ones go back to the system."""

    def __init__(self, dtypes: dict[str, np.dtype[Any]]) -> None:
        self.dtypes = dtypes
        self.row_count = 0
        self._blocks: dict[str, list[NDArray[Any]]] = {name: [] for name in dtypes}

    def append(self, batch: Batch) -> None:
        """Add a batch that has every column."""
        columns = {name: np.frombuffer(batch[name], dtype=dtype) for name, dtype in self.dtypes.items()}
        count, done = len(columns["start_ns"]), 0
        while done < count:
            low = self.row_count % BLOCK_ROWS
            part = min(count - done, BLOCK_ROWS - low)
            for name, column in columns.items():
                if low == 0:
                    self._blocks[name].append(np.empty(BLOCK_ROWS, dtype=self.dtypes[name]))
                self._blocks[name][-1][low : low + part] = column[done : done + part]
            self.row_count += part
            done += part

    def take_blocks(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Return the rows block by block and forget them."""
        for low in range(0, self.row_count, BLOCK_ROWS):
            count = min(BLOCK_ROWS, self.row_count - low)
            yield {name: blocks.pop(0)[:count] for name, blocks in self._blocks.items()}

    def take(self, name: str) -> NDArray[Any]:
        """Return one column and forget it."""
        blocks = self._blocks.pop(name)
        whole = np.empty(self.row_count, dtype=self.dtypes[name])
        for low in range(0, self.row_count, BLOCK_ROWS):
            part = whole[low : low + BLOCK_ROWS]
            part[:] = blocks.pop(0)[: len(part)]
        return whole


class Tables:
    """Everything that was read so far, in columns."""

    def __init__(self) -> None:
        self.strings: Interner[str] = Interner()
        self.threads: Interner[tuple[Json, Json]] = Interner()
        self.inputs: Interner[bytes] = Interner()
        self.collectives: Interner[Collective] = Interner()
        self.launches: Interner[tuple[Any, ...]] = Interner()
        self.thread_names: dict[tuple[str, str], str] = {}
        self.pid_ranks: dict[Json, int] = {}
        self.categories: Counter[str] = Counter()
        self.tables = {}
        for name, model in MODELS.items():
            dtypes = _INDEX_DTYPES if name == "memory" else _DTYPES
            columns = (*model.__struct_fields__, "rank")
            self.tables[name] = EventTable({column: dtypes.get(column, _LONG) for column in columns})

    @property
    def memory_bytes(self) -> int:
        """Return an upper bound of the memory used until the result is written."""
        rows = sum(table.row_count for table in self.tables.values())
        things: tuple[Sized, ...] = (
            self.threads,
            self.inputs,
            self.collectives,
            self.launches,
            self.thread_names,
            self.categories,
        )
        return (
            rows * ROW_BYTES
            + len(self.strings) * _NAME_BYTES
            + sum(len(each) for each in things) * _THING_BYTES
            + (self.strings.text_bytes + self.inputs.text_bytes) * _CHARACTER_BYTES
        )

    def add(self, events: Iterable[Event], clock: Clock) -> None:
        """Add the events of one chunk, all or (raising ValueError, TypeError or NeedsText) none."""
        by_category: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        _categorise(by_category)
        rows, kinds = _rows(by_category, LONG_FRAME_US * (1000 if clock is from_ns else 1))
        instants = _pick(by_category, (categories.MEMORY_CATEGORY, ""))
        allocations = [event for event in instants if categories.is_allocation(event.name, event.ph)]
        batches: dict[str, Batch] = {}  # all are made before any is added
        if allocations:
            args = [event.args for event in allocations]
            batches["memory"] = _copied("memory", args) | {
                "start_ns": clock([event.ts for event in allocations]),
                "rank": self._rank_column(allocations, args),
                "thread": self._threads(allocations),
            }
        if samples := by_category.get(categories.COUNTER_CATEGORY):
            batches |= self._counter_columns(samples, clock)
        batches |= self._columns(rows, kinds, clock)
        for name, batch in batches.items():
            self.tables[name].append(batch)
        self.categories.update({category: len(those) for category, those in by_category.items()})
        self.categories[categories.MEMORY_CATEGORY] += sum(not event.cat for event in allocations)
        for event in by_category.get("", ()):
            if event.ph == "M" and event.name == "thread_name" and isinstance(event.args.label, str):
                self.thread_names.setdefault((str(event.pid), str(event.tid)), event.args.label)

    def _columns(self, rows: Sorted, kinds: Batch, clock: Clock) -> dict[str, Batch]:
        """Return the columns of each table; those that all have are made at once, because calls are slow."""
        events = [event for those in rows.values() for event in those]
        if not events:
            return {}
        args = [event.args for event in events]
        durations = clock([event.dur for event in events])
        if durations.min() < 0:
            raise ValueError("a negative duration")
        host_count = sum(len(rows[name]) for name in _HOST_TABLES)
        on_device, device_args = events[host_count:], args[host_count:]
        devices = _filled([arg.device for arg in device_args], lambda row: on_device[row].pid)
        common: Batch = {
            "name": array("i", map(self.strings.__getitem__, [event.name for event in events])),
            "start_ns": clock([event.ts for event in events]),
            "dur_ns": durations,
            "external_id": _filled([arg.external for arg in args], lambda row: args[row].external_old),
            "rank": self._rank_column(events, args),
            "thread": self._threads(events[:host_count]),
        }
        on_device_only: Batch = {
            "device": _small(devices),
            "stream": _filled([arg.stream for arg in device_args], lambda row: on_device[row].tid),
        }
        found: dict[str, Batch] = {}
        low = 0
        for name, those in rows.items():
            part, low = slice(low, low + len(those)), low + len(those)
            if those:
                found[name] = {key: column[part] for key, column in common.items()}
                found[name] |= _copied(name, args[part])
                found[name]["kind"] = kinds[name]
                if name in ("ops", "ranges"):
                    texts = [
                        (a.dims, a.dims_old, a.types, a.concrete, a.strides, a.backend) for a in args[part]
                    ]
                    found[name]["inputs"] = array(
                        "i", [self.inputs[INPUT_SEPARATOR.join(text)] for text in texts]
                    )
                if name not in _HOST_TABLES:
                    own = slice(part.start - host_count, part.stop - host_count)
                    found[name] |= {key: column[own] for key, column in on_device_only.items()}
        if "work" in found:
            self._add_work_columns(found["work"], [event.args for event in rows["work"]])
        return found

    def _add_work_columns(self, work: Batch, args: Sequence[Args]) -> None:
        """Add what only work on the device has: collectives, launches, and the links of NPU kernels."""
        work["launch"] = array("i", self.launch_numbers(args))
        work["collective"] = array("i", [NONE]) * len(args)
        names = [arg.collective for arg in args]
        for index, arg in enumerate(args) if names.count(None) < len(names) else ():
            if arg.collective is not None:
                work["collective"][index] = self.collective_number(arg)
        if any(arg.task is not None for arg in args):
            # The flow to an NPU kernel has the kernel's start time as its id.
            is_npu = np.array([arg.task is not None for arg in args])
            ids = np.frombuffer(work["correlation"], dtype=np.int64)
            work["correlation"] = np.where(is_npu, work["start_ns"], ids)

    def launch_numbers(self, args: Sequence[Args]) -> list[int]:
        """Return the number of each kernel's launch; what is not a number counts as missing."""
        launches = [
            (arg.occupancy, arg.blocks_per_sm, arg.registers)
            if arg.occupancy != 0
            # The occupancy can be computed from these.
            else (0, arg.blocks_per_sm, arg.registers, arg.shared, bytes(arg.block)[:_LONGEST_BLOCK])
            for arg in args
        ]
        are_known = set(map(type, chain.from_iterable(launches))) <= _FIGURES
        return [
            self.launches[launch] if are_known or _FIGURES.issuperset(map(type, launch)) else NONE
            for launch in launches
        ]

    def collective_number(self, arg: Args) -> int:
        """Return the number of the collective that a kernel is of."""
        collective = Collective(
            name=_text(arg.collective),
            in_elements=_count(arg.in_elements),
            out_elements=_count(arg.out_elements),
            dtype=_text(arg.dtype),
            group_size=_count(arg.group_size),
            group=_text(arg.group),
            group_ranks=_text(arg.group_ranks),
            peer=_count(arg.target_rank if arg.collective == "send" else arg.source_rank),
        )
        return self.collectives[collective]

    def _counter_columns(self, events: Events, clock: Clock) -> dict[str, Batch]:
        """Return the samples of counters, without those that lack a device or a value."""
        samples = [
            (event, int(found[1]), float(value))
            for event in events
            if event.ph == "C"
            and isinstance(value := event.args.value, int | float)
            and not isinstance(value, bool)
            and abs(value) < _LARGEST_VALUE
            and (found := _COUNTERS_OF.match(str(event.pid)))
        ]
        if not samples:
            return {}
        those = [event for event, _, _ in samples]
        columns: Batch = {
            "name": array("i", [self.strings[event.name] for event in those]),
            "start_ns": clock([event.ts for event in those]),
            "rank": self._rank_column(those, [event.args for event in those]),
            "device": array("i", [device for _, device, _ in samples]),
            "value": array("d", [value for _, _, value in samples]),
        }
        return {"counters": columns}

    def _threads(self, events: Events) -> array[int]:
        processes, threads = [event.pid for event in events], [event.tid for event in events]
        # Nearly always one process has all the threads; then only those are looked up.
        if events and processes.count(processes[0]) == len(processes):
            number = {thread: self.threads[processes[0], thread] for thread in dict.fromkeys(threads)}
            return array("i", [number[thread] for thread in threads])
        return array("i", map(self.threads.__getitem__, zip(processes, threads, strict=True)))

    def _rank_column(self, events: Events, args: Sequence[Args]) -> array[int]:
        """Return the rank of each event of a merged file, by default its process's."""
        if args[0].rank == NONE == args[-1].rank and not self.pid_ranks:
            # Merging tools write the rank into every event, so checking two is enough.
            return array("i", [NONE]) * len(args)
        whole = _small(np.frombuffer(_longs([arg.rank for arg in args]), dtype=np.int64)).tolist()
        ranked = zip(events, whole, strict=True)
        self.pid_ranks.update({event.pid: rank for event, rank in ranked if rank != NONE})
        return array("i", [self.pid_ranks.get(event.pid, NONE) for event in events])


def _rows(by_category: Sorted, long_frame: float) -> tuple[Sorted, dict[str, array[int]]]:
    """Return the events of each table and their kinds.

    Python frames are kept if they are modules, the user's, or long.
    """
    rows: Sorted = {name: [] for name, _, _ in ROWS}
    kinds = {name: array("b") for name in rows}
    for table, kind, names in ROWS:
        events = _pick(by_category, names)
        rows[table] += events
        kinds[table].extend([int(kind)] * len(events))
    for frame in _pick(by_category, categories.FRAME_CATEGORIES):
        if frame.name.startswith(categories.MODULE_PREFIX):
            rows["ranges"].append(frame)
            kinds["ranges"].append(RangeKind.MODULE)
        elif _length(frame.dur) >= long_frame or is_of_user(frame.name):
            frame.name = without_address(frame.name)
            rows["frames"].append(frame)
    return rows, kinds


def is_of_user(frame: str) -> bool:
    """Tell whether a Python frame is the user's code."""
    return not frame.startswith("<built-in") and read_frame(frame).is_user


def _length(dur: object) -> float:
    """Return a duration in the event's unit; 0 if it is not a number."""
    if isinstance(dur, int | float):
        return float(dur)
    with suppress(TypeError, ValueError):
        return float(bytes(dur))  # type: ignore[call-overload]  # what has no bytes raises TypeError
    return 0.0


def _categorise(by_category: Sorted) -> None:
    """Move events that have no category or an ambiguous one to the category that they belong to."""
    operators, ranges = list[Event](), list[Event]()
    for event in by_category.get(categories.OPERATOR_CATEGORY, ()):
        inputs = event.args.dims, event.args.dims_old, event.args.types
        is_unqualified = "::" not in event.name and not any(map(bytes, inputs))
        is_range = is_unqualified or event.name.startswith(categories.ANNOTATION_PREFIXES)
        (ranges if is_range else operators).append(event)
    if ranges:
        by_category[categories.OPERATOR_RANGES] = ranges
        by_category[categories.OPERATOR_CATEGORY] = operators
    if on_mtia := by_category.get(categories.MTIA_KERNELS):
        working = [event for event in on_mtia if not categories.MTIA_WAIT.match(event.name)]
        by_category[categories.MTIA_KERNELS] = working
    for event in by_category.get("", ()):
        if event.ph != "X":
            continue
        category = categories.uncategorised(event.name, event.pid, event.args.task)
        if category is not None:
            by_category.setdefault(category, []).append(event)
            if category == categories.NPU_CALLS and isinstance(event.pid, int):
                event.pid //= 100  # threads of this process, shown under another one
    for event in by_category.get(categories.NPU_LAUNCHES, ()):
        if event.ph == "s":
            event.dur = Raw(b"0") if isinstance(event.ts, Raw) else 0
            event.args = Args(correlation=event.id)
            by_category.setdefault(categories.NPU_CALLS, []).append(event)


def _pick(by_category: Sorted, names: Iterable[str]) -> list[Event]:
    found = [by_category[name] for name in names if name in by_category]
    return found[0] if len(found) == 1 else [event for events in found for event in events]


def _copied(table: str, args: Sequence[Args]) -> Batch:
    return {name: _longs(values(args)) for name, values in _COPIED.get(table, {}).items()}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _longs(values: Sequence[Json]) -> array[int]:
    """Return ids as 64-bit integers; NONE for other values."""
    try:
        return array("q", cast("Sequence[int]", values))  # which checks them
    except (TypeError, OverflowError):
        return array("q", [_whole(value) for value in values])


def _small(values: Longs) -> Ids:
    """Return 64-bit ids as 32-bit ones, NONE where they do not fit."""
    narrow = values.astype(np.int32)
    return np.where(narrow == values, narrow, np.int32(NONE)).astype(np.int32)


def _whole(value: object) -> int:
    """Return an id as a signed 64-bit integer; equal ids stay equal."""
    number = NONE
    if isinstance(value, int):
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, str):
        digits = value.strip().removeprefix("stream").strip()
        if len(digits) <= 20 and digits.isascii():
            with suppress(ValueError):
                number = int(digits, 16 if digits.startswith("0x") else 10)
    if -(1 << 63) <= number < 1 << 63:
        return number
    return number - (1 << 64) if 0 < number < 1 << 64 else NONE


def _filled(values: Sequence[Json], spare: Callable[[int], Json]) -> Longs:
    """Return ids as 64-bit integers, with missing rows filled by `spare`."""
    ids = np.frombuffer(_longs(values), dtype=np.int64)
    rows = np.flatnonzero(ids == NONE)
    if len(rows):
        ids[rows] = np.frombuffer(_longs([spare(row) for row in rows.tolist()]), dtype=np.int64)
    return ids

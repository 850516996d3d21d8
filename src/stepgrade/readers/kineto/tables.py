"""Events of one chunk, sorted by kind into columns that grow chunk by chunk."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from msgspec import Raw
from numpy.typing import NDArray

from stepgrade.model.events import NONE, Collective, DeviceEvent, Ids, Inputs, Longs, RangeKind
from stepgrade.naming.python_frames import read_frame, without_address
from stepgrade.readers.kineto import categories
from stepgrade.readers.kineto.decode import Args, Clock, Event, Json, from_ns

Key = TypeVar("Key")
BLOCK_ROWS: Final = 1 << 18
LONG_FRAME_US: Final = 100.0  # shorter library frames explain no wait
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "q": np.dtype(np.int64),
    "i": np.dtype(np.int32),
    "b": np.dtype(np.int8),
    "d": np.dtype(np.float64),
}
Events: TypeAlias = Sequence[Event]
Batch: TypeAlias = dict[str, Any]
Sorted: TypeAlias = dict[str, list[Event]]

_COMMON: Final = {"name": "i", "start_ns": "q", "dur_ns": "q", "external_id": "q", "rank": "i"}
_RANGE_KINDS: Final = (
    (RangeKind.ANNOTATION, categories.ANNOTATION_CATEGORIES),
    (RangeKind.OVERHEAD, categories.OVERHEAD_CATEGORIES),
)
_WORK_KINDS: Final = (
    (DeviceEvent.KERNEL, categories.KERNEL_CATEGORIES),
    # The direction of a copy is in its name, looked up at the end.
    (DeviceEvent.COPY_OTHER, categories.COPY_CATEGORIES),
    (DeviceEvent.MEMSET, categories.MEMSET_CATEGORIES),
)
# Measured from the file to the written result, and rounded up.
_ROW_BYTES: Final = 200
_NAME_BYTES: Final = 2000  # each may be an operation of the result
_THING_BYTES: Final = 500
_CHARACTER_BYTES: Final = 4
# Inputs are numbered by their joined texts; a NUL cannot occur in JSON.
_SEAM: Final = b"\0"
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
    """Equally long columns of integers, in blocks large enough that freed ones go back to the system."""

    def __init__(self, **codes: str) -> None:
        self.dtypes = {name: _DTYPES[code] for name, code in codes.items()}
        self.row_count = 0
        self._blocks: dict[str, list[NDArray[Any]]] = {name: [] for name in codes}

    def append(self, batch: dict[str, Any]) -> None:
        """Add a batch that has every column."""
        columns = {name: np.frombuffer(batch[name], dtype=dtype) for name, dtype in self.dtypes.items()}
        count, done = len(columns["name"]), 0
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
        self.tables = {
            "ops": EventTable(**_COMMON, thread="i", sequence="q", forward_thread="q", inputs="i"),
            "calls": EventTable(**_COMMON, thread="i", correlation="q"),
            "work": EventTable(
                **_COMMON,
                kind="b",
                device="i",
                stream="q",
                correlation="q",
                bytes="q",
                collective="i",
                launch="i",
            ),
            "ranges": EventTable(
                **_COMMON, kind="b", thread="i", python_id="q", python_parent="q", inputs="i"
            ),
            "frames": EventTable(**_COMMON, thread="i"),
            "device_ranges": EventTable(**_COMMON, device="i", stream="q"),
            "memory": EventTable(
                **{name: code for name, code in _COMMON.items() if name != "external_id"},
                thread="i",
                **dict.fromkeys(
                    ("kind", "device", "bytes", "address", "allocated", "reserved", "order"), "q"
                ),
            ),
            "counters": EventTable(name="i", start_ns="q", dur_ns="q", rank="i", device="i", value="d"),
        }

    @property
    def memory_bytes(self) -> int:
        """Return an upper bound of the memory used until the result is written."""
        rows = sum(table.row_count for table in self.tables.values())
        others: tuple[Sized, ...] = (
            self.threads,
            self.inputs,
            self.collectives,
            self.launches,
            self.thread_names,
            self.categories,
        )
        text = self.strings.text_bytes + self.inputs.text_bytes
        return (
            rows * _ROW_BYTES
            + len(self.strings) * _NAME_BYTES
            + sum(len(things) for things in others) * _THING_BYTES
            + text * _CHARACTER_BYTES
        )

    def add(self, events: Iterable[Event], clock: Clock) -> None:
        """Add the events of one chunk, all or (raising ValueError, TypeError or NeedsText) none."""
        by_category: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        # The annotations of 2020 and 2021 go to a category of their own.
        operators: list[Event] = []
        ranges: list[Event] = []
        for event in by_category.get(categories.OPERATOR_CATEGORY, ()):
            args = event.args
            is_range = categories.is_annotation(event.name, (args.dims, args.dims_old, args.types))
            (ranges if is_range else operators).append(event)
        if ranges:
            by_category[categories.OPERATOR_RANGES] = ranges
            by_category[categories.OPERATOR_CATEGORY] = operators
        _sort_by_name(by_category)
        rows = _rows(by_category, LONG_FRAME_US if clock is not from_ns else LONG_FRAME_US * 1000)
        instants = _pick(by_category, (categories.MEMORY_CATEGORY, ""))
        allocations = [event for event in instants if categories.is_allocation(event.name, event.ph)]
        samples = by_category.get(categories.COUNTER_CATEGORY, ())
        # All are made before any is added.
        batches = self._memory_columns(allocations, clock) | self._counter_columns(samples, clock)
        if rows.events:
            columns = self._columns(rows, clock)
            batches |= {name: columns[name] for name, part in rows.parts.items() if part.start < part.stop}
        for name, batch in batches.items():
            self.tables[name].append(batch)
        self.categories.update({category: len(those) for category, those in by_category.items()})
        self.categories[categories.MEMORY_CATEGORY] += sum(not event.cat for event in allocations)
        for event in by_category.get("", ()):
            if event.ph == "M" and event.name == "thread_name" and isinstance(event.args.label, str):
                self.thread_names.setdefault((str(event.pid), str(event.tid)), event.args.label)

    def _columns(self, rows: _Rows, clock: Clock) -> dict[str, Batch]:
        """Return the columns of each table; those that all have are made at once, because calls are slow."""
        seam, inputs = _SEAM.join, self.inputs

        def input_column(those: Sequence[Args]) -> array[int]:
            texts = [(a.dims, a.dims_old, a.types, a.concrete, a.strides, a.backend) for a in those]
            return array("i", [inputs[seam(text)] for text in texts])

        args = [event.args for event in rows.events]
        durations = clock([event.dur for event in rows.events])
        if durations.min() < 0:
            raise ValueError("a negative duration")
        common: Batch = {
            "name": array("i", map(self.strings.__getitem__, [event.name for event in rows.events])),
            "start_ns": clock([event.ts for event in rows.events]),
            "dur_ns": durations,
            "external_id": filled(longs([arg.external for arg in args]), lambda row: args[row].external_old),
            "rank": self._rank_column(rows.events, args),
        }
        host = rows.events[: rows.host_count]
        on_device, device_args = rows.events[rows.host_count :], args[rows.host_count :]
        parts = {name: args[part] for name, part in rows.parts.items()}
        work = len(parts["work"])
        device_columns: Batch = {"device": (), "stream": ()}
        if on_device:
            devices = filled(longs([arg.device for arg in device_args]), lambda row: on_device[row].pid)
            streams = filled(longs([arg.stream for arg in device_args]), lambda row: on_device[row].tid)
            device_columns = {"device": small(devices), "stream": streams}
        own: dict[str, Batch] = {
            "ops": {
                "sequence": longs([arg.sequence for arg in parts["ops"]]),
                "forward_thread": longs([arg.forward_thread for arg in parts["ops"]]),
                "inputs": input_column(parts["ops"]),
            },
            "calls": {"correlation": longs([arg.correlation for arg in parts["calls"]])},
            "ranges": {
                "kind": rows.range_kinds,
                "python_id": longs([arg.python_id for arg in parts["ranges"]]),
                "python_parent": longs([arg.python_parent for arg in parts["ranges"]]),
                "inputs": input_column(parts["ranges"]),
            },
            "frames": {},
            "work": {
                "kind": rows.work_kinds,
                "correlation": longs([arg.correlation for arg in parts["work"]]),
                "bytes": longs([arg.size for arg in parts["work"]]),
                "collective": self._collective_column(parts["work"]),
                "launch": self._launch_column(parts["work"]),
                **{key: column[:work] for key, column in device_columns.items()},
            },
            "device_ranges": {key: column[work:] for key, column in device_columns.items()},
        }
        threads = self._threads(host)
        if any(arg.task is not None for arg in parts["work"]):
            # The flow to an NPU kernel has the kernel's start time as its id.
            ids = np.frombuffer(own["work"]["correlation"], dtype=np.int64)
            is_npu = np.array([arg.task is not None for arg in parts["work"]])
            own["work"]["correlation"] = np.where(is_npu, common["start_ns"][rows.parts["work"]], ids)
        for name, part in rows.parts.items():
            own[name] |= {key: column[part] for key, column in common.items()}
            own[name]["thread"] = threads[part]
        return own

    def _memory_columns(self, events: Events, clock: Clock) -> dict[str, Batch]:
        if not events:
            return {}
        args = [event.args for event in events]
        columns: Batch = {
            "name": array("i", [self.strings[categories.MEMORY_EVENT]]) * len(events),
            "start_ns": clock([event.ts for event in events]),
            "dur_ns": array("q", [0]) * len(events),
            "rank": self._rank_column(events, args),
            "thread": self._threads(events),
            "kind": longs([arg.memory_kind for arg in args]),
            "device": longs([arg.memory_device for arg in args]),
            "bytes": longs([arg.memory_bytes for arg in args]),
            "address": longs([arg.address for arg in args]),
            "allocated": longs([arg.allocated for arg in args]),
            "reserved": longs([arg.reserved for arg in args]),
            "order": longs([arg.order for arg in args]),
        }
        return {"memory": columns}

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
            "dur_ns": array("q", [0]) * len(samples),
            "rank": self._rank_column(those, [event.args for event in those]),
            "device": array("i", [device for _, device, _ in samples]),
            "value": array("d", [value for _, _, value in samples]),
        }
        return {"counters": columns}

    def _threads(self, events: Events) -> array[int]:
        processes, threads = [event.pid for event in events], [event.tid for event in events]
        # Nearly always one process has all the threads; then only those are looked up.
        if events and processes.count(processes[0]) == len(processes):
            number = {thread: self.threads[processes[0], thread] for thread in set(threads)}
            return array("i", [number[thread] for thread in threads])
        return array("i", map(self.threads.__getitem__, zip(processes, threads, strict=True)))

    def _rank_column(self, events: Events, args: Sequence[Args]) -> array[int]:
        """Return the rank of each event of a merged file, by default its process's."""
        if args[0].rank == NONE == args[-1].rank and not self.pid_ranks:
            # Merging tools write the rank into every event, so checking two is enough.
            return array("i", [NONE]) * len(args)
        whole = small(np.frombuffer(longs([arg.rank for arg in args]), dtype=np.int64)).tolist()
        ranked = zip(events, whole, strict=True)
        self.pid_ranks.update({event.pid: rank for event, rank in ranked if rank != NONE})
        return array("i", [self.pid_ranks.get(event.pid, NONE) for event in events])

    def _launch_column(self, args: Sequence[Args]) -> array[int]:
        """Return how each kernel was launched; values that are not numbers count as missing."""
        launches = [
            (arg.occupancy, arg.blocks_per_sm, arg.registers)
            if arg.occupancy != 0
            # The occupancy can be computed from these.
            else (0, arg.blocks_per_sm, arg.registers, arg.shared, bytes(arg.block)[:_LONGEST_BLOCK])
            for arg in args
        ]
        if set(map(type, chain.from_iterable(launches))) <= _FIGURES:
            return array("i", [self.launches[launch] for launch in launches])
        known = [_FIGURES.issuperset(map(type, launch)) for launch in launches]
        pairs = zip(launches, known, strict=True)
        return array("i", [self.launches[launch] if is_known else NONE for launch, is_known in pairs])

    def _collective_column(self, args: Sequence[Args]) -> array[int]:
        names = [arg.collective for arg in args]
        if names.count(None) == len(names):
            return array("i", [NONE]) * len(names)
        numbers = array("i", [NONE]) * len(names)
        for index, arg in enumerate(args):
            if arg.collective is not None:
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
                numbers[index] = self.collectives[collective]
        return numbers


class _Rows(NamedTuple):
    """The events that become rows, table after table: those on host threads first."""

    events: list[Event]
    parts: dict[str, slice]
    host_count: int
    range_kinds: array[int]
    work_kinds: array[int]


def _rows(by_category: Sorted, long_frame: float) -> _Rows:
    """Return the rows of a chunk; Python frames are kept if they are modules, the user's, or long."""
    modules: list[Event] = []
    frames: list[Event] = []
    for frame in _pick(by_category, categories.FRAME_CATEGORIES):
        if frame.name.startswith(categories.MODULE_PREFIX):
            modules.append(frame)
        elif _length(frame.dur) >= long_frame or (
            not frame.name.startswith("<built-in") and read_frame(frame.name).is_user
        ):
            frame.name = without_address(frame.name)
            frames.append(frame)
    ranges, range_kinds = _with_kinds([(kind, _pick(by_category, names)) for kind, names in _RANGE_KINDS])
    ranges += modules
    range_kinds.extend([RangeKind.MODULE] * len(modules))
    work, work_kinds = _with_kinds([(kind, _pick(by_category, names)) for kind, names in _WORK_KINDS])
    tables = {
        "ops": _pick(by_category, categories.OP_CATEGORIES),
        "calls": _pick(by_category, categories.CALL_CATEGORIES),
        "ranges": ranges,
        "frames": frames,
        "work": work,
        "device_ranges": _pick(by_category, categories.DEVICE_RANGE_CATEGORIES),
    }
    ends = list(accumulate(map(len, tables.values())))
    parts = {
        name: slice(end - len(those), end) for (name, those), end in zip(tables.items(), ends, strict=True)
    }
    events = [event for those in tables.values() for event in those]
    return _Rows(events, parts, ends[3], range_kinds, work_kinds)


def _length(dur: object) -> float:
    """Return a duration in the event's unit; 0 if it is not a number."""
    if isinstance(dur, int | float):
        return float(dur)
    with suppress(TypeError, ValueError):
        return float(bytes(dur))  # type: ignore[call-overload]  # what has no bytes raises TypeError
    return 0.0


def _sort_by_name(by_category: Sorted) -> None:
    """Categorise events that have no category or an ambiguous one.

    The launches of torch_npu become calls.
    """
    if on_mtia := by_category.get(categories.MTIA_KERNELS):
        working = [event for event in on_mtia if not categories.is_wait_of_mtia(event.name)]
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


def _with_kinds(groups: Iterable[tuple[int, list[Event]]]) -> tuple[list[Event], array[int]]:
    events: list[Event] = []
    kinds = array("b")
    for kind, those in groups:
        events += those
        kinds.extend([kind] * len(those))
    return events, kinds


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def split_inputs(joined: bytes) -> Inputs | None:
    """Return the inputs out of one key of `Tables.inputs`; None if none were recorded."""
    *parts, backend = joined.split(_SEAM)
    dims, dims_old, types, concrete, strides = (part or b"[]" for part in parts)
    if dims == b"[]":
        dims = dims_old
    if dims == types == concrete == b"[]":
        return None
    is_triton = backend == b'"triton"'
    return Inputs(dims=dims, types=types, concrete=concrete, strides=strides, is_triton=is_triton)


def longs(values: Sequence[Json]) -> array[int]:
    """Return ids as 64-bit integers; NONE for other values."""
    try:
        return array("q", cast("Sequence[int]", values))  # which checks them
    except (TypeError, OverflowError):
        return array("q", [_whole(value) for value in values])


def small(values: Longs) -> Ids:
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


def filled(values: array[int], spare: Callable[[int], Json]) -> Longs:
    """Return `values` with missing rows filled by `spare`."""
    ids = np.frombuffer(values, dtype=np.int64)
    rows = np.flatnonzero(ids == NONE)
    if len(rows):
        ids[rows] = np.frombuffer(longs([spare(row) for row in rows.tolist()]), dtype=np.int64)
    return ids

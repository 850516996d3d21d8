"""Events of one chunk, sorted by what they are and laid into columns."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from stepgrade.model.events import NONE, Collective, DeviceEvent, RangeKind
from stepgrade.readers.kineto import eras
from stepgrade.readers.kineto.columns import Interner, Table, filled, longs, small
from stepgrade.readers.kineto.decode import Args, Event
from stepgrade.readers.kineto.times import Clock

Events: TypeAlias = Sequence[Event]
Batch: TypeAlias = dict[str, Any]
Sorted: TypeAlias = dict[str, list[Event]]

_COMMON: Final = {"name": "i", "start_ns": "q", "dur_ns": "q", "external_id": "q", "rank": "i"}
_RANGE_KINDS: Final = (
    (RangeKind.ANNOTATION, eras.ANNOTATION_CATEGORIES),
    (RangeKind.OVERHEAD, eras.OVERHEAD_CATEGORIES),
)
_WORK_KINDS: Final = (
    (DeviceEvent.KERNEL, eras.KERNEL_CATEGORIES),
    (DeviceEvent.COPY_OTHER, eras.COPY_CATEGORIES),  # which way it goes is in the name: told at the end
    (DeviceEvent.MEMSET, eras.MEMSET_CATEGORIES),
)
# Inputs are numbered by their joined texts; a NUL cannot occur in JSON.
_SEAM: Final = b"\0"
NO_INPUTS: Final = _SEAM * 3


class Tables:
    """Everything that was read so far, in columns."""

    def __init__(self) -> None:
        self.strings: Interner[str] = Interner()
        self.threads: Interner[tuple[Any, Any]] = Interner()
        self.inputs: Interner[bytes] = Interner()
        self.collectives: Interner[Collective] = Interner()
        self.thread_names: dict[tuple[str, str], str] = {}
        self.pid_ranks: dict[Any, int] = {}
        self.categories: Counter[str] = Counter()
        self.tables = {
            "ops": Table(**_COMMON, thread="i", sequence="q", forward_thread="q", inputs="i"),
            "calls": Table(**_COMMON, thread="i", correlation="q"),
            "work": Table(
                **_COMMON, kind="b", device="i", stream="q", correlation="q", bytes="q", collective="i"
            ),
            "ranges": Table(**_COMMON, kind="b", thread="i", python_id="q", python_parent="q"),
            "device_ranges": Table(**_COMMON, device="i", stream="q"),
        }

    def add(self, events: Iterable[Event], clock: Clock) -> None:
        """Add the events of one chunk, all or (raising ValueError, TypeError or NeedsText) none."""
        by_category: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        _part_operators(by_category)
        rows = _rows(by_category)
        if rows.events:
            self._add_rows(rows, self._columns(rows, clock))
        self.categories.update({category: len(those) for category, those in by_category.items()})
        self._name_threads(by_category.get("", ()))

    def _columns(self, rows: _Rows, clock: Clock) -> dict[str, Batch]:
        """Return the columns of each table; those that all have are made at once, calls being dear."""
        args = [event.args for event in rows.events]
        common = self._common(rows.events, args, clock)
        host = rows.events[: rows.host_count]
        placed, placed_args = rows.events[rows.host_count :], args[rows.host_count :]
        parts = {name: args[part] for name, part in rows.parts.items()}
        work = len(parts["work"])
        places = _places(placed, placed_args) if placed else {"device": (), "stream": ()}
        own: dict[str, Batch] = {
            "ops": self._op_columns(parts["ops"]),
            "calls": {"correlation": longs([arg.correlation for arg in parts["calls"]])},
            "ranges": _range_columns(parts["ranges"]) | {"kind": rows.range_kinds},
            "work": self._work_columns(parts["work"])
            | {"kind": rows.work_kinds}
            | {key: column[:work] for key, column in places.items()},
            "device_ranges": {key: column[work:] for key, column in places.items()},
        }
        threads = self._threads(host)
        for name, part in rows.parts.items():
            own[name] |= {key: column[part] for key, column in common.items()}
            own[name]["thread"] = threads[part]
        return own

    def _add_rows(self, rows: _Rows, columns: dict[str, Batch]) -> None:
        for name, part in rows.parts.items():
            if part.start < part.stop:
                self.tables[name].append(columns[name])

    def _common(self, events: Events, args: Sequence[Args], clock: Clock) -> Batch:
        durations = clock([event.dur for event in events])
        if durations.min() < 0:
            raise ValueError("a negative duration")
        external = longs([arg.external for arg in args])
        return {
            "name": array("i", map(self.strings.__getitem__, [event.name for event in events])),
            "start_ns": clock([event.ts for event in events]),
            "dur_ns": durations,
            "external_id": filled(external, lambda row: args[row].external_old),
            "rank": self._rank_column(events, args),
        }

    def _threads(self, events: Events) -> array[int]:
        processes, threads = [event.pid for event in events], [event.tid for event in events]
        # Nearly always one process has all the threads; then only those are looked up.
        if events and processes.count(processes[0]) == len(processes):
            number = {thread: self.threads[processes[0], thread] for thread in set(threads)}
            return array("i", [number[thread] for thread in threads])
        return array("i", map(self.threads.__getitem__, zip(processes, threads, strict=True)))

    def _rank_column(self, events: Events, args: Sequence[Args]) -> array[int]:
        """Return the rank of each event of a merged file; those that do not say have their process's."""
        if args[0].rank == NONE == args[-1].rank and not self.pid_ranks:
            # Whoever merges files writes the rank into every event, so two of them tell.
            return array("i", [NONE]) * len(args)
        whole = small(np.frombuffer(longs([arg.rank for arg in args]), dtype=np.int64)).tolist()
        ranked = zip(events, whole, strict=True)
        self.pid_ranks.update({event.pid: rank for event, rank in ranked if rank != NONE})
        return array("i", [self.pid_ranks.get(event.pid, NONE) for event in events])

    def _op_columns(self, args: Sequence[Args]) -> Batch:
        seam, inputs = _SEAM.join, self.inputs
        return {
            "sequence": longs([arg.sequence for arg in args]),
            "forward_thread": longs([arg.forward_thread for arg in args]),
            "inputs": array("i", [inputs[seam((a.dims, a.dims_old, a.types, a.concrete))] for a in args]),
        }

    def _work_columns(self, args: Sequence[Args]) -> Batch:
        return {
            "correlation": longs([arg.correlation for arg in args]),
            "bytes": longs([arg.size for arg in args]),
            "collective": self._collective_column(args),
        }

    def _collective_column(self, args: Sequence[Args]) -> array[int]:
        names = [arg.collective for arg in args]
        if names.count(None) == len(names):
            return array("i", [NONE]) * len(names)
        numbers = [NONE if arg.collective is None else self.collectives[_collective(arg)] for arg in args]
        return array("i", numbers)

    def _name_threads(self, uncategorised: Iterable[Event]) -> None:
        for event in uncategorised:
            if event.name == "[memory]":
                self.categories[eras.MEMORY_CATEGORY] += 1
            if event.ph == "M" and event.name == "thread_name" and isinstance(event.args.label, str):
                self.thread_names.setdefault((str(event.pid), str(event.tid)), event.args.label)


def _part_operators(by_category: Sorted) -> None:
    """Move the annotations of 2020 and 2021 to a category of their own."""
    operators = by_category.get(eras.OPERATOR_CATEGORY, ())
    ranges = [event for event in operators if _is_annotation(event)]
    if ranges:
        by_category[eras.OPERATOR_RANGES] = ranges
        by_category[eras.OPERATOR_CATEGORY] = [event for event in operators if not _is_annotation(event)]


class _Rows(NamedTuple):
    """The events that become rows, table after table: those on host threads first."""

    events: list[Event]
    parts: dict[str, slice]
    host_count: int
    range_kinds: array[int]
    work_kinds: array[int]


def _rows(by_category: Sorted) -> _Rows:
    modules = [e for e in _pick(by_category, eras.FRAME_CATEGORIES) if e.name.startswith(eras.MODULE_PREFIX)]
    ranges, range_kinds = _with_kinds([(kind, _pick(by_category, names)) for kind, names in _RANGE_KINDS])
    ranges += modules
    range_kinds.extend([RangeKind.MODULE] * len(modules))
    work, work_kinds = _with_kinds([(kind, _pick(by_category, names)) for kind, names in _WORK_KINDS])
    tables = {
        "ops": _pick(by_category, eras.OP_CATEGORIES),
        "calls": _pick(by_category, eras.CALL_CATEGORIES),
        "ranges": ranges,
        "work": work,
        "device_ranges": _pick(by_category, eras.DEVICE_RANGE_CATEGORIES),
    }
    ends = list(accumulate(map(len, tables.values())))
    parts = {
        name: slice(end - len(those), end) for (name, those), end in zip(tables.items(), ends, strict=True)
    }
    events = [event for those in tables.values() for event in those]
    return _Rows(events, parts, ends[2], range_kinds, work_kinds)


def _pick(by_category: Sorted, categories: Iterable[str]) -> list[Event]:
    found = [by_category[category] for category in categories if category in by_category]
    return found[0] if len(found) == 1 else [event for events in found for event in events]


def _with_kinds(groups: Iterable[tuple[int, list[Event]]]) -> tuple[list[Event], array[int]]:
    events: list[Event] = []
    kinds = array("b")
    for kind, those in groups:
        events += those
        kinds.extend([kind] * len(those))
    return events, kinds


def _range_columns(args: Sequence[Args]) -> Batch:
    return {
        "python_id": longs([arg.python_id for arg in args]),
        "python_parent": longs([arg.python_parent for arg in args]),
    }


def _is_annotation(event: Event) -> bool:
    args = event.args
    return eras.is_annotation(event.name, (args.dims, args.dims_old, args.types))


def _places(events: Events, args: Sequence[Args]) -> Batch:
    devices = filled(longs([arg.device for arg in args]), lambda row: events[row].pid)
    streams = filled(longs([arg.stream for arg in args]), lambda row: events[row].tid)
    return {"device": small(devices), "stream": streams}


def _collective(args: Args) -> Collective:
    return Collective(
        name=_text(args.collective),
        in_elements=_count(args.in_elements),
        out_elements=_count(args.out_elements),
        dtype=_text(args.dtype),
        group_size=_count(args.group_size),
        group=_text(args.group),
        group_ranks=_text(args.group_ranks),
    )


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def split_inputs(joined: bytes) -> tuple[bytes, bytes, bytes]:
    """Return dims, types and concrete values out of one key of `Tables.inputs`."""
    dims, dims_old, types, concrete = joined.split(_SEAM)
    return dims or dims_old or b"[]", types or b"[]", concrete or b"[]"

"""Events of one chunk, sorted by what they are and laid into columns."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from stepgrade.model.events import NONE, Collective, DeviceEvent, Longs, RangeKind
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

    def add(self, events: Events, clock: Clock) -> None:
        """Add the events of one chunk, all or (raising ValueError, TypeError or NeedsText) none."""
        by_category: defaultdict[str, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        _part_operators(by_category)
        batches = [
            ("ops", self._ops(by_category, clock)),
            ("calls", self._calls(_pick(by_category, eras.CALL_CATEGORIES), clock)),
            ("work", self._work(by_category, clock)),
            ("ranges", self._ranges(by_category, clock)),
            ("device_ranges", self._device_ranges(_pick(by_category, eras.DEVICE_RANGE_CATEGORIES), clock)),
        ]
        for name, batch in batches:
            if batch:
                self.tables[name].append(batch)
        self.categories.update({category: len(those) for category, those in by_category.items()})
        self._name_threads(by_category.get("", ()))

    def _common(self, events: Events, args: Sequence[Args], clock: Clock) -> Batch:
        durations = clock([event.dur for event in events])
        if durations.min() < 0:
            raise ValueError("a negative duration")
        return {
            "name": array("i", map(self.strings.__getitem__, [event.name for event in events])),
            "start_ns": clock([event.ts for event in events]),
            "dur_ns": durations,
            "external_id": filled(longs([arg.external for arg in args]), (arg.external_old for arg in args)),
            "rank": self._rank_column(events, args),
        }

    def _threads(self, events: Events) -> array[int]:
        ids = zip([event.pid for event in events], [event.tid for event in events], strict=True)
        return array("i", map(self.threads.__getitem__, ids))

    def _rank_column(self, events: Events, args: Sequence[Args]) -> array[int]:
        """Return the rank of each event of a merged file; those that do not say have their process's."""
        if args[0].rank == NONE == args[-1].rank and not self.pid_ranks:
            # Whoever merges files writes the rank into every event, so two of them tell.
            return array("i", [NONE]) * len(args)
        whole = small(np.frombuffer(longs([arg.rank for arg in args]), dtype=np.int64)).tolist()
        self.pid_ranks.update(
            {event.pid: rank for event, rank in zip(events, whole, strict=True) if rank != NONE}
        )
        return array("i", [self.pid_ranks.get(event.pid, NONE) for event in events])

    def _ops(self, by_category: Sorted, clock: Clock) -> Batch | None:
        events = _pick(by_category, eras.OP_CATEGORIES)
        if not events:
            return None
        args = [event.args for event in events]
        seam, inputs = _SEAM.join, self.inputs
        return self._common(events, args, clock) | {
            "thread": self._threads(events),
            "sequence": longs([arg.sequence for arg in args]),
            "forward_thread": longs([arg.forward_thread for arg in args]),
            "inputs": array("i", [inputs[seam((a.dims, a.dims_old, a.types, a.concrete))] for a in args]),
        }

    def _calls(self, events: Events, clock: Clock) -> Batch | None:
        if not events:
            return None
        args = [event.args for event in events]
        return self._common(events, args, clock) | {
            "thread": self._threads(events),
            "correlation": longs([arg.correlation for arg in args]),
        }

    def _work(self, by_category: Sorted, clock: Clock) -> Batch | None:
        events, kinds = _with_kinds(by_category, _WORK_KINDS)
        if not events:
            return None
        args = [event.args for event in events]
        return (
            self._common(events, args, clock)
            | _places(events, args)
            | {
                "kind": kinds,
                "correlation": longs([arg.correlation for arg in args]),
                "bytes": longs([arg.size for arg in args]),
                "collective": self._collective_column(args),
            }
        )

    def _collective_column(self, args: Sequence[Args]) -> array[int]:
        names = [arg.collective for arg in args]
        if names.count(None) == len(names):
            return array("i", [NONE]) * len(names)
        numbers = [NONE if arg.collective is None else self.collectives[_collective(arg)] for arg in args]
        return array("i", numbers)

    def _ranges(self, by_category: Sorted, clock: Clock) -> Batch | None:
        events, kinds = _with_kinds(by_category, _RANGE_KINDS)
        modules = [
            e for e in _pick(by_category, eras.FRAME_CATEGORIES) if e.name.startswith(eras.MODULE_PREFIX)
        ]
        events = [*events, *modules]
        if not events:
            return None
        kinds.extend([RangeKind.MODULE] * len(modules))
        args = [event.args for event in events]
        return self._common(events, args, clock) | {
            "kind": kinds,
            "thread": self._threads(events),
            "python_id": longs([arg.python_id for arg in args]),
            "python_parent": longs([arg.python_parent for arg in args]),
        }

    def _device_ranges(self, events: Events, clock: Clock) -> Batch | None:
        if not events:
            return None
        args = [event.args for event in events]
        return self._common(events, args, clock) | _places(events, args)

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


def _pick(by_category: Sorted, categories: Iterable[str]) -> list[Event]:
    found = [by_category[category] for category in categories if category in by_category]
    return found[0] if len(found) == 1 else [event for events in found for event in events]


def _with_kinds(
    by_category: Sorted, kinds: Iterable[tuple[int, tuple[str, ...]]]
) -> tuple[list[Event], array[int]]:
    events: list[Event] = []
    column = array("b")
    for kind, categories in kinds:
        found = _pick(by_category, categories)
        events += found
        column.extend([kind] * len(found))
    return events, column


def _is_annotation(event: Event) -> bool:
    args = event.args
    return eras.is_annotation(event.name, (args.dims, args.dims_old, args.types))


def _places(events: Events, args: Sequence[Args]) -> Batch:
    devices = filled(longs([arg.device for arg in args]), (event.pid for event in events))
    streams: Longs = filled(longs([arg.stream for arg in args]), (event.tid for event in events))
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

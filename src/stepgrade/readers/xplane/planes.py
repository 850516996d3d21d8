"""The planes of a profile: lines of events with the few stats that matter, in columns."""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from stepgrade.model.columns import Column, distinct, groups
from stepgrade.model.events import NONE, Ids, Longs
from stepgrade.protobuf import LENGTH, VARINT, WireField, field_at, signed, walk
from stepgrade.readers.xplane.wire import rounds, run_of

MISSING: Final = np.iinfo(np.int64).min
NUMBERS: Final = ("program_id", "run_id", "device_ordinal", "step_num", "correlation_id")
TEXTS: Final = ("hlo_op", "hlo_module", "tf_op", "name", "memcpy_details")
Stat: TypeAlias = int | float | str | tuple[int, int]  # bytes: where they begin and end
# The runtime's own events, thousands per step.
NOISE: Final = re.compile(
    r"ThreadpoolListener::|ThunkExecutor::|end: |Wait for (donation|usage) holds|PythonRefManager::"
    r"|\$builtins |(Record|Add)(Usage|Hold)|MemoryDeallocation$|MemoryAllocation$"
)
# Events of the allocator, and their stats for how much was in use after each.
ALLOCATIONS: Final = ("MemoryAllocation", "MemoryDeallocation")
_ALLOCATION_NUMBERS: Final = ("bytes_allocated", "bytes_reserved", "allocation_bytes", "index_on_host")
_ALLOCATION_TEXTS: Final = ("allocator_name",)
_CHUNK: Final = 1 << 14  # events that are decoded at once: more take more memory and are no faster
_LONGEST_TEXT: Final = 4000
_MOST: Final = 1 << 60
_EVENT: Final = 4 << 3 | LENGTH
_FIRST: Final = 1 << 3 | VARINT


class PlaneLine(Struct, frozen=True):
    """One line of a plane: a stream, a thread, or a sort of events."""

    number: int
    name: str
    timestamp_ns: int


class PlaneEvents(Struct, frozen=True, kw_only=True):
    """The events of a plane in the order of the file; `MISSING` or NONE for a stat that one does not have."""

    line: Ids
    name: Ids  # in Plane.names
    start_ns: Longs
    end_ns: Longs
    numbers: dict[str, Longs]
    texts: dict[str, Ids]  # in Plane.texts


class Plane(Struct, kw_only=True):
    """One device, or the host, with its events."""

    name: str
    stats: dict[str, Stat]
    lines: list[PlaneLine]
    names: list[str]  # of events, by their metadata
    shown: list[str]  # shorter names of the same
    metadata: list[dict[str, Stat]]  # stats of each of these names
    texts: list[str]
    events: PlaneEvents
    damaged: int  # events that could not be read
    allocations: PlaneEvents | None = None  # apart from the others, which are rarely so many


def _joined(chunks: list[dict[str, Column]], numbers: Iterable[str], texts: Iterable[str]) -> PlaneEvents:
    """Return chunks of events as one table; a stat that no event has is kept as one value."""
    counts = [len(chunk["line"]) for chunk in chunks]

    def column(name: str, none: Any) -> Column:
        if not any(name in chunk for chunk in chunks):
            return np.broadcast_to(none, sum(counts))
        pairs = zip(chunks, counts, strict=True)
        return np.concatenate([chunk.pop(name, np.broadcast_to(none, count)) for chunk, count in pairs])

    return PlaneEvents(
        line=column("line", np.int32(0)),
        name=column("event", np.int32(0)),
        start_ns=column("start_ns", np.int64(0)),
        end_ns=column("end_ns", np.int64(0)),
        numbers={name: column(name, np.int64(MISSING)) for name in numbers},
        texts={name: column(name, np.int32(NONE)) for name in texts},
    )


class PlaneSpace(Struct, kw_only=True):
    """All planes of one file."""

    planes: list[Plane]
    is_cut: bool


def read_space(data: bytes) -> PlaneSpace:
    """Return the planes of a profile; files that follow one another in one are one profile."""
    planes, offset = [], 0
    is_cut = False
    while offset < len(data):
        field = field_at(data, offset, len(data))
        if field is None:
            is_cut = True
            field = field_at(data, offset, len(data), may_be_cut=True)
            if field is None:
                break
        offset = field.after
        if field.number == 1 and field.kind == LENGTH:
            planes.append(_Parts(data, field.value, field.value + field.size).plane())
    return PlaneSpace(planes=planes, is_cut=is_cut)


def _spans(fields: Iterable[WireField]) -> defaultdict[int, list[tuple[int, int]]]:
    """Return where the parts of a message begin and end, by their field number."""
    found = defaultdict[int, list[tuple[int, int]]](list)
    for field in fields:
        if field.kind == LENGTH:
            found[field.number].append((field.value, field.after))
    return found


class _Parts:
    """The parts of a plane on the way to columns."""

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self.data = data
        self.lines: list[PlaneLine] = []
        self.found: list[tuple[Longs, Longs]] = []  # where events begin and end
        self.counts: list[int] = []  # of events, line by line
        self.stat_names: dict[int, str] = {}
        self.texts: dict[str, int] = {}
        self.allocations: list[dict[str, Column]] = []
        spans = _spans(walk(data, offset, end, may_be_cut=True))
        self.name = self._text(*spans[2][-1]) if spans[2] else ""
        for span in spans[3]:
            self._add_line(*span)
        for span in spans[5]:
            key, inside = self._entry(*span)
            texts = (self._text(part.value, part.value + part.size) for part in inside if part.number == 2)
            self.stat_names[key] = next(texts, "")
        self.stats = self._stats(spans[6])
        self.metadata: dict[int, int] = {}
        self.names: list[str] = []
        self.shown: list[str] = []
        self.metadata_stats: list[dict[str, Stat]] = []
        for span in spans[4]:
            key, inside = self._entry(*span)
            parts = _spans(inside)
            name, shown = (self._text(*parts[number][-1]) if parts[number] else "" for number in (2, 4))
            self.metadata[key] = len(self.names)
            self.names.append(name)
            self.shown.append(shown or name)
            self.metadata_stats.append(self._stats(parts[5]))
        # Tables by the index of the metadata, with an extra last entry for none.
        keys = np.array([*self.metadata], np.uint64).view(np.int64)
        order = np.argsort(keys, kind="stable")
        self.keys: Longs = keys[order]
        self.metadata_ids: Ids = np.array([*self.metadata.values()], np.int32)[order]
        self.is_noise = np.array([NOISE.match(text) is not None for text in self.names] + [True], np.bool_)
        self.is_allocation = np.array([text in ALLOCATIONS for text in self.names] + [False], np.bool_)
        self.by_name: dict[str, Column] = {}  # stats that some name has, by the index of the name
        for stat in (*NUMBERS, *TEXTS):
            values = [stats.get(stat) for stats in self.metadata_stats]
            if stat in NUMBERS and any(isinstance(value, int) for value in values):
                numbers = [value if isinstance(value, int) else MISSING for value in values]
                self.by_name[stat] = np.array([*numbers, MISSING], np.int64)
            elif stat in TEXTS and any(isinstance(value, str) for value in values):
                ids = [self._text_id(value) if isinstance(value, str) else NONE for value in values]
                self.by_name[stat] = np.array([*ids, NONE], np.int32)

    def plane(self) -> Plane:
        """Return the plane with its events decoded."""
        none = np.empty(0, np.int64)
        starts, ends = (np.concatenate([none, *(part[side] for part in self.found)]) for side in (0, 1))
        self.found.clear()
        line = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        chunks, damaged = [], 0
        for first in range(0, len(starts), _CHUNK):
            rows = slice(first, first + _CHUNK)
            chunk, readable = self._decode(starts[rows], ends[rows], line[rows])
            damaged += len(starts[rows]) - readable
            chunks.append(chunk)
        del starts, ends, line
        allocations = _joined(self.allocations, _ALLOCATION_NUMBERS, _ALLOCATION_TEXTS)
        return Plane(
            name=self.name,
            stats=self.stats,
            lines=self.lines,
            names=self.names,
            shown=self.shown,
            metadata=self.metadata_stats,
            texts=list(self.texts),
            events=_joined(chunks, NUMBERS, TEXTS),
            damaged=damaged,
            allocations=allocations if self.allocations else None,
        )

    def _text(self, offset: int, end: int) -> str:
        return self.data[offset : min(end, offset + _LONGEST_TEXT)].decode("utf-8", "replace")

    def _text_id(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def _add_line(self, offset: int, end: int) -> None:
        number, name, timestamp = 0, "", 0
        count = 0
        while offset < end:
            starts, ends, offset = run_of(self.data, offset, end, _EVENT)
            if len(starts):
                self.found.append((starts, ends))
                count += len(starts)
            field = field_at(self.data, offset, end) if offset < end else None
            if field is None:
                break
            offset = field.after
            if field.number == 4 and field.kind == LENGTH:
                self.found.append((np.array([field.value]), np.array([field.after])))
                count += 1
            elif field.kind == VARINT and field.number in (1, 3):
                number, timestamp = (field.value, timestamp) if field.number == 1 else (number, field.value)
            elif field.kind == LENGTH and field.number in (2, 11):
                name = name or self._text(field.value, field.after)
        self.lines.append(PlaneLine(number, name, min(timestamp, _MOST)))
        self.counts.append(count)

    def _entry(self, offset: int, end: int) -> tuple[int, Iterator[WireField]]:
        """Return the key of an entry of a map, and the fields of its value."""
        key, inside = 0, (offset, offset)
        for field in walk(self.data, offset, end):
            if field.number == 1 and field.kind == VARINT:
                key = field.value
            elif field.number == 2 and field.kind == LENGTH:
                inside = field.value, field.after
        return key, walk(self.data, *inside)

    def _stats(self, spans: list[tuple[int, int]]) -> dict[str, Stat]:
        """Return the stats of the plane, or of one metadata, by their names."""
        found: dict[str, Stat] = {}
        for span in spans:
            name = ""
            value: Stat | None = None
            for field in walk(self.data, *span):
                match field.number, field.kind:
                    case (1, 0):
                        name = self.stat_names.get(field.value, "")
                    case (2, 1):
                        value = float(struct.unpack_from("<d", self.data, field.value)[0])
                    case (3, 0) | (4, 0):
                        value = signed(field.value)
                    case (5, 2):
                        value = self._text(field.value, field.after)
                    case (6, 2):
                        value = (field.value, field.after)
                    case (7, 0):
                        value = self.stat_names.get(field.value, "")
            if name and value is not None:
                found[name] = value
        return found

    def _decode(self, starts: Longs, ends: Longs, line: Ids) -> tuple[dict[str, Column], int]:
        """Return a chunk of events without noise, and how many events could be read."""
        count = len(starts)
        offset, duration = (np.zeros(count, np.int64) for _ in range(2))
        known, summed, dropped = (np.zeros(count, np.bool_) for _ in range(3))
        name = np.full(count, NONE, np.int32)
        stats: dict[str, Column] = {}
        for part in rounds(self.data, starts, ends, dropped):
            message, value, _ = part.taking(1, VARINT)
            if len(message):
                known[message] = True
                if len(self.keys):
                    found = np.minimum(np.searchsorted(self.keys, value), len(self.keys) - 1)
                    name[message] = np.where(self.keys[found] == value, self.metadata_ids[found], NONE)
                dropped[message] = self.is_noise[name[message]]
            for number, column in ((2, offset), (3, duration)):
                message, value, _ = part.taking(number, VARINT)
                column[message] = value
            summed[part.taking(5, VARINT)[0]] = True
            self._add_stats(stats, count, (*NUMBERS, *TEXTS), part.taking(4, LENGTH))
        zeros = np.array([each.timestamp_ns for each in self.lines] or [0], np.int64)
        chosen = np.flatnonzero(known & self.is_allocation[name] & (offset >= 0))
        if len(chosen):
            after = np.zeros(len(chosen), np.int64)
            in_use: dict[str, Column] = {"line": line[chosen], "event": name[chosen]}
            wanted = (*_ALLOCATION_NUMBERS, *_ALLOCATION_TEXTS)
            for part in rounds(self.data, starts[chosen], ends[chosen]):
                message, value, _ = part.taking(2, VARINT)
                after[message] = value
                self._add_stats(in_use, len(chosen), wanted, part.taking(4, LENGTH))
            start = zeros[line[chosen]] + np.clip(after, 0, _MOST) // 1000
            self.allocations.append(in_use | {"start_ns": start, "end_ns": start})
        for key, table in self.by_name.items():
            own = stats.get(key)
            values_by_name = table[name]
            stats[key] = values_by_name if own is None else np.where(own == table[-1], values_by_name, own)
        rows = np.flatnonzero(known & ~summed & ~dropped & (offset >= 0) & (duration >= 0))
        zero = zeros[line[rows]]
        offset, duration = np.minimum(offset[rows], _MOST), np.minimum(duration[rows], _MOST)
        chunk = {key: column[rows] for key, column in (stats | {"line": line, "event": name}).items()}
        times = {"start_ns": zero + offset // 1000, "end_ns": zero + (offset + duration) // 1000}
        return chunk | times, int(known.sum())

    def _add_stats(
        self,
        columns: dict[str, Column],
        count: int,
        wanted: tuple[str, ...],
        fields: tuple[Longs, Longs, Longs],
    ) -> None:
        """Write one stat of each of several events into the columns of those that matter."""
        row, starts, sizes = fields
        if not len(row):
            return
        ends = starts + sizes
        octets = np.frombuffer(self.data, np.uint8)
        tag, short = octets[starts.clip(max=len(octets) - 1)], octets.take(starts + 1, mode="clip")
        # Events that are alike have their stats in one order: mostly all of these have the same name.
        is_same = short[0] < 0x80 and (tag == _FIRST).all() and (short == short[0]).all()
        names: dict[int, Any] = {}  # the rows of the stats of each name
        if is_same and (ends - starts > 1).all():
            names[int(short[0])] = slice(None)
        else:
            identity = np.full(len(starts), NONE, np.int64)
            for part in rounds(self.data, starts, ends):
                message, number, _ = part.taking(1, VARINT)
                identity[message] = number
            for key in distinct(identity).tolist():
                names[key & 0xFFFFFFFFFFFFFFFF] = np.flatnonzero(identity == key)
        for key, own in names.items():
            name = self.stat_names.get(key, "")
            if name not in wanted:
                continue
            if name not in columns:
                is_number = name in NUMBERS or name in _ALLOCATION_NUMBERS
                none, dtype = (MISSING, np.int64) if is_number else (NONE, np.int32)
                columns[name] = np.full(count, none, dtype)
            self._write(columns[name], row[own], starts[own], ends[own])

    def _write(self, column: Column, row: Longs, starts: Longs, ends: Longs) -> None:
        """Write the values of stats of one name into their column."""
        for part in rounds(self.data, starts, ends):
            if column.dtype == np.int64:  # of numbers
                for field in (3, 4):
                    message, value, _ = part.taking(field, VARINT)
                    column[row[message]] = value
                continue
            message, value, _ = part.taking(7, VARINT)
            if len(message):
                refers, which, _ = groups(value)
                texts = (self.stat_names.get(ref & 0xFFFFFFFFFFFFFFFF, "") for ref in refers.tolist())
                column[row[message]] = np.array([*map(self._text_id, texts)], np.int32)[which]
            message, value, size = part.taking(5, LENGTH)
            column[row[message]] = [
                self._text_id(self._text(first, first + length))
                for first, length in zip(value.tolist(), size.tolist(), strict=True)
            ]

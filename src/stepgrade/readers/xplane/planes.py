"""The planes of a profile: lines of events with the few stats that matter, in columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from stepgrade.model.columns import Column, distinct, groups
from stepgrade.model.events import NONE, Ids, Longs
from stepgrade.protobuf import FIXED64, LENGTH, VARINT, field_at, walk
from stepgrade.readers.xplane.wire import doubles, rounds, run_of

MISSING: Final = np.iinfo(np.int64).min
NUMBERS: Final = ("program_id", "run_id", "device_ordinal", "step_num", "correlation_id")
TEXTS: Final = ("hlo_op", "hlo_module", "tf_op", "name", "memcpy_details")
Stat: TypeAlias = int | float | str | tuple[int, int]  # bytes: where they begin and end
# The runtime's own events, thousands per step.
NOISE: Final = re.compile(
    r"ThreadpoolListener::|ThunkExecutor::|end: |Wait for (donation|usage) holds|PythonRefManager::"
    r"|\$builtins |(Record|Add)(Usage|Hold)|MemoryDeallocation$|MemoryAllocation$"
)
# What the allocator writes of each block; of these the few stats that tell how much was in use after it.
ALLOCATIONS: Final = ("MemoryAllocation", "MemoryDeallocation")
_ALLOCATION_NUMBERS: Final = ("bytes_allocated", "bytes_reserved", "allocation_bytes", "index_on_host")
_ALLOCATION_TEXTS: Final = ("allocator_name",)
_CHUNK: Final = 1 << 14  # events that are decoded at once: more take more memory and are no faster
_LONGEST_TEXT: Final = 4000
_MOST: Final = 1 << 60
_EVENT: Final = 4 << 3 | LENGTH
_FIRST: Final = 1 << 3 | VARINT
_NO_IDS: Final = np.empty(0, np.int32)
_NO_TIMES: Final = np.empty(0, np.int64)


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


class _Chunk(NamedTuple):
    """Some events of a plane that were decoded at once, with the stats that any of them has."""

    line: Ids
    name: Ids
    start_ns: Longs
    end_ns: Longs
    stats: dict[str, Column]


def _joined(chunks: list[_Chunk], numbers: Iterable[str], texts: Iterable[str]) -> PlaneEvents:
    """Return chunks as one table; a stat that none has is one value, kept once."""
    count = sum(len(chunk.line) for chunk in chunks)

    def column(name: str, none: Any) -> Column:
        if not any(name in chunk.stats for chunk in chunks):
            return np.broadcast_to(none, count)
        parts = (chunk.stats.pop(name, np.broadcast_to(none, len(chunk.line))) for chunk in chunks)
        return np.concatenate([*parts])

    return PlaneEvents(
        line=np.concatenate([_NO_IDS, *(chunk.line for chunk in chunks)]),
        name=np.concatenate([_NO_IDS, *(chunk.name for chunk in chunks)]),
        start_ns=np.concatenate([_NO_TIMES, *(chunk.start_ns for chunk in chunks)]),
        end_ns=np.concatenate([_NO_TIMES, *(chunk.end_ns for chunk in chunks)]),
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


class _Parts:
    """The parts of a plane on the way to columns."""

    def __init__(self, data: bytes, offset: int, end: int) -> None:
        self.data = data
        self.name = ""
        self.lines: list[PlaneLine] = []
        self.found: list[tuple[Longs, Longs]] = []  # where events begin and end
        self.counts: list[int] = []  # of events, line by line
        self.stat_names: dict[int, str] = {}
        self.texts: dict[str, int] = {}
        self.allocations: list[_Chunk] = []
        stats, names = [], []
        for field in walk(data, offset, end, may_be_cut=True):
            inside = field.value, field.value + field.size
            if field.kind != LENGTH:
                continue
            if field.number == 2:
                self.name = self._text(*inside)
            elif field.number == 3:
                self._add_line(*inside)
            elif field.number == 4:
                names.append(inside)
            elif field.number == 5:
                key, name = self._entry(*inside)
                self.stat_names[key] = next(
                    (
                        self._text(part.value, part.value + part.size)
                        for part in walk(data, *name)
                        if part.number == 2
                    ),
                    "",
                )
            elif field.number == 6:
                stats.append(inside)
        self.stats = self._stats(stats)
        self.metadata: dict[int, int] = {}
        self.names: list[str] = []
        self.shown: list[str] = []
        self.metadata_stats: list[dict[str, Stat]] = []
        for entry in names:
            self._add_metadata(*entry)
        self._lay_out_metadata()

    def _lay_out_metadata(self) -> None:
        """Put what metadata says of all its events into tables by its index, with one more entry for none."""
        keys = np.array([*self.metadata], np.uint64).view(np.int64)
        order = np.argsort(keys, kind="stable")
        self.keys: Longs = keys[order]
        self.metadata_ids: Ids = np.array([*self.metadata.values()], np.int32)[order]
        self.is_noise = np.array([NOISE.match(text) is not None for text in self.names] + [True], np.bool_)
        self.is_allocation = np.array([text in ALLOCATIONS for text in self.names] + [False], np.bool_)
        self.by_name: dict[str, Column] = {}  # what some name has, by the id of the name
        for key in (*NUMBERS, *TEXTS):
            values = [stats.get(key) for stats in self.metadata_stats]
            if key in NUMBERS and any(isinstance(value, int) for value in values):
                numbers = [value if isinstance(value, int) else MISSING for value in values]
                self.by_name[key] = np.array([*numbers, MISSING], np.int64)
            elif key in TEXTS and any(isinstance(value, str) for value in values):
                ids = [self._text_id(value) if isinstance(value, str) else NONE for value in values]
                self.by_name[key] = np.array([*ids, NONE], np.int32)

    def plane(self) -> Plane:
        """Return the plane with its events decoded."""
        starts, ends = (np.concatenate([_NO_TIMES, *(part[side] for part in self.found)]) for side in (0, 1))
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

    def _entry(self, offset: int, end: int) -> tuple[int, tuple[int, int]]:
        """Return the key of an entry of a map, and where its value is."""
        key, inside = 0, (offset, offset)
        for field in walk(self.data, offset, end):
            if field.number == 1 and field.kind == VARINT:
                key = field.value
            elif field.number == 2 and field.kind == LENGTH:
                inside = field.value, field.after
        return key, inside

    def _add_metadata(self, offset: int, end: int) -> None:
        key, inside = self._entry(offset, end)
        name = shown = ""
        stats = []
        for field in walk(self.data, *inside):
            if field.kind != LENGTH:
                continue
            if field.number == 2:
                name = self._text(field.value, field.after)
            elif field.number == 4:
                shown = self._text(field.value, field.after)
            elif field.number == 5:
                stats.append((field.value, field.after))
        self.metadata[key] = len(self.names)
        self.names.append(name)
        self.shown.append(shown or name)
        self.metadata_stats.append(self._stats(stats))

    def _stats(self, spans: list[tuple[int, int]]) -> dict[str, Stat]:
        """Return the stats of the plane, or of one metadata, by their names."""
        found: dict[str, Stat] = {}
        for span in spans:
            name = ""
            value: Stat | None = None
            for field in walk(self.data, *span):
                if field.number == 1 and field.kind == VARINT:
                    name = self.stat_names.get(field.value, "")
                elif field.number == 7 and field.kind == VARINT:
                    value = self.stat_names.get(field.value, "")
                elif field.number == 5 and field.kind == LENGTH:
                    value = self._text(field.value, field.after)
                elif field.number == 6 and field.kind == LENGTH:
                    value = (field.value, field.after)
                elif field.number in (3, 4) and field.kind == VARINT:
                    value = field.value - (1 << 64) if field.value >= 1 << 63 else field.value
                elif field.number == 2 and field.kind == FIXED64:
                    value = float(doubles(self.data, np.array([field.value]))[0])
            if name and value is not None:
                found[name] = value
        return found

    def _decode(self, starts: Longs, ends: Longs, line: Ids) -> tuple[_Chunk, int]:
        """Return some of the events without what is noise, and how many of them could be read."""
        count = len(starts)
        offset, duration = (np.zeros(count, np.int64) for _ in range(2))
        known, summed, dropped = (np.zeros(count, np.bool_) for _ in range(3))
        name = np.full(count, NONE, np.int32)
        stats: dict[str, Column] = {}
        for part in rounds(self.data, starts, ends, dropped):
            message, value, _ = part.taking(1, VARINT)
            if len(message):
                known[message] = True
                name[message] = self._names_of(value)
                dropped[message] = self.is_noise[name[message]]
            for number, column in ((2, offset), (3, duration)):
                message, value, _ = part.taking(number, VARINT)
                column[message] = value
            summed[part.taking(5, VARINT)[0]] = True
            self._add_stats(stats, count, (*NUMBERS, *TEXTS), part.taking(4, LENGTH))
        chosen = np.flatnonzero(known & self.is_allocation[name] & (offset >= 0))
        if len(chosen):
            self._add_allocations(starts[chosen], ends[chosen], line[chosen], name[chosen])
        for key, table in self.by_name.items():
            own = stats.get(key)
            values_by_name = table[name]
            stats[key] = values_by_name if own is None else np.where(own == table[-1], values_by_name, own)
        rows = np.flatnonzero(known & ~summed & ~dropped & (offset >= 0) & (duration >= 0))
        zero = np.array([each.timestamp_ns for each in self.lines] or [0], np.int64)[line[rows]]
        offset, duration = np.minimum(offset[rows], _MOST), np.minimum(duration[rows], _MOST)
        chunk = _Chunk(
            line=line[rows],
            name=name[rows],
            start_ns=zero + offset // 1000,
            end_ns=zero + (offset + duration) // 1000,
            stats={key: column[rows] for key, column in stats.items()},
        )
        return chunk, int(known.sum())

    def _add_allocations(self, starts: Longs, ends: Longs, line: Ids, name: Ids) -> None:
        """Keep the allocator's events."""
        count = len(starts)
        offset = np.zeros(count, np.int64)
        stats: dict[str, Column] = {}
        for part in rounds(self.data, starts, ends):
            message, value, _ = part.taking(2, VARINT)
            offset[message] = value
            fields = part.taking(4, LENGTH)
            self._add_stats(stats, count, (*_ALLOCATION_NUMBERS, *_ALLOCATION_TEXTS), fields)
        zero = np.array([each.timestamp_ns for each in self.lines] or [0], np.int64)[line]
        start = zero + np.clip(offset, 0, _MOST) // 1000
        self.allocations.append(_Chunk(line=line, name=name, start_ns=start, end_ns=start, stats=stats))

    def _names_of(self, metadata: Longs) -> Ids:
        """Return the name index of each event."""
        if not len(self.keys):
            return np.full(len(metadata), NONE, np.int32)
        found = np.minimum(np.searchsorted(self.keys, metadata), len(self.keys) - 1)
        return np.where(self.keys[found] == metadata, self.metadata_ids[found], NONE).astype(np.int32)

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
        # The stats of events that are alike come in one order: mostly all have the same name.
        for key, of in self._by_identity(starts, ends):
            name = self.stat_names.get(key, "")
            if name not in wanted:
                continue
            is_number = name in NUMBERS or name in _ALLOCATION_NUMBERS
            if name not in columns:
                none, dtype = (MISSING, np.int64) if is_number else (NONE, np.int32)
                columns[name] = np.full(count, none, dtype)
            self._write(columns[name], row[of], starts[of], ends[of])

    def _by_identity(self, starts: Longs, ends: Longs) -> Iterator[tuple[int, slice | Longs]]:
        """Yield the numbers of stats' names that occur, and which of the stats have each."""
        octets = np.frombuffer(self.data, np.uint8)
        tag, short = octets[starts.clip(max=len(octets) - 1)], octets.take(starts + 1, mode="clip")
        if (
            short[0] < 0x80
            and (tag == _FIRST).all()
            and (short == short[0]).all()
            and (ends - starts > 1).all()
        ):
            yield int(short[0]), slice(None)
            return
        identity = np.full(len(starts), NONE, np.int64)
        for part in rounds(self.data, starts, ends):
            message, number, _ = part.taking(1, VARINT)
            identity[message] = number
        for key in distinct(identity).tolist():
            yield key & 0xFFFFFFFFFFFFFFFF, np.flatnonzero(identity == key)

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

"""The planes of a profile: lines of events with the few stats that matter, in columns."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from stepgrade.model.events import NONE, Ids, Longs
from stepgrade.readers.xplane.wire import FIXED64, LENGTH, VARINT, doubles, field_at, rounds, run_of, walk

MISSING: Final = np.iinfo(np.int64).min
NUMBERS: Final = (
    *("program_id", "run_id", "device_ordinal", "step_num", "correlation_id", "flops", "model_flops"),
    "bytes_accessed",
)
TEXTS: Final = (
    "hlo_op",
    "hlo_module",
    "tf_op",
    "name",
    "memcpy_details",
    "hlo_category",
    "shape_with_layout",
)
Stat: TypeAlias = int | float | str | tuple[int, int]  # bytes: where they begin and end
# What the runtime writes about itself, thousands of times a step.
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

    def rows(self, chosen: Longs) -> PlaneEvents:
        """Return some of the events."""
        return PlaneEvents(
            line=self.line[chosen],
            name=self.name[chosen],
            start_ns=self.start_ns[chosen],
            end_ns=self.end_ns[chosen],
            numbers={name: column[chosen] for name, column in self.numbers.items()},
            texts={name: column[chosen] for name, column in self.texts.items()},
        )


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


def joined(tables: list[PlaneEvents]) -> PlaneEvents:
    """Return tables of the same columns as one."""
    if len(tables) == 1:
        return tables[0]
    numbers, texts = tables[0].numbers, tables[0].texts
    return PlaneEvents(
        line=np.concatenate([part.line for part in tables]),
        name=np.concatenate([part.name for part in tables]),
        start_ns=np.concatenate([part.start_ns for part in tables]),
        end_ns=np.concatenate([part.end_ns for part in tables]),
        numbers={key: np.concatenate([part.numbers[key] for part in tables]) for key in numbers},
        texts={key: np.concatenate([part.texts[key] for part in tables]) for key in texts},
    )


class PlaneSpace(Struct, kw_only=True):
    """All planes of one file."""

    planes: list[Plane]
    is_cut: bool


def read_space(data: bytes) -> PlaneSpace:
    """Return the planes of a profile; files that follow one another in one are one profile."""
    planes, place = [], 0
    is_cut = False
    while place < len(data):
        field = field_at(data, place, len(data))
        if field is None:
            is_cut = True
            field = field_at(data, place, len(data), may_be_cut=True)
            if field is None:
                break
        place = field.after
        if field.number == 1 and field.kind == LENGTH:
            planes.append(_Parts(data, field.value, field.value + field.size).plane())
    return PlaneSpace(planes=planes, is_cut=is_cut)


class _Parts:
    """The parts of a plane on the way to columns."""

    def __init__(self, data: bytes, place: int, end: int) -> None:
        self.data = data
        self.name = ""
        self.lines: list[PlaneLine] = []
        self.found: list[tuple[Longs, Longs]] = []  # where events begin and end
        self.counts: list[int] = []  # of events, line by line
        self.stat_names: dict[int, str] = {}
        self.text_places: dict[str, int] = {}
        self.allocations: list[PlaneEvents] = []
        stats, names = [], []
        for field in walk(data, place, end, may_be_cut=True):
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
        """Put what metadata says of all its events into tables by its place, with one more place for none."""
        keys = np.array([*self.metadata], np.uint64).view(np.int64)
        order = np.argsort(keys, kind="stable")
        self.keys: Longs = keys[order]
        self.places: Ids = np.array([*self.metadata.values()], np.int32)[order]
        self.of_names: dict[str, Longs] = {}
        self.texts_of_names: dict[str, Ids] = {}
        for name in NUMBERS:
            values = (stats.get(name) for stats in self.metadata_stats)
            numbers = [value if isinstance(value, int) else MISSING for value in values]
            self.of_names[name] = np.array([*numbers, MISSING], np.int64)
        for name in TEXTS:
            values = (stats.get(name) for stats in self.metadata_stats)
            places = [self._place(value) if isinstance(value, str) else NONE for value in values]
            self.texts_of_names[name] = np.array([*places, NONE], np.int32)

    def plane(self) -> Plane:
        """Return the plane with its events decoded."""
        none = np.zeros(0, np.int64)
        starts, ends = (np.concatenate([none, *(part[side] for part in self.found)]) for side in (0, 1))
        self.found.clear()
        line = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        parts, damaged = [], 0
        for first in range(0, max(len(starts), 1), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            part = self._decode(starts[chunk], ends[chunk], line[chunk])
            damaged += len(starts[chunk]) - part[1]
            parts.append(part[0])
        return Plane(
            name=self.name,
            stats=self.stats,
            lines=self.lines,
            names=self.names,
            shown=self.shown,
            metadata=self.metadata_stats,
            texts=list(self.text_places),
            events=joined([part for part in parts if len(part.line)] or parts[:1]),
            damaged=damaged,
            allocations=joined(self.allocations) if self.allocations else None,
        )

    def _text(self, place: int, end: int) -> str:
        return self.data[place : min(end, place + _LONGEST_TEXT)].decode("utf-8", "replace")

    def _place(self, text: str) -> int:
        return self.text_places.setdefault(text, len(self.text_places))

    def _add_line(self, place: int, end: int) -> None:
        number, name, timestamp = 0, "", 0
        count = 0
        while place < end:
            starts, ends, place = run_of(self.data, place, end, _EVENT)
            if len(starts):
                self.found.append((starts, ends))
                count += len(starts)
            field = field_at(self.data, place, end) if place < end else None
            if field is None:
                break
            place = field.after
            if field.number == 4 and field.kind == LENGTH:
                self.found.append((np.array([field.value]), np.array([field.after])))
                count += 1
            elif field.kind == VARINT and field.number in (1, 3):
                number, timestamp = (field.value, timestamp) if field.number == 1 else (number, field.value)
            elif field.kind == LENGTH and field.number in (2, 11):
                name = name or self._text(field.value, field.after)
        self.lines.append(PlaneLine(number, name, min(timestamp, _MOST)))
        self.counts.append(count)

    def _entry(self, place: int, end: int) -> tuple[int, tuple[int, int]]:
        """Return the key of an entry of a map, and where its value is."""
        key, inside = 0, (place, place)
        for field in walk(self.data, place, end):
            if field.number == 1 and field.kind == VARINT:
                key = field.value
            elif field.number == 2 and field.kind == LENGTH:
                inside = field.value, field.after
        return key, inside

    def _add_metadata(self, place: int, end: int) -> None:
        key, inside = self._entry(place, end)
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

    def _stats(self, places: list[tuple[int, int]]) -> dict[str, Stat]:
        """Return the stats of the plane, or of one metadata, by their names."""
        found: dict[str, Stat] = {}
        for place in places:
            name = ""
            value: Stat | None = None
            for field in walk(self.data, *place):
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

    def _decode(self, starts: Longs, ends: Longs, line: Ids) -> tuple[PlaneEvents, int]:
        """Return some of the events without what is noise, and how many of them could be read."""
        count = len(starts)
        metadata, offset, duration = (np.zeros(count, np.int64) for _ in range(3))
        known, summed, dropped = (np.zeros(count, np.bool_) for _ in range(3))
        stats: list[tuple[Longs, Longs, Longs]] = []
        quiet = np.array([NOISE.match(text) is None for text in self.names] + [False], np.bool_)
        name = np.full(count, NONE, np.int32)
        for part in rounds(self.data, starts, ends, dropped):
            for number, column in ((1, metadata), (2, offset), (3, duration)):
                message, value, _ = part.taking(number, VARINT)
                column[message] = value
                if number == 1 and len(message):
                    known[message] = True
                    name[message] = self._names_of(value)
                    dropped[message] = ~quiet[name[message]]
            summed[part.taking(5, VARINT)[0]] = True
            stats.append(part.taking(4, LENGTH))
        in_memory = np.array([text in ALLOCATIONS for text in self.names] + [False], np.bool_)
        chosen = np.flatnonzero(known & in_memory[name] & (offset >= 0))
        if len(chosen):
            self._add_allocations(starts[chosen], ends[chosen], line[chosen], name[chosen])
        keep = known & ~summed & ~dropped & (offset >= 0) & (duration >= 0)
        rows = np.flatnonzero(keep)
        place = np.full(count, NONE, np.int64)
        place[rows] = np.arange(len(rows))
        zero = np.array([one.timestamp_ns for one in self.lines] or [0], np.int64)[line[rows]]
        offset, duration = np.minimum(offset[rows], _MOST), np.minimum(duration[rows], _MOST)
        table = PlaneEvents(
            line=line[rows],
            name=name[rows],
            start_ns=zero + offset // 1000,
            end_ns=zero + (offset + duration) // 1000,
            numbers={key: table[name[rows]] for key, table in self.of_names.items()},
            texts={key: table[name[rows]] for key, table in self.texts_of_names.items()},
        )
        message, value, size = (
            np.concatenate([part[side] for part in stats] or [starts[:0]]) for side in range(3)
        )
        wanted = place[message] >= 0
        self._add_stats(table, place[message[wanted]], value[wanted], size[wanted])
        return table, int(known.sum())

    def _add_allocations(self, starts: Longs, ends: Longs, line: Ids, name: Ids) -> None:
        """Keep what some events of the allocator tell."""
        count = len(starts)
        offset = np.zeros(count, np.int64)
        stats: list[tuple[Longs, Longs, Longs]] = []
        for part in rounds(self.data, starts, ends, np.zeros(count, np.bool_)):
            message, value, _ = part.taking(2, VARINT)
            offset[message] = value
            stats.append(part.taking(4, LENGTH))
        zero = np.array([one.timestamp_ns for one in self.lines] or [0], np.int64)[line]
        start = zero + np.clip(offset, 0, _MOST) // 1000
        table = PlaneEvents(
            line=line,
            name=name,
            start_ns=start,
            end_ns=start,
            numbers={key: np.full(count, MISSING, np.int64) for key in _ALLOCATION_NUMBERS},
            texts={key: np.full(count, NONE, np.int32) for key in _ALLOCATION_TEXTS},
        )
        row, value, size = (
            np.concatenate([part[side] for part in stats] or [starts[:0]]) for side in range(3)
        )
        self._add_stats(table, row, value, size)
        self.allocations.append(table)

    def _names_of(self, metadata: Longs) -> Ids:
        """Return the place of the name of each event."""
        if not len(self.keys):
            return np.full(len(metadata), NONE, np.int32)
        found = np.minimum(np.searchsorted(self.keys, metadata), len(self.keys) - 1)
        return np.where(self.keys[found] == metadata, self.places[found], NONE).astype(np.int32)

    def _add_stats(self, table: PlaneEvents, row: Longs, starts: Longs, sizes: Longs) -> None:
        """Write the stats that matter into the table."""
        identity = np.full(len(row), NONE, np.int64)
        value, size, kind = (np.zeros(len(row), np.int64) for _ in range(3))
        known = {key for key, name in self.stat_names.items() if name in table.numbers or name in table.texts}
        wanted = np.array(sorted(known), np.uint64).view(np.int64) if known else np.zeros(1, np.int64) + NONE
        unwanted = np.zeros(len(row), np.bool_)
        for part in rounds(self.data, starts, starts + sizes, unwanted):
            message, number, _ = part.taking(1, VARINT)
            identity[message] = number
            nearest = wanted[np.minimum(np.searchsorted(wanted, number), len(wanted) - 1)]
            unwanted[message] = nearest != number
            if part.is_uniform and len(part.number) and part.number[0] == 1:
                continue
            given = part.number > 1
            at = part.message[given]
            value[at], size[at], kind[at] = part.value[given], part.size[given], part.number[given]
        for key, name in self.stat_names.items():
            if name not in table.numbers and name not in table.texts:
                continue
            own = np.flatnonzero(identity == key)
            if not len(own):
                continue
            if name in table.numbers:
                numbers = own[(kind[own] == 3) | (kind[own] == 4)]
                table.numbers[name][row[numbers]] = value[numbers]
                continue
            refers = own[kind[own] == 7]
            texts = sorted(set(value[refers].tolist()))
            places = np.array([self._place(self.stat_names.get(ref, "")) for ref in texts], np.int32)
            if len(refers):
                table.texts[name][row[refers]] = places[np.searchsorted(np.array(texts), value[refers])]
            written = own[kind[own] == 5]
            table.texts[name][row[written]] = [
                self._place(self._text(first, first + length))
                for first, length in zip(value[written].tolist(), size[written].tolist(), strict=True)
            ]

"""Chunks of ordinary events to columns by the compiled library, exactly as the Python lane reads them.

The library reads whole chunks or none: one with anything unusual in it is left to the Python lane. It numbers
texts as they are; what they mean is decided here, by the same functions as for the Python lane.
"""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepgrade.decoding import json_decoder
from stepgrade.model.events import NONE, RangeKind
from stepgrade.naming.python_frames import without_address
from stepgrade.readers.kineto import categories
from stepgrade.readers.kineto.decode import EXACT_US, LIMIT_US, Args
from stepgrade.readers.kineto.tables import LONG_FRAME_US, ROWS, Batch, Tables, is_of_user

# Chunks in a row that the library may give back before it is no longer asked.
_MOST_ODD: Final = 8
_FLUSH_ROWS: Final = 1 << 16
_DONE, _ODD, _NO_MEMORY = 0, 1, 2  # outcomes of a call
_LIBRARY, _USER, _MODULE = 1, 2, 3  # frames
_FRAME_MARK: Final = b"\0"
# Where the library has its numbers and buffers; see lane/lib.rs.
_REPORT: Final = 11
_COLUMNS: Final = 12
_ASIDE, _COUNTS, _TEXTS = 100, 101, 102
_NAMES, _THREADS, _INPUTS, _LAUNCHES, _COLLECTIVES, _CATEGORIES, _FRAMES = range(7)
_TABLES: Final = ("ops", "calls", "ranges", "frames", "work", "device_ranges")
_ODD_CATEGORIES: Final = (
    categories.OPERATOR_CATEGORY,
    categories.OPERATOR_RANGES,
    categories.NPU_KERNELS,
    categories.NPU_CALLS,
    categories.NPU_LAUNCHES,
    categories.LEGACY_KERNELS,
    categories.MTIA_KERNELS,
)
# The columns of the library: number, type, and the texts that an index is of.
_Column: TypeAlias = tuple[int, str, int | None]
_COMMON: Final[dict[str, _Column]] = {
    "start_ns": (0, "i8", None),
    "dur_ns": (1, "i8", None),
    "external_id": (2, "i8", None),
    "name": (7, "i4", _NAMES),
    "kind": (11, "i1", None),
}
_HOST: Final[dict[str, _Column]] = _COMMON | {"thread": (8, "i4", _THREADS)}
_DEVICE: Final[dict[str, _Column]] = _COMMON | {"stream": (5, "i8", None), "device": (6, "i4", None)}
_OWN: Final[dict[str, dict[str, _Column]]] = {
    "ops": _HOST
    | {
        "sequence": (3, "i8", None),
        "forward_thread": (4, "i8", None),
        "inputs": (9, "i4", _INPUTS),
    },
    "calls": _HOST | {"correlation": (3, "i8", None)},
    "ranges": _HOST
    | {
        "python_id": (3, "i8", None),
        "python_parent": (4, "i8", None),
        "inputs": (9, "i4", _INPUTS),
    },
    "frames": _HOST,
    "work": _DEVICE
    | {
        "correlation": (3, "i8", None),
        "bytes": (4, "i8", None),
        "launch": (9, "i4", _LAUNCHES),
        "collective": (10, "i4", _COLLECTIVES),
    },
    "device_ranges": _DEVICE,
}
_LAUNCH_FIELDS: Final = ("occupancy", "blocks_per_sm", "registers", "shared")
_COLLECTIVE_FIELDS: Final = (
    *("collective", "in_elements", "out_elements", "dtype", "group_size"),
    *("group", "group_ranks", "source_rank", "target_rank"),
)
_decode_text = json_decoder(str).decode
_decode_any = msgspec.json.decode


def _setup() -> bytes:
    """Return which categories become rows of which table, in the order of the rows, for the library."""
    lines = []
    for table, kind, names in ROWS:
        for name in categories.FRAME_CATEGORIES if table == "frames" else names:
            if name not in _ODD_CATEGORIES:
                role, own = ("frame", RangeKind.MODULE) if table == "frames" else ("row", kind)
                lines.append(f"{role} {_TABLES.index(table)} {int(own)} {name}")
    lines += [f"odd - 0 {name}" for name in _ODD_CATEGORIES]
    lines += [f"aside - 0 {name}" for name in (categories.MEMORY_CATEGORY, categories.COUNTER_CATEGORY)]
    return "\n".join(lines).encode()


class CompiledLane:
    """Reads chunks into `tables`; texts are added chunk by chunk, rows when there are many, or at `flush`."""

    def __init__(self, library: ctypes.CDLL, tables: Tables) -> None:
        self._tables = tables
        self._odd = 0  # chunks given back since the last one that was read
        self.pending_rows = 0
        self._report = np.zeros(_REPORT, np.int64)
        self._seen = [0] * 7  # texts of each kind that have been looked at
        self._numbers = [array("i") for _ in range(7)]  # of those texts in `tables`
        self._categories: list[str] = []
        setup = _setup()
        made = _function(library, "new", ctypes.c_void_p, _TEXT, _SIZE, *[ctypes.c_int64] * 3)(
            setup, len(setup), int(LONG_FRAME_US * 1000), LIMIT_US, int(EXACT_US) * 1000
        )
        if not made:
            raise MemoryError
        self._lane = ctypes.c_void_p(made)
        weakref.finalize(self, _function(library, "free", None, ctypes.c_void_p), self._lane)
        on_text = (ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, _SIZE, ctypes.c_void_p)
        self._scan = _function(library, "scan", *on_text)
        self._commit = _function(library, "commit", *on_text)
        self._classify = _function(library, "classify", ctypes.c_int32, ctypes.c_void_p, _SIZE, _TEXT, _SIZE)
        self._clear = _function(library, "clear", ctypes.c_int32, ctypes.c_void_p)
        self._find = _function(
            library, "buffer", ctypes.c_void_p, ctypes.c_void_p, _SIZE, ctypes.POINTER(_SIZE)
        )

    def read(self, chunk: memoryview, add_aside: Callable[[bytes], None]) -> bool | None:
        """Read a chunk; return whether its times have to be read as text, None if it was left as it is.

        Events that make no rows here go to `add_aside` as a JSON array before any row is added.
        """
        if self._odd >= _MOST_ODD or self._tables.pid_ranks:
            return None
        text = np.frombuffer(chunk, np.uint8)
        call = self._lane, text.ctypes.data, len(text), self._report.ctypes.data
        outcome = self._scan(*call)
        if outcome != _DONE:
            _check(outcome, _ODD)
            self._odd += 1
            return None
        self._odd = 0
        aside, frames, *_ = self._report.tolist()
        if frames > self._seen[_FRAMES]:
            first, names = self._seen[_FRAMES], self._new_texts(_FRAMES, frames)
            flags = bytes(_frame_flag(_decode_text(b'"%b"' % name)) for name in names)
            _check(self._classify(self._lane, first, flags, len(flags)))
        if aside:
            add_aside(self._bytes(_ASIDE))
        _check(self._commit(*call))
        _, _, self.pending_rows, needs_text, *counts = self._report.tolist()
        for kind, count in enumerate(counts[:_FRAMES]):
            if count > self._seen[kind]:
                self._number_texts(kind, count)
        self._count_categories()
        if self.pending_rows >= _FLUSH_ROWS:
            self.flush()
        return bool(needs_text)

    def flush(self) -> None:
        """Add the rows to the tables."""
        if not self.pending_rows:
            return
        numbers = [np.array([*numbers, NONE], np.int32) for numbers in self._numbers]
        for index, table in enumerate(_TABLES):
            batch: Batch = {}
            for name, (number, dtype, kind) in _OWN[table].items():
                column: NDArray[Any] = np.frombuffer(self._bytes(index * _COLUMNS + number), dtype)
                batch[name] = column if kind is None else numbers[kind][column]
            count = len(batch["start_ns"])
            if count:
                batch["rank"] = np.full(count, NONE, np.int32)
                self._tables.tables[table].append(batch)
        _check(self._clear(self._lane))
        self.pending_rows = 0

    def _bytes(self, number: int) -> bytes:
        size = _SIZE()
        found = self._find(self._lane, number, size)
        return ctypes.string_at(found, size.value) if size.value else b""

    def _new_texts(self, kind: int, count: int) -> Iterator[bytes]:
        """Yield the texts of a kind from the first that was not seen."""
        seen, self._seen[kind] = self._seen[kind], count
        size = _SIZE()
        arena = self._find(self._lane, _TEXTS + 2 * kind, size)
        ends = (ctypes.c_uint64 * count).from_address(self._find(self._lane, _TEXTS + 2 * kind + 1, size))
        low = ends[seen - 1] if seen else 0
        for end in ends[seen:]:
            yield ctypes.string_at(arena + low, end - low)
            low = end

    def _number_texts(self, kind: int, count: int) -> None:
        tables, texts = self._tables, self._new_texts(kind, count)
        numbers = self._numbers[kind]
        if kind == _NAMES:
            numbers.extend(tables.strings[_name(text)] for text in texts)
        elif kind == _THREADS:
            pairs = (text.split(b"\0") for text in texts)
            numbers.extend(tables.threads[_id(process), _id(thread)] for process, thread in pairs)
        elif kind == _INPUTS:
            numbers.extend(tables.inputs[text] for text in texts)
        elif kind == _LAUNCHES:
            numbers.extend(tables.launch_numbers([_args(_LAUNCH_FIELDS, text) for text in texts]))
        elif kind == _COLLECTIVES:
            numbers.extend(tables.collective_number(_args(_COLLECTIVE_FIELDS, text)) for text in texts)
        else:
            self._categories += [_decode_text(b'"%b"' % text) for text in texts]

    def _count_categories(self) -> None:
        counts = np.frombuffer(self._bytes(_COUNTS), np.int64).tolist()
        for name, count in zip(self._categories, counts, strict=True):
            if count:
                self._tables.categories[name] += count
        self._tables.categories[categories.MEMORY_CATEGORY] += 0  # as Tables.add does


_TEXT, _SIZE = ctypes.c_char_p, ctypes.c_size_t


def _function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(result, *arguments)((f"stepgrade_kineto_{name}", library))


def _check(outcome: int, *others: int) -> None:
    if outcome == _NO_MEMORY:
        raise MemoryError
    if outcome != _DONE and outcome not in others:
        raise RuntimeError("the compiled library failed: set STEPGRADE_PURE=1, and please report this")


def _frame_flag(name: str) -> int:
    if name.startswith(categories.MODULE_PREFIX):
        return _MODULE
    return _USER if is_of_user(name) else _LIBRARY


def _name(text: bytes) -> str:
    if text.startswith(_FRAME_MARK):
        return without_address(_name(text[1:]))
    return _decode_text(b'"%b"' % text) if b"\\" in text else text.decode()


def _id(text: bytes) -> object:
    return _decode_any(text) if text else NONE


def _args(fields: tuple[str, ...], text: bytes) -> Args:
    values = text.split(b"\0")
    found = {name: _decode_any(value) for name, value in zip(fields, values, strict=False) if value}
    return Args(**found, block=msgspec.Raw(values[-1])) if fields is _LAUNCH_FIELDS else Args(**found)

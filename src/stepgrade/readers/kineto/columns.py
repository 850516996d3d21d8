"""Columns that grow batch by batch, and numbers for things that are kept once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.events import NONE, Ids, Longs

Key = TypeVar("Key")
BLOCK_ROWS: Final = 1 << 18
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "q": np.dtype(np.int64),
    "i": np.dtype(np.int32),
    "b": np.dtype(np.int8),
}


class Interner(dict[Key, int], Generic[Key]):
    """Number each new key; `interner[key]` is its number."""

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number


class Table:
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
                self._block(name, low)[low : low + part] = column[done : done + part]
            self.row_count += part
            done += part

    def _block(self, name: str, low: int) -> NDArray[Any]:
        if low == 0:
            self._blocks[name].append(np.empty(BLOCK_ROWS, dtype=self.dtypes[name]))
        return self._blocks[name][-1]

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


def longs(values: Sequence[Any]) -> array[int]:
    """Return ids as 64-bit integers, NONE where a value is not one."""
    try:
        return array("q", values)
    except (TypeError, OverflowError):
        return array("q", [_whole(value) for value in values])


def small(values: Longs) -> Ids:
    """Return 64-bit ids as 32-bit ones, NONE where they do not fit."""
    narrow = values.astype(np.int32)
    return np.where(narrow == values, narrow, np.int32(NONE)).astype(np.int32)


def _whole(value: object) -> int:
    """Return an id as a signed 64-bit integer; equal ids stay equal."""
    number = _parse(value)
    if -(1 << 63) <= number < 1 << 63:
        return number
    return number - (1 << 64) if 0 < number < 1 << 64 else NONE


def _parse(value: object) -> int:
    if isinstance(value, float):
        return int(value) if value.is_integer() else NONE
    if isinstance(value, str):
        return _parse_text(value)
    return value if isinstance(value, int) else NONE


def _parse_text(text: str) -> int:
    digits = text.strip().removeprefix("stream").strip()
    if len(digits) > 20 or not digits.isascii():
        return NONE
    try:
        return int(digits, 16 if digits.startswith("0x") else 10)
    except ValueError:
        return NONE


def filled(values: array[int], spare: Callable[[int], Any]) -> Longs:
    """Return `values` with what `spare` says of a row where the event itself does not say."""
    ids = np.frombuffer(values, dtype=np.int64)
    rows = np.flatnonzero(ids == NONE)
    if len(rows):
        ids[rows] = np.frombuffer(longs([spare(row) for row in rows.tolist()]), dtype=np.int64)
    return ids

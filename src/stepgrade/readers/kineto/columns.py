"""Columns that grow without copying, and tables of things that are kept once."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.events import NONE, Ids, Longs

Key = TypeVar("Key")
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
    """Equally long columns of integers; array.array grows in place, so nothing is held twice."""

    def __init__(self, **codes: str) -> None:
        self.columns = {name: array(code) for name, code in codes.items()}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def append(self, batch: dict[str, Any]) -> None:
        """Add a batch that has every column."""
        for name, column in self.columns.items():
            column.frombytes(memoryview(batch[name]).cast("B"))

    def take(self, name: str) -> NDArray[Any]:
        """Return one column and forget it."""
        column = self.columns.pop(name)
        taken: NDArray[Any] = np.frombuffer(column, dtype=_DTYPES[column.typecode])
        return taken


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


def filled(values: array[int], spare: Iterable[Any]) -> Longs:
    """Return `values` with those of `spare` where the event itself does not say."""
    ids = np.frombuffer(values, dtype=np.int64)
    if not (ids == NONE).any():
        return ids
    return np.where(ids == NONE, np.frombuffer(longs(list(spare)), dtype=np.int64), ids)

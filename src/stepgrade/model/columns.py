"""What columns hold: np.unique, np.isin, np.median and np.quantile without the modules that they load.

All import numpy's masked arrays on first use, which takes longer than a small trace takes to read. Most
columns of integers number something, so a table of the values is quicker than sorting them as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Whole = TypeVar("Whole", bound=np.integer[Any])
Mask = NDArray[np.bool_]
Column = NDArray[Any]
_SHORT = 256
_FEW = 8
_BLOCK_ROWS = 1 << 16
# On Windows numpy 1 adds 32-bit integers up in 32 bits.
_SUMS_ARE_LONG = np.dtype(int).itemsize == 8


class Groups(NamedTuple):
    """The values of a column in order, for each row the place of its value, and how often each occurs."""

    values: NDArray[Any]
    which: NDArray[np.intp]
    counts: NDArray[np.intp]


def distinct(column: NDArray[Whole]) -> NDArray[Whole]:
    """Return the values that occur, in order."""
    low = _table_low(column)
    if low is None:
        ordered = np.sort(column)
        return ordered[_firsts(ordered)]
    return (np.flatnonzero(_seen(column, low)) + low).astype(column.dtype)


def groups(column: NDArray[Whole]) -> Groups:
    """Return the values that occur, in order, and where each row has its own."""
    low = _table_low(column)
    if low is None:
        order = np.argsort(column, kind="stable")
        first = _firsts(column[order])
        which = np.empty(len(column), np.intp)
        which[order] = np.cumsum(first) - 1
        values = column[order][first]
    else:
        seen = _seen(column, low)
        values = (np.flatnonzero(seen) + low).astype(column.dtype)
        which = (np.cumsum(seen) - 1)[np.subtract(column, low, dtype=np.int64)]
    return Groups(values, which, np.bincount(which, minlength=len(values)))


def sums(which: NDArray[Whole], amounts: NDArray[Whole], count: int) -> NDArray[np.float64]:
    """Return the whole numbers of each group added up; np.bincount would copy both columns into 64 bits."""
    total = np.zeros(count, np.float64)
    block_rows = max(_BLOCK_ROWS, count)
    for start in range(0, len(which), block_rows):
        block = slice(start, start + block_rows)
        total += np.bincount(which[block], amounts[block], count)
    return total


def among(column: NDArray[Whole], values: Iterable[int] | NDArray[Any]) -> Mask:
    """Tell for each row whether its value is one of `values`."""
    wanted = distinct(np.asarray(values if isinstance(values, np.ndarray) else [*values], np.int64))
    found = np.zeros(len(column), np.bool_)
    if len(wanted) <= _FEW:
        for one in wanted.tolist():
            found |= column == one
        return found
    place = np.minimum(np.searchsorted(wanted, column), len(wanted) - 1)
    np.equal(wanted[place], column, out=found)
    return found


def median(column: Column) -> float:
    """Return np.median of a column: NaN where it is empty or holds one."""
    count = len(column)
    if not count:
        return math.nan
    ordered = np.partition(column, ((count - 1) // 2, count // 2, count - 1))
    if ordered[-1] != ordered[-1]:
        return math.nan
    return (float(ordered[(count - 1) // 2]) + float(ordered[count // 2])) / 2.0


def quantile(column: Column, share: float) -> float:
    """Return np.quantile of a column of numbers, of which there is at least one."""
    place = share * (len(column) - 1)
    low = int(place)
    high, part = min(low + 1, len(column) - 1), place - low
    ordered = np.partition(column, (low, high))
    below, above = float(ordered[low]), float(ordered[high])
    return above - (above - below) * (1.0 - part) if part >= 0.5 else below + (above - below) * part


def narrow(column: Column) -> Column:
    """Return the integers in 32 bits if all of them fit, as nearly always all but times do."""
    limits = np.iinfo(np.int32)
    if column.dtype != np.int64 or not _SUMS_ARE_LONG:
        return column
    fits = column.min(initial=0) >= limits.min and column.max(initial=0) <= limits.max
    return column.astype(np.int32) if fits else column


def once_if_constant(column: Column) -> Column:
    """Return the column with its value kept once where all rows have the same: a device, a stream, none."""
    if len(column) < 2 or column[0] != column[-1] or column.min() != column.max():
        return column
    return np.broadcast_to(column[:1].copy(), column.shape)


def order_by_start(start_ns: Column, dur_ns: Column) -> NDArray[np.intp]:
    """Return the order of events by start; of those that start together the longer one is first."""
    order = np.argsort(start_ns, kind="stable")
    starts, durs = start_ns[order], dur_ns[order]
    tied = starts[1:] == starts[:-1]
    if (tied & (durs[1:] > durs[:-1])).any():
        members = np.flatnonzero(np.append(tied, False) | np.append(False, tied))
        order[members] = order[members[np.lexsort((-durs[members], starts[members]))]]
    return order


def _table_low(column: NDArray[Whole]) -> int | None:
    """Return the lowest value if a table from it to the highest one pays: the column is long enough."""
    if len(column) < _SHORT:
        return None
    low, high = int(column.min()), int(column.max())
    return low if high - low <= 4 * len(column) else None


def _seen(column: NDArray[Whole], low: int) -> Mask:
    seen = np.zeros(int(column.max()) - low + 1, np.bool_)
    for start in range(0, len(column), _BLOCK_ROWS):  # a place of 64 bits for every row would be much
        seen[np.subtract(column[start : start + _BLOCK_ROWS], low, dtype=np.int64)] = True
    return seen


def _firsts(ordered: NDArray[Whole]) -> Mask:
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return first

"""Microseconds as the trace writes them, to exact integers of nanoseconds.

A double holds three decimals of a microsecond exactly enough only below 2**43 us (its spacing there is
under 0.001): traces that count from `baseTimeNanoseconds` stay below it, traces with fractions at today's
epoch do not and are read from their text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from stepgrade.model.events import Longs

LIMIT_NS = 1 << 61
_LIMIT_US = LIMIT_NS // 1000
_EXACT_US = float(1 << 43)
_PLAIN = re.compile(rb"(-?)(\d{1,18})(?:\.(\d{1,3}))?")
_NUMBER = re.compile(rb"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?")


class NeedsText(Exception):
    """The numbers of this trace cannot be exact as doubles: read them as text."""


class Clock(Protocol):
    """Turn the times of many events into nanoseconds, or raise ValueError for the lot."""

    def __call__(self, values: Sequence[Any], /) -> Longs:
        """Return the times in the order given."""


def from_numbers(values: Sequence[Any]) -> Longs:
    """Return ints or floats of microseconds as nanoseconds; NeedsText where doubles are too coarse."""
    times = np.array(values)
    if times.dtype == np.int64:
        _check_range(times)
        return times * 1000
    if times.dtype != np.float64:
        raise ValueError("times that are not numbers")
    if np.abs(times).max() >= _EXACT_US:
        raise NeedsText
    whole = np.floor(times)
    thousandths: Longs = np.rint((times - whole) * 1000).astype(np.int64)
    nanoseconds: Longs = whole.astype(np.int64) * 1000 + thousandths
    return nanoseconds


def _check_range(times: Longs) -> None:
    if times.max() >= _LIMIT_US or times.min() <= -_LIMIT_US:
        raise ValueError("times out of range")


def from_texts(values: Sequence[Any]) -> Longs:
    """Return raw JSON numbers of microseconds as nanoseconds."""
    return np.array([text_ns(bytes(value)) for value in values], dtype=np.int64)


def from_ns(values: Sequence[Any]) -> Longs:
    """Return nanoseconds that were already checked one by one."""
    return np.array(values, dtype=np.int64)


def text_ns(text: bytes) -> int:
    """Return a JSON number of microseconds as nanoseconds, rounded half to even past three decimals."""
    plain = _PLAIN.fullmatch(text)
    if plain:
        sign, whole, part = plain.groups()
        size = int(whole) * 1000 + (int(part.ljust(3, b"0")) if part else 0)
        time = -size if sign else size
    elif _NUMBER.fullmatch(text):
        time = _rounded(text.decode())
    else:
        raise ValueError("a time that is not a number")
    if abs(time) >= LIMIT_NS:
        raise ValueError("a time out of range")
    return time


def _rounded(text: str) -> int:
    from decimal import ROUND_HALF_EVEN, Decimal  # noqa: PLC0415 (few traces need it, and it loads slowly)

    return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))

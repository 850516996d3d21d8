"""Places on a chart in percent of its size: a browser stretches the chart and leaves its text alone."""

from __future__ import annotations

import math

from msgspec import Struct

_NICE = (1.0, 2.0, 2.5, 5.0, 10.0)


class Mark(Struct, frozen=True, kw_only=True):
    """One rectangle or dot: where it is in percent, what it tells when pointed at, and its look."""

    x: float
    y: float = 0.0
    width: float = 0.0
    height: float = 100.0
    tip: str = ""
    look: str = ""
    label: str = ""
    id: str = ""


class Line(Struct, frozen=True, kw_only=True):
    """One straight line, in percent; level unless it is rising."""

    x1: float
    y1: float
    x2: float
    y2: float
    look: str = ""
    label: str = ""
    tip: str = ""
    is_rising: bool = False


class Tick(Struct, frozen=True, kw_only=True):
    """One tick of an axis."""

    at: float
    text: str


class Scale(Struct, frozen=True, kw_only=True):
    """Values to percent, evenly or by powers of ten."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value lies, 0 to 100; what lies outside is put on the edge."""
        low, high = self._bent(self.low), self._bent(self.high)
        if high <= low:
            return 50.0
        return min(100.0, max(0.0, (self._bent(value) - low) / (high - low) * 100.0))

    def _bent(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.is_log else value


def even_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return at most `most` + 1 round values from low to high."""
    span = high - low
    if not 0.0 < span < math.inf:
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * nice for nice in _NICE if power * nice >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [first * step + place * step for place in range(int((high - first * step) / step + 1e-9) + 1)]


def decades(low: float, high: float, most: int = 7) -> list[float]:
    """Return the powers of ten from low to high, thinned out to at most `most`."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first + 1) // most))
    return [10.0**power for power in range(first, last + 1, every)]

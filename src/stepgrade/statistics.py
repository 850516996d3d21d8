"""Mean, median, quantiles and spread; the standard library's module is slow to import."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum

# Makes the median absolute deviation of normal noise its standard deviation.
MAD_TO_SIGMA = 1.4826


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value."""
    return fsum(values) / len(values)


def median(values: Iterable[float]) -> float:
    """Return the middle of at least one value, of an even number of them the mean of both."""
    return quantile(sorted(values), 0.5)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that `share` of the ordered samples lie below, between two of them if need be."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_and_spread(values: Iterable[float]) -> tuple[float, float]:
    """Return the median and the robust standard deviation about it."""
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    return middle, MAD_TO_SIGMA * median(abs(value - middle) for value in ordered)

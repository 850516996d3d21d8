"""Means and medians; the statistics module takes longer to import than a scorecard to compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of at least one value."""
    return fsum(values) / len(values)


def median(values: Iterable[float]) -> float:
    """Return the middle of at least one value, of an even number of them the mean of both."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2

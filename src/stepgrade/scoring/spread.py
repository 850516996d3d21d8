"""How step times spread: how many fall where, and the times of a long run in few points."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.scoring.step_times import STEADY
from stepgrade.statistics import quantile

_MOST_BINS = 40


class Bin(Struct, frozen=True, kw_only=True):
    """How many samples lie from `low_ms` to `high_ms`."""

    low_ms: float
    high_ms: float
    count: int


class Stretch(Struct, frozen=True, kw_only=True):
    """Some steps that follow each other; `marks` are those that any of them carries."""

    first: int
    last: int
    low_ms: float
    median_ms: float
    high_ms: float
    mark: str


def histogram(samples_ms: tuple[float, ...]) -> tuple[Bin, ...]:
    """Return equal bins from the least to the greatest sample, as wide as Freedman and Diaconis advise."""
    low, high = min(samples_ms), max(samples_ms)
    if not high > low:
        return (Bin(low_ms=low, high_ms=high, count=len(samples_ms)),)
    ordered = sorted(samples_ms)
    middle_half = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    width = 2.0 * middle_half / len(samples_ms) ** (1 / 3)
    count = min(_MOST_BINS, max(5, round((high - low) / width))) if width > 0.0 else 5
    width = (high - low) / count
    counts = [0] * count
    for ms in samples_ms:
        counts[min(count - 1, int((ms - low) / width))] += 1
    return tuple(
        Bin(low_ms=low + place * width, high_ms=low + (place + 1) * width, count=found)
        for place, found in enumerate(counts)
    )


def stretches(samples_ms: tuple[float, ...], marks: tuple[str, ...], most: int) -> tuple[Stretch, ...]:
    """Return the run in at most `most` stretches of equal length; one step each where they are enough."""
    size = max(1, -(-len(samples_ms) // most))
    found = []
    for first in range(0, len(samples_ms), size):
        part = samples_ms[first : first + size]
        odd = [mark for mark in marks[first : first + size] if mark != STEADY]
        found.append(
            Stretch(
                first=first,
                last=first + len(part) - 1,
                low_ms=min(part),
                median_ms=quantile(sorted(part), 0.5),
                high_ms=max(part),
                mark=odd[0] if odd else STEADY,
            )
        )
    return tuple(found)

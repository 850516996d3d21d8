"""Set arithmetic on intervals of time.

A `Spans` is a set of half-open intervals [start, end) in integer nanoseconds, sorted, disjoint, none
empty and none touching the next: two `Spans` that cover the same time are equal arrays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import Mask
from stepgrade.model.events import Ids, Longs, TimedEvents


class Spans(NamedTuple):
    """A set of disjoint, sorted intervals."""

    starts: Longs
    ends: Longs


NOTHING = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: Longs, ends: Longs) -> Spans:
    """Return the time covered by at least one of the intervals; empty and inverted ones cover nothing."""
    real = ends > starts
    if not real.any():
        return NOTHING
    if not real.all():
        starts, ends = starts[real], ends[real]
    if (starts[1:] < starts[:-1]).any():
        order = np.argsort(starts, kind="stable").astype(np.int32)
        starts = starts[order]  # one after the other: what was is no longer needed
        ends = ends[order]
        del order
    del real
    reached = np.maximum.accumulate(ends)
    opens = np.empty(len(starts), np.bool_)
    opens[0] = True
    np.greater(starts[1:], reached[:-1], out=opens[1:])
    if opens.all():  # apart already, as the kernels of one stream are
        return Spans(starts, ends)
    closes = np.append(opens[1:], True)
    return Spans(starts[opens], reached[closes])


def covered_by(events: TimedEvents, chosen: Mask) -> Spans:
    """Return the time covered by at least one of the chosen events."""
    rows = slice(None) if chosen.all() else chosen  # a slice copies nothing
    starts = events.start_ns[rows]
    return union(starts, starts + events.dur_ns[rows])


def merge(*sets: Spans) -> Spans:
    """Return the time covered by at least one of the sets."""
    sets = tuple(spans for spans in sets if len(spans.starts))
    if len(sets) < 2:
        return sets[0] if sets else NOTHING
    return union(
        np.concatenate([spans.starts for spans in sets]), np.concatenate([spans.ends for spans in sets])
    )


def intersect(left: Spans, right: Spans) -> Spans:
    """Return the time covered by both sets."""
    if not len(left.starts) or not len(right.starts):
        return NOTHING
    if len(right.starts) == 1:
        return clip(left, int(right.starts[0]), int(right.ends[0]))
    which, other = overlaps(right, left.starts, left.ends)
    starts, ends = left.starts[which], left.ends[which]
    np.maximum(starts, right.starts[other], out=starts)
    np.minimum(ends, right.ends[other], out=ends)
    return Spans(starts, ends)


def overlaps(spans: Spans, starts: Longs, ends: Longs) -> tuple[Ids, Ids]:
    """Return each pair of a window and an interval of `spans` that overlap, by their indices."""
    first = np.searchsorted(spans.ends, starts, side="right").astype(np.int32)
    count = np.searchsorted(spans.starts, ends, side="left").astype(np.int32)
    count -= first
    np.maximum(count, 0, out=count)
    first -= np.cumsum(count)
    first += count
    other = np.repeat(first, count)
    del first
    other += np.arange(len(other), dtype=np.int32)
    return np.repeat(np.arange(len(starts), dtype=np.int32), count), other


def gaps(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Return the time between `start_ns` and `end_ns` that `spans` does not cover."""
    if end_ns <= start_ns:
        return NOTHING
    inner = clip(spans, start_ns, end_ns)
    starts = np.append(np.int64(start_ns), inner.ends)
    ends = np.append(inner.starts, np.int64(end_ns))
    # Only the first and the last gap can be empty.
    inside = slice(int(starts[0] == ends[0]), len(starts) - int(starts[-1] == ends[-1]))
    return Spans(starts[inside], ends[inside])


def clip(spans: Spans, start_ns: int, end_ns: int) -> Spans:
    """Return the part of `spans` between `start_ns` and `end_ns`."""
    first = int(np.searchsorted(spans.ends, start_ns, side="right"))
    last = int(np.searchsorted(spans.starts, end_ns, side="left"))
    if first >= last or end_ns <= start_ns:
        return NOTHING
    # Only the first and the last can reach beyond: the others are not copied.
    starts, ends = spans.starts[first:last], spans.ends[first:last]
    if starts[0] < start_ns:
        starts = starts.copy()
        starts[0] = start_ns
    if ends[-1] > end_ns:
        ends = ends.copy()
        ends[-1] = end_ns
    return Spans(starts, ends)


def subtract(left: Spans, right: Spans) -> Spans:
    """Return the time of `left` that `right` does not cover."""
    if not len(left.starts) or not len(right.starts):
        return left
    return intersect(left, gaps(right, int(left.starts[0]), int(left.ends[-1])))


def total_ns(spans: Spans) -> int:
    """Return the length of all intervals together."""
    return int((spans.ends - spans.starts).sum())


def covered_before(spans: Spans, times: Longs) -> Longs:
    """Return, for each time, how much of `spans` lies before it."""
    if not len(spans.starts):
        return np.zeros(len(times), np.int64)
    until = np.zeros(len(spans.starts) + 1, np.int64)
    np.subtract(spans.ends, spans.starts, out=until[1:])
    np.cumsum(until[1:], out=until[1:])
    index = np.searchsorted(spans.starts, times, side="right")
    inside = np.minimum(times, spans.ends[np.maximum(index - 1, 0)]) - spans.starts[np.maximum(index - 1, 0)]
    return until[np.maximum(index - 1, 0)] + np.where(index > 0, inside, 0)


def covered_within(spans: Spans, starts: Longs, ends: Longs) -> Longs:
    """Return, for each window, how much of `spans` lies in it."""
    return covered_before(spans, ends) - covered_before(spans, starts)


def span_at(spans: Spans, times: Longs) -> Longs:
    """Return, for each time, the index of the interval that contains it, or -1."""
    if not len(spans.starts):
        return np.full(len(times), -1, np.int64)
    index = np.searchsorted(spans.starts, times, side="right") - 1
    inside = (index >= 0) & (times < spans.ends[index])
    return np.where(inside, index, -1)

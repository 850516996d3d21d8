"""Find where a series of runs changed its level, and stayed there.

Seeded binary segmentation (Kovács, Bühlmann, Li and Munk, 2023): on intervals of doubling length that cover
the series, the split that separates the means best is looked for; the best splits are taken first. Every one
must then stand between its neighbours, the noise of the series considered. A lone spike is clipped to its
surroundings first, so that it makes no change point. All of it is linear in the length, but for a logarithm.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepgrade.compare.noise import critical
from stepgrade.model.comparison import ChangePoint
from stepgrade.statistics import MAD_TO_SIGMA

Floats = NDArray[np.float64]
# Shorter segments are not levels.
LEAST_SEGMENT = 4
LEVEL = 0.001
_DECAY = math.sqrt(2.0)
_CLIP = 3.5
# The authors' factor on the threshold: about 1 % of pure-noise series then show a change.
_CAUTION = 1.3
_MOST_CORRELATION = 0.9


def change_points(
    values: Sequence[float], *, least_segment: int = LEAST_SEGMENT, least_change: float = 0.0
) -> tuple[ChangePoint, ...]:
    """Return the changes of level in order, without those smaller than `least_change` (a share)."""
    series = np.asarray(values, dtype=np.float64)
    least = max(2, least_segment)
    if len(series) < 2 * least:
        return ()
    # Clip outliers from the running median, which a level of `least` points shifts. The window is odd, so its
    # middle element is the median; np.median would also check for NaN.
    padded = np.pad(series, least - 1, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * least - 1)
    middle = np.partition(windows, least - 1, axis=1)[:, least - 1]
    reach = _CLIP * max(MAD_TO_SIGMA * float(np.median(np.abs(series - middle))), 1e-12)
    calm = middle + np.clip(series - middle, -reach, reach)
    points = _candidates(calm, least)
    while points:
        scores = _scores(calm, points, least_change)
        # Remove the weakest first, no two adjacent: each removal lengthens its neighbours' segments.
        weak: set[int] = set()
        for index in sorted(range(len(scores)), key=lambda index: scores[index]):
            if scores[index] < 1.0 and not weak & {index - 1, index + 1}:
                weak.add(index)
        if not weak:
            break
        points = [point for index, point in enumerate(points) if index not in weak]
    edges = [0, *points, len(series)]
    levels = [float(np.median(series[a:b])) for a, b in pairwise(edges)]
    return tuple(
        ChangePoint(index=point, before=before, after=after, change=_share(before, after))
        for point, (before, after) in zip(points, pairwise(levels), strict=True)
    )


def level_around(values: Sequence[float], place: int, most: int) -> range:
    """Return the indices of the level that `place` is on, of a long one the `most` nearest."""
    edges = [0, *(change.index for change in change_points(values)), len(values)]
    after = bisect_right(edges, place)
    begin, end = edges[after - 1], edges[min(after, len(edges) - 1)]
    begin = max(begin, min(place - most // 2, end - most))
    return range(begin, min(end, begin + most))


def _candidates(series: Floats, least: int) -> list[int]:
    """Return splits, best first, each in an interval that no better one has split."""
    count = len(series)
    sums = np.concatenate(([0.0], np.cumsum(series - series.mean())))
    # Noise estimated from differences of neighbours, which changes of level hardly affect.
    noise = max(MAD_TO_SIGMA * float(np.median(np.abs(np.diff(series)))) / math.sqrt(2.0), 1e-12)
    bound = _CAUTION * math.sqrt(2.0 * math.log(count)) * noise
    found: list[tuple[float, int, int, int]] = []
    # Intervals of shrinking length, each overlapping its neighbours by half.
    length = float(count)
    while length >= 2 * least:
        whole, intervals = math.ceil(length), 2 * math.ceil(count / length) - 1
        starts = np.unique(np.linspace(0, count - whole, intervals).astype(np.int64))
        # In each, the split with the largest standardised difference of means.
        left = np.arange(least, whole - least + 1)
        right = whole - left
        splits = starts[:, None] + left
        head = (sums[splits] - sums[starts][:, None]) / left
        tail = (sums[starts + whole][:, None] - sums[splits]) / right
        gains = np.abs(head - tail) * np.sqrt(left * right / whole)
        best = np.argmax(gains, axis=1)
        above = np.flatnonzero(gains[np.arange(len(starts)), best] > bound)
        for row, column in zip(above.tolist(), best[above].tolist(), strict=True):
            start = int(starts[row])
            found.append((float(gains[row, column]), start + int(left[column]), start, start + whole))
        length /= _DECAY
    taken: list[int] = []
    for _, split, start, end in sorted(found, reverse=True):
        index = bisect_right(taken, start)
        if index == len(taken) or taken[index] >= end:
            insort(taken, split)
    return [point for point, after in pairwise([*taken, count + least]) if after - point >= least]


def _scores(series: Floats, points: list[int], least_change: float) -> list[float]:
    """Return each change's Welch's t over its critical value: at least 1 is significant, 0 too small."""
    starts = np.array([0, *points])
    counts = np.diff([*starts, len(series)]).astype(np.float64)
    means = np.add.reduceat(series, starts) / counts
    rest = series - np.repeat(means, counts.astype(np.int64))
    squares = np.add.reduceat(rest * rest, starts)
    power = float(squares.sum())
    # Autocorrelation inflates the variance of a mean.
    rho = min(max(float(rest[1:] @ rest[:-1]) / power, 0.0), _MOST_CORRELATION) if power else 0.0
    inflation = (1.0 + rho) / (1.0 - rho)
    errors, sizes = (squares / (counts - 1.0) / counts).tolist(), counts.tolist()
    scores = []
    for index, (here, there) in enumerate(pairwise(means.tolist())):
        total = errors[index] + errors[index + 1]
        if abs(_share(here, there)) < least_change or here == there:
            scores.append(0.0)
        elif total == 0.0:
            scores.append(math.inf)
        else:
            weights = [errors[side] ** 2 / (sizes[side] - 1.0) for side in (index, index + 1)]
            freedom = max(1, int(total**2 / sum(weights)))
            scores.append(abs(here - there) / math.sqrt(total * inflation) / critical(LEVEL, freedom))
    return scores


def _share(before: float, after: float) -> float:
    return (after - before) / abs(before) if before else math.copysign(math.inf, after) if after else 0.0

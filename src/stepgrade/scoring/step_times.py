"""Per-step durations: which steps are steady, their median, and how sure that median is.

The rule, in words: a step stands out when it lies more than `outlier_score` robust deviations from the
median of the second half of the run. Leading steps that stand out as slower are warm-up; later ones that
stand out are outliers, unless they are more than a tenth of the steps, for then they are how the run is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from msgspec import Struct

from stepgrade.config.limits import DEFAULT_LIMITS, Limits
from stepgrade.model import Profile

# The same for people, where the marks are shown.
RULE = (
    "A step stands out when it lies far from the median of the run's second half: leading slow steps are "
    "warm-up, later ones outliers, unless they are more than a tenth of the steps."
)
WARM_UP = "warm-up"
STEADY = "steady"
OUTLIER = "outlier"
# Below this a median has no 95 % interval: even the whole range misses it with more than 5 %.
LEAST_STEPS = 6
# What a scorecard keeps: this many step times, of a longer run every second, third, … one; and of the phases
# and the operations that take a share of the step worth testing, as many as this, this many times.
STEPS_KEPT = 4096
PART_STEPS_KEPT = 256
PARTS_KEPT = 64
LEAST_PART_SHARE = 0.002
# Tenths of a microsecond: what a profiler's own clock cannot tell apart is not worth its digits.
_DIGITS = 4
# 97.5 % of a normal distribution lie below; makes the two-sided 95 % interval.
Z95 = 1.959963984540054
_MOST_OUTLIERS_SHARE = 0.10
_MOST_CORRELATION = 0.95
# Steps within a few percent of the median do not stand out, however even the others are.
_LEAST_SPREAD = 0.02
_MAD_TO_SIGMA = 1.4826


class StepTimes(Struct, frozen=True, kw_only=True):
    """The steady steps: how many, their median, its 95 % interval, and what was left out."""

    steady: int
    warm_up: int
    outliers: int
    median_ms: float
    low_ms: float | None = None
    high_ms: float | None = None
    p95_ms: float
    least_ms: float
    most_ms: float
    sigma_log: float | None = None  # standard error of the median's logarithm
    effective: float | None = None  # independent steps that would tell as much


def step_times(samples_ms: Sequence[float], limits: Limits = DEFAULT_LIMITS) -> StepTimes | None:
    """Return the times of the steady steps; None without samples."""
    if not samples_ms:
        return None
    marks = marks_of(samples_ms, limits)
    steady = [ms for ms, mark in zip(samples_ms, marks, strict=True) if mark == STEADY]
    ordered = sorted(steady)
    interval = median_interval(steady)
    return StepTimes(
        steady=len(steady),
        warm_up=marks.count(WARM_UP),
        outliers=marks.count(OUTLIER),
        median_ms=quantile(ordered, 0.5),
        low_ms=interval[0] if interval else None,
        high_ms=interval[1] if interval else None,
        p95_ms=quantile(ordered, 0.95),
        least_ms=min(samples_ms),
        most_ms=max(samples_ms),
        sigma_log=_sigma_log(interval),
        effective=len(steady) / inflation(steady) if interval else None,
    )


def kept(samples_ms: Sequence[float], most: int = STEPS_KEPT) -> tuple[float, ...]:
    """Return at most `most` samples in their order, evenly taken."""
    return tuple(samples_ms[:: max(1, -(-len(samples_ms) // most))])


def kept_of_part(samples_ms: Sequence[float], share: float | None, place: int) -> tuple[float, ...]:
    """Return the samples that are kept of the part at `place` by time; none of a part too small to test."""
    if place >= PARTS_KEPT or share is None or share < LEAST_PART_SHARE:
        return ()
    return tuple(round(ms, _DIGITS) for ms in kept(samples_ms, PART_STEPS_KEPT))


def step_ms_of(profile: Profile) -> float | None:
    """Return how long a step takes: the median of the steady samples, else the average that was written."""
    times = step_times(profile.samples_ms)
    return times.median_ms if times and times.median_ms > 0.0 else profile.mean_step_ms


def marks_of(samples_ms: Sequence[float], limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
    """Mark every step as warm-up, steady or outlier; too few steps are all steady."""
    if len(samples_ms) < LEAST_STEPS:
        return (STEADY,) * len(samples_ms)
    low, high = _bounds(samples_ms[len(samples_ms) // 2 :], limits)
    cold = _leading(samples_ms, high)
    apart = [not low <= ms <= high for ms in samples_ms[cold:]]
    if sum(apart) > _MOST_OUTLIERS_SHARE * len(apart):
        apart = [False] * len(apart)
    return (*(WARM_UP,) * cold, *(OUTLIER if out else STEADY for out in apart))


def median_interval(samples: Sequence[float], z: float = Z95) -> tuple[float, float] | None:
    """Return the interval of the median by ranks, wider for steps that resemble their neighbours.

    No distribution is assumed: the number of samples below the true median is binomial, and `inflation`
    says how many fewer independent samples there are. None when they are too few.
    """
    count = len(samples)
    if count < LEAST_STEPS:
        return None
    reach = z * math.sqrt(count * inflation(samples)) / 2.0
    first = math.floor(count / 2.0 - reach)
    if first < 0:
        return None
    ordered = sorted(samples)
    return ordered[first], ordered[count - 1 - first]


def inflation(samples: Sequence[float]) -> float:
    """Return by how much neighbours that resemble each other inflate a median's variance, 1 or more."""
    count = len(samples)
    ordered = sorted(samples)
    middle = quantile(ordered, 0.5)
    # Signs, because the median is a matter of above and below: a spike counts no more than a step.
    signs = [(ms > middle) - (ms < middle) for ms in samples]
    power = sum(sign * sign for sign in signs)
    if not power:
        return 1.0
    lagged = sum(a * b for a, b in itertools.pairwise(signs)) / power
    # A sign's correlation is 2/pi asin(rho) of the steps'; a short series shows too little of it.
    corrected = math.sin(lagged * math.pi / 2.0) + 4.0 / count if lagged > 0.0 else 0.0
    rho = min(corrected, _MOST_CORRELATION)
    sign_rho = 2.0 / math.pi * math.asin(rho)
    return (1.0 + sign_rho) / (1.0 - sign_rho)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that `share` of the ordered samples lie below, between two of them if need be."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def spread_of(values: Iterable[float]) -> tuple[float, float]:
    """Return the median and the robust standard deviation about it."""
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    return middle, _MAD_TO_SIGMA * quantile(sorted(abs(value - middle) for value in ordered), 0.5)


def _bounds(samples: Sequence[float], limits: Limits) -> tuple[float, float]:
    middle, deviation = spread_of(samples)
    reach = limits.outlier_score * max(deviation, _LEAST_SPREAD * middle)
    return middle - reach, middle + reach


def _leading(samples_ms: Sequence[float], bound: float) -> int:
    """Return how many steps at the start are above the bound, at most half of them."""
    cold = 0
    while cold < len(samples_ms) // 2 and samples_ms[cold] > bound:
        cold += 1
    return cold


def _sigma_log(interval: tuple[float, float] | None) -> float | None:
    if interval is None or interval[0] <= 0.0:
        return None
    return math.log(interval[1] / interval[0]) / (2.0 * Z95)

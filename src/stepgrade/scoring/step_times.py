"""How long a step takes: which steps are steady, their median, and how sure that median is.

The rule, in words: a step stands out when it lies more than `outlier_score` robust deviations from the
median of the second half of the run. Leading steps that stand out as slower are warm-up; later ones that
stand out are outliers, unless they are more than a tenth of the steps, for then they are how the run is.

A trace is filtered twice. `timeline/ledger` first drops the steps that are not of one kind with the others
(more than 20 % away, flushes, empty ones): what is left are the profiled steps of a Profile, and all its
figures are means over them. The rule above then looks at their durations alone, as at those of any other
source.

One step time goes into every figure of a step. A share is always one of the time of all
profiled steps. Milliseconds of one step are that share of the typical step, so that
parts never add up to more than the step does. Durations of single calls, and rates made from them, do not
depend on the step and are means over all calls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from msgspec import Struct

from stepgrade.config.limits import DEFAULT_LIMITS
from stepgrade.model import Profile
from stepgrade.statistics import median_and_spread, quantile

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
    effective: float | None = None  # as many independent steps would be as certain


class RunTimes(Struct, frozen=True, kw_only=True):
    """How long one step of a run takes; worked out once, and used for every part of one step."""

    typical_ms: float | None  # the median of the steady steps; the mean where a source has only that
    mean_ms: float | None  # of all profiled steps
    steps: int | None = None  # the profiled ones
    steady: StepTimes | None = None  # None: the source has no times of single steps

    @property
    def scale(self) -> float:
        """Return the typical step over the mean one: a mean per step times this is of the typical step."""
        ratio = self.typical_ms / self.mean_ms if self.typical_ms and self.mean_ms else 1.0
        return ratio if math.isfinite(ratio) else 1.0  # a mean beyond all measure is no mean of these steps

    def share(self, ms: float) -> float | None:
        """Return a part of the mean step as a share of it; None if either is not known."""
        return ms / self.mean_ms if self.steps and self.mean_ms else None

    def typical(self, ms: float) -> float | None:
        """Return what a part of the mean step takes in the typical one; None without a number of steps."""
        return ms * self.scale if self.steps else None


def times_of(profile: Profile) -> RunTimes:
    """Return how long a step of the profile takes."""
    steady = step_times(profile.samples_ms)
    return RunTimes(
        typical_ms=steady.median_ms if steady and steady.median_ms > 0.0 else profile.mean_step_ms,
        mean_ms=profile.mean_step_ms,
        steps=profile.steps,
        steady=steady,
    )


def step_times(samples_ms: Sequence[float]) -> StepTimes | None:
    """Return the times of the steady steps; None without samples."""
    if not samples_ms:
        return None
    cold, apart = _unsteady(samples_ms)
    steady = samples_ms[cold:] if cold else samples_ms
    if apart:
        left_out = set(apart)
        steady = [ms for index, ms in enumerate(steady, cold) if index not in left_out]
    ordered = sorted(steady)
    wider = inflation(steady, ordered)
    # The interval by ranks, without assuming a distribution: the number of samples below the true median is
    # binomial, and `inflation` says how many fewer independent samples there are.
    first = math.floor(len(ordered) / 2.0 - Z95 * math.sqrt(len(ordered) * wider) / 2.0)
    low_ms = high_ms = None
    if len(ordered) >= LEAST_STEPS and first >= 0:
        low_ms, high_ms = ordered[first], ordered[-1 - first]
    return StepTimes(
        steady=len(steady),
        warm_up=cold,
        outliers=len(apart),
        median_ms=quantile(ordered, 0.5),
        low_ms=low_ms,
        high_ms=high_ms,
        p95_ms=quantile(ordered, 0.95),
        least_ms=min(samples_ms),
        most_ms=max(samples_ms),
        sigma_log=math.log(high_ms / low_ms) / (2.0 * Z95) if low_ms and high_ms else None,
        effective=None if low_ms is None else len(steady) / wider,
    )


def marks_of(samples_ms: Sequence[float]) -> tuple[str, ...]:
    """Mark every step as warm-up, steady or outlier; too few steps are all steady."""
    cold, apart = _unsteady(samples_ms)
    marks = [WARM_UP] * cold + [STEADY] * (len(samples_ms) - cold)
    for index in apart:
        marks[index] = OUTLIER
    return tuple(marks)


def _unsteady(samples_ms: Sequence[float]) -> tuple[int, list[int]]:
    """Return how many leading steps are warm-up, and the indices of the outliers after them."""
    count = len(samples_ms)
    if count < LEAST_STEPS:
        return 0, []
    middle, deviation = median_and_spread(samples_ms[count // 2 :])
    reach = DEFAULT_LIMITS.outlier_score * max(deviation, _LEAST_SPREAD * middle)
    low, high = middle - reach, middle + reach
    cold = 0
    while cold < count // 2 and samples_ms[cold] > high:
        cold += 1
    apart = [index for index in range(cold, count) if not low <= samples_ms[index] <= high]
    return cold, apart if len(apart) <= _MOST_OUTLIERS_SHARE * (count - cold) else []


def inflation(samples: Sequence[float], ordered: Sequence[float] | None = None) -> float:
    """Return by how much neighbours that resemble each other inflate a median's variance, 1 or more."""
    middle = quantile(sorted(samples) if ordered is None else ordered, 0.5)
    # Signs, because the median is a matter of above and below: a spike counts no more than a step.
    signs = [(ms > middle) - (ms < middle) for ms in samples]
    power = len(samples) - signs.count(0)
    if not power:
        return 1.0
    lagged = sum(a * b for a, b in itertools.pairwise(signs)) / power
    # A sign's correlation is 2/pi asin(rho) of the steps'; a short series shows too little of it.
    corrected = math.sin(lagged * math.pi / 2.0) + 4.0 / len(samples) if lagged > 0.0 else 0.0
    rho = min(corrected, _MOST_CORRELATION)
    sign_rho = 2.0 / math.pi * math.asin(rho)
    return (1.0 + sign_rho) / (1.0 - sign_rho)


def kept(samples_ms: Sequence[float], most: int = STEPS_KEPT) -> tuple[float, ...]:
    """Return at most `most` samples in their order, evenly taken."""
    return tuple(samples_ms[:: max(1, -(-len(samples_ms) // most))])


def kept_of_part(samples_ms: Sequence[float], share: float | None, index: int) -> tuple[float, ...]:
    """Return the samples that are kept of the part at `index` by time; none of a part too small to test."""
    if index >= PARTS_KEPT or share is None or share < LEAST_PART_SHARE:
        return ()
    return tuple(round(ms, _DIGITS) for ms in kept(samples_ms, PART_STEPS_KEPT))

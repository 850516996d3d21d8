"""The size of a change between runs, its interval, and how often noise alone would show it.

Runs, not steps, are what is compared: steps of one run share its machine, its clocks and its neighbours, so
a thousand of them still are one run. A run is the logarithm of its median. The noise between identical runs
comes from history or from repeated runs; the noise of the steps is added where it is larger than history's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from msgspec import Struct

from stepgrade.model.comparison import Noise
from stepgrade.statistics import mean, median_and_spread

# Identical runs before their spread is called measured.
LEAST_RUNS = 5
# Runs of history that a new one is compared with: enough to know the noise, few enough to follow the machine.
MOST_RUNS = 50
# Times never agree better than this; a history that holds one file again and again seems to say so.
LEAST_TIME_NOISE = 0.005
# Runs this many robust deviations from the others are accidents and say nothing of the ordinary noise.
_ACCIDENT = 5.0
_KNOWN_EXACTLY = 10_000
# Beyond this a ratio does not fit into a float.
_LARGEST_LOG = 700.0
# To alarm takes 99.5 %; that a slowdown can be ruled out is said with 95 % on its side.
NEAR_LEVEL = 0.10
# With more degrees of freedom than this Student's distribution is the normal one to three digits.
_MANY = 500


class Sample(Struct, frozen=True, kw_only=True):
    """The figures of some runs, and the standard errors of their logarithms as the steps of each run show."""

    values: tuple[float, ...]
    sigmas: tuple[float | None, ...] = ()
    steps: float | None = None  # independent steps that the standard errors rest on

    @property
    def logs(self) -> list[float]:
        """Return the logarithms of the figures."""
        return [math.log(value) for value in self.values]

    @property
    def step_variance(self) -> float:
        """Return the mean squared standard error that the steps leave; 0 where it is not known."""
        known = [sigma * sigma for sigma in self.sigmas if sigma is not None]
        return mean(known) if known else 0.0


class Effect(Struct, frozen=True, kw_only=True):
    """A change as a share, its interval, and the probability of as much by noise alone."""

    change: float
    low: float
    high: float
    near_low: float  # no lower, and no higher, with 95 % confidence each
    near_high: float
    p_value: float
    sigma: float  # standard error of the logarithm
    run_sigma: float  # of it, what only more runs make smaller
    freedom: int


def effect_of(now: Sample, before: Sample, noise: Noise, level: float) -> Effect:
    """Return the change from `before` to `now` with the interval that misses it with probability `level`."""
    earlier = without_accidents(before.logs)
    shift = mean(now.logs) - mean(earlier)
    run_variance = math.log1p(noise.share) ** 2 * (1.0 / len(now.values) + 1.0 / len(earlier))
    if noise.freedom is not None:
        # Measured noise has the steps of its runs in it already.
        step_variance = max(0.0, now.step_variance - before.step_variance) / len(now.values)
    else:
        step_variance = now.step_variance / len(now.values) + before.step_variance / len(before.values)
    sigma = math.sqrt(run_variance + step_variance)
    freedom = noise.freedom or _KNOWN_EXACTLY
    steps = [sample.steps for sample in (now, before) if sample.steps]
    if not noise.freedom and steps and step_variance:
        # Only the steps' part of the standard error is estimated (Satterthwaite).
        known = max(1.0, sum(steps) - len(steps))
        freedom = int(min(_KNOWN_EXACTLY, known * (sigma * sigma / step_variance) ** 2))
    reach, near = (critical(share, freedom) * sigma for share in (level, NEAR_LEVEL))
    return Effect(
        change=_share(shift),
        low=_share(shift - reach),
        high=_share(shift + reach),
        near_low=_share(shift - near),
        near_high=_share(shift + near),
        p_value=two_sided(shift / sigma, freedom) if sigma else float(shift == 0.0),
        sigma=sigma,
        run_sigma=math.sqrt(run_variance),
        freedom=freedom,
    )


def _share(log_ratio: float) -> float:
    return math.expm1(min(log_ratio, _LARGEST_LOG))


def noise_of(before: Sample, now: Sample, fallback: Noise, least: float = 0.0) -> Noise:
    """Return the noise between runs as the runs themselves show it, else `fallback`.

    A noise that was given counts only until enough runs are there to measure it; `least` is a floor.
    """
    logs = without_accidents(before.logs)
    freedom = len(logs) - 1 + len(now.values) - 1
    if freedom < LEAST_RUNS - 1:
        return fallback
    squares = 0.0
    for group in (logs, now.logs):
        middle = mean(group)
        squares += math.fsum((value - middle) ** 2 for value in group)
    # Runs cannot be steadier than their own steps leave them; copies of one run seem to be.
    share = max(least, math.expm1(math.sqrt(max(squares / freedom, before.step_variance))))
    return Noise(share=share, basis="measured" if len(logs) >= LEAST_RUNS else "repeated", freedom=freedom)


def without_accidents(logs: Sequence[float]) -> list[float]:
    """Return the figures without those far from all others; all of them when they are few."""
    if len(logs) < 2 * LEAST_RUNS:
        return list(logs)
    middle, deviation = median_and_spread(logs)
    return [log for log in logs if abs(log - middle) <= _ACCIDENT * deviation] if deviation else list(logs)


def runs_needed(effect: Effect, now_runs: int, before_runs: int, reach: float) -> tuple[int, bool]:
    """Return how many more runs narrow the interval to `reach` on either side.

    Where no number of them would: how many runs of the code and of its baseline each, and True.
    """
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, max(effect.freedom, 1))
    per_run = effect.sigma**2 / (1.0 / now_runs + 1.0 / before_runs)
    room = allowed**2 / per_run - 1.0 / before_runs if per_run else math.inf
    if room > 0.0:
        return max(1, math.ceil(1.0 / room) - now_runs), False
    return max(2, math.ceil(2.0 * per_run / allowed**2)), True


def steps_needed(effect: Effect, steps: int, reach: float) -> int | None:
    """Return how many more steps narrow the interval to `reach`; None if the runs' noise is too large."""
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, max(effect.freedom, 1))
    room = allowed**2 - effect.run_sigma**2
    step_variance = effect.sigma**2 - effect.run_sigma**2
    if room <= 0.0 or step_variance <= 0.0:
        return None
    return max(1, math.ceil(steps * step_variance / room) - steps)


@cache
def critical(level: float, freedom: int) -> float:
    """Return the t that noise alone exceeds, in either direction, with the probability `level`."""
    low, high = 0.0, 1.0
    while two_sided(high, freedom) > level:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if two_sided(middle, freedom) > level else (low, middle)
    return high


def two_sided(t: float, freedom: int) -> float:
    """Return how often noise alone exceeds `t` in either direction, by Student's distribution.

    Whole degrees of freedom, without a library (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    t = abs(t)
    if math.isinf(t):
        return 0.0
    if freedom > _MANY:
        return math.erfc(t / math.sqrt(2.0))
    angle = math.atan(t / math.sqrt(freedom))
    if freedom == 1:
        return max(0.0, 1.0 - 2.0 * angle / math.pi)
    cos, sin = math.cos(angle), math.sin(angle)
    is_even = freedom % 2 == 0
    total = term = 1.0 if is_even else cos
    for number in range(2 if is_even else 3, freedom - 1, 2):
        term *= cos * cos * (number - 1) / number
        total += term
    within = sin * total if is_even else 2.0 / math.pi * (angle + sin * total)
    return max(0.0, 1.0 - within)

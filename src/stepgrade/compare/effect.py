"""The size of a change between runs, its interval, and how often noise alone would show it.

Runs, not steps, are what is compared: steps of one run share its machine, its clocks and its neighbours, so
a thousand of them still are one run. A run is the logarithm of its median. The noise between identical runs
comes from history or from repeated runs; the noise of the steps is added where it is larger than history's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from stepgrade.compare.student import critical, two_sided
from stepgrade.model.comparison import Noise
from stepgrade.statistics import mean, median_and_spread

# Identical runs before their spread is called measured.
LEAST_RUNS = 5
# Runs of history that a new one is held against: enough to know the noise, few enough to follow the machine.
MOST_RUNS = 50
# The largest run-to-run noise reported from the field; assumed where none is known.
ASSUMED_NOISE = 0.13
# Times never agree better than this; a history that holds one file again and again seems to say so.
LEAST_TIME_NOISE = 0.005
# Runs this many robust deviations from the others are accidents and say nothing of the ordinary noise.
_ACCIDENT = 5.0
_KNOWN_EXACTLY = 10_000
# To alarm takes 99.5 %; that a slowdown can be ruled out is said with 95 % on its side.
NEAR_LEVEL = 0.10


class Side(Struct, frozen=True, kw_only=True):
    """The runs of one side: each run's figure, and the standard error of its logarithm from its steps."""

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


class Interval(Struct, frozen=True, kw_only=True):
    """A change as a share, and from where to where it may be."""

    change: float
    low: float
    high: float
    near_low: float  # no lower, and no higher, with 95 % confidence each
    near_high: float


class Effect(Interval, frozen=True, kw_only=True):
    """A change with the probability of as much by noise alone."""

    p_value: float
    sigma: float  # standard error of the logarithm
    run_sigma: float  # of it, what only more runs make smaller
    freedom: int


def effect_of(now: Side, before: Side, noise: Noise, level: float) -> Effect:
    """Return the change from `before` to `now` with the interval that misses it with probability `level`."""
    earlier = without_accidents(before.logs)
    shift = mean(now.logs) - mean(earlier)
    per_run = 1.0 / len(now.values) + 1.0 / len(earlier)
    run_variance = math.log1p(noise.share) ** 2 * per_run
    step_variance = _step_variance(now, before, noise)
    sigma = math.sqrt(run_variance + step_variance)
    freedom = noise.freedom or _freedom(now, before, step_variance, sigma)
    reach, near = (critical(share, freedom) * sigma for share in (level, NEAR_LEVEL))
    return Effect(
        change=math.expm1(shift),
        low=math.expm1(shift - reach),
        high=math.expm1(shift + reach),
        near_low=math.expm1(shift - near),
        near_high=math.expm1(shift + near),
        p_value=two_sided(shift / sigma, freedom) if sigma else float(shift == 0.0),
        sigma=sigma,
        run_sigma=math.sqrt(run_variance),
        freedom=freedom,
    )


def noise_of(before: Side, now: Side, fallback: Noise, least: float = 0.0) -> Noise:
    """Return the noise between runs as the runs themselves show it, else `fallback`.

    A noise that was given counts only until enough runs are there to measure it; `least` is a floor.
    """
    logs = without_accidents(before.logs)
    freedom = len(logs) - 1 + len(now.values) - 1
    if freedom < LEAST_RUNS - 1:
        return fallback
    squares = sum(_squares(one) for one in (logs, now.logs) if len(one) > 1)
    basis = "measured" if len(logs) >= LEAST_RUNS else "repeated"
    # Runs cannot be steadier than their own steps leave them; copies of one run seem to be.
    share = max(least, math.expm1(math.sqrt(max(squares / freedom, before.step_variance))))
    return Noise(share=share, basis=basis, freedom=freedom)  # type: ignore[arg-type]  # one of its two words


def without_accidents(logs: Sequence[float]) -> list[float]:
    """Return the figures without those far from all others; all of them when they are few."""
    if len(logs) < 2 * LEAST_RUNS:
        return list(logs)
    middle, deviation = median_and_spread(logs)
    return [one for one in logs if abs(one - middle) <= _ACCIDENT * deviation] if deviation else list(logs)


def runs_needed(effect: Effect, now_runs: int, before_runs: int, reach: float) -> int | None:
    """Return how many more runs narrow the interval to `reach` on either side; None if none would."""
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, max(effect.freedom, 1))
    per_run = effect.sigma**2 / (1.0 / now_runs + 1.0 / before_runs)
    room = allowed**2 / per_run - 1.0 / before_runs if per_run else math.inf
    return max(1, math.ceil(1.0 / room) - now_runs) if room > 0.0 else None


def runs_of_both_needed(effect: Effect, now_runs: int, before_runs: int, reach: float) -> int:
    """Return how many runs each side needs for an interval of `reach` on either side."""
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, max(effect.freedom, 1))
    per_run = effect.sigma**2 / (1.0 / now_runs + 1.0 / before_runs)
    return max(2, math.ceil(2.0 * per_run / allowed**2))


def steps_needed(effect: Effect, steps: int, reach: float) -> int | None:
    """Return how many more steps narrow the interval to `reach`; None if the runs' noise is too large."""
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, max(effect.freedom, 1))
    room = allowed**2 - effect.run_sigma**2
    step_variance = effect.sigma**2 - effect.run_sigma**2
    if room <= 0.0 or step_variance <= 0.0:
        return None
    return max(1, math.ceil(steps * step_variance / room) - steps)


def _squares(values: Sequence[float]) -> float:
    """Return the squared distances from the mean, added up."""
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values)


def _freedom(now: Side, before: Side, step_variance: float, sigma: float) -> int:
    """Return how well the standard error is known when only the steps' part is estimated (Satterthwaite)."""
    steps = [side.steps for side in (now, before) if side.steps]
    if not steps or not step_variance:
        return _KNOWN_EXACTLY
    known = max(1.0, sum(steps) - len(steps))
    return int(min(_KNOWN_EXACTLY, known * (sigma * sigma / step_variance) ** 2))


def _step_variance(now: Side, before: Side, noise: Noise) -> float:
    """Return what the steps add: measured noise has the steps of its runs in it already."""
    if noise.freedom is not None:
        return max(0.0, now.step_variance - before.step_variance) / len(now.values)
    return now.step_variance / len(now.values) + before.step_variance / len(before.values)

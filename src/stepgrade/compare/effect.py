"""The size of a change between runs, its interval, and how often noise alone would show it.

Runs, not steps, are what is compared: steps of one run share its machine, its clocks and its neighbours, so
a thousand of them still are one run. A run is the logarithm of its median. The noise of its steps comes on
top of the noise between runs (`compare/noise.py`).
"""

from __future__ import annotations

import math

from msgspec import Struct

from stepgrade.compare.noise import (
    MANY,
    RunNoise,
    Sample,
    Width,
    critical,
    exceeded,
    how_often,
    without_accidents,
)
from stepgrade.statistics import mean

# Runs of history that a new one is compared with: enough to know the noise, few enough to follow the machine.
MOST_RUNS = 50
# No noise that is given or assumed explains a change of this factor.
SURE_FACTOR = 3.0
_KNOWN_EXACTLY = 10_000
# Beyond this a ratio does not fit into a float.
_LARGEST_LOG = 700.0
# To alarm takes 99.5 %; that a slowdown can be ruled out is said with 95 % on its side.
NEAR_LEVEL = 0.10


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


def shift_of(now: Sample, before: Sample) -> float:
    """Return the logarithm of the change, without the accidents of the earlier runs."""
    return mean(now.logs) - mean(without_accidents(before.logs))


def widths_of(now: Sample, before: Sample, noise: RunNoise) -> list[Width]:
    """Return the widths that the difference of two groups of runs may have by noise alone."""
    runs, earlier = len(now.values), len(without_accidents(before.logs))
    step_variance = now.step_variance / len(now.values) + before.step_variance / len(before.values)
    widths = []
    for width in noise.widths:
        freedom, of_now = width.freedom, 1.0 / runs
        if freedom < MANY:
            # The mean of several runs has lighter tails, and the variance of one of them over their number.
            freedom = runs * width.freedom
            of_now *= (1.0 - 2.0 / freedom) / (1.0 - 2.0 / width.freedom)
        variance = width.sigma**2 * (of_now + 1.0 / earlier) + step_variance
        steps = [sample.steps for sample in (now, before) if sample.steps]
        if noise.told.freedom is None and steps and step_variance:
            # Of a noise that is taken as it is only the steps' part is estimated (Satterthwaite).
            known = max(1.0, sum(steps) - len(steps))
            freedom = int(min(_KNOWN_EXACTLY, known * (variance / step_variance) ** 2))
        widths.append(Width(sigma=math.sqrt(variance), weight=width.weight, freedom=freedom))
    return widths


def effect_of(now: Sample, before: Sample, noise: RunNoise, level: float) -> Effect:
    """Return the change from `before` to `now` with the interval that misses it with probability `level`."""
    shift, widths = shift_of(now, before), widths_of(now, before, noise)
    reach, near = (exceeded(share, widths) for share in (level, NEAR_LEVEL))
    if noise.told.freedom is None:
        most = math.log(SURE_FACTOR) * (1.0 - 1e-9)
        reach, near = min(reach, most), min(near, most)
    runs = 1.0 / len(now.values) + 1.0 / len(without_accidents(before.logs))
    return Effect(
        change=_share(shift),
        low=_share(shift - reach),
        high=_share(shift + reach),
        near_low=_share(shift - near),
        near_high=_share(shift + near),
        p_value=how_often(shift, widths),
        sigma=near / critical(NEAR_LEVEL, _KNOWN_EXACTLY),
        run_sigma=math.sqrt(runs * math.fsum(width.weight * width.sigma**2 for width in noise.widths)),
    )


def _share(log_ratio: float) -> float:
    return math.expm1(min(log_ratio, _LARGEST_LOG))


def runs_needed(effect: Effect, now_runs: int, before_runs: int, reach: float) -> tuple[int, bool]:
    """Return how many more runs narrow the interval to `reach` on either side.

    Where no number of them would: how many runs of the code and of its baseline each, and True.
    """
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, _KNOWN_EXACTLY)
    per_run = effect.sigma**2 / (1.0 / now_runs + 1.0 / before_runs)
    room = allowed**2 / per_run - 1.0 / before_runs if per_run else math.inf
    if room > 0.0:
        return max(1, math.ceil(1.0 / room) - now_runs), False
    return max(2, math.ceil(2.0 * per_run / allowed**2)), True


def steps_needed(effect: Effect, steps: int, reach: float) -> int | None:
    """Return how many more steps narrow the interval to `reach`; None if the runs' noise is too large."""
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, _KNOWN_EXACTLY)
    room = allowed**2 - effect.run_sigma**2
    step_variance = effect.sigma**2 - effect.run_sigma**2
    if room <= 0.0 or step_variance <= 0.0:
        return None
    return max(1, math.ceil(steps * step_variance / room) - steps)

"""The size of a change between runs, its interval, and how often noise alone would show it.

Runs, not steps, are what is compared: steps of one run share its machine, its clocks and its neighbours, so
a thousand of them still are one run. A run is the logarithm of its median. The noise of its steps comes on
top of the noise between runs (`compare/noise.py`).
"""

from __future__ import annotations

import math
from functools import cache

from msgspec import Struct

from stepgrade.compare.noise import (
    HEAVY_TAILS,
    KNOWN_EXACTLY,
    RunNoise,
    Sample,
    Width,
    critical,
    exceeded,
    how_often,
    two_sided,
    without_accidents,
)
from stepgrade.statistics import mean

# Earlier runs that a new one is compared with: enough to estimate the noise, few enough to be current.
MOST_RUNS = 50
# A change by this factor is never noise.
SURE_FACTOR = 3.0
# Beyond this a ratio overflows a float.
_LARGEST_LOG = 700.0
# A regression needs 99 % confidence; ruling one out needs 95 %, one-sided.
NEAR_LEVEL = 0.10


class Effect(Struct, frozen=True, kw_only=True):
    """A change as a share, its interval, and the probability that noise alone causes it."""

    change: float
    low: float
    high: float
    near_low: float  # one-sided bounds with 95 % confidence
    near_high: float
    p_value: float
    is_other_kind: bool  # beyond the noise, but like earlier runs on another kind of machine
    sigma: float  # standard error of the logarithm
    run_sigma: float  # the part of it that only more runs reduce


def shift_of(now: Sample, before: Sample) -> float:
    """Return the logarithm of the change, ignoring outliers of the earlier runs."""
    return mean(now.logs) - mean(without_accidents(before.logs))


def p_value_of(now: Sample, before: Sample, noise: RunNoise) -> float:
    """Return the probability that noise, or another known kind of machine, explains the distance."""
    shift = shift_of(now, before)
    spread = math.sqrt(1.0 / len(now.values) + 1.0) * math.log1p(noise.reported.share)
    each = 1.0 / (len(before.values) + 1)
    at_level = (1.0 - each * len(noise.other_kinds)) * how_often(shift, widths_of(now, before, noise))
    return at_level + each * math.fsum(
        two_sided((shift - kind) / spread, KNOWN_EXACTLY) for kind in noise.other_kinds
    )


def widths_of(now: Sample, before: Sample, noise: RunNoise) -> list[Width]:
    """Return the possible widths of the noise in the difference of two groups of runs."""
    runs, earlier = len(now.values), len(without_accidents(before.logs))
    step_variance = now.step_variance / len(now.values) + before.step_variance / len(before.values)
    steps = [sample.steps for sample in (now, before) if sample.steps]
    tails = _tails_of_mean(runs)
    widths = []
    for width in noise.widths:
        for share, times in tails if width.has_heavy_tails else ((1.0, 1.0 / runs),):
            variance = width.sigma**2 * (times + 1.0 / earlier) + width.kind_sigma**2 + step_variance
            freedom = KNOWN_EXACTLY
            if noise.reported.freedom is None and steps and step_variance:
                # If the noise is given, only the steps' part is estimated (Satterthwaite).
                known = max(1.0, sum(steps) - len(steps))
                freedom = int(min(KNOWN_EXACTLY, known * (variance / step_variance) ** 2))
            sigma, weight = math.sqrt(variance), width.weight * share
            widths.append(Width(sigma=sigma, weight=weight, freedom=freedom, kind_sigma=width.kind_sigma))
    return widths


@cache
def _tails_of_mean(runs: int) -> tuple[tuple[float, float], ...]:
    """Return the mean of heavy-tailed runs as a mixture of normals: (weight, variance) pairs.

    The widest of the runs is of one kind, the others are as wide at most: exact for one run.
    """
    tails = []
    below = variance_below = 0.0
    for share, variance in HEAVY_TAILS:
        upto, variance_upto = below + share, variance_below + share * variance
        mean_variance = (variance + (runs - 1) * variance_upto / upto) / runs**2
        tails.append((upto**runs - below**runs, mean_variance))
        below, variance_below = upto, variance_upto
    return tuple(tails)


def effect_of(now: Sample, before: Sample, noise: RunNoise, level: float) -> Effect:
    """Return the change from `before` to `now` with a confidence interval of 1 - `level`."""
    shift, widths = shift_of(now, before), widths_of(now, before, noise)
    reach = exceeded(level, widths)
    # That a machine of an unseen kind hides a regression is no reason to doubt that there is none.
    usual = [width for width in widths if not width.kind_sigma]
    near = exceeded(NEAR_LEVEL * math.fsum(width.weight for width in usual), usual)
    if noise.reported.freedom is None:
        most = math.log(SURE_FACTOR) * (1.0 - 1e-9)
        reach, near = min(reach, most), min(near, most)
    runs = 1.0 / len(now.values) + 1.0 / len(without_accidents(before.logs))
    p_value = p_value_of(now, before, noise)
    low, high = shift - reach, shift + reach
    near_low, near_high = shift - near, shift + near
    is_other_kind = bool(noise.other_kinds) and p_value >= level and not low <= 0.0 <= high
    if is_other_kind:
        low, high = min(low, 0.0), max(high, 0.0)
        near_low, near_high = min(near_low, 0.0), max(near_high, 0.0)
    return Effect(
        change=_share(shift),
        low=_share(low),
        high=_share(high),
        near_low=_share(near_low),
        near_high=_share(near_high),
        p_value=p_value,
        is_other_kind=is_other_kind,
        sigma=near / critical(NEAR_LEVEL, KNOWN_EXACTLY),
        run_sigma=math.sqrt(runs * math.fsum(width.weight * width.sigma**2 for width in noise.widths)),
    )


def _share(log_ratio: float) -> float:
    return math.expm1(min(log_ratio, _LARGEST_LOG))


def runs_needed(effect: Effect, now_runs: int, before_runs: int, reach: float) -> tuple[int, bool]:
    """Return how many more runs narrow the interval to `reach` on either side.

    Where no number of them would: how many runs of the code and of its baseline each, and True.
    """
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, KNOWN_EXACTLY)
    per_run = effect.sigma**2 / (1.0 / now_runs + 1.0 / before_runs)
    room = allowed**2 / per_run - 1.0 / before_runs if per_run else math.inf
    if room > 0.0:
        return max(1, math.ceil(1.0 / room) - now_runs), False
    return max(2, math.ceil(2.0 * per_run / allowed**2)), True


def steps_needed(effect: Effect, steps: int, reach: float) -> int | None:
    """Return how many more steps narrow the interval to `reach`; None if the runs' noise is too large."""
    allowed = math.log1p(reach) / critical(NEAR_LEVEL, KNOWN_EXACTLY)
    room = allowed**2 - effect.run_sigma**2
    step_variance = effect.sigma**2 - effect.run_sigma**2
    if room <= 0.0 or step_variance <= 0.0:
        return None
    return max(1, math.ceil(steps * step_variance / room) - steps)

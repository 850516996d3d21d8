"""Estimate how much identical runs differ, from a few runs and a prior.

The width of the noise between runs is not a number but a belief: a grid of widths, each with a weight. It
starts from what is usual, on other machines or in the same project's other runs, and every earlier run moves
it. What the steps of a run leave open is normal, and comes on top: runs that differ no more than their steps
explain show that there is little noise between runs. What noise alone would show is the average over the
grid, so that little knowledge makes a wide interval by itself.

Two ways of not being normal have a share of the belief. Each width is there with heavy tails too (Student's,
three degrees): with a small prior probability, since the runs themselves show them. What earlier runs cannot
show is a machine of a kind that none of them ran on. After n runs of one kind the next is of another with a
probability of 1 / (n + 2) (Laplace's rule of succession), and then normally a few percent off. That keeps 5 %
to 7 % from being an alarm after few runs, and costs hardly any power above 10 %. Runs that agree as well as
their steps allow come from one machine, and have no such share.

The constants were chosen by simulation (`benchmarks/regression.py grid`, table in docs/regressions.md): at
most 1 % false alarms over normal, heavy-tailed and two-kind noise with 3 to 30 earlier runs, then the most
slowdowns found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from msgspec import Struct, structs

from stepgrade.model.comparison import Metric, Noise, NoiseBasis
from stepgrade.statistics import mean, median_and_spread

# How many identical runs it takes to call their spread measured, and to use it beside the prior.
LEAST_RUNS = 5
FEWEST_RUNS = 3
# Times never agree better than this, except in a history with copies of one file.
LEAST_TIME_NOISE = 0.005
# The prior: its mode as a share of the largest noise reported, and its widths (of the logarithm) below and
# above it. It reaches further up: three runs of a noisy machine may agree by chance.
USUAL_SHARE = 0.108
_USUAL_FACTORS = (0.8, 1.3)
# The prior is narrower with other runs of the same project, which share its machines.
_POOLED_FACTORS = (0.5, 0.5)
# Runs with more step noise also differ more from each other.
_OF_STEPS = 0.5
# Prior probability of heavy tails, and of fewer than ten runs, which seldom show them, times their number.
_HEAVY_WEIGHT = 0.03
_HEAVY_UNSEEN = 0.3
# How far machines of an unseen kind are off, and the noise between runs from which on they are likely, as
# shares of the largest noise reported: 4 % and 0.74 % for times.
_KIND_SHARE = 0.31
_KIND_FROM = 0.057
# Student's t with three degrees of freedom as a mixture of normals: (weight, variance in squared scales).
HEAVY_TAILS = (
    (0.0833, 0.346),
    (0.5851, 0.959),
    (0.2789, 3.316),
    (0.0462, 13.49),
    (0.0057, 57.0),
    (0.0008, 292.0),
)
_RATIO = 1.3
_LOWEST, _HIGHEST = 1.0 / 16.0, 20.0
_NEGLIGIBLE = 1e-6
_LEAST_DENSITY = 1e-300  # smallest density with a finite logarithm
_CLOSE = 1e-9
_MOST_ROUNDS = 100
# Runs this many robust deviations from the others are outliers and do not affect the level.
_ACCIDENT = 5.0
# Largest difference between machines of nominally the same kind.
_KINDS_APART = 0.2
KNOWN_EXACTLY = 10_000
# With more degrees of freedom Student's distribution equals the normal one to three digits.
MANY = 500


class Sample(Struct, frozen=True, kw_only=True):
    """Values of runs, and the standard errors of their logarithms from the steps of each run."""

    values: tuple[float, ...]
    sigmas: tuple[float | None, ...] = ()
    steps: float | None = None  # independent steps behind the standard errors

    @property
    def logs(self) -> list[float]:
        """Return the logarithms of the values."""
        return [math.log(value) for value in self.values]

    @property
    def step_variance(self) -> float:
        """Return the mean squared standard error from the steps; 0 if unknown."""
        known = [sigma * sigma for sigma in self.sigmas if sigma is not None]
        return mean(known) if known else 0.0

    @property
    def step_spread(self) -> float:
        """Return the standard deviation of single steps, as a logarithm; 0 if unknown."""
        runs = sum(sigma is not None for sigma in self.sigmas)
        return math.sqrt(self.step_variance * (self.steps or 0.0) / runs * 2.0 / math.pi) if runs else 0.0


class Width(Struct, frozen=True, kw_only=True):
    """A possible width of the noise between runs, as the standard deviation of a logarithm."""

    sigma: float
    weight: float = 1.0
    freedom: int = KNOWN_EXACTLY  # degrees of freedom
    has_heavy_tails: bool = False  # Student's t with three degrees of freedom; `sigma` is its scale
    kind_sigma: float = 0.0  # of the new runs' machine, if it is of a kind that was not seen yet


class RunNoise(Struct, frozen=True, kw_only=True):
    """The noise between identical runs: as reported, and its possible widths.

    `other_kinds` are earlier runs that machines of another kind would explain, as logarithms from the level.
    """

    reported: Noise
    widths: tuple[Width, ...]
    other_kinds: tuple[float, ...] = ()


def known_noise(reported: Noise) -> RunNoise:
    """Return a noise that is given, not estimated."""
    return RunNoise(reported=reported, widths=(Width(sigma=math.log1p(reported.share)),))


def noise_of(
    now: Sample, before: Sample, metric: Metric, *, given: float | None = None, pooled: Noise | None = None
) -> RunNoise:
    """Return the noise between runs of a metric, from the runs and the prior.

    A noise that is `given` counts until enough runs measure it. `pooled` is that of the same project's other
    runs. With neither, and fewer than three runs, the largest that was ever reported is assumed.
    """
    earlier = without_accidents(before.logs)
    freedom = len(earlier) - 1 + len(now.values) - 1
    is_measured = freedom >= LEAST_RUNS - 1
    if not metric.from_steps:
        given = pooled = None
    if not is_measured and given is not None:
        return known_noise(Noise(share=given, basis="given"))
    if pooled is None and freedom < FEWEST_RUNS - 1:
        return known_noise(Noise(share=metric.assumed_noise, basis="assumed"))
    least = LEAST_TIME_NOISE if metric.from_steps else 0.0
    usual = math.log1p(USUAL_SHARE * metric.assumed_noise if pooled is None else max(pooled.share, least))
    usual = max(usual, _OF_STEPS * max(now.step_spread, before.step_spread))
    # An outlier does not affect the level, but counts for the heavy tails.
    level, level_now = mean(earlier), mean(now.logs)
    repeated = [log - level_now for log in now.logs] if len(now.values) > 1 else []
    apart = [log - level for log in before.logs] + repeated
    seen = len(before.values) - 1 + len(now.values) - 1
    prior = _Prior(center=usual, factors=_USUAL_FACTORS if pooled is None else _POOLED_FACTORS)
    if metric.heavy_tails:
        prior = structs.replace(
            prior,
            heavy_weight=max(_HEAVY_WEIGHT, _HEAVY_UNSEEN / (seen + 1)),
            kind_weight=1.0 / (len(before.values) + 2.0),
            kind_sigma=math.log1p(_KIND_SHARE * metric.assumed_noise),
            kind_from=math.log1p(_KIND_FROM * metric.assumed_noise),
        )
    widths = _weighed(apart, seen, before.step_variance, prior, least)
    if is_measured:
        squares = math.fsum((log - level) ** 2 for log in earlier) + math.fsum(log * log for log in repeated)
        # Runs cannot agree better than their step noise allows, except copies of one run.
        share = max(least, math.expm1(math.sqrt(max(squares / freedom, before.step_variance))))
        basis: NoiseBasis = "measured" if len(earlier) >= LEAST_RUNS else "repeated"
        reported = Noise(share=share, basis=basis, freedom=freedom)
        # Another kind of machine would explain runs that are apart from the ordinary ones, not by much, and
        # that ordinary ones followed: the last runs may be the first of slower code.
        last = max(index for index, log in enumerate(before.logs) if log in earlier)
        distances = (log - level for log in before.logs[:last] if log not in earlier)
        other_kinds = tuple(log for log in distances if abs(log) < math.log1p(_KINDS_APART))
        return RunNoise(reported=reported, widths=widths, other_kinds=other_kinds)
    share = math.expm1(math.sqrt(math.fsum(width.weight * width.sigma**2 for width in widths)))
    if pooled is None:
        reported = Noise(share=share, basis="usual", freedom=freedom)
    else:
        reported = Noise(share=share, basis="pooled", freedom=freedom + (pooled.freedom or 0))
    return RunNoise(reported=reported, widths=widths)


class _Prior(Struct, frozen=True, kw_only=True):
    """The prior: a log-normal width, wider above its center, heavy tails, and machines of an unseen kind."""

    center: float
    factors: tuple[float, float]
    heavy_weight: float = 0.0
    kind_weight: float = 0.0
    kind_sigma: float = 0.0
    kind_from: float = 1.0


def _weighed(
    apart: Sequence[float], freedom: int, step_variance: float, prior: _Prior, least: float
) -> tuple[Width, ...]:
    """Return the posterior widths with weights, given deviations `apart` from the means of their groups."""
    center = prior.center
    squares = math.fsum(log * log for log in apart)
    top = max(_HIGHEST * center, 4.0 * math.sqrt(squares / len(apart)))
    count = int(math.log(top / (_LOWEST * center)) / math.log(_RATIO)) + 1
    rows: list[tuple[float, Width]] = []
    for sigma in (_LOWEST * center * _RATIO**index for index in range(count)):
        variance = max(sigma * sigma + step_variance, math.log1p(least) ** 2)
        run_sigma = math.sqrt(max(variance - step_variance, 0.0))
        prior_log = -0.5 * (math.log(sigma / center) / prior.factors[sigma > center]) ** 2
        normal = -0.5 * freedom * math.log(variance) - squares / 2.0 / variance
        rows.append((math.log1p(-prior.heavy_weight) + prior_log + normal, Width(sigma=run_sigma)))
        if not prior.heavy_weight:
            continue
        kinds = [(share, run_sigma**2 * times + step_variance) for share, times in HEAVY_TAILS]
        peaks = [(share / math.sqrt(kind), -0.5 / kind) for share, kind in kinds]
        seen = math.fsum(
            math.log(max(sum(peak * math.exp(log * log * by) for peak, by in peaks), _LEAST_DENSITY))
            for log in apart
        )
        # One term per degree of freedom: the means were estimated from the same runs.
        heavy = math.log(prior.heavy_weight) + prior_log + seen * freedom / len(apart)
        rows.append((heavy, Width(sigma=run_sigma, has_heavy_tails=True)))
    highest = max(log for log, _ in rows)
    weights = [math.exp(log - highest) for log, _ in rows]
    total = math.fsum(weights)
    widths = []
    for weight, (_, width) in zip(weights, rows, strict=True):
        if weight > _NEGLIGIBLE * total:
            fourth = width.sigma**4
            unseen = prior.kind_weight * fourth / (fourth + prior.kind_from**4)
            widths.append(structs.replace(width, weight=(1.0 - unseen) * weight / total))
            if unseen > _NEGLIGIBLE:
                other = Width(sigma=width.sigma, weight=unseen * weight / total, kind_sigma=prior.kind_sigma)
                widths.append(other)
    return tuple(widths)


def without_accidents(logs: Sequence[float]) -> list[float]:
    """Return the values without outliers; all of them if there are few."""
    if len(logs) < 2 * LEAST_RUNS:
        return list(logs)
    middle, deviation = median_and_spread(logs)
    return [log for log in logs if abs(log - middle) <= _ACCIDENT * deviation] if deviation else list(logs)


def pooled_noise(series: Sequence[Sequence[float]]) -> Noise | None:
    """Return how much neighbouring runs of several series differ; None if there are too few.

    Differences of neighbours, and their median, know nothing of changes of level.
    """
    steps = [abs(math.log(after / before)) for values in series for before, after in pairwise(values)]
    if len(steps) < 2 * LEAST_RUNS - 2:
        return None
    share = math.expm1(median_and_spread([*steps, *(-step for step in steps)])[1] / math.sqrt(2.0))
    return Noise(share=share, basis="pooled", freedom=len(steps))


@cache
def critical(level: float, freedom: int) -> float:
    """Return the two-sided critical value of Student's t at `level`."""
    return exceeded(level, (Width(sigma=1.0, freedom=freedom),))


def exceeded(level: float, widths: Sequence[Width]) -> float:
    """Return the two-sided critical value of noise with these widths at `level`."""

    def above(shift: float) -> float:
        return math.log(max(how_often(shift, widths), _LEAST_DENSITY) / level)

    low, high = 0.0, max(width.sigma for width in widths)
    if not high:
        return 0.0
    at_low, at_high = above(low), above(high)
    while at_high > 0.0:
        low, at_low = high, at_high
        high *= 2.0
        at_high = above(high)
    # Illinois variant of the secant method: much faster than bisection.
    stayed = 0.0
    for _ in range(_MOST_ROUNDS):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        at_middle = above(middle)
        if abs(at_middle) < _CLOSE:
            return middle
        if at_middle > 0.0:
            low, at_low = middle, at_middle
            at_high /= 2.0 if stayed > 0.0 else 1.0
        else:
            high, at_high = middle, at_middle
            at_low /= 2.0 if stayed < 0.0 else 1.0
        stayed = at_middle
    return high


def how_often(shift: float, widths: Sequence[Width]) -> float:
    """Return the two-sided probability that noise with these widths exceeds `shift`."""
    return math.fsum(
        width.weight * (two_sided(shift / width.sigma, width.freedom) if width.sigma else float(not shift))
        for width in widths
    )


def two_sided(t: float, freedom: int) -> float:
    """Return the two-sided tail probability of Student's distribution beyond `t`.

    Whole degrees of freedom, without a library (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    t = abs(t)
    if math.isinf(t):
        return 0.0
    if freedom > MANY:
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

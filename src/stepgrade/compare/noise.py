"""How much identical runs differ, as far as a few of them and what is known of others can tell.

The width of the noise between runs is not a number but a belief: a grid of widths, each with a weight. It
starts from what is usual, on other machines or in the same project's other runs, and every earlier run moves
it. Each width is there twice, as normal noise and as noise with heavy tails (Student's, three degrees), for
shared machines and clusters of two kinds of nodes give runs that no normal distribution would. What the steps
of a run leave open is normal, and comes on top: runs that differ no more than their steps explain show that
there is little noise between runs, of whatever shape. What noise alone would show is the average over the
grid, so that little knowledge makes a wide interval by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from msgspec import Struct, structs

from stepgrade.model.comparison import Metric, Noise, NoiseBasis
from stepgrade.statistics import mean, median_and_spread

# Identical runs before their spread is called measured, and before it counts at all beside what is usual.
LEAST_RUNS = 5
FEWEST_RUNS = 3
# Times never agree better than this; a history that holds one file again and again seems to say so.
LEAST_TIME_NOISE = 0.005
# What is usual: half of all machines are below this share of the largest noise reported, two thirds of them
# within a factor of two (the exponential of 0.7).
USUAL_SHARE = 0.108
_USUAL_FACTOR = 0.7
# Other runs of the same project say more: they share its machines.
_POOLED_FACTOR = 0.5
# Runs whose steps vary widely differ more themselves.
_OF_STEPS = 0.5
# Ten runs outweigh what is usual: it is then only a hint.
_MANY_RUNS = 10
_HINT_FACTOR = 0.95
# How likely heavy tails are before the runs are looked at: few runs seldom show what is rare, so that some of
# it goes with their number.
_HEAVY_WEIGHT = 0.4
_HEAVY_UNSEEN = 5.0
_HEAVY_MOST = 0.9
# Student's distribution with three degrees as normal ones: how many of the runs, and their variance as a
# multiple of its scale's square.
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
_LEAST_DENSITY = 1e-300  # whose logarithm is a number
_CLOSE = 1e-9
_MOST_ROUNDS = 100
# Runs this many robust deviations from the others are accidents and do not move the level.
_ACCIDENT = 5.0
# Kinds of machines that one calls the same do not differ by more.
_KINDS_APART = 0.2
KNOWN_EXACTLY = 10_000
# With more degrees of freedom than this Student's distribution is the normal one to three digits.
MANY = 500


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

    @property
    def step_spread(self) -> float:
        """Return how much single steps of a run differ, as a logarithm; 0 where it is not known."""
        runs = sum(sigma is not None for sigma in self.sigmas)
        return math.sqrt(self.step_variance * (self.steps or 0.0) / runs * 2.0 / math.pi) if runs else 0.0


class Width(Struct, frozen=True, kw_only=True):
    """One width that the noise between runs may have, as the standard deviation of a logarithm."""

    sigma: float
    weight: float = 1.0
    freedom: int = KNOWN_EXACTLY  # of its distribution
    has_heavy_tails: bool = False  # Student's with three degrees, and `sigma` is its scale


class RunNoise(Struct, frozen=True, kw_only=True):
    """The noise between identical runs: as it is told, and the widths that it may have.

    `other_kinds` are earlier runs that machines of another kind would explain, as logarithms from the level.
    """

    told: Noise
    widths: tuple[Width, ...]
    other_kinds: tuple[float, ...] = ()


def known_noise(told: Noise) -> RunNoise:
    """Return a noise that is taken as it is."""
    return RunNoise(told=told, widths=(Width(sigma=math.log1p(told.share)),))


def noise_of(
    now: Sample, before: Sample, metric: Metric, *, given: float | None = None, pooled: float | None = None
) -> RunNoise:
    """Return the noise between runs of one metric, from the runs themselves and from what else is known.

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
    usual = math.log1p(USUAL_SHARE * metric.assumed_noise if pooled is None else max(pooled, least))
    usual = max(usual, _OF_STEPS * max(now.step_spread, before.step_spread))
    # An accident is no part of the level, but it is one of the runs: the heavy tails hold it.
    level, level_now = mean(earlier), mean(now.logs)
    repeated = [log - level_now for log in now.logs] if len(now.values) > 1 else []
    apart = [log - level for log in before.logs] + repeated
    seen = len(before.values) - 1 + len(now.values) - 1
    factor = _USUAL_FACTOR if pooled is None else _POOLED_FACTOR
    if seen + 1 >= _MANY_RUNS:
        factor = _HINT_FACTOR
    heavy_weight = min(_HEAVY_MOST, _HEAVY_WEIGHT + _HEAVY_UNSEEN / (seen + 1)) if metric.heavy_tails else 0.0
    prior = _Prior(center=usual, factor=factor, heavy_weight=heavy_weight)
    widths = _weighed(apart, seen, before.step_variance, prior, least)
    if is_measured:
        squares = math.fsum((log - level) ** 2 for log in earlier) + math.fsum(log * log for log in repeated)
        # Runs cannot be steadier than their own steps leave them; copies of one run seem to be.
        share = max(least, math.expm1(math.sqrt(max(squares / freedom, before.step_variance))))
        basis: NoiseBasis = "measured" if len(earlier) >= LEAST_RUNS else "repeated"
        told = Noise(share=share, basis=basis, freedom=freedom)
        return RunNoise(told=told, widths=widths, other_kinds=_other_kinds(before.logs, earlier))
    share = math.expm1(math.sqrt(math.fsum(width.weight * width.sigma**2 for width in widths)))
    told = Noise(share=share, basis="usual" if pooled is None else "pooled", freedom=freedom)
    return RunNoise(told=told, widths=widths)


class _Prior(Struct, frozen=True, kw_only=True):
    """What is believed before any run was seen: a log-normal width, and how likely heavy tails are."""

    center: float
    factor: float
    heavy_weight: float


def _weighed(
    apart: Sequence[float], freedom: int, step_variance: float, prior: _Prior, least: float
) -> tuple[Width, ...]:
    """Return the widths with their weights after runs were seen, `apart` from the means of their groups."""
    center = prior.center
    squares = math.fsum(log * log for log in apart)
    top = max(_HIGHEST * center, 4.0 * math.sqrt(squares / len(apart)))
    count = int(math.log(top / (_LOWEST * center)) / math.log(_RATIO)) + 1
    rows: list[tuple[float, Width]] = []
    for sigma in (_LOWEST * center * _RATIO**place for place in range(count)):
        variance = max(sigma * sigma + step_variance, math.log1p(least) ** 2)
        run_sigma = math.sqrt(max(variance - step_variance, 0.0))
        of_width = -0.5 * (math.log(sigma / center) / prior.factor) ** 2
        normal = -0.5 * freedom * math.log(variance) - squares / 2.0 / variance
        rows.append((math.log1p(-prior.heavy_weight) + of_width + normal, Width(sigma=run_sigma)))
        if not prior.heavy_weight:
            continue
        kinds = [(share, run_sigma**2 * times + step_variance) for share, times in HEAVY_TAILS]
        peaks = [(share / math.sqrt(kind), -0.5 / kind) for share, kind in kinds]
        seen = math.fsum(
            math.log(max(sum(peak * math.exp(log * log * by) for peak, by in peaks), _LEAST_DENSITY))
            for log in apart
        )
        # As many terms as there are degrees of freedom: the means were taken from the same runs.
        heavy = math.log(prior.heavy_weight) + of_width + seen * freedom / len(apart)
        rows.append((heavy, Width(sigma=run_sigma, has_heavy_tails=True)))
    highest = max(log for log, _ in rows)
    weights = [math.exp(log - highest) for log, _ in rows]
    total = math.fsum(weights)
    return tuple(
        structs.replace(width, weight=weight / total)
        for weight, (_, width) in zip(weights, rows, strict=True)
        if weight > _NEGLIGIBLE * total
    )


def without_accidents(logs: Sequence[float]) -> list[float]:
    """Return the figures without those far from all others; all of them when they are few."""
    if len(logs) < 2 * LEAST_RUNS:
        return list(logs)
    middle, deviation = median_and_spread(logs)
    return [log for log in logs if abs(log - middle) <= _ACCIDENT * deviation] if deviation else list(logs)


def _other_kinds(logs: Sequence[float], ordinary: Sequence[float]) -> tuple[float, ...]:
    """Return how far from the level the runs lie that machines of another kind would explain.

    They are apart from the ordinary ones, but not by much, and ordinary ones followed: what came last may be
    the first runs of slower code.
    """
    level = mean(ordinary)
    last = max(place for place, log in enumerate(logs) if log in ordinary)
    apart = (log - level for log in logs[:last] if log not in ordinary)
    return tuple(log for log in apart if abs(log) < math.log1p(_KINDS_APART))


def pooled_noise(series: Sequence[Sequence[float]]) -> float | None:
    """Return how much neighbouring runs of several series differ, as a share; None when there are too few.

    Differences of neighbours, and their median, know nothing of changes of level.
    """
    steps = [abs(math.log(after / before)) for values in series for before, after in pairwise(values)]
    if len(steps) < 2 * LEAST_RUNS - 2:
        return None
    return math.expm1(median_and_spread([*steps, *(-step for step in steps)])[1] / math.sqrt(2.0))


@cache
def critical(level: float, freedom: int) -> float:
    """Return the t that noise alone exceeds, in either direction, with the probability `level`."""
    return exceeded(level, (Width(sigma=1.0, freedom=freedom),))


def exceeded(level: float, widths: Sequence[Width]) -> float:
    """Return what noise of these widths exceeds, in either direction, with the probability `level`."""

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
    # The secant, where an end that stays twice counts half (Illinois): a fraction of the work of halving.
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
    """Return how often noise of these widths alone exceeds `shift` in either direction."""
    return math.fsum(
        width.weight * (two_sided(shift / width.sigma, width.freedom) if width.sigma else float(not shift))
        for width in widths
    )


def two_sided(t: float, freedom: int) -> float:
    """Return how often noise alone exceeds `t` in either direction, by Student's distribution.

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

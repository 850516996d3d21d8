"""Regressed, improved, no change or cannot tell: every metric of some runs against some earlier ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from stepgrade.compare.effect import (
    ASSUMED_NOISE,
    LEAST_RUNS,
    LEAST_TIME_NOISE,
    Effect,
    Interval,
    Side,
    effect_of,
    noise_of,
    runs_needed,
    runs_of_both_needed,
    steps_needed,
    without_accidents,
)
from stepgrade.model import Baseline
from stepgrade.model.comparison import MetricChange, Noise, Outcome
from stepgrade.scoring.step_times import StepTimes, step_times
from stepgrade.statistics import mean
from stepgrade.units import show_count, show_delta, show_share

# The interval misses the truth once in 200 times: of identical runs at most 1 % may alarm, on two sides.
LEVEL = 0.005
# Launches and coverage hardly vary from run to run; a process's memory on a CPU varies a little.
_COUNT_NOISE = 0.01
_MEMORY_NOISE = 0.02


class Metric(Struct, frozen=True, kw_only=True):
    """A figure of a run: which way is worse, and its noise where nobody measured it."""

    name: str
    worse: Literal["up", "down"]
    read: Callable[[Baseline], float | None]
    from_steps: bool = False  # its noise within a run is that of the step times
    assumed_noise: float = ASSUMED_NOISE


METRICS = (
    Metric(name="step_time_ms", worse="up", read=lambda run: run.step_ms, from_steps=True),
    Metric(name="throughput_tok_s", worse="down", read=lambda run: run.throughput_tok_s, from_steps=True),
    Metric(
        name="wall_coverage", worse="down", read=lambda run: run.wall_coverage, assumed_noise=_COUNT_NOISE
    ),
    Metric(
        name="launches_per_step",
        worse="up",
        read=lambda run: run.launches_per_step,
        assumed_noise=_COUNT_NOISE,
    ),
    Metric(
        name="peak_memory_bytes",
        worse="up",
        read=lambda run: run.peak_memory_bytes,
        assumed_noise=_MEMORY_NOISE,
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}


class Sensitivity(Struct, frozen=True, kw_only=True):
    """What counts: changes up to `allow` never do, one of `detect` must not go unseen."""

    allow: float = 0.01
    detect: float = 0.10
    level: float = LEVEL
    run_noise: float | None = None  # given by the user, until enough runs measure it


DEFAULT_SENSITIVITY = Sensitivity()


def changes_of(
    now: Sequence[Baseline], before: Sequence[Baseline], how: Sensitivity = DEFAULT_SENSITIVITY
) -> tuple[MetricChange, ...]:
    """Return what became of every metric that both sides have."""
    paces = [[step_times(run.samples_ms) for run in runs] for runs in (now, before)]
    found = []
    for metric in METRICS:
        sides = [side_of(metric, runs, known) for runs, known in zip((now, before), paces, strict=True)]
        if sides[0].values and sides[1].values:
            found.append(change_of(metric, sides[0], sides[1], how))
    return tuple(found)


def change_between_steps(now: Baseline, before: Baseline) -> tuple[MetricChange, ...]:
    """Return step time and throughput of two runs by the noise of their steps alone; nothing if unknown."""
    paces = [step_times(run.samples_ms) for run in (now, before)]
    if any(times is None or times.sigma_log is None for times in paces):
        return ()
    steps_only = Sensitivity(run_noise=0.0)
    return tuple(one for one in changes_of([now], [before], steps_only) if BY_NAME[one.metric].from_steps)


def side_of(metric: Metric, runs: Sequence[Baseline], paces: Sequence[StepTimes | None]) -> Side:
    """Return the figures of the runs that have the metric."""
    rows = [
        (value, times if metric.from_steps else None)
        for run, times in zip(runs, paces, strict=True)
        if (value := metric.read(run))
    ]
    effective = sum(times.effective for _, times in rows if times and times.effective)
    return Side(
        values=tuple(value for value, _ in rows),
        sigmas=tuple(times.sigma_log if times else None for _, times in rows),
        steps=effective or None,
    )


def change_of(metric: Metric, now: Side, before: Side, how: Sensitivity) -> MetricChange:
    """Test one metric."""
    least = LEAST_TIME_NOISE if metric.from_steps else 0.0
    noise = noise_of(before, now, _fallback(metric, how), least)
    effect = effect_of(now, before, noise, how.level)
    outcome = outcome_of(effect, metric.worse, how)
    return MetricChange(
        metric=metric.name,
        outcome=outcome,
        before=_level(before),
        now=_level(now),
        change=effect.change,
        low=effect.low,
        high=effect.high,
        near_low=effect.near_low,
        near_high=effect.near_high,
        p_value=effect.p_value,
        noise=noise,
        before_runs=len(before.values),
        now_runs=len(now.values),
        why=_why(effect, metric, outcome, how),
        more=_more(effect, now, before, noise, how) if outcome == "cannot tell" else "",
    )


def outcome_of(effect: Interval, worse: str, how: Sensitivity) -> Outcome:
    """Return the verdict: a change must be beyond the noise and beyond what is allowed."""
    change, low, high, worst = effect.change, effect.low, effect.high, effect.near_high
    if worse == "down":
        change, low, high, worst = -change, -high, -low, -effect.near_low
    if low > 0.0 and change > how.allow:
        return "regressed"
    if high < 0.0 and -change > how.allow:
        return "improved"
    return "no change" if worst < max(how.detect, how.allow) else "cannot tell"


def _fallback(metric: Metric, how: Sensitivity) -> Noise:
    if how.run_noise is not None and metric.from_steps:
        return Noise(share=how.run_noise, basis="given")
    return Noise(share=metric.assumed_noise, basis="assumed")


def _level(side: Side) -> float:
    """Return the figure that the change is reckoned from: the geometric mean without accidents."""
    if len(side.values) == 1:
        return side.values[0]
    return math.exp(mean(without_accidents(side.logs)))


def _why(effect: Effect, metric: Metric, outcome: Outcome, how: Sensitivity) -> str:
    if outcome in ("regressed", "improved"):
        return f"beyond the noise: surely {show_delta(effect.low)} to {show_delta(effect.high)}"
    worst = effect.near_high if metric.worse == "up" else -effect.near_low
    if outcome == "no change" and not effect.low <= 0.0 <= effect.high:
        return f"beyond the noise, but no more than the {show_share(how.allow, 0)} that counts"
    if outcome == "no change":
        return f"within the noise, and hardly more than {show_share(max(worst, 0.0))} worse"
    return f"within the noise, but {show_share(worst)} worse cannot be ruled out"


def _more(effect: Effect, now: Side, before: Side, noise: Noise, how: Sensitivity) -> str:
    """Say what would settle it: steps where steps are few, else runs."""
    if noise.basis == "assumed":
        missing = max(1, LEAST_RUNS - len(before.values))
        return (
            f"how much identical runs differ is not known ({show_share(noise.share, 0)} is assumed): "
            f"{missing} more run{'s' if missing > 1 else ''} of the baseline would measure it, or say it "
            "with --run-noise"
        )
    steps = steps_needed(effect, int(now.steps), how.detect) if now.steps else None
    if steps is not None and effect.sigma > 2.0 * effect.run_sigma:
        return f"about {steps} more steps would tell"
    runs = runs_needed(effect, len(now.values), len(before.values), how.detect)
    if runs is None:
        both = runs_of_both_needed(effect, len(now.values), len(before.values), how.detect)
        return f"about {show_count(both)} runs of each side would tell {show_share(how.detect, 0)}"
    return f"about {runs} more run{'s' if runs > 1 else ''} of this code would tell"

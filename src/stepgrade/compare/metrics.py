"""Regressed, probably slower, improved, no change or cannot tell: metrics against those of earlier runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from msgspec import structs

from stepgrade.compare.effect import Effect, effect_of, runs_needed, steps_needed
from stepgrade.compare.noise import FEWEST_RUNS, RunNoise, Sample, known_noise, noise_of, without_accidents
from stepgrade.config import Sensitivity
from stepgrade.model.comparison import METRICS, Metric, MetricChange, Noise, Outcome
from stepgrade.model.scorecard import Baseline
from stepgrade.scoring.step_times import StepTimes, step_times
from stepgrade.statistics import mean
from stepgrade.units import show_count, show_delta, show_share

# 99 % confidence, two-sided: at most 1 % of identical runs may raise a false alarm.
LEVEL = 0.01
# A time longer by more than this share is never "cannot tell", unless runs of one side differ as much.
NEVER_HIDDEN = 0.5
# More runs than this are no help: only another way to measure is.
_MOST_MORE = 20
# The metrics that are compared, and where a run has them.
COMPARED: dict[str, Callable[[Baseline], float | None]] = {
    "step_time_ms": lambda run: run.step_ms,
    "processor_ms": lambda run: times.median_ms if (times := step_times(run.processor_samples_ms)) else None,
    "throughput_tok_s": lambda run: run.throughput_tok_s,
    "samples_s": lambda run: None if run.throughput_tok_s else run.samples_s,  # one unit is enough
    "wall_coverage": lambda run: run.wall_coverage,
    "launches_per_step": lambda run: run.launches_per_step,
    "peak_memory_bytes": lambda run: run.peak_memory_bytes,
}


DEFAULT_SENSITIVITY = Sensitivity()


def changes_of(
    now: Sequence[Baseline],
    before: Sequence[Baseline],
    sensitivity: Sensitivity = DEFAULT_SENSITIVITY,
    pooled_noise: Noise | None = None,
) -> tuple[MetricChange, ...]:
    """Return the change of every metric that runs of both groups have.

    `pooled_noise` is how much runs of the same project in other circumstances differ.
    """
    # The same measurement twice: there is no noise between a run and itself.
    first, *others = (structs.replace(run, name="") for run in (*now, *before))
    is_same = all(other == first for other in others)
    times_now, times_before = ([step_times(run.samples_ms) for run in runs] for runs in (now, before))
    changes = []
    for name in COMPARED:
        metric = METRICS[name]
        sample, earlier = _sample(metric, now, times_now), _sample(metric, before, times_before)
        if not sample.values or not earlier.values:
            continue
        if is_same:
            sample, earlier = Sample(values=sample.values), Sample(values=earlier.values)
            noise = known_noise(Noise(share=0.0, basis="same"))
        else:
            noise = noise_of(sample, earlier, metric, given=sensitivity.run_noise, pooled=pooled_noise)
        changes.append(change_of(metric, sample, earlier, noise, sensitivity))
    return tuple(changes)


def change_between_steps(now: Baseline, before: Baseline) -> tuple[MetricChange, ...]:
    """Return changes of step time and throughput, judged by step noise alone; empty if unknown."""
    times = [step_times(run.samples_ms) for run in (now, before)]
    if any(known is None or known.sigma_log is None for known in times):
        return ()
    changes = changes_of([now], [before], Sensitivity(run_noise=0.0))
    return tuple(change for change in changes if METRICS[change.metric].from_steps)


def _sample(metric: Metric, runs: Sequence[Baseline], times_of_runs: Sequence[StepTimes | None]) -> Sample:
    """Return the values of the runs that have the metric."""
    read = COMPARED[metric.name]
    rows = [
        (value, times if metric.from_steps else None)
        for run, times in zip(runs, times_of_runs, strict=True)
        if (value := read(run))
    ]
    effective = sum(times.effective for _, times in rows if times and times.effective)
    return Sample(
        values=tuple(value for value, _ in rows),
        sigmas=tuple(times.sigma_log if times else None for _, times in rows),
        steps=effective or None,
    )


def change_of(
    metric: Metric, now: Sample, before: Sample, run_noise: RunNoise, sensitivity: Sensitivity
) -> MetricChange:
    """Return the change of a metric, or of the time of a part."""
    noise = run_noise.reported
    effect = effect_of(now, before, run_noise, LEVEL)
    # How much runs of one side differ: by their values, their steps, or as the user says.
    ranges = [max(sample.values) / min(sample.values) - 1.0 for sample in (now, before)]
    steps = math.expm1(2.0 * math.sqrt(now.step_variance + before.step_variance))
    apart = max(*ranges, steps, noise.share if noise.basis == "given" else 0.0)
    outcome = outcome_of(effect, metric, sensitivity, apart)
    worst, least = effect.near_high, effect.near_low
    if metric.worse == "down":
        worst, least = -effect.near_low, -effect.near_high
    if noise.basis == "same":
        why = "the same run as the baseline"
    elif outcome in ("regressed", "improved"):
        why = f"beyond the noise: surely {show_delta(effect.low)} to {show_delta(effect.high)}"
    elif outcome == "probably slower" and least > sensitivity.allow:
        bounds = f"{show_delta(effect.near_low)} to {show_delta(effect.near_high)}"
        why = f"probably beyond the noise ({bounds} with 90 % confidence), but not surely"
    elif outcome == "probably slower":
        differ = f"which differ by {show_share(apart)}" if apart else "of which there are too few to be sure"
        why = f"more than identical runs, {differ}, ever explain in practice"
    elif effect.is_other_kind:
        why = "no further from the others than an earlier run was: perhaps a machine of another kind"
    elif outcome == "cannot tell":
        why = f"within the noise, but {show_share(worst)} worse cannot be ruled out"
    elif effect.low <= 0.0 <= effect.high:
        why = f"within the noise, and hardly more than {show_share(max(worst, 0.0))} worse"
    else:
        why = f"beyond the noise, but no more than the {show_share(sensitivity.allow, 0)} that counts"
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
        apart=apart,
        why=why,
        more=_what_would_decide(effect, now, before, noise, sensitivity)
        if outcome in ("cannot tell", "probably slower")
        else "",
    )


def outcome_of(
    change: Effect | MetricChange,
    metric: Metric,
    sensitivity: Sensitivity,
    apart: float,
    *,
    worse: str | None = None,
) -> Outcome:
    """Return the outcome; a change counts if it exceeds both the noise and the allowance.

    `apart` is how much runs of one side differ. `worse` is the direction in which the metric gets worse,
    where a budget names another than usual; then nothing is "slower".
    """
    size, low, high = change.change, change.low, change.high
    least, worst = change.near_low, change.near_high
    if (worse or metric.worse) == "down":
        size, low, high, least, worst = -size, -high, -low, -worst, -least
    if low > 0.0 and size > sensitivity.allow:
        return "regressed"
    if high < 0.0 and -size > sensitivity.allow:
        return "improved"
    is_speed = metric.from_steps and worse in (None, metric.worse)
    if is_speed and least > sensitivity.allow:
        return "probably slower"
    if worst < max(sensitivity.detect, sensitivity.allow):
        return "no change"
    # As a time: a rate that halves is a time that doubles.
    longer = change.change if metric.worse == "up" else 1.0 / (1.0 + change.change) - 1.0
    if is_speed and longer > max(NEVER_HIDDEN, apart):
        return "probably slower"
    return "cannot tell"


def _level(sample: Sample) -> float:
    """Return the geometric mean without outliers, from which the change is calculated."""
    if len(sample.values) == 1:
        return sample.values[0]
    return math.exp(mean(without_accidents(sample.logs)))


def _what_would_decide(
    effect: Effect, now: Sample, before: Sample, noise: Noise, sensitivity: Sensitivity
) -> str:
    """Return how many more steps, or else runs, would be needed to decide."""
    if noise.basis == "assumed":
        missing = max(1, FEWEST_RUNS - len(before.values))
        return (
            f"{missing} more run{'s' if missing > 1 else ''} of the baseline would measure how much "
            f"identical runs differ, which is not known ({show_share(noise.share, 0)} is assumed)"
        )
    # Enough to pass or to fail if the change is as large as it seems, whichever needs less.
    shift = abs(math.log1p(effect.change))
    near, far = (math.log1p(high) - math.log1p(effect.change) for high in (effect.near_high, effect.high))
    reach = math.expm1(max(math.log1p(sensitivity.detect) - shift, shift * near / far))
    steps = steps_needed(effect, int(now.steps), reach) if now.steps else None
    if steps is not None and effect.sigma > 2.0 * effect.run_sigma:
        return f"about {show_count(steps)} more steps would tell"
    runs, are_of_both = runs_needed(effect, len(now.values), len(before.values), reach)
    if runs > _MOST_MORE:
        several = f"{show_count(runs)} runs{' of each side' if are_of_both else ''}"
        return f"it would take about {several}, or runs of both commits in turns, by their processor time"
    if are_of_both:
        return f"about {show_count(runs)} runs of each side would tell"
    return f"about {runs} more run{'s' if runs > 1 else ''} of this code would tell"

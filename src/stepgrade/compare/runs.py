"""Compare runs with earlier ones, or repeated runs with each other."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from stepgrade.compare.fingerprint import differences
from stepgrade.compare.metrics import change_between_steps, changes_of
from stepgrade.compare.noise import LEAST_RUNS
from stepgrade.compare.parts import changed_parts, shifts_of, step_change
from stepgrade.config import Sensitivity
from stepgrade.contract import Regression
from stepgrade.contract.scorecard import coverage_regression, step_time_regression, throughput_regression
from stepgrade.model import Note
from stepgrade.model.comparison import RATES, Comparison, Noise
from stepgrade.model.notes import Result, texts_of
from stepgrade.model.scorecard import Baseline, Scorecard
from stepgrade.statistics import mean


def compare_runs(
    now: Sequence[Baseline],
    before: Sequence[Baseline],
    sensitivity: Sensitivity,
    allowed: Collection[str] = (),
    pooled_noise: Noise | None = None,
) -> Comparison:
    """Return what changed; runs with different fingerprints are only compared if that is allowed."""
    first, *others = now
    differing = tuple(
        dict.fromkeys(
            note for other in (*before, *others) for note in differences(first.fingerprint, other.fingerprint)
        )
    )
    if any(note.code not in allowed for note in differing):
        return Comparison(differences=differing, is_comparable=False)
    changes = changes_of(now, before, sensitivity, pooled_noise)
    if not changes:
        reasons = (Note("no_metric", "no metric is known on both sides"),)
        return Comparison(differences=differing, reasons=reasons)
    # The median run: its parts add up, unlike medians of parts.
    latest, typical = now[-1], sorted(before, key=lambda run: run.step_ms or 0.0)[len(before) // 2]
    # Also test parts if the whole is undecided: they may be significant.
    is_changed = any(change.outcome != "no change" for change in changes)
    notes = []
    if not all(run.samples_ms for run in (*now, *before)):
        notes.append(Note("averages", "some runs have only averages: the noise of their steps is not known"))
    if len(before) < LEAST_RUNS and any(run.operations_ms for run in now):
        untested = "layers" if all(run.operation_samples_ms for run in (*now, *before)) else "operations"
        text = f"{untested} are tested one by one only against {LEAST_RUNS} earlier runs or more"
        notes.append(Note("few_runs", text))
    return Comparison(
        differences=differing,
        changes=changes,
        parts=changed_parts(now, before, sensitivity, pooled_noise),
        shifts=shifts_of(latest, typical) if is_changed else (),
        step_change=step_change(latest, typical),
        notes=tuple(notes),
    )


def compare_with_baseline(card: Scorecard, baseline: Baseline, allowed: Collection[str] = ()) -> Scorecard:
    """Return the card with its regressions since `baseline`, by contract v1's rules and the steps' noise.

    Runs whose fingerprints differ, unless that is allowed, are not compared.
    """
    now = Baseline.of(card)
    differing = differences(card.fingerprint, baseline.fingerprint)
    if baseline.fingerprint is None and now.device and baseline.device and now.device != baseline.device:
        # Scorecards of older versions only have a device.
        differing = (Note("device", f"device: {now.device} now, {baseline.device} in the baseline"),)
    if any(note.code not in allowed for note in differing):
        text = f"not comparable with the baseline ({'; '.join(texts_of(differing))}): nothing was compared"
        return replace(
            card,
            notes=(Note("not_comparable", text), *card.notes),
            baseline=baseline.name,
            differences=differing,
        )
    has_samples = bool(now.samples_ms and baseline.samples_ms)
    changes = change_between_steps(now, baseline) if has_samples else ()
    # A change within the noise of the steps is not a regression.
    within_noise = {change.metric for change in changes if change.low <= 0.0 <= change.high}
    found: list[Regression] = []
    compared: list[str] = []
    missing: list[str] = []
    for metric, rule, before, after in (
        ("throughput_tok_s", throughput_regression, baseline.throughput_tok_s, card.throughput_tok_s),
        ("step_time_ms", step_time_regression, baseline.step_ms, card.step_time_ms),
        ("wall_coverage", coverage_regression, baseline.wall_coverage, card.wall_coverage),
    ):
        (compared if before and after else missing).append(metric)
        if before is not None and after is not None and (regression := rule(before, after)):
            found.append(regression)
    sure = tuple(regression for regression in found if regression.metric not in within_noise)
    is_changed = bool(sure) or any(change.outcome in ("regressed", "improved") for change in changes)
    notes = [*card.notes]
    if missing:
        text = f"not compared with the baseline, because one side lacks it: {', '.join(missing)}"
        notes.append(Note("not_compared", text))
    for regression in found:
        if regression.metric in within_noise:
            text = (
                f"{regression.metric} is beyond contract v1's threshold but within the noise of the steps: "
                "not a regression"
            )
            notes.append(Note("within_noise", text))
    return replace(
        card,
        regressions=sure,
        notes=tuple(notes),
        baseline=baseline.name,
        differences=differing,
        step_change=step_change(now, baseline),
        compared=tuple(compared),
        changes=changes,
        changed=shifts_of(now, baseline) if is_changed else (),
    )


class RepeatedRun(Struct, frozen=True, kw_only=True):
    """A run: its file, median step time, grade, and rate under the metric's name."""

    file: str
    step_ms: float | None
    grade: str
    rate: float | None
    rate_metric: str


class Repeats(Result, frozen=True, kw_only=True):
    """Runs of one command; `noise_share` is the standard deviation of their step times, None for one run."""

    runs: tuple[RepeatedRun, ...]
    noise_share: float | None


def repeats_of(cards: Sequence[Scorecard]) -> Repeats:
    """Return the runs and their noise."""
    runs = []
    for card in cards:
        metric = next((name for name in RATES if card.metrics[name] is not None), RATES[0])
        runs.append(
            RepeatedRun(
                file=card.source.shown,
                step_ms=card.step_time_ms,
                grade=card.grade,
                rate=card.metrics[metric],
                rate_metric=metric,
            )
        )
    logs = [math.log(run.step_ms) for run in runs if run.step_ms]
    noise = None
    if len(logs) > 1:
        middle = mean(logs)
        noise = math.expm1(math.sqrt(sum((log - middle) ** 2 for log in logs) / (len(logs) - 1)))
    return Repeats(runs=tuple(runs), noise_share=noise)

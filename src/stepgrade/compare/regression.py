"""Did the run get slower than a baseline: contract v1's three rules, held against the noise of the steps."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from stepgrade.compare.fingerprint import differences
from stepgrade.compare.step_change import step_change
from stepgrade.contract import Regression
from stepgrade.contract.scorecard import coverage_regression, step_time_regression, throughput_regression
from stepgrade.model import Baseline, Note
from stepgrade.model.comparison import MetricChange, Shift
from stepgrade.model.notes import texts_of
from stepgrade.model.scorecard import Scorecard


def compared(card: Scorecard, baseline: Baseline, allowed: Collection[str] = ()) -> Scorecard:
    """Return the card with its regressions against `baseline`, and what could not be compared.

    Runs with different fingerprints are not compared at all, unless the difference is allowed.
    """
    apart = _apart(card, baseline)
    if _apart(card, baseline, allowed):
        text = f"not comparable with the baseline ({'; '.join(texts_of(apart))}): nothing was compared"
        notes = (Note("not_comparable", text), *card.notes)
        return msgspec.structs.replace(card, notes=notes, baseline=baseline.name, differences=apart)
    now = Baseline.of(card)
    changes = _changes(now, baseline)
    unsure = {change.metric for change in changes if _may_be_nothing(change)}
    found = regressions(card, baseline)
    sure = tuple(one for one in found if one.metric not in unsure)
    moved = bool(sure) or any(change.outcome in ("regressed", "improved") for change in changes)
    return msgspec.structs.replace(
        card,
        regressions=sure,
        notes=(*card.notes, *_notes(card, baseline), *_within_noise(found, unsure)),
        baseline=baseline.name,
        differences=apart,
        step_change=step_change(now, baseline),
        compared=tuple(metric for metric, (before, now) in _pairs(card, baseline).items() if before and now),
        changes=changes,
        changed=_shifts(now, baseline) if moved else (),
    )


def regressions(card: Scorecard, baseline: Baseline) -> tuple[Regression, ...]:
    """Return what got worse, by the reference's thresholds."""
    found = [
        rule(before, now)
        for (before, now), rule in zip(_pairs(card, baseline).values(), _RULES, strict=True)
        if before is not None and now is not None
    ]
    return tuple(regression for regression in found if regression)


_RULES = (throughput_regression, step_time_regression, coverage_regression)


def _pairs(card: Scorecard, baseline: Baseline) -> dict[str, tuple[float | None, float | None]]:
    return {
        "throughput_tok_s": (baseline.throughput_tok_s, card.throughput_tok_s),
        "step_time_ms": (baseline.step_ms, card.step_time_ms),
        "wall_coverage": (baseline.wall_coverage, card.wall_coverage),
    }


def _apart(card: Scorecard, baseline: Baseline, allowed: Collection[str] = ()) -> tuple[Note, ...]:
    """Return how the runs differ; a scorecard of an earlier version only tells its device."""
    if baseline.fingerprint is not None:
        return differences(card.fingerprint, baseline.fingerprint, allowed)
    here = card.device.key if card.device else None
    if here and baseline.device and here != baseline.device and "device" not in allowed:
        return (Note("device", f"device: {here} now, {baseline.device} in the baseline"),)
    return ()


def _changes(now: Baseline, baseline: Baseline) -> tuple[MetricChange, ...]:
    """Return the test on the steps' samples; nothing for mere averages."""
    if not (now.samples_ms and baseline.samples_ms):
        return ()
    from stepgrade.compare.verdict import change_between_steps  # noqa: PLC0415  only with samples

    return change_between_steps(now, baseline)


def _shifts(now: Baseline, baseline: Baseline) -> tuple[Shift, ...]:
    from stepgrade.compare.parts import shifts_of  # noqa: PLC0415  only when something changed

    return shifts_of(now, baseline)


def _may_be_nothing(change: MetricChange) -> bool:
    return change.low is not None and change.high is not None and change.low <= 0.0 <= change.high


def _within_noise(found: tuple[Regression, ...], unsure: set[str]) -> tuple[Note, ...]:
    return tuple(
        Note(
            "within_noise",
            f"{one.metric} is beyond contract v1's threshold but within the noise of the steps: "
            "not a regression",
        )
        for one in found
        if one.metric in unsure
    )


def _notes(card: Scorecard, baseline: Baseline) -> tuple[Note, ...]:
    missing = [metric for metric, (before, now) in _pairs(card, baseline).items() if not (before and now)]
    if not missing:
        return ()
    text = f"not compared with the baseline, as one side does not have it: {', '.join(missing)}"
    return (Note("not_compared", text),)

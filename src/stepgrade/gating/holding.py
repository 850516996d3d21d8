"""Some runs held against some earlier ones: comparable at all, what changed, and what explains it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepgrade.compare.effect import LEAST_RUNS
from stepgrade.compare.fingerprint import differences
from stepgrade.compare.parts import changed_parts, shifts_of
from stepgrade.compare.step_change import step_change
from stepgrade.compare.verdict import Sensitivity, changes_of
from stepgrade.model import Baseline, Note
from stepgrade.model.comparison import Comparison, MetricChange


def hold(
    now: Sequence[Baseline], before: Sequence[Baseline], how: Sensitivity, allowed: Collection[str] = ()
) -> Comparison:
    """Compare the runs; those that differ in their fingerprint are named and not compared."""
    apart = _apart(now, before, ())
    if _apart(now, before, allowed):
        return Comparison(differences=apart, is_comparable=False)
    changes = changes_of(now, before, how)
    if not changes:
        return Comparison(
            differences=apart, unmeasured=(Note("no_metric", "no metric is known on both sides"),)
        )
    latest, typical = now[-1], _typical(before)
    return Comparison(
        differences=apart,
        changes=changes,
        parts=changed_parts(now, before, how),
        shifts=shifts_of(latest, typical) if _moved(changes) else (),
        step_change=step_change(latest, typical),
        notes=_notes(now, before),
    )


def _apart(now: Sequence[Baseline], before: Sequence[Baseline], allowed: Collection[str]) -> tuple[Note, ...]:
    first = now[0].fingerprint
    others = [*before, *now[1:]]
    return tuple(
        dict.fromkeys(note for other in others for note in differences(first, other.fingerprint, allowed))
    )


def _typical(runs: Sequence[Baseline]) -> Baseline:
    """Return the run in the middle: its parts belong together, which medians of parts would not."""
    ordered = sorted(runs, key=lambda run: run.step_ms or 0.0)
    return ordered[len(ordered) // 2]


def _moved(changes: Sequence[MetricChange]) -> bool:
    return any(change.outcome in ("regressed", "improved") for change in changes)


def _notes(now: Sequence[Baseline], before: Sequence[Baseline]) -> tuple[Note, ...]:
    notes = []
    if not all(run.samples_ms for run in (*now, *before)):
        notes.append(Note("averages", "some runs have only averages: the noise of their steps is not known"))
    if len(before) < LEAST_RUNS and any(run.operations_ms for run in now):
        untold = "layers" if all(run.operation_samples_ms for run in (*now, *before)) else "operations"
        text = f"{untold} are tested one by one only against {LEAST_RUNS} earlier runs or more"
        notes.append(Note("few_runs", text))
    return tuple(notes)

"""How a step went from the baseline's length to this one's: the parts that took more and less time."""

from __future__ import annotations

from msgspec.structs import asdict

from stepgrade.model import Baseline
from stepgrade.model.comparison import Change, StepChange

NO_PHASE = "in no phase"


def step_change(now: Baseline, before: Baseline) -> StepChange | None:
    """Return the parts of both steps, the largest change first; None when they cannot be split alike."""
    now_ms, before_ms = now.step_ms, before.step_ms
    if not now_ms or not before_ms:
        return None
    if have_timelines(now, before):
        sides = [{name: ms for name, ms in accounts_ms(run).items() if ms} for run in (before, now)]
        parts = _parts(*sides)
        return StepChange(basis="ledger", before_ms=before_ms, now_ms=now_ms, parts=parts)
    if not now.phases_ms or not before.phases_ms:
        return None
    parts = _parts(_with_rest(before.phases_ms, before_ms), _with_rest(now.phases_ms, now_ms))
    return StepChange(basis="phases", before_ms=before_ms, now_ms=now_ms, parts=parts)


def in_no_phase_ms(run: Baseline) -> float | None:
    """Return what a run's phases leave of its step, below 0 where they overlap; None if it has none."""
    return run.step_ms - sum(run.phases_ms.values()) if run.step_ms and run.phases_ms else None


def have_timelines(*runs: Baseline) -> bool:
    """Tell whether the ledgers come from a device's timeline: one made from phases adds nothing to them."""
    return all(run.ledger is not None and run.ledger.idle_sync is not None for run in runs)


def accounts_ms(run: Baseline) -> dict[str, float]:
    """Return the accounts of a run's ledger that are known, in milliseconds."""
    if run.ledger is None or not run.step_ms:
        return {}
    return {name: share * run.step_ms for name, share in asdict(run.ledger).items() if share is not None}


def _with_rest(phases: dict[str, float], step_ms: float) -> dict[str, float]:
    """Return the phases and what they leave of the step; phases that overlap leave a negative rest."""
    return phases | {NO_PHASE: step_ms - sum(phases.values())}


def _parts(before: dict[str, float], now: dict[str, float]) -> tuple[Change, ...]:
    names = dict.fromkeys((*before, *now))
    parts = [Change(name=name, before_ms=before.get(name), now_ms=now.get(name)) for name in names]
    return tuple(sorted(parts, key=lambda part: (-abs(change_ms(part)), part.name)))


def change_ms(part: Change) -> float:
    """Return how much longer a part takes now, in milliseconds; below 0 it takes less."""
    return (part.now_ms or 0.0) - (part.before_ms or 0.0)

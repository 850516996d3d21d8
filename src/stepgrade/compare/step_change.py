"""How a step went from the baseline's length to this one's: the parts that took more and less time."""

from __future__ import annotations

from stepgrade.model import Baseline
from stepgrade.model.comparison import Change, StepChange

NO_PHASE = "in no phase"
# Only a ledger from a device's timeline has this account; one made from phases adds nothing to them.
FROM_TIMELINE = "idle_sync"


def step_change(now: Baseline, before: Baseline) -> StepChange | None:
    """Return the parts of both steps, the largest change first; None when they cannot be split alike."""
    now_ms, before_ms = now.step_ms, before.step_ms
    if not now_ms or not before_ms:
        return None
    if now.ledger.get(FROM_TIMELINE) is not None and before.ledger.get(FROM_TIMELINE) is not None:
        parts = _parts(_in_ms(before.ledger, before_ms), _in_ms(now.ledger, now_ms))
        return StepChange(basis="ledger", before_ms=before_ms, now_ms=now_ms, parts=parts)
    if not now.phases_ms or not before.phases_ms:
        return None
    parts = _parts(_with_rest(before.phases_ms, before_ms), _with_rest(now.phases_ms, now_ms))
    return StepChange(basis="phases", before_ms=before_ms, now_ms=now_ms, parts=parts)


def in_no_phase_ms(run: Baseline) -> float | None:
    """Return what a run's phases leave of its step, below 0 where they overlap; None if it has none."""
    return run.step_ms - sum(run.phases_ms.values()) if run.step_ms and run.phases_ms else None


def _in_ms(shares: dict[str, float | None], step_ms: float) -> dict[str, float]:
    return {name: share * step_ms for name, share in shares.items() if share}


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

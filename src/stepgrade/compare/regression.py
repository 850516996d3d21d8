"""Did the run get slower than a baseline: contract v1's three rules, on what both sides measured."""

from __future__ import annotations

import msgspec

from stepgrade.analysis import Scorecard
from stepgrade.compare.step_change import step_change
from stepgrade.contract import Regression
from stepgrade.contract.scorecard import coverage_regression, step_time_regression, throughput_regression
from stepgrade.model import Baseline


def baseline_of(card: Scorecard) -> Baseline:
    """Return what a later run is compared with."""
    return Baseline(
        name=", ".join(card.source.files),
        throughput_tok_s=card.throughput_tok_s,
        step_ms=card.step_time_ms,
        wall_coverage=card.wall_coverage,
        device=card.device.key if card.device else None,
        ledger=msgspec.structs.asdict(card.ledger) if card.ledger else {},
        phases_ms={name: phase.ms for name, phase in card.phases.items() if phase.ms},
    )


def compared(card: Scorecard, baseline: Baseline) -> Scorecard:
    """Return the card with its regressions against `baseline`, and what could not be compared."""
    return msgspec.structs.replace(
        card,
        regressions=regressions(card, baseline),
        notes=card.notes + _notes(card, baseline),
        baseline=baseline.name,
        step_change=step_change(card, baseline),
        compared=tuple(metric for metric, (before, now) in _pairs(card, baseline).items() if before and now),
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


def _notes(card: Scorecard, baseline: Baseline) -> tuple[str, ...]:
    notes = []
    missing = [metric for metric, (before, now) in _pairs(card, baseline).items() if not (before and now)]
    if missing:
        notes.append(f"not compared with the baseline, as one side does not have it: {', '.join(missing)}")
    here = card.device.key if card.device else None
    if here and baseline.device and here != baseline.device:
        notes.append(
            f"the baseline ran on another device ({baseline.device}): its figures are not comparable"
        )
    return tuple(notes)

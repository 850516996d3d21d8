"""Rules: one question each, asked of the facts, answered with a finding or with nothing."""

from __future__ import annotations

from collections.abc import Callable

from stepgrade.analysis.facts import Facts
from stepgrade.analysis.finding import Finding
from stepgrade.analysis.limits import Limits
from stepgrade.analysis.rules.fast_backward import fast_backward
from stepgrade.analysis.rules.heavy_transfer import heavy_transfer
from stepgrade.analysis.rules.slow_layer import slow_layer
from stepgrade.analysis.rules.uncovered_time import uncovered_time

Rule = Callable[[Facts, Limits], Finding | None]

RULES: tuple[Rule, ...] = (heavy_transfer, uncovered_time, slow_layer, fast_backward)


def findings(facts: Facts, limits: Limits) -> tuple[Finding, ...]:
    """Return what the rules find, the largest possible gain first."""
    found = [finding for rule in RULES if (finding := rule(facts, limits))]
    return tuple(sorted(found, key=lambda finding: -finding.gain_high))

"""A large share of the step is in no phase: launches and host work in between."""

from __future__ import annotations

from stepgrade.analysis.advice import launch_advice
from stepgrade.analysis.facts import Facts
from stepgrade.analysis.finding import Finding
from stepgrade.analysis.limits import Limits
from stepgrade.units import show_share


def uncovered_time(facts: Facts, limits: Limits) -> Finding | None:
    """Report time outside every phase above the limit."""
    share = facts.phases.uncovered_share
    if share is None or not share > limits.launch_advice_share:
        return None
    return Finding(
        rule="uncovered-time",
        severity="warning",
        claim=f"{show_share(share)} of the step is in no phase.",
        evidence={"uncovered_share": share, "limit_share": limits.launch_advice_share},
        remedy=launch_advice(facts.profile.source.producer),
        gain_low=0.0,
        gain_high=share,
        check="Wall coverage rises and the step gets shorter by the same share.",
    )

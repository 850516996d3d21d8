"""A large share of the step goes to copies between host and device."""

from __future__ import annotations

from stepgrade.analysis.advice import advice_for
from stepgrade.analysis.bottleneck import Bottleneck
from stepgrade.analysis.facts import Facts
from stepgrade.analysis.finding import Finding
from stepgrade.analysis.limits import Limits
from stepgrade.analysis.phases import PhaseKind
from stepgrade.units import show_share


def heavy_transfer(facts: Facts, limits: Limits) -> Finding | None:
    """Report transfers above the limit."""
    share = facts.phases.by_kind.get(PhaseKind.TRANSFER, 0.0)
    if not share > limits.transfer_share:
        return None
    return Finding(
        rule="heavy-transfer",
        severity="warning",
        claim=f"Copies between host and device take {show_share(share)} of the step.",
        evidence={"transfer_share": share, "limit_share": limits.transfer_share},
        remedy=advice_for(Bottleneck.TRANSFER, facts.profile.source.producer),
        gain_low=0.0,
        gain_high=min(share, 1.0),
        check="The h2d and d2h phases shrink, and the step by as much.",
    )

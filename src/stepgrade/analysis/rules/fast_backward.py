"""Backward takes less time than forward, which a healthy training step does not."""

from __future__ import annotations

from stepgrade.analysis.advice import fast_backward_advice
from stepgrade.analysis.facts import Facts
from stepgrade.analysis.finding import Finding
from stepgrade.analysis.limits import Limits
from stepgrade.units import show_ratio


def fast_backward(facts: Facts, limits: Limits) -> Finding | None:  # noqa: ARG001  the limit is 1 by definition
    """Report a backward pass that is shorter than the forward pass."""
    if facts.ratio is None or not 0.0 < facts.ratio < 1.0:
        return None
    return Finding(
        rule="fast-backward",
        severity="warning",
        claim=f"Backward takes {show_ratio(facts.ratio)} the time of forward; about 2x is usual.",
        evidence={"backward_over_forward": facts.ratio},
        remedy=fast_backward_advice(facts.profile.source.producer),
        gain_low=0.0,
        gain_high=0.0,
        check="Backward over forward is above 1, and the loss still falls.",
    )

"""One layer takes clearly longer than its sisters."""

from __future__ import annotations

from stepgrade.analysis.facts import Facts
from stepgrade.analysis.finding import Finding
from stepgrade.analysis.limits import Limits
from stepgrade.units import show_ms, show_ratio


def slow_layer(facts: Facts, limits: Limits) -> Finding | None:  # noqa: ARG001  the limits chose the layers
    """Report the layer that loses the most time against the median, and how many others do."""
    if not facts.slow_layers:
        return None
    slow = facts.slow_layers[0]
    steps = facts.profile.steps or 1
    others = len(facts.slow_layers) - 1
    more = f" {others} more layer{'s stand' if others > 1 else ' stands'} out." if others else ""
    return Finding(
        rule="slow-layer",
        severity="warning",
        claim=(
            f"Layer {slow.layer}'s {slow.direction} takes {show_ratio(slow.total_ms / slow.median_ms)} the "
            f"median layer's ({show_ms(slow.total_ms / steps)}, not {show_ms(slow.median_ms / steps)}).{more}"
        ),
        evidence={
            "layer": float(slow.layer),
            "direction": slow.direction,
            "total_ms": slow.total_ms,
            "median_total_ms": slow.median_ms,
        },
        remedy=f"Look at layer {slow.layer}'s {slow.direction}: its shapes, its kernels, work only it does.",
        gain_low=0.0,
        gain_high=facts.share_of_step(slow.total_ms - slow.median_ms) or 0.0,
        check=f"Layer {slow.layer} comes back to the median of the layers.",
    )

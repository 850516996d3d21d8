"""Costs that this process registers or installed packages bring: a cached result knows nothing of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepgrade.plug_ins import plug_ins

if TYPE_CHECKING:
    from stepgrade.costs.recorded_inputs import Rule  # needs numpy

PLUG_IN_GROUP = "stepgrade.costs"
REGISTERED: dict[str, Rule] = {}


def has_own_costs() -> bool:
    """Return whether some costs are not stepgrade's."""
    return bool(REGISTERED) or bool(plug_ins(PLUG_IN_GROUP))

"""Costs of operations that stepgrade does not know: functions of their sizes, registered or plugged in."""

from __future__ import annotations

import os
import sys
from functools import cache

from stepgrade.costs.recorded_inputs import Cost, Rule, Shapes
from stepgrade.errors import BadOption

PLUG_IN_GROUP = "stepgrade.costs"
_OWN: dict[str, Rule] = {}


def register_cost(name: str, rule: Rule) -> None:
    """Register `rule` as the cost of one call of the operation `name`, in this process.

    It gets the recorded inputs, `Shapes`, and returns a `Cost`, with None for what the sizes do not
    determine. It takes precedence over stepgrade's own costs. A package registers its costs through entry
    points in the group `stepgrade.costs`, each named after an operation.
    """
    if not name:
        raise BadOption("must name an operation, as mylib::attention", field="name")
    _OWN[name] = rule


def registered(name: str) -> Rule | None:
    """Return the rule that was registered for this operation."""
    return _checked(name, _OWN[name]) if name in _OWN else None


def plugged_in(name: str) -> Rule | None:
    """Return the rule that an installed package brings for this operation."""
    rules = _entry_points()
    return _checked(name, rules[name]) if name in rules else None


def _checked(name: str, rule: Rule) -> Rule:
    def checked(shapes: Shapes) -> Cost:
        try:
            cost = rule(shapes)
        except Exception as error:
            problem = f"the cost of {name!r} cannot be calculated: {type(error).__name__}: {error}"
            raise BadOption(problem, hint="fix the function that was registered for it") from error
        figures = (cost.flops, cost.bytes) if isinstance(cost, Cost) else (-1,)
        if any(figure is not None and not 0 <= figure < float("inf") for figure in figures):
            problem = f"the cost of {name!r} is not a stepgrade.Cost with figures of 0 or more"
            raise BadOption(problem, hint="fix the function that was registered for it")
        return cost

    return checked


@cache
def _entry_points() -> dict[str, Rule]:
    """Return the rules that installed packages bring, by operation."""
    found: dict[str, Rule] = {}
    if not any(map(_names_the_group, sys.path)):
        return found
    from importlib.metadata import entry_points  # takes longer than the analysis of a small trace

    for point in entry_points(group=PLUG_IN_GROUP):
        try:
            rule = point.load()
        except (ImportError, AttributeError) as error:
            problem = f"the cost of {point.name!r} cannot be loaded: {error}"
            raise BadOption(problem, hint="fix or uninstall the package that provides it") from error
        if not callable(rule):
            problem = f"the cost of {point.name!r} is not a function"
            raise BadOption(problem, hint="fix or uninstall the package that provides it")
        found[point.name] = rule
    return found


def _names_the_group(place: str) -> bool:
    """Tell whether a package in this place of sys.path may bring rules; only folders are looked into."""
    if not os.path.isdir(place):
        return os.path.exists(place)
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(f"{entry.path}/entry_points.txt", "rb") as file:
                        if PLUG_IN_GROUP.encode() in file.read():
                            return True
                except OSError:  # most have none
                    continue
    return False

"""Grade a training run: how fast against what the hardware allows, what holds it back, what to do next.

>>> import stepgrade as sg
>>> card = sg.score("profile.json", device="rtx-4060-laptop", throughput_tok_s=194)
>>> print(card)
"""

from __future__ import annotations

from stepgrade._version import __version__

TYPE_CHECKING = False  # as type checkers read it; importing typing would double the time of --version
if TYPE_CHECKING:
    from stepgrade.compare.parity import ParityReport, parity
    from stepgrade.config import Config, load_config
    from stepgrade.diagnosis.settings import Settings, load_settings
    from stepgrade.errors import StepgradeError
    from stepgrade.gating.run import gate
    from stepgrade.grading import score
    from stepgrade.hardware.catalogue import devices
    from stepgrade.hardware.cost.plan import Plan
    from stepgrade.hardware.estimate import estimate
    from stepgrade.hardware.memory.fit import Anchor
    from stepgrade.hardware.planner import Cluster, PlanRequest, plan
    from stepgrade.hardware.setup import Setup
    from stepgrade.inspection import inspect
    from stepgrade.loading import load, load_baseline
    from stepgrade.model import Baseline, Profile
    from stepgrade.model.comparison import GateReport
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.record import Recorder, watch
    from stepgrade.report import render
    from stepgrade.report.step_profile import convert
    from stepgrade.store.history import open_history as history
    from stepgrade.trace.own_costs import register_cost
    from stepgrade.trace.recorded_inputs import Cost
    from stepgrade.whatif import AssumedChange, WhatIf, what_if

# Where each public name lives: it is imported when first asked for, `stepgrade --version` needs none of it.
_HOMES = {
    "Anchor": "hardware.memory.fit",
    "AssumedChange": "whatif",
    "Baseline": "model",
    "Cluster": "hardware.planner",
    "Config": "config",
    "Cost": "trace.recorded_inputs",
    "GateReport": "model.comparison",
    "ParityReport": "compare.parity",
    "Plan": "hardware.cost.plan",
    "PlanRequest": "hardware.planner",
    "Profile": "model",
    "Recorder": "record",
    "Scorecard": "model.scorecard",
    "Settings": "diagnosis.settings",
    "Setup": "hardware.setup",
    "StepgradeError": "errors",
    "WhatIf": "whatif",
    "convert": "report.step_profile",
    "devices": "hardware.catalogue",
    "estimate": "hardware.estimate",
    "gate": "gating.run",
    "history": "store.history",
    "inspect": "inspection",
    "load": "loading",
    "load_baseline": "loading",
    "load_config": "config",
    "load_settings": "diagnosis.settings",
    "parity": "compare.parity",
    "plan": "hardware.planner",
    "register_cost": "trace.own_costs",
    "render": "report",
    "score": "grading",
    "watch": "record",
    "what_if": "whatif",
}
_NAMED_OTHERWISE = {"history": "open_history"}

__all__ = [
    "Anchor",
    "AssumedChange",
    "Baseline",
    "Cluster",
    "Config",
    "Cost",
    "GateReport",
    "ParityReport",
    "Plan",
    "PlanRequest",
    "Profile",
    "Recorder",
    "Scorecard",
    "Settings",
    "Setup",
    "StepgradeError",
    "WhatIf",
    "__version__",
    "convert",
    "devices",
    "estimate",
    "gate",
    "history",
    "inspect",
    "load",
    "load_baseline",
    "load_config",
    "load_settings",
    "parity",
    "plan",
    "register_cost",
    "render",
    "score",
    "watch",
    "what_if",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'stepgrade' has no attribute {name!r}")
    from importlib import import_module  # as little as --version needs

    return getattr(import_module(f"stepgrade.{_HOMES[name]}"), _NAMED_OTHERWISE.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)

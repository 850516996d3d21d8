"""Grade a training run: how fast against what the hardware allows, what holds it back, what to do next.

>>> import stepgrade as sg
>>> card = sg.score("profile.json", device="rtx-4060-laptop", throughput_tok_s=194)
>>> print(card)
"""

from __future__ import annotations

from stepgrade import display
from stepgrade._version import __version__

TYPE_CHECKING = False  # as type checkers read it; importing typing would double the time of --version
if TYPE_CHECKING:
    from stepgrade.compare.parity import ParityReport, parity
    from stepgrade.config import Config, load_config
    from stepgrade.costs.recorded_inputs import Cost
    from stepgrade.costs.table import register_cost
    from stepgrade.errors import StepgradeError
    from stepgrade.gating.run import gate
    from stepgrade.grading import score
    from stepgrade.hardware.catalogue import DeviceTable, devices
    from stepgrade.hardware.cluster import Cluster
    from stepgrade.hardware.cost.plan import Parallelism, Plan
    from stepgrade.hardware.estimate import Estimate, estimate
    from stepgrade.hardware.memory.fit import Anchor
    from stepgrade.hardware.planner import PlanMatrix, PlanRequest, PlanTable, plan, plan_each
    from stepgrade.hardware.setup import Setup
    from stepgrade.inspection import Inspection, inspect
    from stepgrade.loading import load, load_baseline
    from stepgrade.model import Profile
    from stepgrade.model.comparison import GateReport
    from stepgrade.model.events import Trace
    from stepgrade.model.notes import Result
    from stepgrade.model.scorecard import Baseline, Finding, Scorecard
    from stepgrade.record import Recorder, start_recording
    from stepgrade.report import render
    from stepgrade.report.step_profile import convert
    from stepgrade.store.history import History
    from stepgrade.store.history import open_history as history
    from stepgrade.store.runs import NewRun, Runs, Selection
    from stepgrade.whatif import AssumedChange, WhatIf, what_if

# What each module makes public; imported on first use, because `stepgrade --version` needs none of it.
_NAMES = {
    "compare.parity": "ParityReport parity",
    "config": "Config load_config",
    "costs.recorded_inputs": "Cost",
    "costs.table": "register_cost",
    "errors": "StepgradeError",
    "gating.run": "gate",
    "grading": "score",
    "hardware.catalogue": "DeviceTable devices",
    "hardware.cost.plan": "Parallelism Plan",
    "hardware.estimate": "Estimate estimate",
    "hardware.memory.fit": "Anchor",
    "hardware.cluster": "Cluster",
    "hardware.planner": "PlanMatrix PlanRequest PlanTable plan plan_each",
    "hardware.setup": "Setup",
    "inspection": "Inspection inspect",
    "loading": "load load_baseline",
    "model": "Profile",
    "model.comparison": "GateReport",
    "model.events": "Trace",
    "model.scorecard": "Baseline Finding Scorecard",
    "record": "Recorder start_recording",
    "report": "render",
    "report.step_profile": "convert",
    "store.history": "History history",
    "store.runs": "NewRun Runs Selection",
    "whatif": "AssumedChange WhatIf what_if",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_NAMED_OTHERWISE = {"history": "open_history"}
_RENAMED = {"watch": "start_recording"}  # since 0.2.0; gone with 0.4.0

__all__ = [
    "Anchor",
    "AssumedChange",
    "Baseline",
    "Cluster",
    "Config",
    "Cost",
    "DeviceTable",
    "Estimate",
    "Finding",
    "GateReport",
    "History",
    "Inspection",
    "NewRun",
    "Parallelism",
    "ParityReport",
    "Plan",
    "PlanMatrix",
    "PlanRequest",
    "PlanTable",
    "Profile",
    "Recorder",
    "Runs",
    "Scorecard",
    "Selection",
    "Setup",
    "StepgradeError",
    "Trace",
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
    "parity",
    "plan",
    "plan_each",
    "register_cost",
    "render",
    "score",
    "start_recording",
    "what_if",
]


def __getattr__(name: str) -> object:
    if name in _RENAMED:
        from warnings import warn

        warn(f"stepgrade.{name} is now stepgrade.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _HOMES:
        raise AttributeError(f"module 'stepgrade' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"stepgrade.{_HOMES[name]}"), _NAMED_OTHERWISE.get(name, name))


def __dir__() -> list[str]:
    return sorted(__all__)


def _render(result: Result, to: str) -> str:
    from stepgrade.report import render

    return render(result, to=to)


def _render_cell(result: Scorecard | ParityReport) -> str | None:
    from stepgrade.report.html.page import card_for_notebooks

    return card_for_notebooks(result)


display.render, display.render_cell = _render, _render_cell

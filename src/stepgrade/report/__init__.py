"""Reports: content chosen once per result, one writer per output format. They format and never calculate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from stepgrade.errors import BadOption, did_you_mean
from stepgrade.model.notes import NO_FLAGS, Result

if TYPE_CHECKING:
    from stepgrade.report.blocks import Block

FORMATS = ("terminal", "markdown", "json", "html")
GATE_FORMATS = ("terminal", "markdown", "json", "junit", "github", "sarif", "badge", "html")

# The type of a result -> the module and the function that choose its content, imported when it is rendered.
_CONTENT = {
    "stepgrade.model.scorecard.Scorecard": ("scorecard", "blocks"),
    "stepgrade.model.comparison.GateReport": ("gate", "blocks"),
    "stepgrade.compare.parity.ParityReport": ("parity", "blocks"),
    "stepgrade.compare.parity.ParityMatrix": ("parity", "matrix_blocks"),
    "stepgrade.inspection.Inspection": ("inspection", "blocks"),
    "stepgrade.hardware.catalogue.DeviceTable": ("hardware", "device_table"),
    "stepgrade.hardware.setup.DeviceFacts": ("hardware", "device"),
    "stepgrade.hardware.detect.Detection": ("hardware", "detection"),
    "stepgrade.hardware.measure.Measured": ("hardware", "measurement"),
    "stepgrade.compare.runs.Repeats": ("comparison", "repeats"),
    "stepgrade.hardware.estimate.Estimate": ("hardware", "estimate"),
    "stepgrade.hardware.planner.PlanTable": ("hardware", "plans"),
    "stepgrade.hardware.planner.PlanMatrix": ("hardware", "plans_side_by_side"),
    "stepgrade.whatif.answers.WhatIf": ("whatif", "blocks"),
    "stepgrade.model.fix.FixReport": ("fix", "blocks"),
}
_WITH_PAGE = ("scorecard", "gate", "parity")


def render(
    result: Result,
    *,
    to: str = "terminal",
    width: int = 80,
    color: bool = False,
    full: bool = False,
    flags: Mapping[str, str] = NO_FLAGS,
) -> str:
    """Return a result as text: terminal, markdown, json or html.

    Gate reports can also be junit, github, sarif or badge; anything else raises BadOption. `width`, `color`
    and `full` (every row and note) are for the terminal; `flags` renames parameters in notes. Only terminal
    and json show full paths.
    """
    names = (f"{base.__module__}.{base.__qualname__}" for base in type(result).__mro__)
    found = next((_CONTENT[name] for name in names if name in _CONTENT), None)
    if found is None:
        hint = "give a scorecard, a comparison, a gate report, an inspection, a device, an estimate or plans"
        raise BadOption(f"cannot render {type(result).__name__}", hint=hint)
    kind, function = found
    formats = GATE_FORMATS if kind == "gate" else FORMATS
    if to not in formats:
        which = "the gate has no" if kind == "gate" else "no"
        raise BadOption(f"{which} output format called {to!r}", hint=did_you_mean(to, formats))
    if to == "json":
        from stepgrade.report.names import json_text  # each format imports what it needs

        return json_text(result.to_json()) + "\n"
    if to != "terminal":
        from stepgrade.report.own_paths import without_own_paths

        result = without_own_paths(result)
    if to not in ("terminal", "markdown", "html"):
        from stepgrade.report import ci

        text: str = getattr(ci, to)(result, flags)
        return text
    choose: Callable[[Result, Mapping[str, str]], Iterable[Block]]
    content = import_module(f"stepgrade.report.content.{kind}")
    choose = getattr(content, function)
    if to == "html":
        from stepgrade.report.html.page import page_of

        has_page = kind in _WITH_PAGE and function == "blocks"
        return page_of(
            kind if has_page else None, result, flags, blocks=() if has_page else choose(result, flags)
        )
    if to == "markdown":
        from stepgrade.report import markdown

        return markdown.write(choose(result, flags))
    from stepgrade.report import terminal

    return terminal.write(choose(result, flags), width=width, color=color, full=full)

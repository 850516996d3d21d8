"""Results for a terminal: drawn at its width, in colour where it has colour."""

from __future__ import annotations

from importlib import import_module

from stepgrade.model.notes import Result
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.report.types import Page, kind_of

_DRAWERS = {
    "Scorecard": "scorecard",
    "ParityReport": "parity",
    "ParityMatrix": "matrix",
    "Inspection": "inspection",
    "DeviceTable": "devices",
    "DeviceFacts": "device",
    "Detection": "detection",
    "Measured": "measured",
    "Estimate": "estimate",
}


def render(result: Result, page: Page) -> str:
    """Return the result as lines for a terminal."""
    canvas = Canvas(width=page.width, color=page.color)
    import_module(f"stepgrade.report.terminal.{_DRAWERS[kind_of(result)]}").draw(result, canvas)
    return canvas.text()

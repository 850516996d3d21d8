"""The gate's answer as JSON, one line."""

from __future__ import annotations

from stepgrade.model.comparison import GateReport
from stepgrade.report.names import json_text
from stepgrade.report.types import Page


def render(report: GateReport, page: Page) -> str:  # noqa: ARG001  JSON has no width
    """Return everything the gate knows."""
    return json_text(report.to_json()) + "\n"

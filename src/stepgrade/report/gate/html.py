"""The gate's answer as one HTML file."""

from __future__ import annotations

from stepgrade.model.comparison import GateReport
from stepgrade.report.html.gate import view
from stepgrade.report.html.page import compose
from stepgrade.report.types import Page


def render(report: GateReport, page: Page) -> str:  # noqa: ARG001  a browser has its own width
    """Return the whole page; raise MissingExtra without Jinja2."""
    return compose("gate.html", view(report), report)

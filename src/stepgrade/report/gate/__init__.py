"""The gate's answer, for people, for CI systems and for machines: one file per format."""

from __future__ import annotations

from importlib import import_module

from stepgrade.errors import BadOption
from stepgrade.model.comparison import GateReport
from stepgrade.report.types import Page

FORMATS = ("terminal", "markdown", "json", "junit", "github", "sarif", "badge", "html")


def render_gate(report: GateReport, to: str, page: Page) -> str:
    """Return the whole text of the answer in one of FORMATS."""
    if to not in FORMATS:
        raise BadOption(f"the gate has no output format called {to!r}", hint=f"known: {', '.join(FORMATS)}")
    text: str = import_module(f"stepgrade.report.gate.{to}").render(report, page)
    return text

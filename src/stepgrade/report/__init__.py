"""Reports: one file per output format. They format and never calculate."""

from __future__ import annotations

from importlib import import_module

from stepgrade.errors import BadOption
from stepgrade.model.notes import Result
from stepgrade.report.types import Page, kind_of

FORMATS = ("terminal", "markdown", "json", "html")


def render(result: Result, *, to: str = "terminal", width: int = 80, color: bool = False) -> str:
    """Return a result as text in one of FORMATS; only scorecards and comparisons have a page in HTML.

    A gate's report has formats of its own as well.
    """
    page = Page(width=width, color=color)
    if kind_of(result) == "GateReport":
        from stepgrade.report.gate import render_gate  # noqa: PLC0415  only for a gate

        return render_gate(result, to, page)  # type: ignore[arg-type]  # told by its kind
    if to not in FORMATS:
        raise BadOption(f"no output format called {to!r}", hint=f"known: {', '.join(FORMATS)}")
    text: str = import_module(f"stepgrade.report.{to}").render(result, page)
    return text

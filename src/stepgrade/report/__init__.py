"""Reports: one file per output format. They format and never calculate."""

from __future__ import annotations

from importlib import import_module

from stepgrade.errors import BadOption
from stepgrade.report.types import Page, Result

FORMATS = ("terminal", "markdown", "json", "html")


def render(result: Result, to: str, page: Page) -> str:
    """Return the whole text of a result in one of FORMATS."""
    if to not in FORMATS:
        raise BadOption(f"no output format called {to!r}", hint=f"known: {', '.join(FORMATS)}")
    text: str = import_module(f"stepgrade.report.{to}").render(result, page)
    return text

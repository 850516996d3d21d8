"""Results as text, and as what a notebook shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from stepgrade import analysis, report
from stepgrade.errors import MissingExtra
from stepgrade.report.types import Page, Renderable

if TYPE_CHECKING:
    from stepgrade.compare.parity import ParityReport


def render(
    result: Renderable,
    *,
    to: str = "terminal",
    width: int = 80,
    color: bool = False,
) -> str:
    """Return a result as text: `terminal`, `markdown`, `json`, or `html` for scorecards and comparisons."""
    return report.render(result, to, Page(width=width, color=color))


def card_for_notebooks(result: analysis.Scorecard | ParityReport) -> str | None:
    """Return the compact card; None without Jinja2, and a notebook then shows the Markdown."""
    from stepgrade.report.html import render_card  # noqa: PLC0415  notebooks only

    try:
        return render_card(result)
    except MissingExtra:
        return None


def fields_of(result: msgspec.Struct) -> dict[str, Any]:
    """Return the fields by name, to make the same of a kind that shows itself."""
    return {name: getattr(result, name) for name in result.__struct_fields__}

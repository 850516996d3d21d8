"""Results as one HTML file that opens offline: everything is inside it, and nothing in it can call out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepgrade.errors import BadOption, MissingExtra
from stepgrade.model.notes import Result
from stepgrade.report.html.page import compose
from stepgrade.report.types import Page, kind_of

if TYPE_CHECKING:
    from stepgrade.compare.parity import ParityReport
    from stepgrade.model.scorecard import Scorecard


def render(result: Result, page: Page) -> str:  # noqa: ARG001  a browser has its own width
    """Return a scorecard or a comparison as a whole page; raise BadOption for any other result."""
    kind = kind_of(result)
    if kind == "Scorecard":
        from stepgrade.report.html.scorecard import view  # noqa: PLC0415  only what is shown is loaded

        return compose("scorecard.html", view(result), result)  # type: ignore[arg-type]  # told by its kind
    if kind == "ParityReport":
        from stepgrade.report.html.parity import view as parity_view  # noqa: PLC0415

        return compose("parity.html", parity_view(result), result)  # type: ignore[arg-type]  # told by its kind
    raise BadOption("only scorecards and comparisons are made into pages", hint="use --format markdown")


def card_for_notebooks(result: Scorecard | ParityReport) -> str | None:
    """Return the compact card; None without Jinja2, and a notebook then shows the Markdown."""
    from stepgrade.report.html.notebook import compact  # noqa: PLC0415  notebooks only

    try:
        return compact(result)
    except MissingExtra:
        return None

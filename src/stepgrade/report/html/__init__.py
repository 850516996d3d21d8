"""Results as one HTML file that opens offline: everything is inside it, and nothing in it can call out."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from stepgrade.errors import MissingExtra
from stepgrade.model.notes import Result
from stepgrade.report.html.page import PageFrame, policy
from stepgrade.report.html.writer import compose
from stepgrade.report.own_paths import without_own_paths

if TYPE_CHECKING:
    from stepgrade.compare.parity import ParityReport
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.report.figures import Page

_PAGES = {"scorecard": "scorecard_page", "gate": "gate", "parity": "parity_page"}


def page_of(kind: str, result: Result, flags: Mapping[str, str], frame: PageFrame | None = None) -> str:
    """Return a scorecard, a parity or a gate report as a whole page; raise MissingExtra without Jinja2."""
    page: Page = import_module(f"stepgrade.report.content.{_PAGES[kind]}").page(result, flags)
    return compose(page, result, frame)


def framed_page(kind: str, result: Result, frame: PageFrame) -> tuple[str, str]:
    """Return the page of a result with a server's links above it, and the policy that it keeps to."""
    return page_of(kind, without_own_paths(result), {}, frame), policy()


def card_for_notebooks(result: Scorecard | ParityReport) -> str | None:
    """Return the compact card; None without Jinja2, and a notebook then shows the Markdown."""
    from stepgrade.report.html.notebook import compact  # notebooks only

    try:
        return compact(without_own_paths(result))
    except MissingExtra:
        return None

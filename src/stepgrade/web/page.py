"""The pages' templates, with the report's style and filters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepgrade._version import __version__
from stepgrade.report.html.page import environment as report_environment
from stepgrade.report.html.page import style as report_style

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent


def fill(template: str, view: dict[str, Any]) -> str:
    """Render a page; every text in `view` is escaped."""
    around = {"version": __version__, "who": None, "project": None, "here": "", "form_key": ""}
    return _environment().get_template(template).render(around | view)


@cache
def _environment() -> Environment:
    import jinja2  # an extra

    report = report_environment()
    folders = [_FOLDER / "templates"]
    return report.overlay(
        loader=jinja2.ChoiceLoader(
            [jinja2.FileSystemLoader(folders), *([report.loader] if report.loader else [])]
        )
    )


@cache
def style() -> str:
    """Return the style sheet: the report's, and the pages' own rules."""
    own = (_FOLDER / "dashboard.css").read_text(encoding="utf-8")
    return report_style() + own

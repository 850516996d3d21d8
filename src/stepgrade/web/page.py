"""The pages' templates, with the report's style and filters."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from stepgrade._version import __version__
from stepgrade.report.html.page import environment
from stepgrade.report.html.page import style as report_style

_FOLDER = Path(__file__).parent


def fill(template: str, view: dict[str, Any]) -> str:
    """Render a page; every text in `view` is escaped."""
    around = {"version": __version__, "who": None, "project": None, "here": "", "form_key": ""}
    return environment(_FOLDER / "templates").get_template(template).render(around | view)


@cache
def style() -> str:
    """Return the style sheet: the report's, and the pages' own rules."""
    return report_style() + (_FOLDER / "dashboard.css").read_text(encoding="utf-8")

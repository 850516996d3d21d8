"""Results as JSON, one line, for machines."""

from __future__ import annotations

from stepgrade.model.notes import Result
from stepgrade.report.names import json_text
from stepgrade.report.types import Page


def render(result: Result, page: Page) -> str:  # noqa: ARG001  JSON has no width
    """Return the result as JSON; a superset of contract v1's for scorecards and comparisons."""
    return json_text(result.to_json()) + "\n"

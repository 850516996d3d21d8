"""History for people and machines: the list of runs, and the trend of a metric."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepgrade.model.run import RunRow, Trend
from stepgrade.report.history.terminal import draw_runs, draw_trend
from stepgrade.report.names import json_text
from stepgrade.report.types import Page

FORMATS = ("terminal", "json")


def render_runs(runs: Sequence[RunRow], to: str, page: Page) -> str:
    """Return the runs as a table, or one JSON object per line."""
    if to == "json":
        return "".join(json_text(msgspec.json.encode(run).decode()) + "\n" for run in runs)
    return draw_runs(runs, page)


def render_trend(trend: Trend, to: str, page: Page) -> str:
    """Return the trend as a picture with its changes, or as JSON."""
    if to == "json":
        return json_text(msgspec.json.encode(trend).decode()) + "\n"
    return draw_trend(trend, page)

"""Blocks as HTML: one macro of templates/blocks.html for each type, with charts laid out first."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from stepgrade._version import __version__
from stepgrade.model.comparison import StepChange
from stepgrade.model.memory import Memory
from stepgrade.model.notes import Result
from stepgrade.model.scorecard import StepStats
from stepgrade.report import trace_links
from stepgrade.report.blocks import HTML, Badge
from stepgrade.report.content.charts import OPERATIONS_SHOWN
from stepgrade.report.content.parity_page import ROWS_SHOWN
from stepgrade.report.figures import (
    Ceilings,
    Diverging,
    Icicle,
    LaneChart,
    LayerChart,
    Page,
    RankChart,
    RooflineChart,
    Shown,
    Stack,
)
from stepgrade.report.html import charts, icicle, roofline, timeline
from stepgrade.report.html.page import PageFrame, asset, embedded, environment, fill, policy, style

if TYPE_CHECKING:
    from markupsafe import Markup

_LAYOUTS: dict[type, Callable[[Any], Any]] = {
    Badge: charts.badge,
    Ceilings: charts.ceilings,
    Stack: charts.stack,
    Diverging: charts.diverging,
    StepChange: charts.waterfall,
    LayerChart: charts.layers,
    StepStats: charts.steps,
    Memory: charts.memory,
    RankChart: charts.ranks,
    Icicle: icicle.view,
    RooflineChart: roofline.view,
    LaneChart: timeline.view,
}


def write(block: Shown) -> Markup | str:
    """Return a block as HTML in which every text is escaped; nothing for one that only terminals show."""
    if getattr(block, "only", None) not in HTML:
        return ""
    kind = type(block)
    laid_out = _LAYOUTS[kind](block) if kind in _LAYOUTS else block
    written: Markup = getattr(_macros(), kind.__name__)(laid_out)
    return written


@cache
def _macros() -> object:
    known = {
        "density": roofline.show_density,
        "layer_name": charts.layer_name,
        "signed_bytes": icicle.signed_bytes,
        "write": write,
        "media": HTML,
        "perfetto": trace_links,
        "operations_shown": OPERATIONS_SHOWN,
        "gaps_shown": ROWS_SHOWN,
    }
    return environment().get_template("blocks.html", globals=known).module


def compose(page: Page, result: Result, frame: PageFrame | None = None) -> str:
    """Return the whole page; the same result gives the same bytes."""
    view = {
        "page": page,
        "write": write,
        "style": style(),
        "script": asset("report.js"),
        "policy": policy(),
        "frame": frame,
        "json": embedded(result),
        "version": __version__,
    }
    return fill("page.html", view)

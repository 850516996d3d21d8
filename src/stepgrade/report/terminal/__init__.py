"""Results for a terminal: drawn at its width, in colour where it has colour."""

from __future__ import annotations

from stepgrade.analysis import Scorecard
from stepgrade.compare.parity import ParityReport
from stepgrade.report.terminal import inspection, parity, scorecard
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.report.types import Page, Result


def render(result: Result, page: Page) -> str:
    """Return the result as lines for a terminal."""
    canvas = Canvas(width=page.width, color=page.color)
    if isinstance(result, Scorecard):
        scorecard.draw(result, canvas)
    elif isinstance(result, ParityReport):
        parity.draw(result, canvas)
    else:
        inspection.draw(result, canvas)
    return canvas.text()

"""The operations by time: the first page of a table that the script sorts, searches and pages."""

from __future__ import annotations

from typing import Any

from stepgrade.model.scorecard import Operation, Scorecard
from stepgrade.report.html import perfetto
from stepgrade.report.html.embedded import ROWS_KEPT
from stepgrade.report.names import shortened
from stepgrade.scoring.standing import tail_of

ROWS_SHOWN = 25


def view(card: Scorecard) -> dict[str, Any]:
    """Return the first rows, and what the page leaves out."""
    longest = card.operations[0].ms if card.operations else None
    return {
        "rows": [_row(op, longest, card) for op in card.operations[:ROWS_SHOWN]],
        "count": len(card.operations),
        "shown": ROWS_SHOWN,
        "tail": tail_of(card.operations, ROWS_KEPT),
        "kept": ROWS_KEPT,
        "has_links": any(op.longest for op in card.operations),
        "address": perfetto.ADDRESS,
        "margin": perfetto.MARGIN,
    }


def _row(op: Operation, longest: float | None, card: Scorecard) -> dict[str, Any]:
    return {
        "op": op,
        "name": shortened(op.name, 200),
        "width": (op.ms or 0.0) / longest * 100.0 if longest else 0.0,
        "link": perfetto.link(op.longest, card.source),
    }

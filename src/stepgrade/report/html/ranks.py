"""Many ranks at one look: a strip of cells for each figure, darker where it is greater."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepgrade.model.profile import RankRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html.plot import Mark, Tick
from stepgrade.scoring.standing import RankGroup, grouped, waiting_share
from stepgrade.units import show_ms, show_share

CELLS = 64
ROWS_SHOWN = 64
_LEVELS = 8
_WAITS = "waits for others"
# Ranks that differ by a percent must not look like night and day.
_LEAST_SPAN = 0.1
Figure = Callable[[RankRow], float | None]


def view(card: Scorecard, flags: Mapping[str, str]) -> dict[str, Any]:
    """Return the strips, or why there are none."""
    ranks = tuple(sorted(card.ranks, key=lambda row: row.rank))
    if not ranks:
        missing = next((note.said(flags) for note in card.fitness if note.code == "ranks_missing"), None)
        alone = (
            "One rank was given. Give the traces of all ranks, or their folder, to see who waits for whom."
        )
        return {"why_empty": f"{missing} Give the traces of all ranks." if missing else alone}
    strips: tuple[tuple[str, Figure, Callable[[float | None], str]], ...] = (
        ("step time", lambda row: row.step_ms, show_ms),
        (_WAITS, lambda row: row.wait_ms, show_ms),
        ("does not compute", lambda row: waiting_share(row.ledger), show_share),
    )
    # Who waits least is whom the others wait for: among neighbours that one must be seen.
    groups = [
        (name, grouped(ranks, figure, CELLS, least_counts=name == _WAITS), show)
        for name, figure, show in strips
    ]
    per_cell = -(-len(ranks) // CELLS)
    return {
        "why_empty": None,
        "strips": [
            _strip(name, found, show, -(-len(ranks) // per_cell)) for name, found, show in groups if found
        ],
        "ticks": [
            Tick(at=(place + 0.5) / len(ranks) * 100.0, text=str(ranks[place].rank))
            for place in range(0, len(ranks), max(1, -(-len(ranks) // 8)))
        ],
        "per_cell": per_cell,
        "count": len(ranks),
        "rows": [
            (str(row.rank), show_ms(row.step_ms), show_ms(row.wait_ms), show_share(waiting_share(row.ledger)))
            for row in ranks[:ROWS_SHOWN]
        ],
        "left_out": max(0, len(ranks) - ROWS_SHOWN),
    }


def _strip(
    name: str, groups: tuple[RankGroup, ...], show: Callable[[float | None], str], cells: int
) -> dict[str, Any]:
    low, high = min(group.value for group in groups), max(group.value for group in groups)
    span, width = max(high - low, high * _LEAST_SPAN), 100.0 / cells
    marks = []
    for place, group in enumerate(groups):
        level = 0 if span <= 0.0 else min(_LEVELS - 1, int((group.value - low) / span * _LEVELS))
        who = f"rank {group.rank}"
        if group.first != group.last:
            who = f"ranks {group.first} to {group.last}, here {group.rank}"
        tip = f"{who}: {name} {show(group.value)}"
        marks.append(Mark(x=place * width, width=width, look=f"level-{level}", tip=tip))
    return {"name": name, "low": show(low), "high": show(high), "cells": marks}

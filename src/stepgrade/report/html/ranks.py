"""Many ranks at one look: a strip of cells for each figure, darker where it is greater."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepgrade.model.scorecard import RankRow, Scorecard
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


def view(card: Scorecard) -> dict[str, Any]:
    """Return the strips, or why there are none."""
    ranks = tuple(sorted(card.ranks, key=lambda row: row.rank))
    if not ranks:
        return {"why_empty": _why_empty(card)}
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
        "ticks": _ticks(ranks),
        "per_cell": per_cell,
        "count": len(ranks),
        "rows": [
            (str(row.rank), show_ms(row.step_ms), show_ms(row.wait_ms), show_share(waiting_share(row.ledger)))
            for row in ranks[:ROWS_SHOWN]
        ],
        "left_out": max(0, len(ranks) - ROWS_SHOWN),
    }


def _why_empty(card: Scorecard) -> str:
    missing = next((note for note in card.fitness if note.code == "ranks_missing"), None)
    if missing:
        return f"{missing.text} Give the traces of all ranks."
    return "One rank was given. Give the traces of all ranks, or their folder, to see who waits for whom."


def _strip(
    name: str, groups: tuple[RankGroup, ...], show: Callable[[float | None], str], cells: int
) -> dict[str, Any]:
    low, high = min(one.value for one in groups), max(one.value for one in groups)
    width = 100.0 / cells
    return {
        "name": name,
        "low": show(low),
        "high": show(high),
        "cells": [
            Mark(
                x=place * width,
                width=width,
                look=f"level-{_level(one.value, low, high)}",
                tip=f"{_who(one)}: {name} {show(one.value)}",
            )
            for place, one in enumerate(groups)
        ],
    }


def _level(value: float, low: float, high: float) -> int:
    span = max(high - low, high * _LEAST_SPAN)
    return 0 if span <= 0.0 else min(_LEVELS - 1, int((value - low) / span * _LEVELS))


def _who(one: RankGroup) -> str:
    return (
        f"rank {one.rank}" if one.first == one.last else f"ranks {one.first} to {one.last}, here {one.rank}"
    )


def _ticks(ranks: tuple[RankRow, ...]) -> list[Tick]:
    every = max(1, -(-len(ranks) // 8))
    return [
        Tick(at=(place + 0.5) / len(ranks) * 100.0, text=str(ranks[place].rank))
        for place in range(0, len(ranks), every)
    ]

"""Where a step's time goes: one bar that adds up to the whole, one for each rank, and the phases."""

from __future__ import annotations

from typing import Any

from stepgrade.model import Ledger
from stepgrade.model.scorecard import RankRow, Scorecard
from stepgrade.report.html import words
from stepgrade.report.html.plot import Mark, Slice, stacked
from stepgrade.report.names import shortened
from stepgrade.units import show_ms, show_share

RANKS_SHOWN = 16
PHASES_SHOWN = 12
# Less than this is no more than a line's width.
_LEAST_SHARE = 0.0005


def view(card: Scorecard) -> dict[str, Any]:
    """Return the bars and their legend."""
    slices = _slices(card.ledger, card.step_time_ms)
    return {
        "bar": stacked(slices),
        "legend": slices,
        "is_from_timeline": card.ledger is not None and card.ledger.idle_sync is not None,
        "ranks": [_rank(row) for row in _shown(card.ranks)],
        "ranks_left": max(0, len(card.ranks) - RANKS_SHOWN),
        "phases": _phases(card),
    }


def _slices(ledger: Ledger | None, step_ms: float | None) -> list[Slice]:
    if ledger is None:
        return []
    shares = [(name, getattr(ledger, name)) for name in words.ACCOUNTS]
    return [
        Slice(
            name=words.ACCOUNTS[name],
            share=share,
            figures=_figures(share, share * step_ms if step_ms else None),
            look=f"account-{name}",
        )
        for name, share in shares
        if share and share > _LEAST_SHARE
    ]


def _figures(share: float, ms: float | None) -> str:
    return f"{show_share(share)} ({show_ms(ms)})" if ms is not None else show_share(share)


def _shown(ranks: tuple[RankRow, ...]) -> list[RankRow]:
    """Return all ranks if they are few, else those that wait least (the others wait for them) and most."""
    if len(ranks) <= RANKS_SHOWN:
        return sorted(ranks, key=lambda row: row.rank)
    ordered = sorted(ranks, key=lambda row: (row.wait_ms or 0.0, row.rank))
    half = RANKS_SHOWN // 2
    return sorted((*ordered[:half], *ordered[-half:]), key=lambda row: row.rank)


def _rank(row: RankRow) -> dict[str, Any]:
    bar: tuple[Mark, ...] = stacked(_slices(row.ledger, row.step_ms))
    return {"name": f"rank {row.rank}", "bar": bar, "step": show_ms(row.step_ms)}


def _phases(card: Scorecard) -> list[dict[str, Any]]:
    """Return the phases by falling time, each with the bar it has of the longest."""
    known = [(name, phase) for name, phase in card.phases.items() if phase.share]
    known.sort(key=lambda item: -(item[1].share or 0.0))
    longest = known[0][1].share or 1.0 if known else 1.0
    return [
        {
            "name": shortened(name, 60),
            "width": (phase.share or 0.0) / longest * 100.0,
            "share": show_share(phase.share),
            "ms": show_ms(phase.ms),
        }
        for name, phase in known[:PHASES_SHOWN]
    ]

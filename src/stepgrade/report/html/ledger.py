"""Where a step's time goes: one bar that adds up to the whole, one for each rank, and the phases."""

from __future__ import annotations

from typing import Any

from stepgrade.model import Ledger
from stepgrade.model.ledger import account_words
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.content.scorecard import is_from_timeline, shares
from stepgrade.report.html.plot import Slice, stacked
from stepgrade.report.names import shortened
from stepgrade.units import show_ms, show_share

RANKS_SHOWN = 16
PHASES_SHOWN = 12


def view(card: Scorecard) -> dict[str, Any]:
    """Return the bars and their legend."""
    slices = _slices(card.ledger, card.step_time_ms)
    # All ranks if they are few, else those that wait least (the others wait for them) and most.
    ranks = sorted(card.ranks, key=lambda row: (row.wait_ms or 0.0, row.rank))
    if len(ranks) > RANKS_SHOWN:
        half = RANKS_SHOWN // 2
        ranks = [*ranks[:half], *ranks[-half:]]
    phases = [(name, phase.share, phase.ms) for name, phase in card.phases.items() if phase.share]
    phases.sort(key=lambda phase: -phase[1])
    return {
        "bar": stacked(slices),
        "legend": slices,
        "is_from_timeline": is_from_timeline(card.ledger),
        "ranks": [
            {
                "name": f"rank {row.rank}",
                "bar": stacked(_slices(row.ledger, row.step_ms)),
                "step": show_ms(row.step_ms),
            }
            for row in sorted(ranks, key=lambda row: row.rank)
        ],
        "ranks_left": max(0, len(card.ranks) - RANKS_SHOWN),
        "phases": [
            {
                "name": shortened(name, 60),
                "width": share / phases[0][1] * 100.0,
                "share": show_share(share),
                "ms": show_ms(ms),
            }
            for name, share, ms in phases[:PHASES_SHOWN]
        ],
    }


def _slices(ledger: Ledger | None, step_ms: float | None) -> list[Slice]:
    slices = []
    for name, share in shares(ledger).items():
        figures = f"{show_share(share)} ({show_ms(share * step_ms)})" if step_ms else show_share(share)
        slices.append(Slice(name=account_words(name), share=share, figures=figures, look=f"account-{name}"))
    return slices

"""Against earlier runs: what got worse, and the way from the old step time to the new one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrade.model.comparison import MetricChange, StepChange
from stepgrade.model.ledger import account_words
from stepgrade.model.notes import texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.content.comparison import (
    shift_cells,
    show_interval,
    show_metric,
    show_regression,
    title_of,
)
from stepgrade.report.html.plot import Scale
from stepgrade.report.names import shortened
from stepgrade.units import show_delta, show_ms

PARTS_SHOWN = 9
CAUSES_SHOWN = 12
NAME_CELLS = 120


def view(card: Scorecard, flags: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the comparison; None when there was no baseline."""
    if card.baseline is None:
        return None
    return {
        "name": shortened(card.baseline, NAME_CELLS),
        "regressions": [
            {
                "metric": title_of(found.metric),
                "change": show_regression(found.metric, found.delta),
                "severity": found.severity,
            }
            for found in card.regressions
        ],
        "changes": [metric_row(change) for change in card.changes],
        "causes": [
            (shortened(name, NAME_CELLS), kind, before, now, moved)
            for kind, name, before, now, moved in map(shift_cells, card.changed[:CAUSES_SHOWN])
        ],
        "differences": texts_of(card.differences, flags),
        "compared": [title_of(metric) for metric in card.compared],
        "waterfall": None if card.step_change is None else waterfall(card.step_change),
    }


def metric_row(change: MetricChange) -> dict[str, Any]:
    """Return a metric before and now, with the interval of its change and the verdict on it."""
    return {
        "metric": title_of(change.metric),
        "before": show_metric(change.metric, change.before),
        "now": show_metric(change.metric, change.now),
        "change": show_delta(change.change),
        "interval": show_interval(change),
        "outcome": change.outcome,
        "why": "; ".join(text for text in (change.why, change.more) if text),
    }


def waterfall(change: StepChange) -> dict[str, Any]:
    """Return rows from the old step to the new one, each beginning where the one before ended."""
    shown, rest = change.parts[:PARTS_SHOWN], change.parts[PARTS_SHOWN:]
    deltas = [
        (
            account_words(part.name) if change.basis == "ledger" else shortened(part.name, 40),
            part.difference_ms,
            f", {show_ms(part.before_ms)} before, {show_ms(part.now_ms)} now",
        )
        for part in shown
        if part.difference_ms
    ]
    if rest:
        deltas.append((f"{len(rest)} smaller changes", sum(part.difference_ms for part in rest), ""))
    ends = [change.before_ms]
    for _, delta, _ in deltas:
        ends.append(ends[-1] + delta)
    low, high = min(*ends, change.now_ms), max(*ends, change.now_ms)
    # Bars from zero would hide a change of a few percent, so the axis begins near the lowest value.
    scale = Scale(low=max(0.0, low - max(high - low, high * 0.02) * 0.6), high=high)
    rows = [_whole("before", change.before_ms, scale)]
    for (name, delta, figures_of_both), begin in zip(deltas, ends, strict=False):
        first, last = sorted((scale.place(begin), scale.place(begin + delta)))
        figures = ("+" if delta > 0 else "\N{MINUS SIGN}") + show_ms(abs(delta))
        rows.append(
            {
                "name": name,
                "x": first,
                "width": max(last - first, 0.3),
                "figures": figures,
                "tip": f"{name}: {figures}{figures_of_both}",
                "look": "slower" if delta > 0 else "faster",
            }
        )
    rows.append(_whole("now", change.now_ms, scale))
    return {"rows": rows, "begins_at": show_ms(scale.low) if scale.low > 0.0 else None, "basis": change.basis}


def _whole(name: str, ms: float, scale: Scale) -> dict[str, Any]:
    return {
        "name": name,
        "x": 0.0,
        "width": scale.place(ms),
        "figures": show_ms(ms),
        "tip": f"step {name}: {show_ms(ms)}",
        "look": "whole",
    }

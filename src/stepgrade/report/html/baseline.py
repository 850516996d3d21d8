"""Against the baseline: what got worse, and the way from the old step time to the new one."""

from __future__ import annotations

from typing import Any

from stepgrade.model.comparison import Change, MetricChange, Shift, StepChange
from stepgrade.model.notes import texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html import words
from stepgrade.report.html.plot import Scale, joined
from stepgrade.report.names import printable, shortened
from stepgrade.units import MISSING, show_count, show_delta, show_ms, show_rate, show_share

PARTS_SHOWN = 9
CAUSES_SHOWN = 12
_FIGURES = {"throughput_tok_s": show_rate, "step_time_ms": show_ms, "wall_coverage": show_share}


def view(card: Scorecard) -> dict[str, Any] | None:
    """Return the comparison; None when there was no baseline."""
    if card.baseline is None:
        return None
    return {
        "name": shortened(card.baseline, 120),
        "regressions": [
            {
                "metric": words.METRICS.get(found.metric, found.metric),
                "change": _change(found.metric, found.delta),
                "severity": found.severity,
            }
            for found in card.regressions
        ],
        "changes": [_metric(change) for change in card.changes],
        "causes": [_cause(cause) for cause in card.changed[:CAUSES_SHOWN]],
        "differences": texts_of(card.differences),
        "compared": [words.METRICS.get(metric, metric) for metric in card.compared],
        "waterfall": None if card.step_change is None else waterfall(card.step_change),
    }


def _change(metric: str, delta: float) -> str:
    return f"{delta * 100:+.1f} points" if metric == "wall_coverage" else show_delta(delta)


def _metric(change: MetricChange) -> dict[str, str]:
    """Return one metric before and now, with the interval of its change and the verdict on it."""
    show = _FIGURES.get(change.metric, show_count)
    interval = ""
    if change.low is not None and change.high is not None:
        interval = f"{show_delta(change.low)} to {show_delta(change.high)}"
    return {
        "metric": words.METRICS.get(change.metric, printable(change.metric)),
        "before": show(change.before),
        "now": show(change.now),
        "change": MISSING if change.change is None else show_delta(change.change),
        "interval": interval,
        "outcome": change.outcome,
        "why": printable(" ".join(text for text in (change.why, change.more) if text)),
    }


def _cause(cause: Shift) -> tuple[str, str, str, str]:
    def shown(value: float | None) -> str:
        if cause.unit == "ms":
            return show_ms(value)
        return joined(show_count(value), cause.unit)

    return shortened(cause.name, 120), cause.kind, shown(cause.before), shown(cause.now)


def waterfall(change: StepChange) -> dict[str, Any]:
    """Return rows from the old step to the new one, each beginning where the one before ended."""
    shown, rest = change.parts[:PARTS_SHOWN], change.parts[PARTS_SHOWN:]
    deltas = [(_name(part, change), part.difference_ms, _told(part)) for part in shown if part.difference_ms]
    if rest:
        deltas.append((f"{len(rest)} smaller changes", sum(part.difference_ms for part in rest), ""))
    ends = [change.before_ms]
    for _, delta, _ in deltas:
        ends.append(ends[-1] + delta)
    low, high = min(*ends, change.now_ms), max(*ends, change.now_ms)
    # Bars from zero would hide a change of a few percent, so the axis begins near the lowest value.
    scale = Scale(low=max(0.0, low - max(high - low, high * 0.02) * 0.6), high=high)
    rows = [_whole("before", change.before_ms, scale)]
    rows += [_step(*delta, begin, scale) for delta, begin in zip(deltas, ends, strict=False)]
    rows.append(_whole("now", change.now_ms, scale))
    return {"rows": rows, "begins_at": show_ms(scale.low) if scale.low > 0.0 else None, "basis": change.basis}


def _name(part: Change, change: StepChange) -> str:
    return words.ACCOUNTS.get(part.name, part.name) if change.basis == "ledger" else shortened(part.name, 40)


def _told(part: Change) -> str:
    return f"{show_ms(part.before_ms)} before, {show_ms(part.now_ms)} now"


def _whole(name: str, ms: float, scale: Scale) -> dict[str, Any]:
    return {
        "name": name,
        "x": 0.0,
        "width": scale.place(ms),
        "figures": show_ms(ms),
        "tip": f"step {name}: {show_ms(ms)}",
        "look": "whole",
    }


def _step(name: str, delta: float, told: str, begin: float, scale: Scale) -> dict[str, Any]:
    first, last = sorted((scale.place(begin), scale.place(begin + delta)))
    figures = ("+" if delta > 0 else "\N{MINUS SIGN}") + show_ms(abs(delta))
    return {
        "name": name,
        "x": first,
        "width": max(last - first, 0.3),
        "figures": figures,
        "tip": f"{name}: {figures}{f', {told}' if told else ''}",
        "look": "slower" if delta > 0 else "faster",
    }

"""The gate's answer as a page: the verdict, every check, each change with its interval and its parts."""

from __future__ import annotations

from typing import Any

from stepgrade.model.comparison import METRICS as TABLE
from stepgrade.model.comparison import Check, GateReport, MetricChange, PartChange
from stepgrade.model.notes import texts_of
from stepgrade.report.comparison import (
    METRICS,
    name_shift,
    shift_figures,
    show_change,
    show_metric,
    show_noise,
)
from stepgrade.report.html.baseline import waterfall
from stepgrade.report.html.plot import Scale, joined
from stepgrade.report.names import printable, shortened
from stepgrade.units import MISSING, show_delta, show_ms, show_share

PARTS_SHOWN = 40
_ANSWERS = {
    "pass": ("parity", "Pass"),
    "regressed": ("behind", "Regressed"),
    "could not be measured": ("unknown", "Could not be measured"),
}
_LOOKS = {"regressed": "critical", "cannot tell": "warning", "waived": "warning"}
_BARS = {"regressed": "slower", "improved": "faster"}


def view(report: GateReport) -> dict[str, Any]:
    """Return what the template shows."""
    look, answer = _ANSWERS[report.verdict]
    source = shortened(report.source, 120)
    scale = _scale(report.changes)
    return {
        "title": f"{answer}: {source}",
        "source": source,
        "against": shortened(report.baseline, 120) if report.baseline else None,
        "look": look,
        "answer": answer,
        "reasons": texts_of(report.further_reasons),
        "differences": texts_of(report.differences),
        "is_comparable": report.is_comparable,
        "tiles": _tiles(report),
        "checks": [_check(check) for check in report.checks],
        "metrics": [_metric(change, scale) for change in report.changes],
        "waterfall": None if report.step_change is None else waterfall(report.step_change),
        "shifts": [(*_named(name_shift(shift)), *shift_figures(shift)) for shift in report.shifts],
        "parts": [_part(part) for part in report.parts[:PARTS_SHOWN]],
        "parts_left": max(0, len(report.parts) - PARTS_SHOWN),
        "notes": texts_of(report.notes),
    }


def _tiles(report: GateReport) -> list[tuple[str, str, str]]:
    rows = [
        (METRICS.get(change.metric, change.metric).capitalize(), _now(change), _moved(change))
        for change in report.changes
    ]
    reached = "" if report.efficiency is None else f"{show_share(report.efficiency)} of the ceiling"
    return [*rows, ("Grade", report.grade, reached)]


def _now(change: MetricChange) -> str:
    return show_metric(change.metric, change.now)


def _moved(change: MetricChange) -> str:
    return joined(f"was {show_metric(change.metric, change.before)}", show_change(change), change.outcome)


def _check(check: Check) -> dict[str, Any]:
    return {
        "metric": shortened(check.metric, 80),
        "status": check.status,
        "look": _LOOKS.get(check.status, ""),
        "text": check.text,
        "waiver": check.waiver,
    }


def _scale(changes: tuple[MetricChange, ...]) -> Scale:
    """Return the same reach to both sides, wide enough for the widest interval."""
    reach = max((abs(end) for one in changes for end in (one.low, one.high) if end is not None), default=0.0)
    return Scale(low=-max(reach, 0.01), high=max(reach, 0.01))


def _metric(change: MetricChange, scale: Scale) -> dict[str, Any]:
    sign = -1.0 if change.metric in TABLE and TABLE[change.metric].worse == "down" else 1.0
    ends = sorted(scale.place(sign * (end or 0.0)) for end in (change.low, change.high))
    interval = MISSING
    if change.low is not None and change.high is not None:
        interval = f"{show_delta(change.low)} to {show_delta(change.high)}"
    name = METRICS.get(change.metric, printable(change.metric))
    moved = MISSING if change.change is None else show_delta(change.change)
    return {
        "metric": name,
        "before": show_metric(change.metric, change.before),
        "now": show_metric(change.metric, change.now),
        "change": moved,
        "interval": interval,
        "outcome": change.outcome,
        "why": "; ".join(text for text in (change.why, change.more) if text),
        "noise": joined(show_noise(change.noise), _runs(change)),
        "x": ends[0],
        "width": max(ends[1] - ends[0], 0.3),
        "at": scale.place(sign * (change.change or 0.0)),
        "look": _BARS.get(change.outcome, "whole"),
        "tip": f"{name}: {moved}, surely {interval}, {change.outcome}",
    }


def _runs(change: MetricChange) -> str:
    return f"{change.before_runs} earlier run{'s' if change.before_runs != 1 else ''}"


def _named(kind_and_name: tuple[str, str]) -> tuple[str, str]:
    return kind_and_name[0], shortened(kind_and_name[1], 120)


def _part(part: PartChange) -> tuple[str, str, str, str, str]:
    before, now = show_ms(part.change.before), show_ms(part.change.now)
    return part.kind, shortened(part.name, 120), before, now, show_change(part.change)

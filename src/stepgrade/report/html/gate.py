"""The gate's answer as a page: the verdict, every check, each change with its interval and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrade.model.comparison import METRICS, GateReport, MetricChange
from stepgrade.model.notes import texts_of
from stepgrade.report.content.comparison import (
    earlier_runs,
    shift_cells,
    show_change,
    show_metric,
    show_noise,
    title_of,
)
from stepgrade.report.html.changes import NAME_CELLS, metric_row, waterfall
from stepgrade.report.html.plot import Scale, joined
from stepgrade.report.names import shortened
from stepgrade.units import show_ms, show_share

PARTS_SHOWN = 40
_ANSWERS = {
    "pass": ("parity", "Pass"),
    "regressed": ("behind", "Regressed"),
    "could not be measured": ("unknown", "Could not be measured"),
}
_LOOKS = {"regressed": "critical", "cannot tell": "warning", "waived": "warning"}
_BARS = {"regressed": "slower", "improved": "faster"}


def view(report: GateReport, flags: Mapping[str, str]) -> dict[str, Any]:
    """Return what the template shows."""
    look, answer = _ANSWERS[report.verdict]
    source = shortened(report.source, NAME_CELLS)
    # The same reach to both sides, wide enough for the widest interval.
    ends = (end for change in report.changes for end in (change.low, change.high))
    reach = max(0.01, *map(abs, ends), 0.0)
    scale = Scale(low=-reach, high=reach)
    tiles = [
        (
            title_of(change.metric).capitalize(),
            show_metric(change.metric, change.now),
            joined(f"was {show_metric(change.metric, change.before)}", show_change(change), change.outcome),
        )
        for change in report.changes
    ]
    reached = "" if report.efficiency is None else f"{show_share(report.efficiency)} of the ceiling"
    if report.grade_at_most:
        reached = f"{report.grade_at_most} or lower"
    return {
        "title": f"{answer}: {source}",
        "source": source,
        "against": shortened(report.baseline, NAME_CELLS) if report.baseline else None,
        "look": look,
        "answer": answer,
        "reasons": texts_of(report.further_reasons, flags),
        "differences": texts_of(report.differences, flags),
        "is_comparable": report.is_comparable,
        "tiles": [*tiles, ("Grade", report.grade, reached)],
        "checks": [
            {
                "metric": shortened(check.metric, 80),
                "status": check.status,
                "look": _LOOKS.get(check.status, ""),
                "text": check.note.said(flags),
                "waiver": check.waiver,
            }
            for check in report.checks
        ],
        "metrics": [_metric(change, scale) for change in report.changes],
        "waterfall": None if report.step_change is None else waterfall(report.step_change),
        "shifts": [
            (kind, shortened(name, NAME_CELLS), before, now, moved)
            for kind, name, before, now, moved in map(shift_cells, report.shifts)
        ],
        "parts": [
            (
                part.kind,
                shortened(part.name, NAME_CELLS),
                show_ms(part.change.before),
                show_ms(part.change.now),
                show_change(part.change),
            )
            for part in report.parts[:PARTS_SHOWN]
        ],
        "parts_left": max(0, len(report.parts) - PARTS_SHOWN),
        "notes": texts_of(report.notes, flags),
    }


def _metric(change: MetricChange, scale: Scale) -> dict[str, Any]:
    """Return the row of a metric with its bar, on which worse is to the right."""
    sign = -1.0 if change.metric in METRICS and METRICS[change.metric].worse == "down" else 1.0
    ends = sorted(scale.place(sign * end) for end in (change.low, change.high))
    row = metric_row(change)
    return row | {
        "noise": joined(show_noise(change.noise), earlier_runs(change)),
        "x": ends[0],
        "width": max(ends[1] - ends[0], 0.3),
        "at": scale.place(sign * change.change),
        "look": _BARS.get(change.outcome, "whole"),
        "tip": f"{row['metric']}: {row['change']}, surely {row['interval']}, {change.outcome}",
    }

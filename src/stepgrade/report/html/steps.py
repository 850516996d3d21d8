"""Step times in order, with those marked that stand out, and beside them how they are distributed."""

from __future__ import annotations

from typing import Any

from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html.plot import Mark, Scale, Tick, even_ticks, joined
from stepgrade.report.words import plural
from stepgrade.scoring.spread import Stretch, histogram, stretches
from stepgrade.scoring.step_times import RULE, STEADY, marks_of
from stepgrade.units import show_count, show_ms

POINTS_SHOWN = 400


def view(card: Scorecard) -> dict[str, Any]:
    """Return the series and its distribution, or why there is none."""
    steps = card.steps
    if steps is None or len(steps.samples_ms) < 2:
        why = (
            "The source has no single step times, only an average. Record a trace, or write a line per step."
        )
        if steps is not None and steps.samples_ms:
            why = "Only one step was recorded: it has no spread. Record ten steps or more."
        return {"why_empty": why}
    marks = marks_of(steps.samples_ms)
    points = stretches(steps.samples_ms, marks, POINTS_SHOWN)
    low, high = min(steps.samples_ms), max(steps.samples_ms)
    room = (high - low) * 0.08 or high * 0.05
    scale = Scale(low=max(0.0, low - room), high=high + room)
    counted = show_count(steps.count)
    bins, found = [], histogram(steps.samples_ms)
    most = max(part.count for part in found)
    for part in found:
        top, bottom = 100.0 - scale.place(part.high_ms), 100.0 - scale.place(part.low_ms)
        tip = f"{show_ms(part.low_ms)} to {show_ms(part.high_ms)}: {plural(part.count, 'step')}"
        width, height = part.count / most * 100.0, max(bottom - top, 1.0)
        bins.append(Mark(x=0.0, y=top, width=width, height=height, tip=tip))
    return {
        "why_empty": None,
        "points": [_point(point, len(steps.samples_ms), scale) for point in points],
        "bins": bins,
        "median": 100.0 - scale.place(steps.median_ms) if steps.median_ms is not None else None,
        "y_ticks": [
            Tick(at=100.0 - scale.place(ms), text=show_ms(ms)) for ms in even_ticks(scale.low, scale.high)
        ],
        "last": len(steps.samples_ms),
        "counts": {mark: marks.count(mark) for mark in dict.fromkeys(marks) if mark != STEADY},
        "interval": None
        if steps.low_ms is None or steps.high_ms is None
        else f"{show_ms(steps.low_ms)} and {show_ms(steps.high_ms)}",
        "rule": RULE,
        "per_point": points[0].last - points[0].first + 1,
        "rows": [
            (
                "steps recorded",
                counted if steps.steady is None else f"{counted}, {show_count(steps.steady)} of them steady",
            ),
            ("median", show_ms(steps.median_ms)),
            ("lowest", show_ms(low)),
            ("highest", show_ms(high)),
            ("95 % are below", show_ms(steps.p95_ms)),
        ],
    }


def _point(point: Stretch, count: int, scale: Scale) -> dict[str, Any]:
    is_wide = point.first != point.last
    name = f"steps {point.first + 1} to {point.last + 1}" if is_wide else f"step {point.first + 1}"
    spread = f"{show_ms(point.low_ms)} to {show_ms(point.high_ms)}" if is_wide else None
    figures = joined(show_ms(point.median_ms), spread, None if point.mark == STEADY else point.mark)
    return {
        "x": ((point.first + point.last) / 2 + 0.5) / count * 100.0,
        "y": 100.0 - scale.place(point.median_ms),
        "top": 100.0 - scale.place(point.high_ms),
        "bottom": 100.0 - scale.place(point.low_ms),
        "is_wide": is_wide,
        "look": point.mark.replace(" ", "-"),
        "tip": f"{name}: {figures}",
    }

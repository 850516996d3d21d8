"""Step times in order, with those marked that stand out, and beside them how they are distributed."""

from __future__ import annotations

from typing import Any

from stepgrade.model.scorecard import Scorecard, StepStats
from stepgrade.report.html.plot import Mark, Scale, Tick, even_ticks, joined
from stepgrade.scoring.spread import Bin, Stretch, histogram, stretches
from stepgrade.scoring.step_times import RULE, STEADY, marks_of
from stepgrade.units import show_count, show_ms

POINTS_SHOWN = 400


def view(card: Scorecard) -> dict[str, Any]:
    """Return the series and its distribution, or why there is none."""
    steps = card.steps
    if steps is None or len(steps.samples_ms) < 2:
        return {"why_empty": _why_empty(steps)}
    marks = marks_of(steps.samples_ms)
    points = stretches(steps.samples_ms, marks, POINTS_SHOWN)
    low, high = min(steps.samples_ms), max(steps.samples_ms)
    room = (high - low) * 0.08 or high * 0.05
    scale = Scale(low=max(0.0, low - room), high=high + room)
    return {
        "why_empty": None,
        "points": [_point(one, len(steps.samples_ms), scale) for one in points],
        "bins": _bins(histogram(steps.samples_ms), scale),
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
        "rows": _rows(steps),
    }


def _why_empty(steps: StepStats | None) -> str:
    if steps is not None and len(steps.samples_ms) == 1:
        return "Only one step was recorded: it has no spread. Record ten steps or more."
    return "The source has no single step times, only an average. Record a trace, or write a line per step."


def _point(one: Stretch, count: int, scale: Scale) -> dict[str, Any]:
    name = f"step {one.first + 1}" if one.first == one.last else f"steps {one.first + 1} to {one.last + 1}"
    spread = None if one.first == one.last else f"{show_ms(one.low_ms)} to {show_ms(one.high_ms)}"
    told = joined(show_ms(one.median_ms), spread, None if one.mark == STEADY else one.mark)
    return {
        "x": ((one.first + one.last) / 2 + 0.5) / count * 100.0,
        "y": 100.0 - scale.place(one.median_ms),
        "top": 100.0 - scale.place(one.high_ms),
        "bottom": 100.0 - scale.place(one.low_ms),
        "is_wide": one.first != one.last,
        "look": one.mark.replace(" ", "-"),
        "tip": f"{name}: {told}",
    }


def _bins(bins: tuple[Bin, ...], scale: Scale) -> list[Mark]:
    most = max(one.count for one in bins)
    marks = []
    for one in bins:
        top, bottom = 100.0 - scale.place(one.high_ms), 100.0 - scale.place(one.low_ms)
        count = f"{show_count(one.count)} step{'s' if one.count != 1 else ''}"
        tip = f"{show_ms(one.low_ms)} to {show_ms(one.high_ms)}: {count}"
        height = max(bottom - top, 1.0)
        marks.append(Mark(x=0.0, y=top, width=one.count / most * 100.0, height=height, tip=tip))
    return marks


def _rows(steps: StepStats) -> list[tuple[str, str]]:
    counted = show_count(steps.count)
    steady = f"{counted}, {show_count(steps.steady)} of them steady" if steps.steady is not None else counted
    return [
        ("steps recorded", steady),
        ("median", show_ms(steps.median_ms)),
        ("lowest", show_ms(min(steps.samples_ms))),
        ("highest", show_ms(max(steps.samples_ms))),
        ("95 % are below", show_ms(steps.p95_ms)),
    ]

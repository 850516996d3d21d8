"""The trend of a metric as a chart: points linked to runs, levels with their noise, changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from stepgrade.model.comparison import Trend
from stepgrade.report.content.comparison import show_metric
from stepgrade.report.html.plots import Scale
from stepgrade.report.names import joined
from stepgrade.statistics import MAD_TO_SIGMA
from stepgrade.store.tables import is_better
from stepgrade.units import show_delta

POINTS_SHOWN = 300
# About 95 of 100 runs lie in the band while nothing changes.
_SIGMAS = 2.0


def trend_view(trend: Trend, commits: Mapping[int, str | None]) -> dict[str, Any]:
    """Return the chart of a trend; each point is the median of several runs if there are many."""
    values = [point.value for point in trend.points]
    bands = []  # each level: its first and last index, its median, and the band of its noise
    for begin, end in pairwise([0, *(change.index for change in trend.changes), len(values)]):
        level = median(values[begin:end])
        reach = _SIGMAS * MAD_TO_SIGMA * median(abs(value - level) for value in values[begin:end])
        bands.append((begin, end, level, level - reach, level + reach))
    low = min(*values, *(band[3] for band in bands))
    high = max(*values, *(band[4] for band in bands))
    room = (high - low) * 0.1 or abs(high) * 0.05 or 1.0
    scale = Scale(low=low - room if low - room > 0 else min(low, 0.0), high=high + room)
    count = len(values)
    begin, end, level, _, top = bands[-1]
    noise = f"{abs(top / level - 1.0) * 100.0:.1f} %" if end - begin >= 4 and level else None
    each = -(-count // POINTS_SHOWN)
    points = []
    for start in range(0, count, each):
        some = trend.points[start : start + each]
        middle = sorted(some, key=lambda point: point.value)[len(some) // 2]
        name = f"run {some[0].id}" if len(some) == 1 else f"runs {some[0].id} to {some[-1].id}"
        commit = (commits.get(middle.id) or "")[:10]
        points.append(
            {
                "x": (start + len(some) / 2) / count * 100.0,
                "y": 100.0 - scale.place(middle.value),
                "run": middle.id,
                "tip": joined(f"{name}: {show_metric(trend.metric, middle.value)}", commit),
            }
        )
    return {
        "points": points,
        "per_point": each,
        "bands": [
            {
                "x": begin / count * 100.0,
                "width": (end - begin) / count * 100.0,
                "y": 100.0 - scale.place(top),
                "height": max(scale.place(top) - scale.place(bottom), 0.4),
                "level": 100.0 - scale.place(level),
            }
            for begin, end, level, bottom, top in bands
        ],
        "changes": [
            {
                "x": change.index / count * 100.0,
                "look": "faster" if is_better(trend.metric, change.change) else "slower",
                "word": "better" if is_better(trend.metric, change.change) else "worse",
                "delta": show_delta(change.change),
                "before": show_metric(trend.metric, change.before),
                "after": show_metric(trend.metric, change.after),
                "found": change,
            }
            for change in trend.changes
        ],
        "y_ticks": scale.rising_ticks(lambda value: show_metric(trend.metric, value)),
        "first": trend.points[0].id,
        "last": trend.points[-1].id,
        "now": show_metric(trend.metric, bands[-1][2]),
        "noise": noise,
    }


def spark(values: Sequence[float]) -> str | None:
    """Return a sparkline as the points of a polyline in a box of 100 by 24; None for too few values."""
    if len(values) < 2:
        return None
    scale = Scale(low=min(values), high=max(values))
    step = 100.0 / (len(values) - 1)
    return " ".join(
        f"{index * step:.1f},{22.0 - scale.place(value) * 0.2:.1f}" for index, value in enumerate(values)
    )

"""History in a terminal: runs as rows, a metric as a line of points with its levels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from stepgrade.model.run import LevelChange, Point, RunRow, Trend
from stepgrade.report.comparison import show_metric
from stepgrade.report.names import printable, shortened
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.report.types import Page
from stepgrade.units import MISSING, show_count, show_delta

_ROWS = 10
_COMMIT = 10


def draw_runs(runs: Sequence[RunRow], page: Page) -> str:
    """Return one line a run, newest last."""
    canvas = Canvas(width=page.width, color=page.color)
    head = f"{'run':>6}  {'added':<16}  {'branch':<12} {'commit':<10} {'grade':<8} {'step':>9}  {'tok/s':>9}"
    canvas.line(canvas.style(head, "title"))
    for run in runs:
        canvas.line(shortened(_row(run), canvas.width))
    canvas.line(canvas.style(f"{show_count(len(runs))} run{'s' if len(runs) != 1 else ''}", "dim"))
    return canvas.text()


def draw_trend(trend: Trend, page: Page) -> str:
    """Return the picture, then each change of level with the commits between which it happened."""
    canvas = Canvas(width=page.width, color=page.color)
    where = f" on {trend.branch}" if trend.branch else ""
    title = f"{trend.metric}{where} · {show_count(len(trend.points))} runs · fingerprint {trend.digest}"
    canvas.line(canvas.style(printable(title), "dim"))
    canvas.line()
    _picture(trend, canvas)
    canvas.heading("Changes of level")
    if not trend.changes:
        canvas.line("  none")
    for change in trend.changes:
        canvas.paragraph(printable(_sentence(trend.metric, change)), indent="    ", first="  · ")
    return canvas.text()


def _row(run: RunRow) -> str:
    step, rate = run.metrics.get("step_time_ms"), run.metrics.get("throughput_tok_s")
    return (
        f"{run.id:>6}  {run.added_at[:16]:<16}  {shortened(run.branch or MISSING, 12):<12} "
        f"{_short(run.commit):<10} {shortened(run.grade, 8):<8} {show_metric('step_time_ms', step):>9}  "
        f"{MISSING if rate is None else f'{rate:,.0f}':>9}"
    )


def _short(commit: str | None) -> str:
    return shortened(commit[:_COMMIT], _COMMIT) if commit else MISSING


def _place(point: Point, commit: str | None) -> str:
    return f"run {point.id} ({_short(commit)})" if commit else f"run {point.id}"


def _sentence(metric: str, change: LevelChange) -> str:
    moved = f"{show_metric(metric, change.before)} to {show_metric(metric, change.after)}"
    commits = ""
    if change.last_commit and change.first_commit:
        commits = f"; commits {_short(change.last_commit)}..{_short(change.first_commit)}"
    return (
        f"{moved} ({show_delta(change.change)}) between {_place(change.last, change.last_commit)} and "
        f"{_place(change.first, change.first_commit)}{commits}"
    )


def _picture(trend: Trend, canvas: Canvas) -> None:
    values = [point.value for point in trend.points]
    labels = [show_metric(trend.metric, value) for value in (max(values), min(values))]
    margin = max(len(label) for label in labels) + 3
    columns = max(10, canvas.width - margin - 2)
    rows = _plotted(values, [change.index for change in trend.changes], columns)
    for number, row in enumerate(rows):
        label = labels[0] if number == 0 else labels[1] if number == _ROWS - 1 else ""
        canvas.line(f"  {label:>{margin - 3}} ┤{row}")


def _plotted(values: list[float], changes: list[int], columns: int) -> list[str]:
    """Return the rows of the picture: `·` where runs are, `─` where their median is, `│` at a change."""
    low, high = min(values), max(values)
    scale = (_ROWS - 1) / (high - low) if high > low else 0.0
    width = min(columns, len(values))
    grid = [[" "] * width for _ in range(_ROWS)]
    edges = [round(place * len(values) / width) for place in range(width + 1)]
    for column, (start, end) in enumerate(pairwise(edges)):
        here = sorted(values[start:end])
        for value in (here[0], here[-1]):
            grid[_level(value, high, scale)][column] = "·"
        grid[_level(here[len(here) // 2], high, scale)][column] = "─"
        if any(start <= change < end for change in changes):
            for row in grid:
                row[column] = "│" if row[column] == " " else row[column]
    return ["".join(row) for row in grid]


def _level(value: float, high: float, scale: float) -> int:
    return round((high - value) * scale)

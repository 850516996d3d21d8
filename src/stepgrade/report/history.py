"""History for people and machines: the list of runs, and the trend of a metric with its changes of level."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepgrade.model.comparison import RATES, RunRow, Trend
from stepgrade.report.blocks import Chart, Column, Heading, Paragraph, Space, Table, Title, bullets
from stepgrade.report.content.comparison import show_metric
from stepgrade.report.names import json_text, plural, shortened
from stepgrade.report.terminal import write
from stepgrade.units import MISSING, show_count, show_delta

FORMATS = ("terminal", "json")
_COMMIT = 10


def render_runs(runs: Sequence[RunRow], to: str, *, width: int = 80, color: bool = False) -> str:
    """Return the runs as a table with the newest last, or one JSON object per line."""
    if to == "json":
        return "".join(json_text(msgspec.json.encode(run).decode()) + "\n" for run in runs)
    columns = (
        Column("run", width=6, right=True),
        Column("added", width=16, gap=2),
        Column("branch", width=12, gap=2),
        Column("commit", width=_COMMIT),
        Column("grade", width=8),
        Column("step", width=8, right=True),
        Column("rate", width=12, right=True),
    )
    rows = []
    for run in runs:
        rate = next((name for name in RATES if name in run.metrics), RATES[0])
        metrics = (show_metric(name, run.metrics.get(name)) for name in ("step_time_ms", rate))
        branch, grade = shortened(run.branch or MISSING, 12), shortened(run.grade, 8)
        added = shortened(run.added_at[:16], 16)
        rows.append((str(run.id), added, branch, _short(run.commit), grade, *metrics))
    count = Paragraph(plural(len(runs), "run"), style="dim", indent=0)
    return write((Table(columns, tuple(rows), indent=0, is_cut=True), count), width=width, color=color)


def render_trend(trend: Trend, to: str, *, width: int = 80, color: bool = False) -> str:
    """Return the trend as a picture with its changes, or as JSON."""
    if to == "json":
        return json_text(msgspec.json.encode(trend).decode()) + "\n"
    where = f" on {trend.branch}" if trend.branch else ""
    runs = f"{show_count(len(trend.points))} runs"
    values = tuple(point.value for point in trend.points)
    ends = show_metric(trend.metric, max(values)), show_metric(trend.metric, min(values))
    sentences = []
    for change in trend.changes:
        last, first = _short(change.last_commit), _short(change.first_commit)
        before = f"run {change.last.id} ({last})" if change.last_commit else f"run {change.last.id}"
        after = f"run {change.first.id} ({first})" if change.first_commit else f"run {change.first.id}"
        commits = f"; commits {last}..{first}" if change.last_commit and change.first_commit else ""
        moved = f"{show_metric(trend.metric, change.before)} to {show_metric(trend.metric, change.after)}"
        sentences.append(f"{moved} ({show_delta(change.change)}) between {before} and {after}{commits}")
    blocks = (
        Title("", f"{trend.metric}{where} · {runs} · fingerprint {trend.digest}"),
        Space(),
        Chart(values, ends, tuple(change.index for change in trend.changes)),
        Heading("Level changes"),
        bullets(sentences) if sentences else Paragraph("none"),
    )
    return write(blocks, width=width, color=color)


def _short(commit: str | None) -> str:
    return shortened(commit[:_COMMIT], _COMMIT) if commit else MISSING

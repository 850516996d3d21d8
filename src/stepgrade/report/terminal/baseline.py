"""Against earlier runs in a terminal: what differs, what got worse by how much, what it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepgrade.model.comparison import MetricChange, Shift
from stepgrade.model.notes import Note, texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.comparison import (
    METRICS,
    name_shift,
    shift_figures,
    show_change,
    show_metric,
    show_shift,
)
from stepgrade.report.names import cells, printable, shortened
from stepgrade.report.terminal.canvas import Canvas, padded
from stepgrade.units import show_delta

# Below this a table of four columns has no room left for names.
_LEAST_TABLE = 64
_FIGURE = 11
_NAME = 19


def draw_differences(differences: Iterable[Note], canvas: Canvas, *, compared: bool) -> None:
    """Draw how the circumstances differ: it comes before every figure, for it decides what they mean."""
    rows = texts_of(differences)
    if not rows:
        return
    told = "compared although these differ:" if compared else "not comparable, these differ:"
    canvas.paragraph(told, indent="    ", first=f"  {canvas.style('!', 'fair')} ", style="title")
    for text in rows:
        canvas.paragraph(printable(text), indent="      ", first="    · ")


def draw_regressions(card: Scorecard, baseline: str, canvas: Canvas) -> None:
    """Draw a scorecard's comparison with its baseline."""
    canvas.heading(f"Against {shortened(baseline, canvas.width - 8)}")
    if not card.compared:
        canvas.line(f"  {canvas.style('nothing could be compared', 'fair')}")
    elif not card.regressions:
        canvas.line(f"  {canvas.style('no regression', 'good')}")
    for found in card.regressions:
        style = "bad" if found.severity == "critical" else "fair"
        moved = (
            show_delta(found.delta) if found.metric != "wall_coverage" else f"{found.delta * 100:+.1f} points"
        )
        canvas.line(f"  {canvas.style(found.severity.ljust(8), style)}  {METRICS[found.metric]} {moved}")
    for change in (one for one in card.changes if one.outcome not in ("regressed", "improved")):
        told = f"{METRICS.get(change.metric, change.metric)}: {change.outcome}, {change.why}"
        canvas.paragraph(told, indent="    ", first="  ")
    draw_changes(card.changes, canvas)
    draw_shifts(card.changed, canvas)


def draw_changes(changes: Sequence[MetricChange], canvas: Canvas) -> None:
    """Draw every metric before and now, with the interval that its change surely lies in."""
    if not changes:
        return
    canvas.line()
    head = f"{'Metric':<{_NAME}} {_columns('before', 'now')}  change, surely within"
    canvas.line(canvas.style(head if cells(head) <= canvas.width else "Before, now, surely within", "title"))
    for change in changes:
        name = METRICS.get(change.metric, change.metric)
        figures = _columns(*(show_metric(change.metric, value) for value in (change.before, change.now)))
        row = f"{figures}  {show_change(change)}"
        if cells(row) + _NAME + 1 <= canvas.width:
            canvas.line(f"  {name:<{_NAME - 2}} {row}")
        else:
            canvas.line(f"  {name}")
            canvas.paragraph(row, indent="    ")


def draw_shifts(shifts: Sequence[Shift], canvas: Canvas) -> None:
    """Draw what the change is made of, each kind under its name; a list where there is no room."""
    if not shifts:
        return
    if canvas.width < _LEAST_TABLE:
        canvas.heading("What changed")
        for shift in shifts:
            canvas.paragraph(printable(show_shift(shift)), indent="    ", first="  · ")
        return
    room = canvas.width - 13 - 3 * (_FIGURE + 1)
    canvas.line()
    head = _columns("before", "now", "change")
    canvas.line(canvas.style(f"{'What changed':<{13 + room}} {head}", "title"))
    last = ""
    for shift in shifts:
        kind, name = name_shift(shift)
        figures = _columns(*shift_figures(shift))
        title = padded("" if kind == last else kind, 10)
        canvas.line(f"  {canvas.style(title, 'dim')} {padded(shortened(name, room), room)} {figures}")
        last = kind


def _columns(*texts: str) -> str:
    return " ".join(f"{text:>{_FIGURE}}" for text in texts)

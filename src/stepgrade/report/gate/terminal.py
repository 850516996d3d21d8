"""The gate's answer in a terminal."""

from __future__ import annotations

from stepgrade.model.comparison import GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.comparison import METRICS, name_part, show_change, show_noise
from stepgrade.report.names import printable, shortened
from stepgrade.report.terminal.baseline import draw_changes, draw_differences, draw_shifts
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.report.types import Page

_BADGES = {"pass": "badge-good", "regressed": "badge-bad", "could not be measured": "badge-fair"}
_STYLES = {"pass": "good", "improved": "good", "regressed": "bad", "cannot tell": "fair", "waived": "fair"}
PARTS_SHOWN = 8


def render(report: GateReport, page: Page) -> str:
    """Return the answer, what it rests on, and what explains it."""
    canvas = Canvas(width=page.width, color=page.color)
    _title(report, canvas)
    draw_differences(report.differences, canvas, compared=report.is_comparable)
    if report.differences:
        canvas.line()
    canvas.line(f"  {canvas.style(f' {report.verdict} ', _BADGES[report.verdict])}")
    for reason in report.further_reasons:
        canvas.paragraph(printable(reason.text), indent="    ", first="  · ")
    _checks(report, canvas)
    draw_changes(report.changes, canvas)
    _noise(report, canvas)
    draw_shifts(report.shifts, canvas)
    parts = [f"{name_part(part.kind, part.name)}: {show_change(part.change)}" for part in report.parts]
    _listed(canvas, "Parts that changed beyond their own noise", parts[:PARTS_SHOWN])
    _listed(canvas, "Notes", list(texts_of(report.notes)))
    return canvas.text()


def _title(report: GateReport, canvas: Canvas) -> None:
    canvas.line(canvas.style(f"stepgrade gate · {shortened(report.source, canvas.width - 17)}", "dim"))
    if report.baseline:
        canvas.line(canvas.style(f"against {shortened(report.baseline, canvas.width - 8)}", "dim"))
    canvas.line()


def _checks(report: GateReport, canvas: Canvas) -> None:
    if not report.checks:
        return
    canvas.heading("Checks")
    for check in report.checks:
        waiver = f" [waived {check.waiver}]" if check.waiver else ""
        status = canvas.style(check.status, _STYLES[check.status])
        canvas.line(f"  {status}")
        canvas.paragraph(printable(f"{check.text}{waiver}"), indent="    ")


def _noise(report: GateReport, canvas: Canvas) -> None:
    """Say how much identical runs differ, once for the metrics that have the same noise."""
    groups: dict[str, list[str]] = {}
    for change in report.changes:
        runs = f"{change.before_runs} earlier run{'s' if change.before_runs != 1 else ''}"
        name = METRICS.get(change.metric, change.metric)
        groups.setdefault(f"{show_noise(change.noise)}; {runs}", []).append(name)
    for told, names in groups.items():
        canvas.paragraph(f"noise from run to run ({', '.join(names)}): {told}", indent="  ", style="dim")


def _listed(canvas: Canvas, title: str, texts: list[str]) -> None:
    if texts:
        canvas.heading(title)
        for text in texts:
            canvas.paragraph(printable(text), indent="    ", first="  · ")

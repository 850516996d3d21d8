"""The gate's answer in a terminal."""

from __future__ import annotations

from stepgrade.compare.budgets import GateReport
from stepgrade.report.gate.words import show_change, show_metric, show_noise, show_shift
from stepgrade.report.names import printable
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.report.types import Page

_BADGES = {"pass": "badge-good", "regressed": "badge-bad", "could not be measured": "badge-fair"}
_STYLES = {"pass": "good", "improved": "good", "regressed": "bad", "cannot tell": "fair", "waived": "fair"}
PARTS_SHOWN = 8


def render(report: GateReport, page: Page) -> str:
    """Return the answer, what it rests on, and what explains it."""
    canvas = Canvas(width=page.width, color=page.color)
    against = f" against {report.baseline}" if report.baseline else ""
    canvas.line(canvas.style(printable(f"stepgrade gate · {report.source}{against}"), "dim"))
    canvas.line()
    canvas.line(f"  {canvas.style(f' {report.verdict} ', _BADGES[report.verdict])}")
    told = {check.text for check in report.checks}
    for reason in report.reasons:
        if reason in told:
            continue
        canvas.paragraph(printable(reason), indent="    ", first="  · ")
    _checks(report, canvas)
    _changes(report, canvas)
    _listed(canvas, "What changed", [show_shift(shift) for shift in report.shifts])
    parts = [f"{part.kind} {part.name}: {show_change(part.change)}" for part in report.parts]
    _listed(canvas, "Parts beyond their own noise", parts[:PARTS_SHOWN])
    _listed(canvas, "Notes", list(report.notes))
    return canvas.text()


def _checks(report: GateReport, canvas: Canvas) -> None:
    if not report.checks:
        return
    canvas.heading("Checks")
    for check in report.checks:
        status = canvas.style(check.status, _STYLES[check.status])
        waiver = f" [waived {check.waiver}]" if check.waiver else ""
        canvas.paragraph(printable(f"{check.text}{waiver}"), indent="    ", first=f"  {status}: ")


def _changes(report: GateReport, canvas: Canvas) -> None:
    if not report.changes:
        return
    canvas.heading("Before and now")
    for change in report.changes:
        before, now = (show_metric(change.metric, value) for value in (change.before, change.now))
        canvas.line(f"  {change.metric:<18} {before:>12} to {now:>12}  {show_change(change)}")
        runs = f"{change.before_runs} earlier run{'s' if change.before_runs != 1 else ''}"
        canvas.line(canvas.style(f"  {'':<18} run-to-run noise {show_noise(change.noise)}; {runs}", "dim"))


def _listed(canvas: Canvas, title: str, texts: list[str]) -> None:
    if texts:
        canvas.heading(title)
        for text in texts:
            canvas.paragraph(printable(text), indent="    ", first="  · ")

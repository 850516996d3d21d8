"""The gate's answer as Markdown, for a comment on a pull request or a job's summary."""

from __future__ import annotations

from collections.abc import Iterable

from stepgrade.model.comparison import GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.comparison import (
    name_part,
    name_shift,
    shift_figures,
    show_change,
    show_metric,
    show_noise,
)
from stepgrade.report.names import markdown as escaped
from stepgrade.report.types import Page
from stepgrade.units import show_share

PARTS_SHOWN = 12
_MARKS = {"pass": "✅", "regressed": "❌", "could not be measured": "⚠️"}


def render(report: GateReport, page: Page) -> str:  # noqa: ARG001  Markdown has no width
    """Return the answer with its tables; names are escaped."""
    lines = [f"## {_MARKS[report.verdict]} stepgrade: {report.verdict}", "", _about(report)]
    lines += _differences(report)
    lines += _bullets("", texts_of(report.further_reasons))
    lines += _checks(report)
    lines += _changes(report)
    lines += _shifts(report)
    parts = [f"{name_part(part.kind, part.name)}: {show_change(part.change)}" for part in report.parts]
    more = [f"{len(parts) - PARTS_SHOWN} more in the JSON"] if len(parts) > PARTS_SHOWN else []
    lines += _bullets("Parts beyond their own noise", (*parts[:PARTS_SHOWN], *more))
    lines += _bullets("Notes", texts_of(report.notes))
    return "\n".join(lines) + "\n"


def _differences(report: GateReport) -> list[str]:
    if not report.differences:
        return []
    told = "Compared although these differ:" if report.is_comparable else "Not comparable, these differ:"
    return ["", f"**{told}**", *_bullets("", texts_of(report.differences))]


def _shifts(report: GateReport) -> list[str]:
    if not report.shifts:
        return []
    named = [(*name_shift(shift), *shift_figures(shift)) for shift in report.shifts]
    rows = [f"| {' | '.join(escaped(cell) for cell in row)} |" for row in named]
    head = ["| Kind | Part | Before | Now | Change |", "| --- | --- | ---: | ---: | ---: |"]
    return ["", "### What changed", "", *head, *rows]


def _about(report: GateReport) -> str:
    against = f" against {escaped(report.baseline)}" if report.baseline else ""
    reached = f" ({show_share(report.efficiency)})" if report.efficiency is not None else ""
    return f"{escaped(report.source)}{against}. Grade **{escaped(report.grade)}**{reached}."


def _checks(report: GateReport) -> list[str]:
    if not report.checks:
        return []
    rows = [
        f"| {escaped(check.metric)} | {check.status} | {escaped(check.text, 500)}"
        f"{f' _waived {escaped(check.waiver)}_' if check.waiver else ''} |"
        for check in report.checks
    ]
    return ["", "| Check | Result | Why |", "| --- | --- | --- |", *rows]


def _changes(report: GateReport) -> list[str]:
    if not report.changes:
        return []
    rows = [
        f"| {change.metric} | {show_metric(change.metric, change.before)} "
        f"| {show_metric(change.metric, change.now)} | {show_change(change)} | {change.outcome} "
        f"| {show_noise(change.noise)} |"
        for change in report.changes
    ]
    head = "| Metric | Before | Now | Change (interval) | Verdict | Run-to-run noise |"
    return ["", head, "| --- | --- | --- | --- | --- | --- |", *rows]


def _bullets(title: str, texts: Iterable[str]) -> list[str]:
    lines = [f"- {escaped(text, 1000)}" for text in texts]
    return ["", *([f"### {title}", ""] if title else []), *lines] if lines else []

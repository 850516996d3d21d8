"""The gate's answer: the verdict, what it rests on, and what explains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepgrade.model.comparison import METRICS, GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import (
    Badge,
    Bullet,
    Bullets,
    Column,
    Fact,
    Facts,
    Heading,
    Look,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
)
from stepgrade.report.content.comparison import (
    NAME_CELLS,
    change_table,
    difference_blocks,
    noise_lines,
    shift_table,
    show_change,
    show_interval,
    show_metric,
    step_change_blocks,
    title_of,
)
from stepgrade.report.figures import Diverging, FallRow, Page, Shown, Tiles, note, sections_of
from stepgrade.report.names import joined, shortened
from stepgrade.units import show_delta, show_ms, show_share

PARTS_SHOWN = 8
PARTS_KEPT = 12
PARTS_LISTED = 40  # on a page
_BARS = {"regressed": "slower", "probably slower": "slower", "improved": "faster"}
_BADGES = {
    "pass": "badge-good",
    "probably slower": "badge-fair",
    "regressed": "badge-bad",
    "could not be measured": "badge-fair",
}
_SIGNS = {"pass": "✅", "probably slower": "⚠️", "regressed": "❌", "could not be measured": "⚠️"}
_STYLES = {
    "pass": "good",
    "improved": "good",
    "regressed": "bad",
    "probably slower": "fair",
    "cannot tell": "fair",
    "waived": "fair",
}


def blocks(report: GateReport, flags: Mapping[str, str]) -> Iterator[Shown]:
    """Yield the whole answer."""
    yield Title(f"{_SIGNS[report.verdict]} stepgrade: {report.verdict}", "stepgrade gate · ", report.source)
    if report.baseline:
        yield Title("", "against ", report.baseline)
    yield Space()
    reached = f" ({show_share(report.efficiency)})" if report.efficiency is not None else ""
    bound = f", {report.grade_at_most} at best" if report.grade_at_most else ""
    against = f" against {report.baseline}" if report.baseline else ""
    yield Paragraph(f"Grade {report.grade}{reached}{bound}", style="title", only="full")
    yield Paragraph(f"{report.source}{against}", only="full")
    if report.differences:
        yield from difference_blocks(report.differences, flags, compared=report.is_comparable)
        yield Space()
    yield Badge(report.verdict, _BADGES[report.verdict], only="brief")
    source, baseline = (shortened(name or "", NAME_CELLS) for name in (report.source, report.baseline))
    rests_on = f"Against {baseline}." if baseline else "Compared with budgets alone."
    answer = report.verdict.capitalize()
    yield Badge(answer, _BADGES[report.verdict], lines=(rests_on,), title=("", source), only="page")
    yield Bullets(tuple(map(Bullet, texts_of(report.further_reasons, flags))), look="reasons")
    yield Tiles(tuple(tiles(report)))
    yield from _checks(report, flags)
    if report.changes:
        yield Heading("Before and now", nav="Metrics", only="page")
        text = "The bar is the 99 % interval of the change; the line in the middle is no change. "
        yield Paragraph(f"{text}Worse is to the right.", only="page")
        rows = []
        for change in report.changes:
            sign = -1.0 if change.metric in METRICS and METRICS[change.metric].worse == "down" else 1.0
            low, high = sorted((sign * change.low, sign * change.high))
            name, moved = title_of(change.metric), show_delta(change.change)
            tip = f"{name}: {moved}, surely {show_interval(change)}, {change.outcome}"
            look, dot = _BARS.get(change.outcome, "whole"), sign * change.change
            rows.append(FallRow(name=name, low=low, high=high, dot=dot, figures=moved, tip=tip, look=look))
        yield Diverging(tuple(rows), least_reach=0.01)
    yield from change_table(report.changes)
    yield from noise_lines(report.changes)
    yield Heading("What changed", nav="What changed", only="page")
    if report.changes:
        yield from step_change_blocks(report.step_change)
    yield from shift_table(report.shifts)
    if report.changes and not report.shifts:
        yield Paragraph("Nothing changed beyond the noise, so there is nothing to explain.", only="page")
    yield from _parts(report)
    if report.notes:
        yield Heading("Notes", nav="Notes")
        yield bullets(texts_of(report.notes, flags))


def page(report: GateReport, flags: Mapping[str, str]) -> Page:
    """Return the answer as a page."""
    source, baseline = (shortened(name or "", NAME_CELLS) for name in (report.source, report.baseline))
    about = f"{source} against {baseline}" if baseline else source
    return Page(f"{report.verdict.capitalize()}: {source}", about, sections_of(blocks(report, flags)))


def tiles(report: GateReport) -> Iterator[tuple[str, str, str]]:
    """Yield each metric as it is now and was before, and the grade."""
    for change in report.changes:
        before = f"was {show_metric(change.metric, change.before)}"
        about = joined(before, show_change(change), change.outcome)
        yield title_of(change.metric).capitalize(), show_metric(change.metric, change.now), about
    reached = "" if report.efficiency is None else f"{show_share(report.efficiency)} of the ceiling"
    yield "Grade", report.grade, f"{report.grade_at_most} at best" if report.grade_at_most else reached


def side_by_side(report: GateReport) -> dict[str, tuple[Shown, ...]]:
    """Return the server's view of two runs: how they differ, and the changes of each metric."""
    differences = difference_blocks(report.differences, {}, compared=True)
    changed = (*change_table(report.changes), *step_change_blocks(report.step_change))
    return {
        "before": (*differences, Tiles(tuple(tiles(report)))),
        "metrics": changed if report.changes else (),
    }


def _checks(report: GateReport, flags: Mapping[str, str]) -> Iterator[Shown]:
    if not report.checks:
        return
    yield Heading("Checks", nav="Checks")
    rows = []
    for check in report.checks:
        why = check.note.said(flags)
        waived = f" [waived {check.waiver}]" if check.waiver else ""
        rows.append((check.metric, check.status, f"{why}{waived}", why, check.waiver or "none"))
    stacked = tuple(Fact(status, text, _STYLES[status]) for _, status, text, *_ in rows)
    yield Facts(stacked, width=0, only="brief")
    columns = (
        Column("Check", look="name"),
        Column("Result", look="severity"),
        Column("Why", only="full"),
        Column("Why", look="prose", only="page"),
        Column("Waiver", look="prose", only="page"),
    )
    yield Table(columns, tuple(rows), only="document", label="Checks")


def _parts(report: GateReport) -> Iterator[Shown]:
    if not report.parts:
        return
    yield Heading(label := "Parts that changed beyond their own noise")
    # A name such as "layer 3" says its kind already.
    named = (
        part.name if part.name.startswith(f"{part.kind} ") else f"{part.kind} {part.name}"
        for part in report.parts[:PARTS_KEPT]
    )
    points = [
        Bullet(f"{name}: {show_change(part.change)}", only="full" if index >= PARTS_SHOWN else None)
        for index, (name, part) in enumerate(zip(named, report.parts, strict=False))
    ]
    if len(report.parts) > PARTS_KEPT:
        points.append(Bullet(f"{len(report.parts) - PARTS_KEPT} more in the JSON", only="full"))
    yield Bullets(tuple(points), only="text")
    text = "Each is tested by its own noise, and the tests are corrected for their number: of those listed "
    yield Paragraph(f"{text}at most 1 % are there by chance.", only="page")
    heads: tuple[tuple[str, Look], ...]
    heads = (("Kind", ""), ("Part", "name"), ("Before", "number"), ("Now", "number"))
    columns = tuple(Column(head, look=look) for head, look in (*heads, ("Change, surely within", "number")))
    rows = []
    for part in report.parts[:PARTS_LISTED]:
        times = show_ms(part.change.before), show_ms(part.change.now)
        rows.append((part.kind, shortened(part.name, NAME_CELLS), *times, show_change(part.change)))
    yield Table(columns, tuple(rows), only="page", label=label)
    if len(report.parts) > PARTS_LISTED:
        yield note(f"{len(report.parts) - PARTS_LISTED} more are in the JSON.")

"""The gate's answer: the verdict, what it rests on, and what explains it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepgrade.model.comparison import GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import (
    Badge,
    Block,
    Bullet,
    Bullets,
    Column,
    Fact,
    Facts,
    Heading,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
)
from stepgrade.report.content.comparison import (
    change_table,
    difference_blocks,
    noise_lines,
    shift_table,
    show_change,
)
from stepgrade.units import show_share

PARTS_SHOWN = 8
PARTS_KEPT = 12
_BADGES = {"pass": "badge-good", "regressed": "badge-bad", "could not be measured": "badge-fair"}
_SIGNS = {"pass": "✅", "regressed": "❌", "could not be measured": "⚠️"}
_STYLES = {"pass": "good", "improved": "good", "regressed": "bad", "cannot tell": "fair", "waived": "fair"}


def blocks(report: GateReport, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the whole answer."""
    yield Title(f"{_SIGNS[report.verdict]} stepgrade: {report.verdict}", "stepgrade gate · ", report.source)
    if report.baseline:
        yield Title("", "against ", report.baseline)
    yield Space()
    reached = f" ({show_share(report.efficiency)})" if report.efficiency is not None else ""
    bound = f", {report.grade_at_most} or lower" if report.grade_at_most else ""
    against = f" against {report.baseline}" if report.baseline else ""
    yield Paragraph(f"Grade {report.grade}{reached}{bound}", style="title", only="full")
    yield Paragraph(f"{report.source}{against}", only="full")
    if report.differences:
        yield from difference_blocks(report.differences, flags, compared=report.is_comparable)
        yield Space()
    yield Badge(report.verdict, _BADGES[report.verdict], only="brief")
    yield bullets(texts_of(report.further_reasons, flags))
    if report.checks:
        yield Heading("Checks")
        rows = tuple(
            (
                check.metric,
                check.status,
                f"{check.note.said(flags)}{f' [waived {check.waiver}]' if check.waiver else ''}",
            )
            for check in report.checks
        )
        stacked = tuple(Fact(status, text, _STYLES[status]) for _, status, text in rows)
        yield Facts(stacked, width=0, only="brief")
        yield Table((Column("Check"), Column("Result"), Column("Why")), rows, only="full")
    yield from change_table(report.changes)
    yield from noise_lines(report.changes)
    yield from shift_table(report.shifts)
    if report.parts:
        yield Heading("Parts that changed beyond their own noise")
        # A name such as "layer 3" says its kind already.
        named = (
            part.name if part.name.startswith(f"{part.kind} ") else f"{part.kind} {part.name}"
            for part in report.parts[:PARTS_KEPT]
        )
        points = [
            Bullet(f"{name}: {show_change(part.change)}", only="full" if place >= PARTS_SHOWN else None)
            for place, (name, part) in enumerate(zip(named, report.parts, strict=False))
        ]
        if len(report.parts) > PARTS_KEPT:
            points.append(Bullet(f"{len(report.parts) - PARTS_KEPT} more in the JSON", only="full"))
        yield Bullets(tuple(points))
    if report.notes:
        yield Heading("Notes")
        yield bullets(texts_of(report.notes, flags))

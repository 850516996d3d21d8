"""Two runtimes as a page: who is ahead, by how much, and in which operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stepgrade.compare.parity import OneSided, ParityReport
from stepgrade.contract import ParityGap
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import Badge, Bar, Bars, Bullet, Bullets, Heading, Paragraph, bullets
from stepgrade.report.content.parity import ANSWERS, BADGES, meaning, ratio_cells
from stepgrade.report.figures import (
    Diverging,
    FallRow,
    Gaps,
    Halves,
    Page,
    Section,
    Shown,
    Tiles,
    empty,
    note,
)
from stepgrade.report.names import shortened, told_apart
from stepgrade.units import show_ms, show_ratio, show_share

BARS_SHOWN = 20
ROWS_SHOWN = 25
ONE_SIDED_SHOWN = 12


def page(report: ParityReport, flags: Mapping[str, str]) -> Page:
    """Return the sections."""
    ours, theirs = names_of(report)
    title = f"{ours} against {theirs}"
    alone = (_alone(ours, report.only_ours), _alone(theirs, report.only_theirs))
    return Page(
        title,
        title,
        (
            Section("verdict", "Verdict", "", tuple(_verdict(report, flags))),
            Section("gaps", "Gaps", "Time lost and won, per step", tuple(_gaps(report, ours))),
            Section("table", "Operations", "Operations that both have", (_table(report, ours, theirs),)),
            Section("only", "Only one has", "What only one of them has", (Halves(alone),)),
        ),
    )


def names_of(report: ParityReport) -> list[str]:
    """Return what the two runtimes are called, shortened so that they can be told apart."""
    return told_apart((report.apr_runtime, report.baseline_runtime), 60)


def answer_badge(report: ParityReport) -> Badge:
    """Return the answer, and what it rests on in a sentence."""
    ours, theirs = names_of(report)
    says = meaning(report, ours, theirs)
    # A sentence that begins with the name of a run keeps it as it is.
    says = f"{says if says.startswith(ours) else says[0].upper() + says[1:]}."
    title = ("", ours, " against ", theirs)
    return Badge(ANSWERS[report.standing], BADGES[report.standing], lines=(says,), title=title)


def _verdict(report: ParityReport, flags: Mapping[str, str]) -> Iterator[Shown]:
    ours, theirs = names_of(report)
    yield answer_badge(report)
    yield Tiles(tuple(ratio_cells(report, ours, theirs)))
    yield Heading("How much of the time was matched", level=2)
    text = f"Operations that both have, by {report.matched_by}; a comparison speaks for a run when it covers "
    yield Paragraph(f"{text}half of both.")
    shares = report.ours_matched_share, report.theirs_matched_share
    if report.matched_by != "name":
        shares = report.canonical_ours_share, report.canonical_theirs_share
    matched = zip((ours, theirs), shares, strict=True)
    rows = (Bar(name, share, "", (show_share(share),)) for name, share in matched if share is not None)
    yield Bars((), tuple(rows), whole=1.0)
    yield bullets(texts_of(report.notes, flags))


def largest_gaps(report: ParityReport) -> tuple[FallRow, ...]:
    """Return the largest differences, what ours loses most in first."""
    shown = sorted(report.compared, key=lambda gap: (-abs(_lost_ms(gap)), gap.op))[:BARS_SHOWN]
    rows = []
    for gap in sorted(shown, key=lambda gap: (-_lost_ms(gap), gap.op)):
        lost, name = _lost_ms(gap), shortened(gap.op, 60)
        figures = ("+" if lost > 0 else "\N{MINUS SIGN}") + show_ms(abs(lost))
        both = f"{show_ms(gap.apr_ms)} against {show_ms(gap.baseline_ms)}, {show_ratio(gap.ratio)}"
        rows.append(
            FallRow(
                name=name,
                low=min(0.0, lost),
                high=max(0.0, lost),
                figures=figures,
                tip=f"{name}: {figures} ({both})",
                look="slower" if lost > 0 else "faster",
            )
        )
    return tuple(rows)


def _gaps(report: ParityReport, ours: str) -> Iterator[Shown]:
    rows = largest_gaps(report)
    if not rows:
        yield empty("The two have no operation in common. Names must be the same on both sides.")
        return
    left = len(report.compared) - BARS_SHOWN
    more = f" The {len(rows)} largest differences; {left} more are in the table." if left > 0 else ""
    yield Paragraph("To the right, ", name=ours, after=f" is slower; to the left, it is faster.{more}")
    yield Diverging(rows)


def _table(report: ParityReport, ours: str, theirs: str) -> Shown:
    gaps = sorted(report.compared, key=lambda gap: -gap.ratio)
    if not gaps:
        return empty("The two have no operation in common.")
    is_listed = report.matched_by == "name"  # in the JSON, from which a script fills the table
    rows = (
        (
            shortened(gap.op, 200),
            *(show_ms(ms) for ms in (gap.apr_ms, gap.baseline_ms, _lost_ms(gap))),
            show_ratio(gap.ratio),
        )
        for gap in gaps[: ROWS_SHOWN if is_listed else None]
    )
    return Gaps(ours, theirs, tuple(rows), len(gaps), is_listed)


def _alone(runtime: str, ops: Sequence[OneSided]) -> tuple[Shown, ...]:
    heading, left = Heading("", runtime), len(ops) - ONE_SIDED_SHOWN
    if not ops:
        return heading, Paragraph("Nothing.")
    rows = (Bullet(shortened(op.op, 120), figure=show_ms(op.ms)) for op in ops[:ONE_SIDED_SHOWN])
    listed = Bullets(tuple(rows), look="alone")
    return (heading, listed, note(f"{left} more are in the JSON.")) if left > 0 else (heading, listed)


def _lost_ms(gap: ParityGap) -> float:
    return gap.apr_ms - gap.baseline_ms

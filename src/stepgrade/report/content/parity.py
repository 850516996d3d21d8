"""Two runtimes: who is ahead, by how much, and where; and several, each over each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from stepgrade.compare.parity import LEAST_SHARE, OneSided, ParityMatrix, ParityReport
from stepgrade.contract import ParityGap
from stepgrade.contract.parity import PARITY_RATIO
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import (
    Badge,
    Bar,
    Bars,
    Block,
    Bullet,
    Bullets,
    Column,
    Fact,
    Facts,
    Heading,
    Only,
    Paragraph,
    Space,
    Table,
    Title,
    bar_table,
    bullets,
    shorten,
)
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
from stepgrade.report.names import distinguishable, shortened
from stepgrade.units import show_ms, show_ratio, show_share

GAPS_SHOWN = 15
SHAPES_SHOWN = 5
SHAPES_KEPT = 100
PARTS_SHOWN = 8
ONE_SIDED_SHOWN = 5
BARS_SHOWN = 20
ROWS_SHOWN = 25
ONE_SIDED_ON_PAGE = 12
_NAME_CELLS = 24
# A gap below this share of the step needs no explanation.
_LEAST_GAP = 0.005
ANSWERS = {"ahead": "Ahead", "parity": "Parity", "behind": "No parity", "unknown": "Cannot tell"}
BADGES = {"ahead": "badge-good", "parity": "badge-good", "behind": "badge-bad", "unknown": "badge-none"}


def blocks(report: ParityReport, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the whole comparison."""
    ours, theirs = distinguishable((report.apr_runtime, report.baseline_runtime), _NAME_CELLS)
    full = f"Parity: {report.apr_runtime} vs {report.baseline_runtime}"
    yield Title(full, f"stepgrade · {ours} against {theirs}")
    yield Space()
    yield Badge(ANSWERS[report.standing].upper(), BADGES[report.standing], meaning(report, ours, theirs))
    yield Space()
    ratios = [Fact(name, f"{ratio} {of}") for name, ratio, of in ratio_cells(report, ours, theirs)]
    shares = show_share(report.ours_matched_share), show_share(report.theirs_matched_share)
    wide = show_share(report.canonical_ours_share), show_share(report.canonical_theirs_share)
    yield Facts(
        (
            *ratios,
            Fact("Matched", f"{shares[0]} of {ours}, {shares[1]} of {theirs} by name"),
            Fact("", f"{wide[0]} and {wide[1]} by {report.canonical_level}"),
        )
    )
    yield from _why(report, ours)
    # The operations that the answer rests on; in full also those matched by name, if they are others.
    columns, by_name = ("Operation", ours, theirs, "Ratio"), report.matched_by == "name"
    yield from _gap_rows(report.compared, "" if by_name else f" by {report.matched_by}", columns)
    if not by_name:
        yield from _gap_rows(report.gaps, " by name", columns, shown=0)
    # Where an operation has several shapes, one that is slower hides among those that are not.
    several = Counter(gap.op for gap in report.shapes)
    shapes = [
        ParityGap(op=f"{gap.op} {gap.shape}", apr_ms=gap.ours_ms, baseline_ms=gap.theirs_ms, ratio=gap.ratio)
        for gap in report.shapes
        if several[gap.op] > 1
    ]
    slower = sum(gap.ratio > PARITY_RATIO for gap in shapes)
    yield from _gap_rows(shapes[:SHAPES_KEPT], " by shape", columns, shown=min(slower, SHAPES_SHOWN))
    for runtime, ops in ((ours, report.only_ours), (theirs, report.only_theirs)):
        if ops:
            yield Heading(f"Only in {runtime}")
            rows = (Bar(op.op, op.ms, show_ms(op.ms), (show_ms(op.ms),)) for op in ops)
            yield Bars(("Operation", "Per step"), shorten(rows, ONE_SIDED_SHOWN))
            if len(ops) > ONE_SIDED_SHOWN:
                yield Paragraph(f"{len(ops) - ONE_SIDED_SHOWN} more", style="dim", only="brief")
    if report.notes:
        yield Heading("Notes", only="full")
        yield bullets(texts_of(report.notes, flags), style="dim", is_spaced=True)


def _why(report: ParityReport, ours: str) -> Iterator[Block]:
    """Yield what makes the gap, the largest part first."""
    gap = report.gap
    if gap is None:
        return
    word, sign = ("slower", 1.0) if gap.gap_ms > 0.0 else ("faster", -1.0)
    parts = [
        Bar(
            part.name,
            max(0.0, part.ms * sign),
            f"{part.ms:+9.2f} ms {show_share(part.share):>7}",
            (f"{part.ms:+.2f} ms", show_share(part.share)),
            narrow=f"{part.ms:+9.2f} ms",
        )
        for part in gap.parts
    ]
    whole = show_share(1.0 if gap.gap_ms else None)
    parts.append(Bar("all", 0.0, "", (f"{gap.gap_ms:+.2f} ms", whole), only="full"))
    is_small = abs(gap.gap_ms) < _LEAST_GAP * gap.theirs_ms
    only: Only = "full" if is_small else None
    title = f"Why {ours} is {show_ms(abs(gap.gap_ms))} a step {word}"
    yield Heading("The gap in parts" if is_small else title, only=only)
    header = ("What makes the gap", "Per step", "Share")
    yield Bars(header, shorten(parts, PARTS_SHOWN), has_long_names=True, only=only)
    rest = gap.parts[PARTS_SHOWN:]
    if rest and not is_small:
        left = f"{sum(part.ms for part in rest):+.2f} ms in {len(rest)} more parts"
        yield Paragraph(left, style="dim", only="brief")


def meaning(report: ParityReport, ours: str, theirs: str) -> str:
    """Return the basis of the answer: the total time, and the operations that both have."""
    if report.standing == "unknown":
        return "too little of the time is in operations that both have"
    # Small operations have ratios too, in the tables, and decide nothing.
    counted = f"{len(report.behind) or 'none'} of {show_share(LEAST_SHARE)} of the time or more"
    slower = "are more than 10 % slower" if len(report.behind) > 1 else "is more than 10 % slower"
    parts = f"of {len(report.compared)} operations that both have, {counted} {slower} in {ours}"
    if report.time_ratio is None:
        return parts
    return f"{ours} takes {show_ratio(report.time_ratio)} the time of {theirs}; {parts}"


def ratio_cells(report: ParityReport, ours: str, theirs: str) -> list[tuple[str, str, str]]:
    """Return name, value and definition of each known ratio."""
    rows = (
        ("Throughput", report.throughput_ratio, f"{theirs} over {ours}"),
        ("Step time", report.step_time_ratio, f"{ours} over {theirs}"),
        ("Launches", report.launch_ratio, f"{ours} over {theirs}"),
    )
    return [(name, show_ratio(ratio), of) for name, ratio, of in rows if ratio is not None]


def _gap_rows(
    gaps: Sequence[ParityGap], like: str, header: tuple[str, str, str, str], shown: int = GAPS_SHOWN
) -> Iterator[Block]:
    """Yield operations of both with their times, most time lost first."""
    if not gaps:
        return
    ours, theirs = header[1:3]
    heading = Heading(
        f"Time per step{like}, {ours} / {theirs}, most time lost first",
        narrow=f"Time per step{like}, {ours}, and its ratio to {theirs}, most time lost first",
    )
    rows = []
    for gap in sorted(gaps, key=lambda gap: -_lost_ms(gap)):
        cells = show_ms(gap.apr_ms), show_ms(gap.baseline_ms), show_ratio(gap.ratio)
        lost = max(0.0, _lost_ms(gap))
        figures, narrow = f"{cells[0]:>9} / {cells[1]:>9} {cells[2]:>6}", f"{cells[0]:>9} {cells[2]:>6}"
        rows.append(Bar(gap.op, lost, figures, cells, narrow))
    yield from bar_table(heading, Bars(header, tuple(rows)), shown, kept=len(rows))


def matrix_blocks(matrix: ParityMatrix, _flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the time ratio of each pair, then how much of the first is matched in each of the others."""
    count = len(matrix.runtimes)
    meaning = "row over column: above 1 the row is slower"
    yield Title(f"Parity: {meaning}", f"stepgrade · {count} runtimes, {meaning}")
    yield Space()
    ratios = (Column(f"({number})", width=9, right=True) for number in range(1, count + 1))
    rows = []
    for row, name in enumerate(matrix.runtimes):
        cells = [show_ratio(ratio) for ratio in matrix.time_ratios[row]]
        cells[row] = "·"
        rows.append((f"({row + 1}) {name}", *cells))
    yield Table((Column("", fills=True), *ratios), tuple(rows), head_style=None)
    yield Heading(f"Matched with {shortened(matrix.runtimes[0], 40)}")
    shares = zip(matrix.runtimes[1:], matrix.matched_shares[0][1:], strict=True)
    yield Bars(
        ("Runtime", "Matched time"),
        tuple(Bar(name, share, show_share(share), (show_share(share),)) for name, share in shares),
    )


def page(report: ParityReport, flags: Mapping[str, str]) -> Page:
    """Return the sections."""
    ours, theirs = names_of(report)
    text = f"Operations that both have, by {report.matched_by}; a comparison represents a run if it covers "
    shares = report.ours_matched_share, report.theirs_matched_share
    if report.matched_by != "name":
        shares = report.canonical_ours_share, report.canonical_theirs_share
    matched = zip((ours, theirs), shares, strict=True)
    bars = (Bar(name, share, "", (show_share(share),)) for name, share in matched if share is not None)
    verdict = (
        answer_badge(report),
        Tiles(tuple(ratio_cells(report, ours, theirs))),
        Heading("How much of the time was matched", level=2),
        Paragraph(f"{text}half of both."),
        Bars((), tuple(bars), whole=1.0),
        bullets(texts_of(report.notes, flags)),
    )
    drawn, count = largest_gaps(report), len(report.compared)
    left = count - BARS_SHOWN
    more = f" The {len(drawn)} largest differences; {left} more are in the table." if left > 0 else ""
    after = f" is slower; to the left, it is faster.{more}"
    why = tuple(
        replace(block, only=None) for block in _why(report, ours) if isinstance(block, Heading | Bars)
    )
    gaps: tuple[Shown, ...] = (Paragraph("To the right, ", name=ours, after=after), Diverging(drawn), *why)
    is_listed = report.matched_by == "name"  # in the JSON, from which a script fills the table
    rows = []
    for gap in sorted(report.compared, key=lambda gap: -gap.ratio)[: ROWS_SHOWN if is_listed else None]:
        times = (show_ms(ms) for ms in (gap.apr_ms, gap.baseline_ms, _lost_ms(gap)))
        rows.append((shortened(gap.op, 200), *times, show_ratio(gap.ratio)))
    table: Shown = Gaps(ours, theirs, tuple(rows), count, is_listed)
    if not count:
        nothing = "The two have no operation in common."
        gaps, table = (empty(f"{nothing} Names must be the same on both sides."),), empty(nothing)
    alone = Halves((_alone(ours, report.only_ours), _alone(theirs, report.only_theirs)))
    title = f"{ours} against {theirs}"
    return Page(
        title,
        title,
        (
            Section("verdict", "Verdict", "", verdict),
            Section("gaps", "Gaps", "Time lost and gained, per step", gaps),
            Section("table", "Operations", "Operations that both have", (table,)),
            Section("only", "Only one has", "Operations that only one has", (alone,)),
        ),
    )


def names_of(report: ParityReport) -> list[str]:
    """Return the names of the two runtimes, shortened but still different."""
    return distinguishable((report.apr_runtime, report.baseline_runtime), 60)


def answer_badge(report: ParityReport) -> Badge:
    """Return the answer and its basis in a sentence."""
    ours, theirs = names_of(report)
    says = meaning(report, ours, theirs)
    # A sentence that begins with the name of a run keeps it as it is.
    says = f"{says if says.startswith(ours) else says[0].upper() + says[1:]}."
    title = ("", ours, " against ", theirs)
    return Badge(ANSWERS[report.standing], BADGES[report.standing], lines=(says,), title=title)


def largest_gaps(report: ParityReport) -> tuple[FallRow, ...]:
    """Return the largest differences, our largest loss first."""
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


def _alone(runtime: str, ops: Sequence[OneSided]) -> tuple[Shown, ...]:
    heading, left = Heading("", runtime), len(ops) - ONE_SIDED_ON_PAGE
    if not ops:
        return heading, Paragraph("Nothing.")
    rows = (Bullet(shortened(op.op, 120), figure=show_ms(op.ms)) for op in ops[:ONE_SIDED_ON_PAGE])
    listed = Bullets(tuple(rows), look="alone")
    return (heading, listed, note(f"{left} more are in the JSON.")) if left > 0 else (heading, listed)


def _lost_ms(gap: ParityGap) -> float:
    return gap.apr_ms - gap.baseline_ms

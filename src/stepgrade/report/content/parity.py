"""Two runtimes: who is ahead, by how much, and where; and several, each over each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from stepgrade.compare.decompose import Decomposition
from stepgrade.compare.matrix import ParityMatrix
from stepgrade.compare.parity import LEAST_SHARE, ParityReport
from stepgrade.contract import ParityGap
from stepgrade.contract.parity import PARITY_RATIO
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import (
    Badge,
    Bar,
    Bars,
    Block,
    Column,
    Fact,
    Facts,
    Heading,
    Only,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
    more,
    shorten,
)
from stepgrade.report.names import shortened, told_apart
from stepgrade.units import show_ms, show_ratio, show_share

GAPS_SHOWN = 15
SHAPES_SHOWN = 5
SHAPES_KEPT = 100
PARTS_SHOWN = 8
ONE_SIDED_SHOWN = 5
_NAME_CELLS = 24
# A gap below this share of the step needs no explanation.
_LEAST_GAP = 0.005
ANSWERS = {"ahead": "Ahead", "parity": "Parity", "behind": "No parity", "unknown": "Cannot tell"}
BADGES = {"ahead": "badge-good", "parity": "badge-good", "behind": "badge-bad", "unknown": "badge-none"}


def blocks(report: ParityReport, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the whole comparison."""
    ours, theirs = told_apart((report.apr_runtime, report.baseline_runtime), _NAME_CELLS)
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
    if report.gap is not None:
        yield from _parts(report.gap, ours)
    yield from _operations(report, ours, theirs)
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


def meaning(report: ParityReport, ours: str, theirs: str) -> str:
    """Return what the answer rests on: the time as a whole, and the operations that both have."""
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
    """Return name, ratio and what is over what of each ratio that is known."""
    rows = (
        ("Throughput", report.throughput_ratio, f"{theirs} over {ours}"),
        ("Step time", report.step_time_ratio, f"{ours} over {theirs}"),
        ("Launches", report.launch_ratio, f"{ours} over {theirs}"),
    )
    return [(name, show_ratio(ratio), of) for name, ratio, of in rows if ratio is not None]


def _parts(gap: Decomposition, ours: str) -> Iterator[Block]:
    """Yield what the gap of the steps is made of."""
    is_small = abs(gap.gap_ms) < _LEAST_GAP * gap.theirs_ms
    word, sign = ("slower", 1.0) if gap.gap_ms > 0.0 else ("faster", -1.0)
    title = f"Why {ours} is {show_ms(abs(gap.gap_ms))} a step {word}"
    yield Heading("The gap in parts" if is_small else title, only="full" if is_small else None)
    rows = [
        Bar(
            part.name,
            max(0.0, part.ms * sign),
            f"{part.ms:+9.2f} ms {show_share(part.share, 0):>6}",
            (f"{part.ms:+.3f} ms", show_share(part.share)),
            narrow=f"{part.ms:+9.2f} ms",
        )
        for part in gap.parts
    ]
    whole = show_share(1.0 if gap.gap_ms else None)
    rows.append(Bar("all", 0.0, "", (f"{gap.gap_ms:+.3f} ms", whole), only="full"))
    yield Bars(
        ("What makes the gap", "Per step", "Share"),
        shorten(rows, PARTS_SHOWN),
        has_long_names=True,
        only="full" if is_small else None,
    )
    rest = gap.parts[PARTS_SHOWN:]
    if rest and not is_small:
        left = f"{sum(part.ms for part in rest):+.2f} ms in {len(rest)} more parts"
        yield Paragraph(left, style="dim", only="brief")


def _operations(report: ParityReport, ours: str, theirs: str) -> Iterator[Block]:
    """Yield the operations that the answer rests on; in full also those matched by name, if others."""
    header, by_name = ("Operation", ours, theirs, "Ratio"), report.matched_by == "name"
    like = "" if by_name else f" by {report.matched_by}"
    yield from _gap_rows(report.compared, like, header)
    if not by_name:
        yield from _gap_rows(report.gaps, " by name", header, only="full")
    # Where an operation has several shapes, one that is slower hides among those that are not.
    several = Counter(gap.op for gap in report.shapes)
    shapes = [
        ParityGap(op=f"{gap.op} {gap.shape}", apr_ms=gap.ours_ms, baseline_ms=gap.theirs_ms, ratio=gap.ratio)
        for gap in report.shapes
        if several[gap.op] > 1
    ]
    slower = sum(gap.ratio > PARITY_RATIO for gap in shapes)
    yield from _gap_rows(shapes[:SHAPES_KEPT], " by shape", header, shown=min(slower, SHAPES_SHOWN))


def _gap_rows(
    gaps: Sequence[ParityGap],
    like: str,
    header: tuple[str, str, str, str],
    only: Only = None,
    shown: int | None = None,
) -> Iterator[Block]:
    """Yield operations of both with their times, most time lost first."""
    if not gaps:
        return
    only = "full" if shown == 0 else only
    shown = GAPS_SHOWN if shown is None else shown
    ours, theirs = header[1:3]
    yield Heading(
        f"Time per step{like}, {ours} / {theirs}, most time lost first",
        narrow=f"Time per step{like}, {ours}, and its ratio to {theirs}, most time lost first",
        only=only,
    )
    rows = []
    for gap in sorted(gaps, key=lambda gap: gap.baseline_ms - gap.apr_ms):
        cells = show_ms(gap.apr_ms), show_ms(gap.baseline_ms), show_ratio(gap.ratio)
        row = Bar(
            gap.op,
            max(0.0, gap.apr_ms - gap.baseline_ms),
            f"{cells[0]:>9} / {cells[1]:>9} {cells[2]:>6}",
            cells,
            narrow=f"{cells[0]:>9} {cells[2]:>6}",
        )
        rows.append(row)
    yield Bars(header, shorten(rows, shown), only=only)
    if only is None:
        yield from more(len(rows), shown, len(rows))


def matrix_blocks(matrix: ParityMatrix, _flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield who takes how much longer than whom, then what the first has in common with each other one."""
    count = len(matrix.runtimes)
    meaning = "row over column: above 1 the row is slower"
    yield Title(f"Parity: {meaning}", f"stepgrade · {count} runtimes, {meaning}")
    yield Space()
    ratios = (Column(f"({place})", width=9, right=True) for place in range(1, count + 1))
    rows = tuple(
        (
            f"({row + 1}) {name}",
            *(
                "·" if row == place else show_ratio(ratio)
                for place, ratio in enumerate(matrix.time_ratios[row])
            ),
        )
        for row, name in enumerate(matrix.runtimes)
    )
    yield Table((Column("", fills=True), *ratios), rows, head_style=None)
    yield Heading(f"Matched with {shortened(matrix.runtimes[0], 40)}")
    shares = zip(matrix.runtimes[1:], matrix.matched_shares[0][1:], strict=True)
    yield Bars(
        ("Runtime", "Matched time"),
        tuple(Bar(name, share, show_share(share), (show_share(share),)) for name, share in shares),
    )

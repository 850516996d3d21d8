"""Two runtimes in a terminal: who is ahead, by how much, and where."""

from __future__ import annotations

from itertools import islice

from stepgrade.compare.decompose import GapPart
from stepgrade.compare.parity import LEAST_SHARE, OneSided, ParityReport
from stepgrade.contract import ParityGap
from stepgrade.model.notes import texts_of
from stepgrade.report.names import shortened
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.units import show_ms, show_ratio, show_share

GAPS_SHOWN = 15
PARTS_SHOWN = 8
ONE_SIDED_SHOWN = 5
WIDTH_FOR_BOTH = 60
_ANSWERS = {
    True: ("PARITY", "badge-good"),
    False: ("NO PARITY", "badge-bad"),
    None: ("CANNOT TELL", "badge-none"),
}


def draw(report: ParityReport, canvas: Canvas) -> None:
    """Draw the whole comparison."""
    ours, theirs = shortened(report.apr_runtime, 24), shortened(report.baseline_runtime, 24)
    canvas.line(canvas.style(shortened(f"stepgrade · {ours} against {theirs}", canvas.width), "dim"))
    canvas.line()
    answer, badge = _ANSWERS[report.parity_achieved]
    first = f"  {canvas.style(f' {answer} ', badge)}  "
    canvas.paragraph(_meaning(report, ours), indent=" " * (len(answer) + 6), first=first)
    canvas.line()
    _ratios(report, canvas, ours, theirs)
    _parts(report, canvas, ours)
    if report.matched_by == "name":
        _gaps(report, canvas, ours, theirs)
    else:
        _canonical(report, canvas, ours, theirs)
    _alone(report.only_ours, canvas, ours)
    _alone(report.only_theirs, canvas, theirs)
    _notes(report, canvas)


def _notes(report: ParityReport, canvas: Canvas) -> None:
    for note in texts_of(report.notes):
        canvas.line()
        canvas.paragraph(note, indent="    ", first="  · ", style="dim")


def _parts(report: ParityReport, canvas: Canvas, ours: str) -> None:
    """Draw what the gap of the steps is made of."""
    gap = report.gap
    if gap is None or abs(gap.gap_ms) < 0.005 * gap.theirs_ms:
        return
    word = "slower" if gap.gap_ms > 0.0 else "faster"
    canvas.heading(f"Why {ours} is {show_ms(abs(gap.gap_ms))} a step {word}")
    sign = 1.0 if gap.gap_ms > 0.0 else -1.0
    parts = ((part.name, max(0.0, part.ms * sign), _signed(part, canvas.width)) for part in gap.parts)
    canvas.bars(
        islice(parts, PARTS_SHOWN), widest_name=canvas.width // (2 if canvas.width >= WIDTH_FOR_BOTH else 3)
    )
    rest = gap.parts[PARTS_SHOWN:]
    if rest:
        more = f"{sum(part.ms for part in rest):+.2f} ms in {len(rest)} more parts"
        canvas.line(f"  {canvas.style(more, 'dim')}")


def _signed(part: GapPart, width: int) -> str:
    share = f" {show_share(part.share, 0):>6}" if width >= WIDTH_FOR_BOTH else ""
    return f"{part.ms:+9.2f} ms{share}"


def _canonical(report: ParityReport, canvas: Canvas, ours: str, theirs: str) -> None:
    """Draw operations that are matched by what they are, not by name."""
    canvas.heading(f"Time per step by {report.canonical_level}, {ours} / {theirs}, most time lost first")
    canvas.bars(
        (gap.name, max(0.0, gap.gap_ms), _both(gap.ours.ms, gap.theirs.ms, gap.ratio, canvas.width))
        for gap in report.canonical[:GAPS_SHOWN]
    )


def _meaning(report: ParityReport, ours: str) -> str:
    if report.parity_achieved is None:
        return "too little of the time is in operations that both have"
    count = len(report.gaps if report.matched_by == "name" else report.canonical)
    behind = len(report.behind)
    verb = "are" if behind > 1 else "is"
    if not behind:
        least = f"none of {show_share(LEAST_SHARE)} of the time or more"
        return f"of {count} operations that both have, {least} is 10 % slower in {ours}"
    return f"{behind} of {count} operations that both have {verb} more than 10 % slower in {ours}"


def _ratios(report: ParityReport, canvas: Canvas, ours: str, theirs: str) -> None:
    rows = (
        ("Throughput", report.throughput_ratio, f"{theirs} over {ours}"),
        ("Step time", report.step_time_ratio, f"{ours} over {theirs}"),
        ("Launches", report.launch_ratio, f"{ours} over {theirs}"),
    )
    for name, ratio, meaning in rows:
        if ratio is not None:
            canvas.fact(name, f"{show_ratio(ratio)} {meaning}")
    shares = show_share(report.ours_matched_share), show_share(report.theirs_matched_share)
    canvas.fact("Matched", f"{shares[0]} of {ours}, {shares[1]} of {theirs} by name")
    wide = show_share(report.canonical_ours_share), show_share(report.canonical_theirs_share)
    canvas.fact("", f"{wide[0]} and {wide[1]} by {report.canonical_level}")


def _gaps(report: ParityReport, canvas: Canvas, ours: str, theirs: str) -> None:
    if not report.gaps:
        return
    both = f"{ours} / {theirs}" if canvas.width >= WIDTH_FOR_BOTH else f"{ours}, and its ratio to {theirs}"
    canvas.heading(f"Time per step, {both}, most time lost first")
    widest = sorted(report.gaps, key=lambda gap: gap.baseline_ms - gap.apr_ms)
    canvas.bars(
        (gap.op, max(0.0, gap.apr_ms - gap.baseline_ms), _figures(gap, canvas.width))
        for gap in widest[:GAPS_SHOWN]
    )
    if len(report.gaps) > GAPS_SHOWN:
        canvas.line(f"  {canvas.style(f'{len(report.gaps) - GAPS_SHOWN} more with --format json', 'dim')}")


def _figures(gap: ParityGap, width: int) -> str:
    return _both(gap.apr_ms, gap.baseline_ms, gap.ratio, width)


def _both(ours_ms: float, theirs_ms: float, ratio: float, width: int) -> str:
    if width < WIDTH_FOR_BOTH:
        return f"{show_ms(ours_ms):>9} {show_ratio(ratio):>6}"
    return f"{show_ms(ours_ms):>9} / {show_ms(theirs_ms):>9} {show_ratio(ratio):>6}"


def _alone(ops: tuple[OneSided, ...], canvas: Canvas, runtime: str) -> None:
    if not ops:
        return
    canvas.heading(f"Only in {runtime}")
    canvas.bars((one.op, one.ms, show_ms(one.ms)) for one in ops[:ONE_SIDED_SHOWN])
    if len(ops) > ONE_SIDED_SHOWN:
        canvas.line(f"  {canvas.style(f'{len(ops) - ONE_SIDED_SHOWN} more', 'dim')}")

"""Two runtimes in a terminal: who is ahead, by how much, and where."""

from __future__ import annotations

from stepgrade.compare.parity import OneSided, ParityReport
from stepgrade.contract import ParityGap
from stepgrade.contract.parity import PARITY_RATIO
from stepgrade.report.names import printable, shortened
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.units import show_ms, show_ratio, show_share

GAPS_SHOWN = 15
ONE_SIDED_SHOWN = 5
_ANSWERS = {
    True: ("PARITY", "badge-good", "no operation that both have is more than 10 % slower"),
    False: ("NO PARITY", "badge-bad", "operations that both have are more than 10 % slower"),
    None: ("CANNOT TELL", "badge-none", "too little of the time is in operations that both have"),
}


def draw(report: ParityReport, canvas: Canvas) -> None:
    """Draw the whole comparison."""
    ours, theirs = shortened(report.apr_runtime, 24), shortened(report.baseline_runtime, 24)
    canvas.line(canvas.style(shortened(f"stepgrade · {ours} against {theirs}", canvas.width), "dim"))
    canvas.line()
    answer, badge, meaning = _ANSWERS[report.parity_achieved]
    canvas.paragraph(meaning, indent="     ", first=f"  {canvas.style(f' {answer} ', badge)}  ")
    canvas.line()
    _ratios(report, canvas, ours, theirs)
    _gaps(report, canvas, ours, theirs)
    _alone(report.only_ours, canvas, ours)
    _alone(report.only_theirs, canvas, theirs)
    for note in report.notes:
        canvas.line()
        canvas.paragraph(printable(note), indent="    ", first="  · ", style="dim")


def _ratios(report: ParityReport, canvas: Canvas, ours: str, theirs: str) -> None:
    rows = (
        ("Throughput", report.throughput_ratio, f"{theirs} over {ours}"),
        ("Step time", report.step_time_ratio, f"{ours} over {theirs}"),
        ("Launches", report.launch_ratio, f"{ours} over {theirs}"),
    )
    for name, ratio, meaning in rows:
        if ratio is not None:
            canvas.line(f"  {canvas.style(name.ljust(12), 'title')}{show_ratio(ratio)}  {meaning}")
    shares = show_share(report.ours_matched_share), show_share(report.theirs_matched_share)
    matched = f"{shares[0]} of {ours}, {shares[1]} of {theirs}"
    canvas.line(f"  {canvas.style('Matched'.ljust(12), 'title')}{matched}")


def _gaps(report: ParityReport, canvas: Canvas, ours: str, theirs: str) -> None:
    if not report.gaps:
        return
    canvas.heading(f"Time per step, {ours} / {theirs}, most time lost first")
    widest = sorted(report.gaps, key=lambda gap: gap.baseline_ms - gap.apr_ms)
    canvas.bars(
        (gap.op, max(0.0, gap.apr_ms - gap.baseline_ms), _figures(gap)) for gap in widest[:GAPS_SHOWN]
    )
    behind = sum(gap.ratio > PARITY_RATIO for gap in report.gaps)
    canvas.line(f"  {canvas.style(f'{behind} of {len(report.gaps)} are behind by more than 10 %', 'dim')}")


def _figures(gap: ParityGap) -> str:
    return f"{show_ms(gap.apr_ms):>9} / {show_ms(gap.baseline_ms):>9} {show_ratio(gap.ratio):>6}"


def _alone(ops: tuple[OneSided, ...], canvas: Canvas, runtime: str) -> None:
    if not ops:
        return
    canvas.heading(f"Only in {runtime}")
    canvas.bars((one.op, one.ms, show_ms(one.ms)) for one in ops[:ONE_SIDED_SHOWN])
    if len(ops) > ONE_SIDED_SHOWN:
        canvas.line(f"  {canvas.style(f'{len(ops) - ONE_SIDED_SHOWN} more', 'dim')}")

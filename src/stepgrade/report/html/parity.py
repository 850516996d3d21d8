"""Two runtimes as a page: who is ahead, by how much, and in which operations."""

from __future__ import annotations

from typing import Any

from stepgrade.compare.parity import OneSided, ParityReport
from stepgrade.contract import ParityGap
from stepgrade.contract.parity import PARITY_RATIO
from stepgrade.report.names import printable, shortened
from stepgrade.units import show_ms, show_ratio, show_share

BARS_SHOWN = 20
ROWS_SHOWN = 25
ONE_SIDED_SHOWN = 12
_ANSWERS = {True: ("parity", "Parity"), False: ("behind", "No parity"), None: ("unknown", "Cannot tell")}


def view(report: ParityReport) -> dict[str, Any]:
    """Return what the template shows."""
    look, answer = _ANSWERS[report.parity_achieved]
    ours, theirs = shortened(report.apr_runtime, 60), shortened(report.baseline_runtime, 60)
    return {
        "title": f"{ours} against {theirs}",
        "ours": ours,
        "theirs": theirs,
        "look": look,
        "answer": answer,
        "meaning": _meaning(report, ours),
        "tiles": _tiles(report, ours, theirs),
        "matched": [
            (name, share * 100.0, show_share(share))
            for name, share in ((ours, report.ours_matched_share), (theirs, report.theirs_matched_share))
            if share is not None
        ],
        "bars": _bars(report.gaps),
        "bars_left": max(0, len(report.gaps) - BARS_SHOWN),
        "rows": [_row(gap) for gap in report.gaps[:ROWS_SHOWN]],
        "count": len(report.gaps),
        "shown": ROWS_SHOWN,
        "only": [
            (name, [_alone(one) for one in ops[:ONE_SIDED_SHOWN]], max(0, len(ops) - ONE_SIDED_SHOWN))
            for name, ops in ((ours, report.only_ours), (theirs, report.only_theirs))
        ],
        "notes": [printable(note.text) for note in report.notes],
    }


def _meaning(report: ParityReport, ours: str) -> str:
    if report.parity_achieved is None:
        return "Too little of the time is in operations that both have."
    behind = sum(gap.ratio > PARITY_RATIO for gap in report.gaps)
    shared = f"{behind or 'None'} of the {len(report.gaps)} operations that both have"
    return f"{shared} {'are' if behind > 1 else 'is'} more than 10 % slower in {ours}."


def _tiles(report: ParityReport, ours: str, theirs: str) -> list[tuple[str, str, str]]:
    tiles = (
        ("Step time", report.step_time_ratio, f"{ours} over {theirs}"),
        ("Throughput", report.throughput_ratio, f"{theirs} over {ours}"),
        ("Launches", report.launch_ratio, f"{ours} over {theirs}"),
    )
    return [(name, show_ratio(ratio), meaning) for name, ratio, meaning in tiles if ratio is not None]


def _lost_ms(gap: ParityGap) -> float:
    return gap.apr_ms - gap.baseline_ms


def _bars(gaps: tuple[ParityGap, ...]) -> list[dict[str, Any]]:
    """Return the largest differences as bars from a middle line: left ours is ahead, right behind."""
    shown = sorted(gaps, key=lambda gap: (-abs(_lost_ms(gap)), gap.op))[:BARS_SHOWN]
    shown.sort(key=lambda gap: (-_lost_ms(gap), gap.op))
    widest = max((abs(_lost_ms(gap)) for gap in shown), default=0.0) or 1.0
    return [_bar(gap, _lost_ms(gap) / widest * 50.0) for gap in shown]


def _bar(gap: ParityGap, reach: float) -> dict[str, Any]:
    lost = _lost_ms(gap)
    figures = ("+" if lost > 0 else "\N{MINUS SIGN}") + show_ms(abs(lost))
    ratio = f"{show_ms(gap.apr_ms)} against {show_ms(gap.baseline_ms)}, {show_ratio(gap.ratio)}"
    name = shortened(gap.op, 60)
    return {
        "name": name,
        "x": 50.0 + min(0.0, reach),
        "width": max(abs(reach), 0.3),
        "figures": figures,
        "tip": f"{name}: {figures} ({ratio})",
        "look": "slower" if lost > 0 else "faster",
    }


def _row(gap: ParityGap) -> dict[str, Any]:
    return {"gap": gap, "name": shortened(gap.op, 200), "lost_ms": _lost_ms(gap)}


def _alone(one: OneSided) -> tuple[str, str]:
    return shortened(one.op, 120), show_ms(one.ms)

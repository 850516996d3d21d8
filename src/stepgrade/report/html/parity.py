"""Two runtimes as a page: who is ahead, by how much, and in which operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrade.compare.parity import ParityReport
from stepgrade.contract import ParityGap
from stepgrade.model.notes import NO_FLAGS, texts_of
from stepgrade.report.content.parity import ANSWERS, meaning, ratio_cells
from stepgrade.report.names import shortened
from stepgrade.units import show_ms, show_ratio, show_share

BARS_SHOWN = 20
ROWS_SHOWN = 25
ONE_SIDED_SHOWN = 12
_LOOKS = {True: "parity", False: "behind", None: "unknown"}


def view(report: ParityReport, flags: Mapping[str, str] = NO_FLAGS) -> dict[str, Any]:
    """Return what the template shows."""
    ours, theirs = shortened(report.apr_runtime, 60), shortened(report.baseline_runtime, 60)
    says = meaning(report, ours)
    # The largest differences as bars from a middle line: left ours is ahead, right behind.
    shown = sorted(report.gaps, key=lambda gap: (-abs(_lost_ms(gap)), gap.op))[:BARS_SHOWN]
    shown.sort(key=lambda gap: (-_lost_ms(gap), gap.op))
    widest = max((abs(_lost_ms(gap)) for gap in shown), default=0.0) or 1.0
    bars = []
    for gap in shown:
        lost, name = _lost_ms(gap), shortened(gap.op, 60)
        reach = lost / widest * 50.0
        figures = ("+" if lost > 0 else "\N{MINUS SIGN}") + show_ms(abs(lost))
        both = f"{show_ms(gap.apr_ms)} against {show_ms(gap.baseline_ms)}, {show_ratio(gap.ratio)}"
        bars.append(
            {
                "name": name,
                "x": 50.0 + min(0.0, reach),
                "width": max(abs(reach), 0.3),
                "figures": figures,
                "tip": f"{name}: {figures} ({both})",
                "look": "slower" if lost > 0 else "faster",
            }
        )
    return {
        "title": f"{ours} against {theirs}",
        "ours": ours,
        "theirs": theirs,
        "look": _LOOKS[report.parity_achieved],
        "answer": ANSWERS[report.parity_achieved],
        "meaning": f"{says[0].upper()}{says[1:]}.",
        "tiles": ratio_cells(report, ours, theirs),
        "matched": [
            (name, share * 100.0, show_share(share))
            for name, share in ((ours, report.ours_matched_share), (theirs, report.theirs_matched_share))
            if share is not None
        ],
        "bars": bars,
        "bars_left": max(0, len(report.gaps) - BARS_SHOWN),
        "rows": [
            {"gap": gap, "name": shortened(gap.op, 200), "lost_ms": _lost_ms(gap)}
            for gap in report.gaps[:ROWS_SHOWN]
        ],
        "count": len(report.gaps),
        "shown": ROWS_SHOWN,
        "only": [
            (
                name,
                [(shortened(op.op, 120), show_ms(op.ms)) for op in ops[:ONE_SIDED_SHOWN]],
                max(0, len(ops) - ONE_SIDED_SHOWN),
            )
            for name, ops in ((ours, report.only_ours), (theirs, report.only_theirs))
        ],
        "notes": texts_of(report.notes, flags),
    }


def _lost_ms(gap: ParityGap) -> float:
    return gap.apr_ms - gap.baseline_ms

"""Two runtimes as a page: who is ahead, by how much, and in which operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepgrade.compare.parity import ParityReport
from stepgrade.contract import ParityGap
from stepgrade.model.notes import NO_FLAGS, texts_of
from stepgrade.report.content.parity import ANSWERS, meaning, ratio_cells
from stepgrade.report.names import shortened, told_apart
from stepgrade.units import show_ms, show_ratio, show_share

BARS_SHOWN = 20
ROWS_SHOWN = 25
ONE_SIDED_SHOWN = 12
_LOOKS = {"ahead": "parity", "parity": "parity", "behind": "behind", "unknown": "unknown"}


def view(report: ParityReport, flags: Mapping[str, str] = NO_FLAGS) -> dict[str, Any]:
    """Return what the template shows."""
    ours, theirs = told_apart((report.apr_runtime, report.baseline_runtime), 60)
    says, by_name = meaning(report, ours, theirs), report.matched_by == "name"
    gaps = sorted(report.compared, key=lambda gap: -gap.ratio)
    # The largest differences as bars from a middle line: left ours is ahead, right behind.
    shown = sorted(gaps, key=lambda gap: (-abs(_lost_ms(gap)), gap.op))[:BARS_SHOWN]
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
    shares = (
        ((ours, report.ours_matched_share), (theirs, report.theirs_matched_share))
        if by_name
        else ((ours, report.canonical_ours_share), (theirs, report.canonical_theirs_share))
    )
    return {
        "title": f"{ours} against {theirs}",
        "ours": ours,
        "theirs": theirs,
        "look": _LOOKS[report.standing],
        "answer": ANSWERS[report.standing],
        # A sentence that begins with the name of a run keeps it as it is.
        "meaning": f"{says if says.startswith(ours) else says[0].upper() + says[1:]}.",
        "tiles": ratio_cells(report, ours, theirs),
        "by": report.matched_by,
        "by_name": by_name,
        "matched": [(name, share * 100.0, show_share(share)) for name, share in shares if share is not None],
        "bars": bars,
        "bars_left": max(0, len(gaps) - BARS_SHOWN),
        "rows": [
            {"gap": gap, "name": shortened(gap.op, 200), "lost_ms": _lost_ms(gap)}
            for gap in gaps[: ROWS_SHOWN if by_name else None]
        ],
        "count": len(gaps),
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

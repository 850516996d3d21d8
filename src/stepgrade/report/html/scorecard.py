"""A scorecard as the sections of a page; each formats what the analysis found, or says why it is empty."""

from __future__ import annotations

from typing import Any

from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html import (
    baseline,
    findings,
    layers,
    ledger,
    operations,
    perfetto,
    provenance,
    ranks,
    roofline,
    steps,
    verdict,
)
from stepgrade.report.names import printable, shortened


def view(card: Scorecard) -> dict[str, Any]:
    """Return what the template shows."""
    return {
        "card": card,
        "title": f"{card.grade}: {shortened(card.source.files[0], 80)}" if card.source.files else card.grade,
        "file": _file_name(card),
        "verdict": verdict.view(card),
        "ledger": ledger.view(card),
        "roofline": roofline.view(card),
        "layers": layers.view(card),
        "operations": operations.view(card),
        "steps": steps.view(card),
        "findings": findings.view(card),
        "baseline": baseline.view(card),
        "ranks": ranks.view(card),
        "provenance": provenance.view(card),
        "step_link": perfetto.link(card.typical_step, card.source),
        "server": perfetto.SERVER,
    }


def _file_name(card: Scorecard) -> str:
    if not card.source.files:
        return printable(card.source.format)
    more = f" and {len(card.source.files) - 1} more" if len(card.source.files) > 1 else ""
    return shortened(card.source.files[0], 120) + more

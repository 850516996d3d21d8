"""The compact card of a notebook: plain HTML, its few styles on the elements, as a notebook takes no more."""

from __future__ import annotations

from stepgrade.compare.parity import ParityReport
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.content.scorecard import gain
from stepgrade.report.html import ledger, parity
from stepgrade.report.html.page import account_colours, fill
from stepgrade.report.html.scorecard import FINDINGS_FIRST, verdict
from stepgrade.report.names import printable, shortened


def compact(result: Scorecard | ParityReport) -> str:
    """Return the card as a fragment of HTML."""
    if isinstance(result, ParityReport):
        return fill("notebook_parity.html", parity.view(result))
    card = result
    return fill(
        "notebook.html",
        {
            "card": card,
            "file": shortened(card.source.files[0], 80) if card.source.files else "",
            "verdict": verdict(card),
            "legend": ledger.view(card)["legend"],
            "findings": [
                (printable(finding.claim), gain(finding)) for finding in card.findings[:FINDINGS_FIRST]
            ],
            "colours": {f"account-{name}": colour for name, colour in account_colours().items()},
        },
    )

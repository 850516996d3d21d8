"""The compact card of a notebook: plain HTML, its few styles on the elements, as a notebook takes no more."""

from __future__ import annotations

from stepgrade.compare.parity import ParityReport
from stepgrade.model.notes import NO_FLAGS
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.content.charts import ledger_slices
from stepgrade.report.content.parity import ratio_cells
from stepgrade.report.content.parity_page import answer_badge, largest_gaps, names_of
from stepgrade.report.content.scorecard import gain, grade_badge
from stepgrade.report.content.scorecard_page import FINDINGS_FIRST, bottleneck_words, tiles
from stepgrade.report.html.page import account_colours, fill
from stepgrade.report.names import printable, shortened

_GAPS_SHOWN = 8


def compact(result: Scorecard | ParityReport) -> str:
    """Return the card as a fragment of HTML."""
    if isinstance(result, ParityReport):
        view = {
            "badge": answer_badge(result),
            "tiles": ratio_cells(result, *names_of(result)),
            "gaps": largest_gaps(result)[:_GAPS_SHOWN],
        }
        return fill("notebook_parity.html", view)
    colours = {f"account-{name}": colour for name, colour in account_colours().items()}
    return fill(
        "notebook.html",
        {
            "card": result,
            "file": shortened(result.source.files[0], 80) if result.source.files else "",
            "badge": grade_badge(result, NO_FLAGS),
            "tiles": list(tiles(result, NO_FLAGS)),
            "bottleneck": bottleneck_words(result),
            "legend": ledger_slices(result.ledger, result.step_time_ms),
            "findings": [
                (printable(finding.claim), gain(finding)) for finding in result.findings[:FINDINGS_FIRST]
            ],
            "colours": colours,
        },
    )

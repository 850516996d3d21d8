"""Findings in full: the claim, the numbers behind it, what to do, what it may bring, how to check."""

from __future__ import annotations

from typing import Any

from stepgrade.model.finding import Finding
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html import perfetto, words
from stepgrade.report.names import printable
from stepgrade.units import show_ms, show_share

FIRST = 3
# Below half a percent of the step, a gain is not worth a sentence.
_LEAST_GAIN = 0.005


def view(card: Scorecard) -> dict[str, Any]:
    """Return every finding; the first three are on the first screen as well."""
    spans = {op.name: op.longest for op in card.operations}
    rows = [_row(finding, card, spans) for finding in card.findings]
    return {"rows": rows, "first": rows[:FIRST], "more": max(0, len(rows) - FIRST)}


def _row(finding: Finding, card: Scorecard, spans: dict[str, Any]) -> dict[str, Any]:
    named = next((spans[value] for value in finding.evidence.values() if value in spans), None)
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "severity_word": words.SEVERITIES.get(finding.severity, finding.severity),
        "claim": printable(finding.claim),
        "gain": gain(finding),
        "evidence": [
            (name.replace("_", " "), _value(name, value)) for name, value in finding.evidence.items()
        ],
        "remedy": printable(finding.remedy),
        "check": printable(finding.check),
        "gain_basis": printable(getattr(finding, "gain_basis", "")),
        "consequences": [printable(text) for text in getattr(finding, "consequences", ())],
        "link": perfetto.link(named or card.typical_step, card.source),
    }


def gain(finding: Finding) -> str:
    """Return what following a finding may bring, as a share of the step."""
    if finding.gain_high <= _LEAST_GAIN:
        return ""
    high = show_share(finding.gain_high, 0)
    if finding.gain_low > _LEAST_GAIN:
        return f"{show_share(finding.gain_low, 0)} to {high} of the step"
    return f"up to {high} of the step"


def _value(name: str, value: float | str) -> str:
    """Return a number in the unit that its name ends with."""
    if isinstance(value, str):
        return printable(value)
    if name.endswith("_ms"):
        return show_ms(value)
    if name.endswith("share"):
        return show_share(value)
    return f"{value:,.4g}"

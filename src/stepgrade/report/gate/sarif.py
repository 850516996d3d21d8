"""The gate's answer as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

from typing import Any

import msgspec

from stepgrade._version import __version__
from stepgrade.compare.budgets import Check, GateReport
from stepgrade.report.names import json_text, printable
from stepgrade.report.types import Page

_LEVELS = {
    "regressed": "error",
    "cannot tell": "warning",
    "waived": "note",
    "improved": "note",
    "pass": "none",
}


def render(report: GateReport, page: Page) -> str:  # noqa: ARG001  JSON has no width
    """Return one result per check; a waived one is suppressed with its reason."""
    rules = sorted({check.metric for check in report.checks})
    driver = {
        "name": "stepgrade",
        "version": __version__,
        "rules": [
            {"id": name, "shortDescription": {"text": f"{printable(name)} against its baseline and budget"}}
            for name in rules
        ],
    }
    run = {
        "tool": {"driver": driver},
        "results": [_result(check, report) for check in report.checks],
        "invocations": [{"executionSuccessful": True, "exitCode": report.exit_code}],
    }
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [run],
    }
    return json_text(msgspec.json.encode(document).decode()) + "\n"


def _result(check: Check, report: GateReport) -> dict[str, Any]:
    place = {"physicalLocation": {"artifactLocation": {"uri": _uri(report.source)}}}
    result: dict[str, Any] = {
        "ruleId": check.metric,
        "level": _LEVELS[check.status],
        "kind": "pass" if check.status == "pass" else "fail" if check.status == "regressed" else "review",
        "message": {"text": printable(check.text)},
        "locations": [place],
    }
    if result["kind"] != "fail":
        result["level"] = "none"  # the standard allows a level only beside `fail`
    if check.waiver:
        result["suppressions"] = [{"kind": "external", "justification": check.waiver}]
    return result


def _uri(source: str) -> str:
    from urllib.parse import quote  # noqa: PLC0415  only for this format

    return quote(source.split(", ", maxsplit=1)[0])

"""The gate's answer as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stepgrade._version import __version__
from stepgrade.errors import EXIT_NOT_MEASURED
from stepgrade.model.comparison import GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.names import json_text, shortened

# The standard allows a level beside `fail` only.
_KINDS = {"pass": ("pass", "none"), "regressed": ("fail", "error")}
_UNDECIDED = ("review", "none")


def render(report: GateReport, flags: Mapping[str, str]) -> str:
    """Return one result per check; a waived one is suppressed with its reason."""
    from urllib.parse import quote  # only for this format

    # Code scanning wants a line; a profile has none, so it is the first.
    place = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(shortened(report.source.split(", ", maxsplit=1)[0]))},
            "region": {"startLine": 1},
        }
    }
    results = []
    for check in report.checks:
        kind, level = _KINDS.get(check.status, _UNDECIDED)
        result: dict[str, Any] = {
            "ruleId": shortened(check.metric),
            "kind": kind,
            "level": level,
            "message": {"text": shortened(check.note.said(flags))},
            "locations": [place],
        }
        if check.waiver:
            result["suppressions"] = [{"kind": "external", "justification": shortened(check.waiver)}]
        results.append(result)
    # What could not be measured is no result, but must not go unseen.
    measured = report.exit_code != EXIT_NOT_MEASURED
    invocation: dict[str, Any] = {"executionSuccessful": measured, "exitCode": report.exit_code}
    if not measured:
        invocation["toolExecutionNotifications"] = [
            {"level": "warning", "message": {"text": shortened(reason)}}
            for reason in texts_of(report.reasons, flags)
        ]
    rules = [
        {"id": name, "shortDescription": {"text": f"{name} against its baseline and budget"}}
        for name in sorted({shortened(check.metric) for check in report.checks})
    ]
    driver = {"name": "stepgrade", "version": __version__, "rules": rules}
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results, "invocations": [invocation]}],
    }
    return json_text(msgspec.json.encode(document).decode()) + "\n"

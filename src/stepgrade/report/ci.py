"""The gate's answer for CI systems: GitHub annotations, JUnit XML, SARIF 2.1.0, and a badge for a README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stepgrade._version import __version__
from stepgrade.errors import EXIT_NOT_MEASURED
from stepgrade.model.comparison import Check, GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.names import json_text, shortened
from stepgrade.units import show_share

_ANNOTATIONS = {
    "regressed": "error",
    "probably slower": "warning",
    "cannot tell": "warning",
    "waived": "notice",
    "improved": "notice",
}
_ELEMENTS = {"regressed": "failure", "cannot tell": "error", "waived": "skipped"}
# SARIF allows a level beside `fail` only.
_KINDS = {"pass": ("pass", "none"), "regressed": ("fail", "error"), "probably slower": ("fail", "warning")}
_UNDECIDED = ("review", "none")
_COLOURS = {"A": "#2da44e", "B": "#57ab5a", "C": "#bf8700", "D": "#d4762c", "F": "#cf222e"}
_UNKNOWN = "#6e7781"
_LABEL = "training"
_CHARACTER = 6.6
_PADDING = 12


def github(report: GateReport, flags: Mapping[str, str]) -> str:
    """Return one workflow command per check with a result worth showing, and one for the verdict."""
    rows = [
        (
            "error" if report.is_failed_by(check) else _ANNOTATIONS[check.status],
            f"stepgrade: {check.metric} {check.status}",
            check.note.said(flags),
        )
        for check in report.checks
        if check.status in _ANNOTATIONS
    ]
    # A check that failed, or cannot be decided, has its annotation.
    rest = [note for note in report.reasons if note.code != "failed_check"]
    if rest:
        rows.append(("warning", f"stepgrade: {report.verdict}", "; ".join(texts_of(rest, flags))))
    lines = []
    for kind, *texts in rows:
        title, text = (shortened(part).replace("%", "%25") for part in texts)
        lines.append(f"::{kind} title={title.replace(':', '%3A').replace(',', '%2C')}::{text}")
    return "\n".join([*lines, f"stepgrade: {report.verdict}"]) + "\n"


def _said(check: Check, flags: Mapping[str, str]) -> str:
    """Return what a check says; these formats have no word of their own for what is probable."""
    probable = f"{check.status}: " if check.status == "probably slower" else ""
    return f"{probable}{check.note.said(flags)}"


def junit(report: GateReport, flags: Mapping[str, str]) -> str:
    """Return one test case per check: regressed fails, cannot tell is an error, waived is skipped."""
    from xml.etree.ElementTree import Element, SubElement, tostring  # only for this format

    root = Element("testsuites")
    suite = SubElement(root, "testsuite")
    cases: list[tuple[Check, str]] = [(check, check.status) for check in report.checks]
    is_reported = any(check.status == "cannot tell" for check in report.checks)
    if report.exit_code == EXIT_NOT_MEASURED and not is_reported:
        # A case of its own when nothing could be compared, so that no CI reads it as success.
        text = "; ".join(texts_of(report.reasons, flags))
        cases.append((Check(metric="comparable", status="cannot tell", text=text), "could not be measured"))
    for check, kind in cases:
        case = SubElement(suite, "testcase", {"classname": "stepgrade", "name": shortened(check.metric)})
        tag = "failure" if report.is_failed_by(check) else _ELEMENTS.get(check.status, "system-out")
        element = SubElement(case, tag)
        waived = f" (waived {check.waiver})" if check.status == "waived" else ""
        element.text = shortened(f"{_said(check, flags)}{waived}")
        if element.tag in ("failure", "error"):
            # The text twice: some systems show the attribute, some the content.
            element.attrib |= {"type": kind, "message": element.text}
    count = {name: str(len(suite.findall(f"testcase/{name}"))) for name in _ELEMENTS.values()}
    root.attrib |= {"name": "stepgrade gate", "tests": str(len(suite))}
    root.attrib |= {"failures": count["failure"], "errors": count["error"]}
    suite.attrib |= root.attrib | {"skipped": count["skipped"]}
    # One line per case.
    root.text = suite.tail = "\n"
    suite.text = "\n  " if len(suite) else "\n"
    for each in suite:
        each.tail = "\n" if each is suite[-1] else "\n  "
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def sarif(report: GateReport, flags: Mapping[str, str]) -> str:
    """Return one SARIF result per check; a waived check is suppressed with its reason."""
    from urllib.parse import quote  # only for this format

    # Code scanning requires a line; a profile has none, so it is the first.
    artifact = {"uri": quote(shortened(report.source.split(", ", maxsplit=1)[0]))}
    location = {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": 1}}}
    results = []
    for check in report.checks:
        status = "regressed" if report.is_failed_by(check) else check.status
        kind, level = _KINDS.get(status, _UNDECIDED)
        result: dict[str, Any] = {
            "ruleId": shortened(check.metric),
            "kind": kind,
            "level": level,
            "message": {"text": shortened(_said(check, flags))},
            "locations": [location],
        }
        if check.waiver:
            result["suppressions"] = [{"kind": "external", "justification": shortened(check.waiver)}]
        results.append(result)
    # What could not be measured is not a result, but must not go unseen.
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


def badge(report: GateReport, _flags: Mapping[str, str]) -> str:
    """Return an SVG badge: the grade, the share of the ceiling or the best possible grade, the verdict."""
    from xml.sax.saxutils import escape  # only for this format

    reached = f" {show_share(report.efficiency, 0)}" if report.efficiency is not None else ""
    bound = f", {report.grade_at_most} at best" if report.grade_at_most else ""
    slower = f", {report.verdict}" if report.verdict in ("regressed", "probably slower") else ""
    text = f"{report.grade}{reached if report.grade in _COLOURS else bound}{slower}"
    left, right = (round(len(part) * _CHARACTER + _PADDING) for part in (_LABEL, text))
    middle, width = left + right / 2, left + right
    shown = escape(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{_LABEL}: {shown}"><title>{_LABEL}: {shown}</title>'
        f'<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#444c56"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{_COLOURS.get(report.grade, _UNKNOWN)}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{_LABEL}</text><text x="{middle}" y="14">{shown}</text></g></svg>\n'
    )

"""The gate's answer as JUnit XML, which every CI system shows as tests."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element, SubElement, tostring

from stepgrade.errors import EXIT_NOT_MEASURED
from stepgrade.model.comparison import Check, GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.names import shortened

_ELEMENTS = {"regressed": "failure", "cannot tell": "error", "waived": "skipped"}


def render(report: GateReport, flags: Mapping[str, str]) -> str:
    """Return one test case per check: regressed fails, cannot tell is an error, waived is skipped."""
    root = Element("testsuites")
    suite = SubElement(root, "testsuite")
    for check in report.checks:
        _add_case(suite, check, flags)
    is_reported = any(check.status == "cannot tell" for check in report.checks)
    if report.exit_code == EXIT_NOT_MEASURED and not is_reported:
        # A case of its own when nothing could be compared, so that no CI reads it as success.
        text = "; ".join(texts_of(report.reasons, flags))
        check = Check(metric="comparable", status="cannot tell", text=text)
        _add_case(suite, check, flags, "could not be measured")
    count = {name: str(len(suite.findall(f"testcase/{name}"))) for name in _ELEMENTS.values()}
    root.attrib |= {
        "name": "stepgrade gate",
        "tests": str(len(suite)),
        "failures": count["failure"],
        "errors": count["error"],
    }
    suite.attrib |= root.attrib | {"skipped": count["skipped"]}
    # One line a case.
    root.text = suite.tail = "\n"
    suite.text = "\n  " if len(suite) else "\n"
    for case in suite:
        case.tail = "\n" if case is suite[-1] else "\n  "
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _add_case(suite: Element, check: Check, flags: Mapping[str, str], kind: str = "") -> None:
    case = SubElement(suite, "testcase", {"classname": "stepgrade", "name": shortened(check.metric)})
    element = SubElement(case, _ELEMENTS.get(check.status, "system-out"))
    waived = f" (waived {check.waiver})" if check.status == "waived" else ""
    element.text = shortened(f"{check.note.said(flags)}{waived}")
    if element.tag in ("failure", "error"):
        # The text twice: some systems show the attribute, some the content.
        element.attrib |= {"type": kind or check.status, "message": element.text}

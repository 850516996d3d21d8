"""The gate's answer as JUnit XML, which every CI system shows as tests."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

from stepgrade.errors import EXIT_NOT_MEASURED
from stepgrade.model.comparison import Check, GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.names import printable
from stepgrade.report.types import Page

_SUITE = "stepgrade gate"


def render(report: GateReport, page: Page) -> str:  # noqa: ARG001  XML has no width
    """Return one test case per check: regressed fails, cannot tell is an error, waived is skipped."""
    cases = [_case(check) for check in report.checks] + _unmeasured(report)
    failures = sum("<failure" in case for case in cases)
    errors = sum("<error" in case for case in cases)
    skipped = sum("<skipped" in case for case in cases)
    counts = f'name="{_SUITE}" tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f"<testsuites {counts}>",
        f'<testsuite {counts} skipped="{skipped}">',
        *cases,
        "</testsuite>",
        "</testsuites>",
    ]
    return "\n".join(lines) + "\n"


def _case(check: Check) -> str:
    body = {
        "regressed": _told("failure", "regressed", check.text),
        "cannot tell": _told("error", "cannot tell", check.text),
        "waived": f"<skipped>{escape(printable(f'{check.text} (waived {check.waiver})'))}</skipped>",
    }.get(check.status, f"<system-out>{escape(printable(check.text))}</system-out>")
    return f'  <testcase classname="stepgrade" name={_quoted(check.metric)}>{body}</testcase>'


def _told(element: str, kind: str, text: str) -> str:
    """Return an element with its text twice: some systems show the attribute, some the content."""
    return f'<{element} type="{kind}" message={_quoted(text)}>{escape(printable(text))}</{element}>'


def _unmeasured(report: GateReport) -> list[str]:
    """Return a case of its own when nothing could be compared, so that no CI reads it as success."""
    if report.exit_code != EXIT_NOT_MEASURED or any(check.status == "cannot tell" for check in report.checks):
        return []
    body = _told("error", "could not be measured", "; ".join(texts_of(report.reasons)))
    return [f'  <testcase classname="stepgrade" name="comparable">{body}</testcase>']


def _quoted(text: str) -> str:
    return quoteattr(printable(text))

"""The gate's answer as GitHub's workflow commands: each becomes an annotation of the run."""

from __future__ import annotations

from collections.abc import Mapping

from stepgrade.model.comparison import GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report.names import shortened

_COMMANDS = {"regressed": "error", "cannot tell": "warning", "waived": "notice", "improved": "notice"}


def render(report: GateReport, flags: Mapping[str, str]) -> str:
    """Return one command per check that says something, and one for the whole."""
    lines = [
        _command(_COMMANDS[check.status], f"stepgrade: {check.metric} {check.status}", check.note.said(flags))
        for check in report.checks
        if check.status in _COMMANDS
    ]
    # A check that failed, or cannot be decided, has its annotation.
    rest = [note for note in report.reasons if note.code != "failed_check"]
    if rest:
        lines.append(_command("warning", f"stepgrade: {report.verdict}", "; ".join(texts_of(rest, flags))))
    return "\n".join([*lines, f"stepgrade: {report.verdict}"]) + "\n"


def _command(kind: str, title: str, text: str) -> str:
    title, text = (shortened(part).replace("%", "%25") for part in (title, text))
    return f"::{kind} title={title.replace(':', '%3A').replace(',', '%2C')}::{text}"

"""Conditions on which a command fails, such as `warning` or `grade:C`, and their verdict on a scorecard."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepgrade.contract import Grade, Regression
from stepgrade.errors import EXIT_GATE, EXIT_NOT_MEASURED, EXIT_OK, BadOption
from stepgrade.model.scorecard import UNGRADED
from stepgrade.units import show_delta

SEVERITIES = ("warning", "critical")
_GRADE = "grade:"


class Condition(Struct, frozen=True, kw_only=True):
    """Fail on a regression of this severity or worse, or on this grade or worse."""

    severity: str | None = None
    grade: Grade | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """The exit code and the reasons for it."""

    exit_code: int
    reasons: tuple[str, ...] = ()


def parse_condition(text: str) -> Condition:
    """Read `warning`, `critical` or `grade:C`; raise BadOption for anything else."""
    if text in SEVERITIES:
        return Condition(severity=text)
    letter = text.removeprefix(_GRADE).upper()
    if text.startswith(_GRADE) and letter in Grade.__members__:
        return Condition(grade=Grade[letter])
    raise BadOption(
        f"{text!r} is not a condition", field="fail_on", hint="use warning, critical or grade:A to grade:F"
    )


def grade_conditions(texts: Sequence[str]) -> list[Condition]:
    """Read the gate's conditions, which can only be on grades; raise BadOption for any other."""
    conditions = [parse_condition(text) for text in texts]
    if any(condition.severity for condition in conditions):
        raise BadOption(
            "the gate always checks for regressions", field="fail_on", hint="use grade:A to grade:F"
        )
    return conditions


def check_conditions(conditions: Sequence[Condition], *, has_baseline: bool) -> None:
    """Raise BadOption for a condition on regressions without a baseline."""
    if not has_baseline and any(condition.severity for condition in conditions):
        raise BadOption("a regression needs something to compare with", field="fail_on", supply="{baseline}")


def decide(
    grade: str, regressions: Sequence[Regression], conditions: Sequence[Condition], *, comparable: bool
) -> Decision:
    """Return the decision; `comparable`: whether run and baseline have a metric in common."""
    reasons: list[str] = []
    unmeasured: list[str] = []
    for condition in conditions:
        if condition.grade is not None:
            if grade == UNGRADED:
                unmeasured.append("the run could not be graded")
            elif Grade(grade) <= condition.grade:
                reasons.append(f"grade {grade}, and {condition.grade} or worse fails")
        elif not comparable:
            unmeasured.append("nothing could be compared with the baseline")
        else:
            reasons += [
                f"{found.metric} {show_delta(found.delta)} ({found.severity})"
                for found in regressions
                if condition.severity in ("warning", found.severity)
            ]
    code = EXIT_GATE if reasons else EXIT_NOT_MEASURED if unmeasured else EXIT_OK
    return Decision(exit_code=code, reasons=tuple(dict.fromkeys(reasons or unmeasured)))

"""The gate: what fails, what passes, and what cannot be told."""

from __future__ import annotations

import pytest

from stepgrade.contract import Regression
from stepgrade.errors import BadOption
from stepgrade.gating.fail_on import check_conditions, decide, parse_condition

WARNING = Regression(metric="step_time_ms", delta=0.15, severity="warning")
CRITICAL = Regression(metric="throughput_tok_s", delta=-0.3, severity="critical")


@pytest.mark.parametrize(
    ("condition", "grade", "regressions", "code"),
    [
        ("warning", "A", [], 0),
        ("warning", "A", [WARNING], 1),
        ("warning", "A", [CRITICAL], 1),
        ("critical", "A", [WARNING], 0),
        ("critical", "A", [WARNING, CRITICAL], 1),
        ("grade:C", "B", [CRITICAL], 0),
        ("grade:C", "C", [], 1),
        ("grade:c", "F", [], 1),
        ("grade:F", "D", [], 0),
        ("grade:C", "ungraded", [], 3),
    ],
)
def test_decide(condition: str, grade: str, regressions: list[Regression], code: int) -> None:
    decision = decide(grade, regressions, [parse_condition(condition)], comparable=True)
    assert decision.exit_code == code
    assert bool(decision.reasons) is (code != 0)


def test_a_sure_no_outweighs_what_cannot_be_told() -> None:
    conditions = [parse_condition("grade:C"), parse_condition("warning")]
    assert decide("ungraded", [WARNING], conditions, comparable=True).exit_code == 1


def test_nothing_comparable_cannot_pass() -> None:
    assert decide("A", [], [parse_condition("warning")], comparable=False).exit_code == 3


def test_a_regression_needs_a_baseline() -> None:
    with pytest.raises(BadOption, match="give baseline"):
        check_conditions([parse_condition("warning")], has_baseline=False)
    check_conditions([parse_condition("warning")], has_baseline=True)
    check_conditions([parse_condition("grade:C")], has_baseline=False)


@pytest.mark.parametrize("text", ["", "grade:", "grade:E", "severe", "GRADE:C", "grade:AB"])
def test_conditions_that_are_none(text: str) -> None:
    with pytest.raises(BadOption, match="grade:A to grade:F"):
        parse_condition(text)

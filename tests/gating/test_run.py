"""The gate from Python: profiles or scorecards, files or a branch, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.config import Budget, Config, GateTable
from stepgrade.errors import BadOption
from tests.builders import make_profile

OLD, NEW = make_profile(mean_step_ms=100.0), make_profile(mean_step_ms=150.0)
QUIET = Config(gate=GateTable(run_noise=0.01))


def test_scorecards_are_judged_as_their_profiles_are() -> None:
    profiles = sg.gate([NEW], baselines=[OLD], config=QUIET)
    cards = sg.gate([sg.score(NEW)], baselines=[sg.score(OLD)], config=QUIET)
    assert profiles == cards
    assert (cards.verdict, cards.exit_code) == ("regressed", 1)
    assert [check.metric for check in cards.checks] == ["step_time_ms"]


def test_profiles_are_scored_with_what_is_given() -> None:
    report = sg.gate([NEW], baselines=[OLD], config=QUIET, tokens_per_step=10.0)
    assert {change.metric for change in report.changes} >= {"step_time_ms", "throughput_tok_s"}


def test_a_bound_needs_no_earlier_run() -> None:
    bound = Config(budgets=(Budget(metric="step_time_ms", at_most=120.0),))
    assert sg.gate([OLD], config=bound).verdict == "pass"
    assert sg.gate([NEW], config=bound).verdict == "regressed"
    share = Config(budgets=(Budget(metric="step_time_ms", allow=0.1),))
    with pytest.raises(BadOption, match="give baselines, against, fail_on or a budget"):
        sg.gate([NEW], config=share)


def test_a_branch_is_read_from_the_history(tmp_path: Path) -> None:
    from stepgrade.store import NewRun

    place = str(tmp_path / "history.db")
    with sg.history(place) as history:
        history.add_all([NewRun(card=sg.score(OLD), branch="main") for _ in range(6)])
    report = sg.gate([NEW], against="history:main", history=place)
    assert report.verdict == "regressed"
    assert report.baseline == f"6 runs of main in {place}"
    other = sg.gate([sg.score(NEW, tokens_per_step=1.0)], against="history:topic", history=place)
    assert [note.code for note in other.reasons] == ["no_baseline"]


def test_what_differs_may_be_allowed(tmp_path: Path) -> None:
    old, new = sg.score(OLD, tokens_per_step=10.0), sg.score(NEW, tokens_per_step=20.0)
    refused = sg.gate([new], baselines=[old], config=QUIET)
    assert not refused.is_comparable
    assert [note.code for note in refused.differences] == ["tokens_per_step"]
    allowed = Config(gate=GateTable(run_noise=0.01, allow_different=("tokens_per_step",)))
    report = sg.gate([new], baselines=[old], config=allowed)
    assert report.is_comparable
    assert report.differences == refused.differences
    assert [check.metric for check in report.checks] == ["throughput_tok_s"]


def test_what_does_not_fit_together() -> None:
    with pytest.raises(BadOption, match="against: both baselines and a branch"):
        sg.gate([NEW], baselines=[OLD], against="history:main")
    with pytest.raises(BadOption, match="fail_on: the gate tests for regressions"):
        sg.gate([NEW], baselines=[OLD], fail_on=["warning"])
    with pytest.raises(BadOption, match="allow_different: 'colour'"):
        sg.gate([NEW], baselines=[OLD], config=Config(gate=GateTable(allow_different=("colour",))))

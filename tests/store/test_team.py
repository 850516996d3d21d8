"""Projects, tokens, sessions and the audit log of a team's store, and what is asked of all its runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from stepgrade.errors import BadOption, NotMeasured
from stepgrade.model.scorecard import Finding
from stepgrade.store import History, NewRun, Selection, open_store
from stepgrade.store import team as module
from stepgrade.store.tables import (
    branches_of,
    configurations,
    count_runs,
    finding_costs,
    is_better,
    newest_series,
    page_of_runs,
    trend_of,
)
from stepgrade.store.team import ProjectSettings, Team, moment_after, same_secret
from tests.store.test_history import card


@pytest.fixture
def history(place: str) -> Iterator[History]:
    with open_store(place) as opened:
        yield opened


@pytest.fixture
def team(history: History) -> Team:
    return Team(history.database)


def test_projects(team: Team, history: History) -> None:
    assert [project.name for project in team.projects()] == ["default"]
    assert team.add_project("llm")
    assert not team.add_project("llm")
    for name in ("", "LLM", "-x", "a/b", "x" * 64):
        with pytest.raises(BadOption, match="not a valid project name"):
            team.add_project(name)
    settings = ProjectSettings(keep_runs=3, branches=("main",))
    team.set_project("llm", settings)
    project = team.project("llm")
    assert project is not None
    assert (project.settings, project.name) == (settings, "llm")
    history.database.execute("update stepgrade_project set settings = ? where name = ?", ('{"x": 1}', "llm"))
    assert [project.settings for project in team.projects()] == [ProjectSettings(), ProjectSettings()]
    mine, others = history.in_project("llm"), history.add(NewRun(card=card()))
    mine.add(NewRun(card=card()))
    team.add_token("ci", "uploader", project="llm", days=1, created_by="me")
    team.remove_project("llm")
    assert [project.name for project in team.projects()] == ["default"]
    assert (mine.runs(), team.tokens()) == ([], [])
    assert [run.id for run in history.runs()] == [others]
    assert len(history.database.execute("select run_id from stepgrade_card")) == 1


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"role": "owner"}, "unknown role"),
        ({"days": 0}, "from 1 to 3,650"),
        ({"days": 3651}, "from 1 to 3,650"),
        ({"name": ""}, "at most 200"),
        ({"name": "x" * 201}, "at most 200"),
        ({"project": "none"}, "unknown project"),
    ],
)
def test_a_token_that_is_refused(team: Team, changed: dict[str, Any], problem: str) -> None:
    good = {"name": "x" * 200, "role": "admin", "project": "default", "days": 3650, "created_by": "me"}
    with pytest.raises(BadOption, match=problem):
        team.add_token(**(good | changed))
    team.add_token(**good)
    assert len(team.tokens()) == 1


def test_tokens_and_sessions(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, token = team.add_token("ci", "uploader", project=None, days=1, created_by="me")
    assert secret.startswith("sg_")
    assert (token.shown, token.role, token.used_at, token.revoked_at) == (
        secret[:7] + "…",
        "uploader",
        None,
        None,
    )
    assert moment_after(days=1, seconds=-60) < token.expires_at <= moment_after(days=1)
    found = team.token_of(secret)
    assert found == token  # its use is stored, not in what was read
    assert team.tokens()[0].used_at is not None
    assert team.token_of(secret + "x") is None
    session = team.open_session(token)
    known = team.session_of(session)
    assert known is not None
    assert known[0].id == token.id
    assert team.session_of(known[1]) is None
    assert team.session_of(secret) is None
    team.close_session(session)
    assert team.session_of(session) is None
    session = team.open_session(token)
    with monkeypatch.context() as patch:
        patch.setattr(module, "now", lambda: moment_after(hours=12, seconds=1))
        assert team.session_of(session) is None
        assert team.token_of(secret) is not None
        patch.setattr(module, "now", lambda: moment_after(days=1, seconds=1))
        assert team.token_of(secret) is None
    assert team.session_of(session) is not None
    assert team.revoke(token.id)
    assert not team.revoke(token.id + 1)
    revoked = team.tokens()[0].revoked_at
    assert revoked is not None
    assert (team.token_of(secret), team.session_of(session)) == (None, None)
    assert same_secret("a", "a")
    assert not same_secret("a", "b")


def test_a_token_s_use_is_stored_every_five_minutes(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, _ = team.add_token("ci", "reader", project=None, days=1, created_by="me")
    used = []
    for passed in (0.0, 299.0, 302.0):

        def later(*, seconds: float = 0.0, passed: float = passed) -> str:
            return moment_after(seconds=passed + seconds)

        monkeypatch.setattr(module, "moment_after", later)
        monkeypatch.setattr(module, "now", later)
        team.token_of(secret)
        used.append(team.tokens()[0].used_at)
    assert used[0] == used[1]
    assert used[1] != used[2]


def test_the_audit_log(team: Team) -> None:
    for number in range(4):
        team.note("x" * 300, f"did {number}", project="llm" if number % 2 else None, subject="y" * 300)
    newest = team.audit(limit=2)
    assert [entry.what for entry in newest] == ["did 3", "did 2"]
    assert (len(newest[0].who), len(newest[0].subject), newest[0].project) == (200, 200, "llm")
    assert [entry.what for entry in team.audit(before=newest[-1].id)] == ["did 1", "did 0"]
    assert [entry.what for entry in team.audit(project="llm")] == ["did 3", "did 1"]


def finding(rule: str, low: float, high: float, claim: str = "") -> Finding:
    return Finding(
        rule=rule,
        severity="warning",
        claim=claim,
        evidence={},
        remedy="",
        gain_low=low,
        gain_high=high,
        check="",
    )


def test_findings_cost_device_hours(history: History) -> None:
    """Of 10 and 20 hours: 0.1 to 0.2 of the first and 0.3 to 0.4 of the second are 7 to 10 hours."""
    findings = (
        (10.0, (finding("slow", 0.1, 0.2, "old"), finding("rare", 0.5, 0.9))),
        (20.0, (finding("slow", 0.3, 0.4, "new"),)),
    )
    for hours, found in findings:
        history.add(NewRun(card=structs.replace(card(), findings=found), device_hours=hours))
    slow, rare = finding_costs(history, Selection())
    assert (slow.rule, slow.claim, slow.severity, slow.runs) == ("slow", "new", "warning", 2)
    assert (slow.gain_low, slow.gain_high) == (pytest.approx(0.2), pytest.approx(0.3))
    assert (slow.hours_low, slow.hours_high) == (pytest.approx(7.0), pytest.approx(10.0))
    assert (rare.rule, rare.hours_low, rare.hours_high) == ("rare", pytest.approx(5.0), pytest.approx(9.0))
    assert rare.newest == slow.newest - 1
    assert [cost.runs for cost in finding_costs(history, Selection(limit=1))] == [1]


def test_configurations_and_pages(history: History) -> None:
    for number, (step_ms, dtype, branch) in enumerate(
        ((100.0, "bf16", "main"), (80.0, "bf16", "dev"), (90.0, "fp32", "main"), (90.0, "fp32", "main"))
    ):
        history.add(
            NewRun(
                card=card(step_ms, matmul_dtype=dtype, steps=10 + number), branch=branch, commit=str(number)
            )
        )
    assert count_runs(history) == 4
    assert branches_of(history) == ["dev", "main"]
    assert branches_of(history.in_project("other")) == []
    newest, older = configurations(history, Selection())
    assert (newest.runs, newest.step_time_ms, older.runs, older.step_time_ms) == (2, 90.0, 2, 80.0)
    assert older.throughput_tok_s == pytest.approx(1000 / 0.08)
    assert older.speed > newest.speed
    assert structs.replace(newest, throughput_tok_s=None).speed < newest.speed
    assert newest_series(history, "step_time_ms", older.digest, None, 1) == [80.0]
    assert newest_series(history, "step_time_ms", older.digest, "main", 9) == [100.0]

    def pages(**sort: Any) -> list[list[str | None]]:
        found, after = [], None
        while True:
            page = page_of_runs(history, Selection(limit=3), after=after, **sort)
            found.append([run.commit for run in page.runs])
            after = page.next
            if after is None:
                return found

    assert pages() == [["3", "2", "1"], ["0"]]
    assert pages(is_rising=True) == [["0", "1", "2"], ["3"]]
    assert pages(sort="step_time_ms") == [["0", "3", "2"], ["1"]]
    assert pages(sort="step_time_ms", is_rising=True) == [["1", "2", "3"], ["0"]]
    assert pages(sort="throughput_tok_s") == [["1", "3", "2"], ["0"]]
    assert pages(sort="efficiency") == [[]]  # none has one
    for bad in ({"sort": "grade"}, {"after": "x"}):
        with pytest.raises(BadOption):
            page_of_runs(history, Selection(), **bad)


def test_better_is_lower_for_times_and_higher_for_rates() -> None:
    assert [is_better("step_time_ms", change) for change in (-0.1, 0.0, 0.1)] == [True, False, False]
    assert [is_better("throughput_tok_s", change) for change in (-0.1, 0.0, 0.1)] == [False, False, True]


def test_a_trend_of_nothing(history: History) -> None:
    with pytest.raises(NotMeasured, match="no matching run"):
        trend_of(history, "step_time_ms", Selection())
    history.add(NewRun(card=card()))
    with pytest.raises(NotMeasured, match="no run has mfu"):
        trend_of(history, "mfu", Selection())

"""The states of an alert over the life of a series: one alert per change, at the right commit, none stale."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence

import pytest

import stepgrade as sg
from stepgrade.compare.levels import judged_levels
from stepgrade.model.comparison import RunRow
from stepgrade.store import History, NewRun, open_store
from stepgrade.store.alerts import ACTIVE, Alert, Alerts
from stepgrade.store.runs import Selection
from stepgrade.store.tables import trend_of
from stepgrade.store.team import ProjectSettings, Team
from tests.store.test_history import card

NOW = dt.datetime.now(dt.UTC)


class Series:
    """Runs that arrive one by one, with a look at the alerts after each."""

    def __init__(self, history: History) -> None:
        self.history, self.alerts = history, Alerts(history)
        self.count = 0
        self.events: list[tuple[int, str]] = []  # at which run, and what

    def add(self, step_ms: float, *, at: dt.datetime | None = None, branch: str = "main") -> int:
        made_at = at or NOW - dt.timedelta(hours=100 - self.count)
        run = NewRun(card=card(step_ms), branch=branch, commit=f"c{self.count}", added_at=made_at.isoformat())
        number = self.history.add(run)
        digest = self.history.runs(Selection(limit=1))[0].digest
        for _, event in self.alerts.look(branch, digest, newest=number):
            self.events.append((self.count, event))
        self.count += 1
        return number

    def fill(self, level_ms: float, runs: int, noise: float = 0.005, seed: int = 1) -> None:
        chance = random.Random(f"{seed} {level_ms}")
        for _ in range(runs):
            self.add(level_ms * (1.0 + chance.gauss(0.0, noise)))

    def listed(self) -> list[Alert]:
        return self.alerts.listed()[::-1]


@pytest.fixture
def series(place: str) -> Iterator[Series]:
    with open_store(place) as history:
        yield Series(history)


def test_one_alert_from_opening_to_recovery(series: Series) -> None:
    series.fill(100.0, 20)
    series.fill(110.0, 12)
    (alert,) = series.listed()
    assert [event for _, event in series.events][:1] == ["opened"]
    assert (alert.state, alert.last_commit, alert.first_commit) == ("open", "c19", "c20")
    assert "regressed, beyond the noise" in alert.details
    series.alerts.change(alert.id, "acknowledged", reason="known", who="me")
    series.fill(100.5, 12)
    (alert,) = series.listed()
    assert (alert.state, alert.changed_by) == ("resolved", "stepgrade")
    assert "improved, beyond the noise" in alert.details
    assert [event for _, event in series.events if event in ("opened", "resolved")] == ["opened", "resolved"]


def test_a_drift_leaves_one_alert_at_its_first_commits(series: Series) -> None:
    series.fill(100.0, 15)
    chance = random.Random(5)
    for n in range(30):
        series.add(100.0 * 1.01**n * (1.0 + chance.gauss(0.0, 0.005)))
    series.fill(100.0 * 1.01**30, 6)
    active = [alert for alert in series.listed() if alert.state in ACTIVE]
    assert len(active) == 1
    assert 13 <= int((active[0].first_commit or "c0")[1:]) <= 24
    assert active[0].level_after > 125.0
    assert all(alert.state in ("merged", "withdrawn", "open") for alert in series.listed())


def test_what_more_runs_take_back_is_withdrawn(series: Series) -> None:
    """A few slow runs that are followed by as many fast ones were no change of level."""
    series.fill(100.0, 20)
    series.fill(112.0, 4)
    opened = series.listed()
    series.fill(100.0, 20, seed=3)
    assert [alert.state for alert in series.listed()] in ([], ["resolved"], ["withdrawn"])
    assert len(series.listed()) == len(opened)
    assert not any(alert.state in ACTIVE for alert in series.listed())


def test_what_is_filled_in_later_raises_nothing(series: Series) -> None:
    series.fill(100.0, 12)
    before = NOW - dt.timedelta(days=300)
    # An improvement of last year, and a regression of before, added newest first and oldest first.
    for day in range(24):
        series.add(130.0 if day < 12 else 112.0, at=before + dt.timedelta(days=day))
    assert series.events == []
    series.fill(100.0, 3)
    assert [alert for alert in series.listed() if alert.state in ACTIVE] == []
    assert "opened" not in [event for _, event in series.events]
    trend = trend_of(series.history, "step_time_ms", Selection(branch="main"))
    assert [round(change.change, 2) for change in trend.changes] == [-0.14, -0.11]


def test_a_series_of_old_runs_in_order_raises_nothing(series: Series) -> None:
    for day in range(30):
        series.add(100.0 + day % 3 + 20.0 * (day >= 15), at=NOW - dt.timedelta(days=200 - day))
    assert (series.events, series.listed()) == ([], [])


def test_thresholds_are_the_project_s(place: str) -> None:
    with open_store(place) as history:
        team = Team(history.database)
        team.set_project(history.project, ProjectSettings(alert_from={"step_time_ms": 0.15}))
        series = Series(history)
        series.fill(100.0, 15)
        series.fill(110.0, 10)
        assert series.listed() == []
        team.set_project(history.project, ProjectSettings())
        series.fill(110.0, 2)
        assert [alert.state for alert in series.listed()] == ["open"]


def test_branches_are_never_one_series(series: Series) -> None:
    for n in range(12):
        series.add(100.0 + n % 2)
        series.add(150.0 + n % 2, branch="slow")
    assert series.events == []
    trend = trend_of(series.history, "step_time_ms", Selection())
    assert (trend.branch, len(trend.points), trend.changes) == ("main", 12, ())


def test_runs_are_in_the_order_in_which_they_were_made(series: Series) -> None:
    for day in (3, 1, 2):
        series.add(100.0 + day, at=NOW - dt.timedelta(days=30 - day))
    rows: Sequence[RunRow] = series.history.runs()
    assert [row.metrics["step_time_ms"] for row in rows] == [101.0, 102.0, 103.0]
    assert [value for _, value in series.history.series("step_time_ms", Selection(limit=2))] == [102.0, 103.0]
    assert series.history.prunable(keep=1) == [3, 2]
    (newest,) = series.history.runs(Selection(limit=1))
    assert newest.commit == "c0"


def test_few_false_alerts() -> None:
    """At 1 % noise, in twenty series of sixty runs; `benchmarks/regression.py alerts` takes a thousand."""
    wrong = 0
    for seed in range(20):
        chance = random.Random(seed)
        values = [100.0 * (1.0 + chance.gauss(0.0, 0.01)) for _ in range(60)]
        looks = (judged_levels("step_time_ms", values[:runs], sure=True) for runs in range(8, 61, 4))
        wrong += any(looks)
    assert wrong == 0


def test_the_alert_says_what_the_gate_says(series: Series) -> None:
    series.fill(100.0, 12, noise=0.01)
    series.fill(115.0, 8, noise=0.01)
    (alert,) = series.listed()
    rows = series.history.runs()
    cards = series.history.cards([row.id for row in rows])
    opened_at = next(at for at, event in series.events if event == "opened")
    before = [cards[row.id] for row in rows if row.id <= alert.last_run]
    after = [cards[row.id] for row in rows if alert.first_run <= row.id <= rows[opened_at].id]
    report = sg.gate(after, baseline=before)
    change = next(change for change in report.changes if change.metric == alert.metric)
    assert f"{change.outcome}, {change.why}" in alert.details

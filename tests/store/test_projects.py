"""Runs of several projects in one store: none sees another's, and a run that is sent twice is kept once."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stepgrade.errors import BadHistory, KeyTaken
from stepgrade.store import NewRun, Selection, open_history
from stepgrade.store.database import MIGRATIONS
from stepgrade.store.history import device_hours
from stepgrade.store.sqlite import APPLICATION_ID, SqliteDatabase
from tests.store.test_history import card


def test_a_project_sees_its_own_runs_alone(place: str) -> None:
    with open_history(place, project="a") as history:
        mine = history.add(NewRun(card=card(100.0), branch="main"))
        other = history.in_project("b")
        theirs = other.add(NewRun(card=card(200.0), branch="main"))
        assert [run.id for run in history.runs()] == [mine]
        assert [run.id for run in other.runs()] == [theirs]
        assert history.series("step_time_ms", Selection()) == [(mine, 100.0)]
        assert history.commits([theirs]) == {}
        assert history.origins([theirs]) == {}
        with pytest.raises(BadHistory, match=f"no run {theirs}"):
            history.card(theirs)
        history.remove([theirs])
        assert other.card(theirs).step_time_ms == 200.0
        assert history.prunable(keep=1) == []


def test_a_run_that_is_sent_again_is_kept_once(place: str) -> None:
    with open_history(place) as history:
        run = NewRun(card=card(), commit="c1", key="k1", added_by="ci")
        first = history.add(run)
        assert history.add(run) == first
        assert len(history.runs()) == 1
        with pytest.raises(KeyTaken, match=f"run {first}"):
            history.add(NewRun(card=card(), commit="c2", key="k1"))
        assert history.in_project("other").add(run) != first
        assert history.origins([first])[first].added_by == "ci"


def test_pages_of_runs(place: str) -> None:
    with open_history(place) as history:
        numbers = history.add_all(
            NewRun(
                card=card(), commit=f"a_{n}", added_at=f"2026-01-{n + 1:02}T00:00:00+00:00", added_by=str(n)
            )
            for n in range(9)
        )
        page = history.runs(Selection(limit=4))
        earlier = history.runs(Selection(limit=4, before=page[0].id))
        assert [run.id for run in (*earlier, *page)] == numbers[1:]
        assert [run.id for run in history.runs(Selection(after=numbers[6]))] == numbers[7:]
        assert len(history.runs(Selection(since="2026-01-03", until="2026-01-05"))) == 2
        assert [run.commit for run in history.runs(Selection(commit="a_3"))] == ["a_3"]
        assert history.runs(Selection(commit="a%")) == []
        assert len(history.runs(Selection(added_by="2"))) == 1
        assert history.runs(Selection(grade="A")) == []


def test_device_hours_are_what_was_recorded(place: str) -> None:
    short = card(samples_ms=tuple([100.0] * 10))
    assert device_hours(short) == pytest.approx(10 * 0.1 / 3600)
    with open_history(place) as history:
        numbers = history.add_all([NewRun(card=short), NewRun(card=short, device_hours=512.0)])
        hours = [origin.device_hours for origin in history.origins(numbers).values()]
    assert hours == [pytest.approx(1 / 3600), 512.0]


def test_a_history_of_before_there_were_projects(tmp_path: Path) -> None:
    """Its runs are those of the project `default`, and their findings are found when somebody asks."""
    new, old = tmp_path / "new.db", tmp_path / "old.db"
    with open_history(str(new)) as history:
        history.add(NewRun(card=card(), branch="main", commit="c"))
    with closing(sqlite3.connect(old)) as before:
        for statements in MIGRATIONS[:2]:
            for statement in statements:
                before.execute(statement.format(**SqliteDatabase.words))
        columns = ", ".join(row[1] for row in before.execute("pragma table_info (stepgrade_run)"))
        before.execute("attach ? as new", (str(new),))
        for table, names in (("fingerprint", "*"), ("run", columns), ("card", "*")):
            before.execute(f"insert into main.stepgrade_{table} select {names} from new.stepgrade_{table}")  # noqa: S608
        before.execute(f"pragma application_id = {APPLICATION_ID}")
        before.execute("pragma user_version = 2")
        before.commit()
    with open_history(str(old)) as history:
        (row,) = history.runs()
        assert (row.branch, row.commit) == ("main", "c")
        assert history.card(row.id).step_time_ms == 100.0
        assert history.without_findings(10) == [row.id]
        history.fill_findings([row.id])
        assert history.without_findings(10) == []

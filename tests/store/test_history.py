"""What goes into the history comes out of it, on SQLite and on PostgreSQL."""

from __future__ import annotations

import datetime as dt
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.errors import BadHistory, BadOption, NotMeasured
from stepgrade.gating.run import earlier_runs, runs_of_branch
from stepgrade.model.scorecard import Fingerprint
from stepgrade.store import History, NewRun, Selection, open_history
from stepgrade.store.database import MIGRATIONS
from stepgrade.store.tables import trend_of
from tests.builders import make_profile

KEEP_ADDING = """
import sys
import stepgrade as sg
from stepgrade.store import NewRun, open_history
from tests.builders import make_profile
card = sg.score(make_profile(samples_ms=tuple(100.0 + n % 7 for n in range(50))))
for start in range(0, int(sys.argv[2]), 25):
    with open_history(sys.argv[1]) as history:
        for number in range(start, start + 25):
            print(history.add(NewRun(card=card, branch="main", commit=f"{sys.argv[3]}-{number}")), flush=True)
"""


def card(step_ms: float = 100.0, **fields: Any) -> sg.Scorecard:
    return sg.score(make_profile(mean_step_ms=step_ms, **fields), tokens_per_step=1000.0)


def fill(history: History, steps_ms: list[float], **fields: Any) -> None:
    for number, step_ms in enumerate(steps_ms):
        history.add(NewRun(card=card(step_ms), commit=f"c{number}", branch=fields.get("branch", "main")))


def start(place: str, runs: int, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", KEEP_ADDING, place, str(runs), name],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def test_a_run_comes_back_as_it_was(place: str) -> None:
    before = card(samples_ms=tuple(100.0 + n % 5 for n in range(30)))
    run = NewRun(card=before, commit="abc", branch="main", labels={"machine": 'a"b%_~', "ü": ""})
    with open_history(place) as history:
        number = history.add(run)
    with open_history(place, create=False) as history:
        (row,) = history.runs()
        assert (row.id, row.commit, row.branch, row.labels) == (number, "abc", "main", run.labels)
        assert row.metrics["step_time_ms"] == before.step_time_ms
        after = history.card(number)
    assert msgspec.json.encode(after) == msgspec.json.encode(before)


def test_runs_are_found_by_branch_label_and_number(place: str) -> None:
    with open_history(place) as history:
        for number in range(6):
            labels = {"odd": str(number % 2), "other": "x"}
            branch = "main" if number < 4 else "topic"
            history.add(NewRun(card=card(), branch=branch, labels=labels))
        assert len(history.runs(Selection(branch="main"))) == 4
        assert len(history.runs(Selection(labels={"odd": "1"}))) == 3
        assert len(history.runs(Selection(labels={"odd": "1", "other": "x"}, branch="topic"))) == 1
        assert history.runs(Selection(labels={"odd": "%"})) == []
        newest = history.runs(Selection(limit=2))
        assert [run.id for run in newest] == sorted(run.id for run in newest)
        assert newest[-1].id == max(run.id for run in history.runs())
        assert history.runs(Selection(digests=())) == []


def test_only_comparable_runs_are_compared_with(place: str) -> None:
    small, large = Fingerprint(device="h100", batch=1), Fingerprint(device="h100", batch=32)
    with open_history(place) as history:
        for fingerprint in (small, small, large):
            history.add(NewRun(card=msgspec.structs.replace(card(), fingerprint=fingerprint), branch="main"))
        mine = msgspec.structs.replace(card(), fingerprint=large)
        assert len(runs_of_branch(history, mine, "main", frozenset()).runs) == 1
        assert len(runs_of_branch(history, mine, "main", frozenset({"batch"})).runs) == 3
        other = msgspec.structs.replace(card(), fingerprint=Fingerprint(device="a100"))
        assert "is comparable" in str(runs_of_branch(history, other, "main", frozenset()).missing)
        assert "no run of branch" in str(runs_of_branch(history, mine, "topic", frozenset()).missing)


def test_only_the_present_level_counts(place: str) -> None:
    with open_history(place) as history:
        fill(history, [100.0 + n % 3 for n in range(12)] + [120.0 + n % 3 for n in range(12)])
        found = runs_of_branch(history, card(), "main", frozenset())
    assert len(found.runs) == 12
    assert all((run.step_ms or 0.0) >= 120.0 for run in found.runs)
    assert "changed recently" in found.notes[0].text


def test_a_trend_names_the_commits(place: str) -> None:
    with open_history(place) as history:
        fill(history, [100.0 + n % 3 for n in range(12)] + [120.0 + n % 3 for n in range(12)])
        trend = trend_of(history, "step_time_ms", Selection(branch="main"))
        (change,) = trend.changes
        assert (change.last_commit, change.first_commit) == ("c11", "c12")
        assert change.change == pytest.approx(0.198, abs=0.01)
        with pytest.raises(BadHistory, match="unknown metric"):
            trend_of(history, "id; drop table stepgrade_run", Selection())
        with pytest.raises(NotMeasured, match="no matching run"):
            trend_of(history, "mfu", Selection(branch="topic"))
        with pytest.raises(NotMeasured, match="no run has mfu"):
            trend_of(history, "mfu", Selection())


def test_prune_keeps_the_newest_of_every_branch(place: str) -> None:
    with open_history(place) as history:
        fill(history, [100.0] * 5)
        fill(history, [100.0] * 3, branch="topic")
        history.remove(history.prunable(keep=2))
        assert [run.branch for run in history.runs()] == ["main", "main", "topic", "topic"]
        assert history.prunable(older_than=dt.date(2000, 1, 1)) == []
        old = history.add(NewRun(card=card(), added_at="2001-02-03T04:05:06+00:00"))
        assert history.prunable(older_than=dt.date(2001, 2, 4)) == [old]
        assert history.prunable(older_than=dt.date(2001, 2, 3)) == []


@pytest.mark.parametrize("which", [{"keep": 0}, {"keep": -1}, {"older_than": dt.date(9999, 12, 31)}])
def test_what_would_mean_every_run_is_refused(place: str, which: dict[str, Any]) -> None:
    with open_history(place) as history:
        fill(history, [100.0] * 3)
        with pytest.raises(BadOption, match=r"must be 1 or more|in the future"):
            history.prunable(**which)


def test_batches_are_the_runs_in_their_order(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepgrade.store.history._EXPORT_BATCH", 3)
    with open_history(place) as history:
        for branch in ("main", "topic", "main"):
            fill(history, [100.0] * 4, branch=branch)
        history.in_project("other").add(NewRun(card=card()))
        last = history.runs()[-1].id
        for which in (
            Selection(),
            Selection(branch="main"),
            Selection(limit=5),
            Selection(branch="main", limit=5, after=2, before=last),
            Selection(branch="none"),
        ):
            assert [run for some in history.batches(which) for run in some] == history.runs(which)
        history.remove([history.runs()[3].id])
        assert max(map(len, history.batches(Selection()))) == 3


def test_export_holds_everything(place: str) -> None:
    with open_history(place) as history:
        fill(history, [100.0, 101.0])
        rows = list(history.export())
    assert [row["card"]["step_time_ms"] for row in rows] == [100.0, 101.0]
    assert rows[0]["commit"] == "c0"


def test_many_cards_are_read_in_their_order_with_one_query(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_history(place) as history:
        numbers = history.add_all([NewRun(card=card(float(ms))) for ms in (3, 1, 2)])
        asked = []
        execute = history.database.execute
        monkeypatch.setattr(
            history.database, "execute", lambda sql, values=(): asked.append(sql) or execute(sql, values)
        )
        cards = history.cards([numbers[2], numbers[0], numbers[1], numbers[2]])
        assert [found.step_time_ms for found in cards.values()] == [2.0, 3.0, 1.0]
        assert list(cards) == [numbers[2], numbers[0], numbers[1]]
        assert len(asked) == 1
        assert history.cards([]) == {}
        with pytest.raises(BadHistory, match="no run 99"):
            history.cards([numbers[0], 99])


def test_a_missing_run_is_said(place: str) -> None:
    with open_history(place) as history, pytest.raises(BadHistory, match="no run 7"):
        history.card(7)


def test_a_store_from_the_future_is_refused_and_left_alone(place: str) -> None:
    with open_history(place) as history:
        fill(history, [100.0])
        history.database.set_version(len(MIGRATIONS) + 1)
    with pytest.raises(BadHistory, match=r"newer stepgrade.*pip install --upgrade"):
        open_history(place)


def test_a_migration_that_fails_leaves_nothing(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_history(place) as history:
        fill(history, [100.0])
    broken = (*MIGRATIONS, ("create table half_done (id integer)", "this is not sql"))
    monkeypatch.setattr("stepgrade.store.database.MIGRATIONS", broken)
    with pytest.raises(BadHistory):
        open_history(place)
    monkeypatch.undo()
    with open_history(place) as history:
        assert history.database.version() == len(MIGRATIONS)
        assert len(history.runs()) == 1
        with pytest.raises(BadHistory):
            history.database.execute("select * from half_done")


def test_eight_writers_lose_nothing(place: str) -> None:
    """A thousand runs by eight processes, each opening the store again and again."""
    writers = [start(place, 125, f"w{number}") for number in range(8)]
    told = [int(line) for writer in writers for line in writer.communicate(timeout=300)[0].split()]
    assert all(writer.returncode == 0 for writer in writers)
    with open_history(place, create=False) as history:
        kept = {run.id for run in history.runs()}
        commits = {run.commit for run in history.runs()}
    assert len(told) == len(set(told)) == 1000
    assert kept == set(told)
    assert commits == {f"w{writer}-{number}" for writer in range(8) for number in range(125)}


@pytest.mark.parametrize("patience_s", [0.35, 0.5, 0.65, 0.8])
def test_a_killed_writer_loses_nothing_it_was_told(place: str, patience_s: float) -> None:
    with open_history(place):
        pass
    writer = start(place, 10_000, "k")
    assert writer.stdout is not None
    first = writer.stdout.readline()
    time.sleep(patience_s)
    os.kill(writer.pid, signal.SIGKILL)
    told = [
        int(line) for line in (first, *writer.stdout.read().splitlines(keepends=True)) if line.endswith("\n")
    ]
    writer.wait()
    writer.stdout.close()
    with open_history(place, create=False) as history:
        kept = [run.id for run in history.runs()]
        assert set(told) <= set(kept)
        assert len(kept) - len(told) <= 1
        assert all(history.card(number) for number in kept[-3:])
        assert history.add(NewRun(card=card())) > max(kept)


@pytest.mark.parametrize("patience_s", [0.0, 0.1, 0.2, 0.3, 0.4])
def test_a_process_killed_while_it_makes_the_store_leaves_one_that_opens(
    place: str, patience_s: float
) -> None:
    writer = start(place, 10_000, "k")
    assert writer.stdout is not None
    time.sleep(patience_s)
    os.kill(writer.pid, signal.SIGKILL)
    told = [int(line) for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    writer.wait()
    writer.stdout.close()
    with open_history(place) as history:
        assert {run.id for run in history.runs()} >= set(told)
        assert history.add(NewRun(card=card())) > 0


@pytest.mark.parametrize("text", ["main", "history:", "branch:main", ""])
def test_what_is_no_branch_of_the_history(text: str) -> None:
    with pytest.raises(sg.StepgradeError, match="history:main"):
        earlier_runs(card(), text, frozenset())

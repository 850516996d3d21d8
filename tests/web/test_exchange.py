"""Runs go to a server and come back: from CI, offline, twice, and after the server was killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepgrade.errors import BadHistory, NotLetIn, Unreachable
from stepgrade.gating.run import runs_of_branch
from stepgrade.store import NewRun, Selection, open_history
from stepgrade.store.client import parse_address
from stepgrade.store.remote import RemoteHistory
from stepgrade.store.tables import trend_of
from tests.conftest import ROOT, Ran
from tests.store.server import running_server
from tests.web.conftest import card
from tests.web.live import Live, live_server

Run = Callable[..., Ran]
KILLS = int(os.environ.get("STEPGRADE_KILLS", "3"))
PROFILE = ROOT / "examples" / "runs" / "gpt_naive.json"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPGRADE_TOKEN", raising=False)


def test_a_remote_history_answers_like_a_local_one(place: str, tmp_path: Path) -> None:
    steps = [100.0 + n % 3 for n in range(12)] + [120.0 + n % 3 for n in range(12)]
    runs = [
        NewRun(card=card(ms), branch="main", commit=f"c{n}", labels={"n": str(n % 2)})
        for n, ms in enumerate(steps)
    ]
    with live_server(place) as server, RemoteHistory(f"{server.url}/default") as remote:
        numbers = remote.add_all(runs)
        with open_history(place, create=False) as local:
            for which in (
                Selection(),
                Selection(limit=5),
                Selection(labels={"n": "1"}, limit=3),
                Selection(branch="x"),
            ):
                assert remote.runs(which) == local.runs(which)
            which = Selection(branch="main", limit=20)
            assert remote.series("step_time_ms", which) == local.series("step_time_ms", which)
            assert remote.fingerprints() == local.fingerprints()
            assert remote.card(numbers[3]) == local.card(numbers[3])
            ours = trend_of(remote, "step_time_ms", Selection(branch="main"))
            theirs = trend_of(local, "step_time_ms", Selection(branch="main"))
            assert (ours.points, ours.changes) == (theirs.points, theirs.changes)
            now = card(121.0)
            assert (
                runs_of_branch(remote, now, "main", frozenset()).runs
                == runs_of_branch(local, now, "main", frozenset()).runs
            )
        with pytest.raises(BadHistory, match="run not found"):
            remote.card(10**9)
        with (
            pytest.raises(BadHistory, match="project not found"),
            RemoteHistory(f"{server.url}/nothing") as other,
        ):
            other.runs()
        assert server.stop() == 0
    assert not list(tmp_path.glob("**/*-wal"))


def test_ci_saves_and_gates_with_a_token(
    tmp_path: Path, stepgrade: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "team.db")
    assert stepgrade("admin", "project", "llm", "--history", place).code == 0
    made = stepgrade(
        "admin", "token", "--name", "ci", "--role", "uploader", "--project", "llm", "--history", place
    )
    assert made.out.startswith("sg_")
    with live_server(place, "--tokens") as server:
        there = f"{server.url}/llm"
        score = (
            "score",
            PROFILE,
            "--device",
            "gb10",
            "--throughput",
            "194",
            "--save",
            "--branch",
            "main",
            "--history",
            there,
        )
        refused = stepgrade(*score)
        assert (refused.code, "STEPGRADE_TOKEN" in refused.err) == (2, True)
        monkeypatch.setenv("STEPGRADE_TOKEN", made.out.strip())
        for number in range(3):
            assert f"saved as run {number + 1}" in stepgrade(*score).err
        gated = stepgrade(
            "gate",
            PROFILE,
            "--device",
            "gb10",
            "--throughput",
            "194",
            "--against",
            "history:main",
            "--history",
            there,
        )
        assert gated.code == 0, gated.err + gated.out
        assert "3 runs of main" in gated.out
        listed = stepgrade("history", "list", "--history", there)
        assert "3 runs" in listed.out
        assert stepgrade("history", "trend", "--history", there).code == 0
        for command in (("history", "prune", "--keep", "1", "--yes"), ("admin", "tokens")):
            refused = stepgrade(*command, "--history", there)
            assert (refused.code, "needs the database itself" in refused.err) == (2, True)
        said = refused.err + refused.out + gated.out + gated.err + listed.out
        assert made.out.strip() not in said
        monkeypatch.setenv("STEPGRADE_TOKEN", "sg_wrong")
        with RemoteHistory(there) as other, pytest.raises(NotLetIn):
            other.runs()


def test_what_is_saved_offline_is_sent_later(tmp_path: Path, stepgrade: Run) -> None:
    place = str(tmp_path / "team.db")
    server = Live(place)
    there = f"{server.url}/default"
    assert server.stop() == 0
    score = (
        "score",
        PROFILE,
        "--device",
        "gb10",
        "--throughput",
        "194",
        "--save",
        "--branch",
        "main",
        "--history",
        there,
    )
    for _ in range(2):
        ran = stepgrade(*score)
        assert ran.code == 0
        assert "does not answer: Connection refused: the run waits in the outbox" in ran.err
    gated = stepgrade(
        "gate",
        PROFILE,
        "--device",
        "gb10",
        "--throughput",
        "194",
        "--against",
        "history:main",
        "--history",
        there,
    )
    assert gated.code == 3
    assert "does not answer" in gated.out
    outbox = Path(os.environ["STEPGRADE_OUTBOX"])
    assert len(list(outbox.glob("*/run-*.json"))) == 2
    assert not Path(".stepgrade").exists()
    assert stepgrade("history", "outbox").out.count(f"  waits  {there}  main  ") == 2
    assert stepgrade("history", "push", "--to", there).code == 2  # still nobody there
    server.start()
    try:
        sent = stepgrade("history", "push", "--to", there)
        assert (sent.code, "2 sent" in sent.out) == (0, True), sent.err
        assert list(outbox.glob("*/*.json")) == []
        assert "0 sent" in stepgrade("history", "push", "--to", there).out
    finally:
        server.stop()
    with open_history(place) as history:
        assert len(history.runs()) == 2


def test_push_and_pull_carry_every_run_once(tmp_path: Path, stepgrade: Run) -> None:
    with open_history("local.db") as local:
        numbers = local.add_all(NewRun(card=card(100.0 + n), branch="main", commit=f"c{n}") for n in range(5))
        local.database.execute("update stepgrade_run set upload_key = null where id < 3")  # as old ones are
    with live_server(tmp_path / "team.db") as server:
        there = f"{server.url}/default"
        push = ("history", "push", "--to", there, "--history", "local.db")
        assert stepgrade(*push).out.startswith("5 sent")
        assert "0 sent" in stepgrade(*push).out
        pull = ("history", "pull", "--from", there, "--history", "local.db")
        assert stepgrade(*pull).out.startswith("0 new")
        assert stepgrade(*pull[:-1], "second.db").out.startswith("5 new")
        assert stepgrade(*pull[:-1], "second.db").out.startswith("0 new")
    with open_history("local.db") as one, open_history("second.db") as other:
        assert [(run.commit, run.metrics, run.added_at) for run in one.runs()] == [
            (run.commit, run.metrics, run.added_at) for run in other.runs()
        ]
        assert one.card(numbers[0]) == other.card(other.runs()[0].id)


@pytest.mark.parametrize(
    "place",
    [
        "http://stepgrade.example/llm",
        "https://user:hunter2@host/llm",
        "https://host",
        "https://host/llm?x=1",
        "https://[/llm",
    ],
)
def test_odd_addresses_are_refused_and_not_repeated(place: str, stepgrade: Run) -> None:
    with pytest.raises(BadHistory):
        parse_address(place)
    ran = stepgrade("history", "list", "--history", place)
    assert ran.code == 2
    assert "hunter2" not in ran.err


def test_a_server_that_is_none_of_ours(stepgrade: Run) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as other:
        assert other.stdout is not None
        port = other.stdout.readline().split("port ")[1].split()[0]
        ran = stepgrade("history", "list", "--history", f"http://127.0.0.1:{port}/llm")
        other.terminate()
    assert (ran.code, "is not a stepgrade server" in ran.err) == (2, True), ran.err


def test_backup_and_restore(tmp_path: Path, stepgrade: Run) -> None:
    with live_server(tmp_path / "team.db") as server, RemoteHistory(f"{server.url}/default") as remote:
        remote.add_all([NewRun(card=card()), NewRun(card=card())])
        assert stepgrade("admin", "backup", "copy.db", "--history", tmp_path / "team.db").code == 0
        remote.add(NewRun(card=card()))
    assert stepgrade("admin", "backup", "copy.db", "--history", tmp_path / "team.db").code == 2  # it is there
    assert stepgrade("admin", "restore", "copy.db", "--history", "back.db").code == 0
    with open_history("back.db") as history:
        assert len(history.runs()) == 2
    Path("other.db").write_text("no database")
    assert stepgrade("admin", "restore", "other.db", "--history", "again.db").code == 2


def test_every_acknowledged_run_outlives_the_server(place: str) -> None:
    """Kill -9 of the server at random moments under uploads; the same runs are sent until they are acknowledged."""
    moments = random.Random(7)
    server = Live(place, "--uploads-per-minute", "100000")
    acknowledged: dict[str, int] = {}
    try:
        with sending(server, acknowledged):
            for _ in range(KILLS):
                await_one_more(acknowledged)
                time.sleep(moments.random() * 0.3)
                server.kill()
                server.start()
    finally:
        server.stop()
    assert_all_are_kept(place, acknowledged)


def test_every_acknowledged_run_outlives_the_database() -> None:
    """Kill -9 of PostgreSQL under uploads through the server, now and then of the server in the same moment."""
    moments = random.Random(11)
    with running_server(fsync=True) as database:
        server = Live(database.url, "--uploads-per-minute", "100000")
        acknowledged: dict[str, int] = {}
        try:
            with sending(server, acknowledged):
                for number in range(KILLS):
                    await_one_more(acknowledged)
                    time.sleep(moments.random() * 0.3)
                    database.kill()
                    if number % 3 == 1:
                        server.kill()
                    database.start()
                    if number % 3 == 1:
                        server.start()
                # The server that stayed has found its database again, however busy the machine is.
                assert await_one_more(acknowledged, 300.0)
        finally:
            server.stop()
        assert_all_are_kept(database.url, acknowledged)


@contextmanager
def sending(server: Live, acknowledged: dict[str, int]) -> Iterator[None]:
    """Upload from three threads, each run under its key until the server has said that it is kept."""
    stop = threading.Event()

    def send(name: str) -> None:
        number = 0
        while not stop.is_set():
            key = f"{name}-{number}"
            try:
                with RemoteHistory(f"{server.url}/default") as remote:
                    acknowledged[key] = remote.send_now(NewRun(card=card(), commit=key, key=key))
                number += 1
            except Unreachable:
                time.sleep(0.05)

    threads = [threading.Thread(target=send, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def await_one_more(acknowledged: dict[str, int], most_s: float = 60.0) -> bool:
    """Wait until one more run is kept, and tell whether one was."""
    count, end = len(acknowledged), time.monotonic() + most_s
    while len(acknowledged) == count and time.monotonic() < end:
        time.sleep(0.01)
    return len(acknowledged) > count


def assert_all_are_kept(place: str, acknowledged: dict[str, int]) -> None:
    with open_history(place, create=False) as history:
        kept = {run.id: run.commit for run in history.runs()}
        assert {number: key for key, number in acknowledged.items()}.items() <= kept.items()
        assert len(set(kept.values())) == len(kept)  # none is there twice
        assert len(history.cards(sorted(kept)[-5:])) == min(5, len(kept))

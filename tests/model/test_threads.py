"""Eight threads read something first, at the same moment: no process crashes, and all threads get the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.store import NewRun
from tests.builders import make_step_profile
from tests.conftest import ROOT
from tests.first_use import THREADS, at_once
from tests.kineto_text import kineto_text
from tests.trace_builder import make_trace
from tests.web.live import live_server

TRACE = ROOT / "examples" / "traces" / "gpt_fused.json.gz"
SETTINGS = """
[[budget]]
metric = "step_time_ms"
at_most = 100
[[waiver]]
metric = "step_time_ms"
until = 2030-01-01
reason = "a known regression"
[[dialect]]
name = "ours"
contains = "step"
fields = { loss = "loss" }
[limits]
slow_link_share = 0.2
"""


def outcomes(case: str, processes: int, place: Path | str) -> str:
    """Return how many processes ended with which exit code, 0 for a good end and negative for a crash."""
    command = [sys.executable, "-m", "tests.first_use", case, str(processes), str(place)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    return ran.stdout.strip() + ran.stderr


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a card that has every part: that of a trace."""
    path = tmp_path_factory.mktemp("card") / "card.json"
    path.write_text(sg.score(TRACE).to_json())
    return path


def test_a_scorecard(card: Path) -> None:
    assert outcomes("card", 200, card) == "{0: 200}"


@pytest.mark.slow
def test_a_scorecard_in_new_interpreters(card: Path) -> None:
    assert [outcomes("card", 1, card) for _ in range(200)] == ["{0: 1}"] * 200


FILES: dict[str, Callable[[], bytes]] = {
    "profile.json": lambda: make_step_profile().encode(),
    "trace.json": lambda: kineto_text(make_trace()),
}


@pytest.mark.parametrize("name", FILES)
def test_scoring(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FILES[name]())
    assert outcomes("score", 6, path) == "{0: 6}"


def test_settings(tmp_path: Path) -> None:
    path = tmp_path / "stepgrade.toml"
    path.write_text(SETTINGS)
    assert outcomes("settings", 20, path) == "{0: 20}"


def test_a_history_of_a_file_and_of_a_server(tmp_path: Path, card: Path) -> None:
    place = str(tmp_path / "history.db")
    with sg.history(place) as history:
        history.add_all([NewRun(card=sg.Scorecard.from_json(card.read_text()), branch="main")] * 3)
    assert outcomes("history", 20, place) == "{0: 20}"
    with live_server(place) as server:
        assert outcomes("history", 5, f"{server.url}/default") == "{0: 5}"


@pytest.mark.parametrize("_time", range(3))
def test_uploads_to_a_new_server(
    _time: int, tmp_path: Path, card: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("STEPGRADE_TOKEN", raising=False)
    kept = NewRun(card=sg.Scorecard.from_json(card.read_text()), branch="main")
    with live_server(tmp_path / "team.db") as server:

        def upload() -> object:
            with sg.history(f"{server.url}/default") as remote:
                return remote.add_all([kept])

        numbers = at_once(upload)
        assert sorted(str(number) for number in numbers) == [f"[{n}]" for n in range(1, THREADS + 1)]
        assert server.stop() == 0

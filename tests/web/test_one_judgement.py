"""The gate, the server's comparison and the assistant say the same of the same runs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.model.comparison import GateReport, MetricChange
from stepgrade.store import NewRun, open_store
from tests.builders import make_profile

pytest.importorskip("starlette", reason="the server is not installed")
pytest.importorskip("mcp", reason="the SDK of the protocol is not installed")
from stepgrade.web.assistant import Roots, Tools
from stepgrade.web.comparing import compare_runs

WORDS = ("metric", "outcome", "before", "now", "change", "low", "high", "why", "more")


def run_of(chance: random.Random, level_ms: float, noise: float) -> sg.Scorecard:
    middle = level_ms * (1.0 + chance.gauss(0.0, noise))
    samples = tuple(middle * (1.0 + chance.gauss(0.0, 0.02)) for _ in range(20))
    return sg.score(make_profile(steps=20, mean_step_ms=sum(samples) / 20, samples_ms=samples))


def words_of(changes: Any) -> list[dict[str, Any]]:
    plain = msgspec.to_builtins(changes)
    return [{name: row[name] for name in WORDS} for row in plain]


@pytest.mark.parametrize("seed", range(12))
def test_the_same_words_on_the_same_runs(tmp_path: Path, seed: int) -> None:
    """A pull request's run against the newest of main, whose level changed before or not, few runs or many."""
    chance = random.Random(seed)
    noise, runs = chance.choice((0.003, 0.01, 0.05)), chance.choice((1, 2, 3, 8, 25))
    slower = chance.choice((0.0, 0.03, 0.08, 0.25, 0.9))
    place = str(tmp_path / "history.db")
    now = run_of(chance, 100.0 * (1.0 + slower), noise)
    with open_store(place) as history:
        for level in chance.choice(((100.0,), (140.0, 100.0))):
            for _ in range(runs):
                newest = history.add(NewRun(card=run_of(chance, level, noise), branch="main"))
        by_gate = sg.gate([now], against="history:main", history=place)
        number = history.add(NewRun(card=now, branch="change"))
        by_server, pairs = compare_runs(history, newest, number)
        assert words_of(by_server.changes) == words_of(by_gate.changes)
        assert [check.text for check in by_server.checks] == [check.text for check in by_gate.checks]
        assert (by_server.verdict, pairs.report["verdict"]) == (by_gate.verdict, by_gate.verdict)
        tools = Tools(Roots([]), lambda _: open_store(place))
        by_assistant = tools.compare(str(newest), str(number))
        assert by_assistant["verdict"] == by_gate.verdict
        for row, change in zip(by_assistant["changes"], by_gate.changes, strict=True):
            assert (row["outcome"], row["why"]) == (change.outcome, change.why)
        # After it was merged it is not compared with itself.
        merged = history.add(NewRun(card=now, branch="main"))
        assert words_of(compare_runs(history, newest, merged)[0].changes) == words_of(by_gate.changes)


def compared(steps_ms: list[float], a: int, b: int, place: str) -> tuple[GateReport, MetricChange]:
    with open_store(place) as history:
        for step_ms in steps_ms:
            history.add(NewRun(card=sg.score(make_profile(mean_step_ms=step_ms)), branch="main"))
        report, _ = compare_runs(history, a, b)
    return report, next(change for change in report.changes if change.metric == "step_time_ms")


def test_runs_sixty_and_ninety_are_judged_by_the_noise_of_their_history(tmp_path: Path) -> None:
    """7.8 % apart at 0.9 % noise is no open question, whichever of the two is the earlier one."""
    chance = random.Random(1)
    steps = [(100.0 if n < 70 else 107.8) * (1.0 + chance.gauss(0.0, 0.009)) for n in range(100)]
    report, change = compared(steps, 60, 90, str(tmp_path / "a.db"))
    assert (report.verdict, change.outcome) == ("regressed", "regressed")
    assert change.low < 0.078 < change.high
    assert change.high - change.low < 0.08
    report, change = compared(steps, 90, 60, str(tmp_path / "b.db"))
    assert (report.verdict, change.outcome) == ("pass", "improved")
    report, change = compared(steps, 75, 95, str(tmp_path / "c.db"))
    assert (report.verdict, change.outcome) == ("pass", "no change")

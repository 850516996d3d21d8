"""A log and a trace of one run: the log's steps count, the trace explains them, and a disagreement is said."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stepgrade as sg
from stepgrade.loading import load, with_log
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource
from tests.conftest import ROOT
from tests.readers.logs.generated import Plan, generate

TRACE = next((ROOT / "examples").rglob("*.json.gz"), None)


def log_of(step_s: float) -> tuple[bytes, sg.Profile]:
    text = generate(
        Plan(steps=800, step_s=step_s, checkpoint_every=200, checkpoint_s=20 * step_s), "megatron"
    )[0]
    profile = read_source(ByteSource(text)).log
    assert isinstance(profile, sg.Profile)
    return text, profile


@pytest.fixture(scope="module")
def trace() -> sg.Profile:
    if TRACE is None:
        pytest.skip("no trace among the examples")
    return load(TRACE)


@pytest.mark.parametrize(
    ("factor", "words"), [(1.0, "they agree"), (0.8, "profiling makes it"), (1.5, "longer than traced")]
)
def test_the_log_tells_the_step_and_the_trace_its_parts(trace: sg.Profile, factor: float, words: str) -> None:
    step_s = sg.score(trace).step_time_ms
    assert step_s is not None
    _, log = log_of(step_s / 1e3 * factor)
    alone, both = sg.score(trace), sg.score(with_log(trace, log))
    assert both.step_time_ms == pytest.approx(step_s * factor, rel=0.02)
    assert both.goodput is not None
    assert both.ledger == alone.ledger  # shares of a step stay what they are
    (note,) = (note.text for note in both.notes if note.code == "log_and_trace")
    assert words in note


def test_steps_that_have_nothing_in_common_get_no_grade(trace: sg.Profile) -> None:
    step_ms = sg.score(trace).step_time_ms or 0.0
    card = sg.score(with_log(trace, log_of(step_ms / 1e3 * 20)[1]))
    assert card.grade == "ungraded"
    assert "log_of_another_run" in {note.code for note in card.ungraded_because}


def test_both_are_given_in_any_order(trace: sg.Profile, tmp_path: Path) -> None:
    text, _ = log_of((sg.score(trace).step_time_ms or 100.0) / 1e3)
    path = tmp_path / "train.log"
    path.write_bytes(text)
    assert TRACE is not None
    cards = [sg.score(load(*sources)) for sources in ((TRACE, path), (path, TRACE))]
    assert [card.step_time_ms for card in cards] == [cards[0].step_time_ms] * 2
    assert cards[0].goodput is not None
    assert len(cards[0].source.files) == 2
    assert msgspec.json.decode(cards[0].to_json())["goodput"]["wall_s"] > 0


def test_a_log_alone_is_told_to_bring_a_trace_not_to_set_a_profiler_right() -> None:
    profile = read_source(ByteSource(generate(Plan(steps=300, step_s=0.5), "megatron")[0])).log
    assert isinstance(profile, sg.Profile)
    (advice,) = sg.score(profile).recommendations
    assert "trace together with the log" in advice

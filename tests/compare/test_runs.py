"""Regressions against a scorecard or a profile, on what both sides have."""

from __future__ import annotations

import pytest

import stepgrade as sg
from stepgrade.model.scorecard import Baseline
from tests.builders import make_profile


def test_step_time_against_an_earlier_profile() -> None:
    card = sg.score(make_profile(mean_step_ms=115.6), baseline=make_profile())
    (found,) = card.regressions
    assert (found.metric, found.severity) == ("step_time_ms", "warning")
    assert found.delta == pytest.approx(0.156)
    assert card.compared == ("step_time_ms",)
    assert any("throughput_tok_s" in note.text for note in card.notes)


def test_a_given_throughput_is_not_the_baselines() -> None:
    card = sg.score(make_profile(), throughput_tok_s=50.0, baseline=make_profile())
    assert card.compared == ("step_time_ms",)


def test_critical_throughput() -> None:
    card = sg.score(
        make_profile(), throughput_tok_s=70.0, baseline=Baseline(name="old", throughput_tok_s=100.0)
    )
    assert [(found.metric, found.severity) for found in card.regressions] == [
        ("throughput_tok_s", "critical")
    ]


def test_another_device_is_said_first() -> None:
    card = sg.score(
        make_profile(),
        device="gb10",
        throughput_tok_s=100.0,
        baseline=Baseline(name="old", device="rtx-4060-laptop"),
    )
    assert any("not comparable" in note.text and "rtx-4060-laptop" in note.text for note in card.notes)
    assert card.compared == ()


def test_a_difference_may_be_allowed() -> None:
    card = sg.score(
        make_profile(mean_step_ms=130.0),
        device="gb10",
        baseline=Baseline(name="old", device="rtx-4060-laptop", step_ms=100.0),
        allow_different=["device"],
    )
    assert [found.severity for found in card.regressions] == ["critical"]


def test_a_threshold_within_the_noise_of_the_steps_is_no_regression() -> None:
    before = [70.0, 130.0, 85.0, 115.0, 100.0, 75.0, 125.0, 90.0, 110.0, 100.0] * 2
    now = [ms * 1.15 for ms in reversed(before)]
    card = sg.score(
        make_profile(mean_step_ms=115.0, samples_ms=tuple(now)),
        baseline=make_profile(samples_ms=tuple(before)),
    )
    assert card.regressions == ()
    assert any("within the noise" in note.text for note in card.notes)


def test_an_earlier_card_can_be_passed_as_it_is() -> None:
    before = sg.score(make_profile(), tokens_per_step=100)
    now = sg.score(make_profile(mean_step_ms=200.0), tokens_per_step=100, baseline=before)
    assert {found.metric for found in now.regressions} == {"throughput_tok_s", "step_time_ms"}

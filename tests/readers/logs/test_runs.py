"""Which lines of a log are of one run: epochs, restarts and other runs, by what the log shows."""

from __future__ import annotations

import datetime as dt
import random

import pytest

import stepgrade as sg
from stepgrade.model.step_log import StepLog
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource

START = dt.datetime(2026, 3, 1, 8, 0, 0, tzinfo=dt.UTC)
STEP_S = 2.013  # a clock of whole seconds would have its lines thinned out


class Writer:
    """Writes a log with timestamps; the clock advances by what is written."""

    def __init__(self) -> None:
        self.text = ""
        self.now = START

    def say(self, words: str, seconds: float = 0.0) -> None:
        self.now += dt.timedelta(seconds=seconds)
        self.text += f"{self.now:%Y-%m-%d %H:%M:%S},{self.now.microsecond // 1000:03} {words}\n"

    def train(self, steps: range, step_s: float = STEP_S, more: str = "") -> None:
        for step in steps:
            self.say(f"step {step}{more} | loss {8.0 / (step + 1):.3f} | lr 1e-4", step_s * steps.step)

    def read(self) -> tuple[sg.Profile, StepLog]:
        profile = read_source(ByteSource(self.text.encode())).log
        assert isinstance(profile, sg.Profile)
        assert profile.log is not None
        return profile, profile.log


def codes(profile: sg.Profile) -> set[str]:
    return {note.code for note in profile.notes}


@pytest.mark.parametrize("rounds", [2, 3, 24])
def test_rounds_that_all_end_at_the_same_step_are_epochs(rounds: int) -> None:
    log = Writer()
    for _ in range(rounds):
        log.train(range(1, 61))
        log.say("validation loss 3.1", 30.0)
    profile, steps = log.read()
    assert profile.mean_step_ms == pytest.approx(STEP_S * 1e3, rel=0.01)
    assert steps.attempts == (0,)
    assert steps.step[-1] == 60.0 * rounds
    card = sg.score(profile)
    assert card.goodput is not None
    assert card.goodput.restart == 0.0
    pause = 30.0 * (rounds - 1) / card.goodput.wall_s
    assert card.goodput.evaluation == pytest.approx(pause, abs=0.02)
    for finding in card.findings:
        if "pauses" in finding.evidence:
            count, mean_s = float(finding.evidence["pauses"]), float(finding.evidence["mean_s"])
            assert count * mean_s == pytest.approx(float(finding.evidence["seconds"]))


def test_a_run_that_begins_anew_without_a_failure_is_another_run_with_a_clock_of_its_own() -> None:
    log = Writer()
    log.say("starting")
    log.train(range(1, 201), 5.0)
    log.say("starting", 3600.0)
    log.say("loading data", 50.0)
    log.train(range(1, 101))
    profile, steps = log.read()
    assert "last_of_several" in codes(profile)
    assert profile.recorded_steps == 100
    assert profile.mean_step_ms == pytest.approx(STEP_S * 1e3, rel=0.01)
    assert steps.before_s == pytest.approx(50.0, abs=STEP_S)
    card = sg.score(profile)
    assert card.goodput is not None
    assert card.goodput.restart == 0.0
    assert card.goodput.wall_s == pytest.approx(250.0, abs=2 * STEP_S)


def test_a_last_run_that_did_not_get_going_is_not_read() -> None:
    log = Writer()
    log.train(range(1, 101))
    log.train(range(1, 3), 9.0)
    profile, steps = log.read()
    assert any("the last with more than two lines" in note.text for note in profile.notes)
    assert profile.recorded_steps == 100
    assert steps.after_s == 0.0


@pytest.mark.parametrize("crash", ["Traceback (most recent call last):", "slurmstepd: error", "Killed"])
def test_a_run_that_crashed_and_began_anew_is_restarted(crash: str) -> None:
    log = Writer()
    log.train(range(1, 101))
    log.say(crash)
    log.say("starting", 600.0)
    log.train(range(1, 301))
    _, steps = log.read()
    assert steps.attempts == (0, 100)


def test_a_run_that_resumes_in_its_middle_is_restarted() -> None:
    log = Writer()
    log.train(range(1, 101))
    log.say("starting", 600.0)
    log.train(range(81, 301))
    profile, steps = log.read()
    assert steps.attempts == (0, 100)
    card = sg.score(profile)
    assert card.goodput is not None
    assert card.goodput.restart * card.goodput.wall_s == pytest.approx(640.0, abs=3 * STEP_S)


def test_an_epoch_that_goes_back_is_a_restart_from_its_checkpoint() -> None:
    log = Writer()
    for epoch in (1, 2, 3):
        log.train(range(10, 101, 10), more=f"/100 epoch {epoch}")
    log.say("Traceback (most recent call last):")
    log.say("resumed from epoch 2", 600.0)
    for epoch in (3, 4):
        log.train(range(10, 101, 10), more=f"/100 epoch {epoch}")
    _, steps = log.read()
    assert steps.attempts == (0, 30)
    assert steps.step[-1] == 400.0
    assert steps.step[30] == 210.0


def test_every_step_of_the_last_run_is_counted_once_for_each_attempt() -> None:
    dice = random.Random(5)
    for _ in range(40):
        log, expected = Writer(), 0
        log.train(range(1, dice.randint(20, 60)))
        log.say("another job", 100.0)
        start = 1
        for attempt in range(dice.randint(1, 4)):
            if attempt:
                log.say("Traceback (most recent call last):")
                log.say("resuming", 300.0)
            stop = start + dice.randint(70, 120)
            log.train(range(start, stop))
            expected += stop - start
            start = stop - dice.randint(2, 10)
        profile, steps = log.read()
        assert profile.recorded_steps == expected
        assert sum(steps.count) == expected

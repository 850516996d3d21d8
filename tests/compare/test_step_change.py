"""From the old step to the new one: parts that add up, from ledgers or phases, of profiles and scorecards."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.ledger import ACCOUNTS, Ledger
from tests.builders import make_phases, make_profile


def ledger(compute: int, idle_input: int) -> Ledger:
    return Ledger(**dict.fromkeys(ACCOUNTS, 0) | {"compute": compute, "idle_input": idle_input})


def check_sum(card: sg.Scorecard) -> None:
    change = card.step_change
    assert change is not None
    total = sum(part.difference_ms for part in change.parts)
    assert change.before_ms + total == pytest.approx(change.now_ms)


def test_ledgers_tell_what_the_device_does() -> None:
    before = make_profile(mean_step_ms=100.0, ledger=ledger(90, 10))
    now = make_profile(mean_step_ms=150.0, ledger=ledger(60, 40))
    card = sg.score(now, baseline=before)
    assert card.step_change is not None
    assert card.step_change.basis == "ledger"
    assert [part.name for part in card.step_change.parts] == ["idle_input", "compute"]
    check_sum(card)


def test_phases_and_what_they_leave() -> None:
    before = make_profile(phases=make_phases(forward=30.0, backward=60.0))
    now = make_profile(mean_step_ms=130.0, phases=make_phases(forward=55.0, optimizer=5.0))
    card = sg.score(now, baseline=before)
    assert card.step_change is not None
    assert card.step_change.basis == "phases"
    assert {part.name for part in card.step_change.parts} == {
        "forward",
        "backward",
        "optimizer",
        "in no phase",
    }
    check_sum(card)


def test_a_scorecard_in_json_is_as_good_as_its_profile(tmp_path: Path) -> None:
    before = make_profile(mean_step_ms=100.0, ledger=ledger(90, 10))
    now = make_profile(mean_step_ms=150.0, ledger=ledger(60, 40))
    (tmp_path / "old.json").write_text(sg.render(sg.score(before), to="json"), encoding="utf-8")
    old = sg.load_baseline(tmp_path / "old.json")
    assert sg.score(now, baseline=old).step_change == sg.score(now, baseline=before).step_change


def test_nothing_in_common_is_no_change() -> None:
    card = sg.score(make_profile(phases=()), baseline=make_profile())
    assert card.step_change is None

"""The gate from Python: profiles or scorecards, files or a branch, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import stepgrade as sg
from stepgrade.config import Budget, Config, GateTable
from stepgrade.errors import BadOption
from stepgrade.model import Recorded
from stepgrade.model.scorecard import Fingerprint
from tests.builders import make_phases, make_profile

OLD, NEW = make_profile(mean_step_ms=100.0), make_profile(mean_step_ms=150.0)
QUIET = Config(gate=GateTable(run_noise=0.01))


def test_scorecards_are_judged_as_their_profiles_are() -> None:
    profiles = sg.gate([NEW], baseline=[OLD], config=QUIET)
    cards = sg.gate([sg.score(NEW)], baseline=[sg.score(OLD)], config=QUIET)
    assert profiles == cards
    assert (cards.verdict, cards.exit_code) == ("regressed", 1)
    assert [check.metric for check in cards.checks] == ["step_time_ms"]


def test_profiles_are_scored_with_what_is_given() -> None:
    report = sg.gate([NEW], baseline=[OLD], config=QUIET, tokens_per_step=10.0)
    assert {change.metric for change in report.changes} >= {"step_time_ms", "throughput_tok_s"}


def test_a_bound_needs_no_earlier_run() -> None:
    bound = Config(budgets=(Budget(metric="step_time_ms", at_most=120.0),))
    assert sg.gate([OLD], config=bound).verdict == "pass"
    assert sg.gate([NEW], config=bound).verdict == "regressed"
    share = Config(budgets=(Budget(metric="step_time_ms", allow=0.1),))
    with pytest.raises(BadOption, match="give baseline, against, fail_on or a budget"):
        sg.gate([NEW], config=share)


def test_a_branch_is_read_from_the_history(tmp_path: Path) -> None:
    from stepgrade.store import NewRun

    place = str(tmp_path / "history.db")
    with sg.history(place) as history:
        history.add_all([NewRun(card=sg.score(OLD), branch="main") for _ in range(6)])
    report = sg.gate([NEW], against="history:main", history=place)
    assert report.verdict == "regressed"
    assert report.baseline == f"6 runs of main in {place}"
    other = sg.gate([sg.score(NEW, tokens_per_step=1.0)], against="history:topic", history=place)
    assert [note.code for note in other.reasons] == ["no_baseline"]


def test_nothing_to_compare_with_yet_is_not_bad_input(tmp_path: Path) -> None:
    place = tmp_path / "none" / "history.db"
    report = sg.gate([NEW], against="history:main", history=str(place))
    assert (report.exit_code, [note.code for note in report.reasons]) == (3, ["no_baseline"])
    assert not place.parent.exists()  # only who saves makes one


def test_what_changed_is_shown_where_it_cannot_be_told() -> None:
    old = make_profile(mean_step_ms=100.0, phases=make_phases(forward=40.0, backward=50.0))
    new = make_profile(mean_step_ms=115.0, phases=make_phases(forward=55.0, backward=50.0))
    report = sg.gate([new], baseline=[old])
    assert report.verdict == "could not be measured"
    first = report.shifts[0]
    assert (first.kind, first.name, first.now) == ("phase", "forward", 55.0)
    assert "forward" in sg.render(report)


@pytest.mark.parametrize(
    ("here", "there"), [("float32", "fp32"), ("torch.bfloat16", "bf16"), ("half", "fp16")]
)
def test_one_precision_has_many_names(here: str, there: str) -> None:
    old, new = (
        make_profile(mean_step_ms=ms, recorded=Recorded(precision=name))
        for ms, name in ((100.0, here), (100.5, there))
    )
    cards = [sg.score(profile) for profile in (old, new)]
    assert [card.fingerprint.precision for card in cards if card.fingerprint] == [there, there]
    assert sg.gate([cards[1]], baseline=[cards[0]], config=QUIET).verdict == "pass"
    # A card of before has the name as its source wrote it.
    was = msgspec.structs.replace(cards[0], fingerprint=Fingerprint(precision=here))
    assert sg.gate([cards[1]], baseline=[was], config=QUIET).is_comparable
    other = msgspec.structs.replace(cards[0], fingerprint=Fingerprint(precision="fp8"))
    assert not sg.gate([cards[1]], baseline=[other], config=QUIET).is_comparable


def test_machines_are_distinguishable_by_their_label(tmp_path: Path) -> None:
    from stepgrade.store import NewRun

    place = str(tmp_path / "history.db")

    def keep(ms: float, **labels: str) -> None:
        with sg.history(place) as history:
            history.add(NewRun(card=sg.score(make_profile(mean_step_ms=ms)), branch="main", labels=labels))

    def verdict(ms: float, machine: str | None) -> str:
        profile = make_profile(mean_step_ms=ms)
        return sg.gate([profile], against="history:main", history=place, machine=machine).verdict

    for number in range(6):
        keep(100.0 + 0.3 * number)
    assert verdict(100.5, "fast") == "pass"  # nobody has a label yet: all count
    for number in range(6):
        keep(100.0 + 0.3 * number, machine="fast")
        keep(130.0 + 0.3 * number, machine="slow")
    assert verdict(131.0, "slow") == "pass"
    assert verdict(131.0, "fast") == "regressed"
    assert verdict(100.0, "new") == "could not be measured"


def test_the_other_runs_of_a_history_tell_its_noise(tmp_path: Path) -> None:
    from stepgrade.store import NewRun

    place = str(tmp_path / "history.db")
    with sg.history(place) as history:
        for number in range(20):
            card = sg.score(make_profile(mean_step_ms=50.0 + number % 3), tokens_per_step=7.0)
            history.add(NewRun(card=card, branch="main"))
        history.add(NewRun(card=sg.score(OLD, tokens_per_step=9.0), branch="main"))
    report = sg.gate([sg.score(NEW, tokens_per_step=9.0)], against="history:main", history=place)
    assert (report.verdict, report.changes[0].noise.basis) == ("regressed", "pooled")
    assert "other runs of this history" in sg.render(report)


def test_what_differs_may_be_allowed(tmp_path: Path) -> None:
    old, new = sg.score(OLD, tokens_per_step=10.0), sg.score(NEW, tokens_per_step=20.0)
    refused = sg.gate([new], baseline=[old], config=QUIET)
    assert not refused.is_comparable
    assert [note.code for note in refused.differences] == ["tokens_per_step"]
    allowed = Config(gate=GateTable(run_noise=0.01, allow_different=("tokens_per_step",)))
    report = sg.gate([new], baseline=[old], config=allowed)
    assert report.is_comparable
    assert report.differences == refused.differences
    assert [check.metric for check in report.checks] == ["throughput_tok_s"]


def test_what_does_not_fit_together() -> None:
    with pytest.raises(BadOption, match="against: both a baseline and a branch"):
        sg.gate([NEW], baseline=[OLD], against="history:main")
    with pytest.raises(BadOption, match="fail_on: the gate always checks for regressions"):
        sg.gate([NEW], baseline=[OLD], fail_on=["warning"])
    with pytest.raises(BadOption, match="allow_different: 'colour'"):
        sg.gate([NEW], baseline=[OLD], config=Config(gate=GateTable(allow_different=("colour",))))

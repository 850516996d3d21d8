"""What a project's budgets and waivers make of a step that went from 100 ms to 103 ms, without noise."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.compare.runs import compare_runs
from stepgrade.config import Budget, Config, GateTable, Waiver
from stepgrade.errors import BadConfig
from stepgrade.gating.budgets import judge
from stepgrade.model.scorecard import Baseline
from stepgrade.store import NewRun
from tests.builders import make_profile

TODAY = dt.date(2026, 5, 1)
DAY = dt.timedelta(days=1)
OLD, NEW, FAST = (make_profile(mean_step_ms=ms) for ms in (100.0, 103.0, 97.0))
TIME = "step_time_ms"


def gated(*budgets: Budget, run: Any = NEW, waivers: tuple[Waiver, ...] = (), **table: Any) -> sg.GateReport:
    config = Config(gate=GateTable(**{"run_noise": 0.0001} | table), budgets=budgets, waivers=waivers)
    return sg.gate([run], baseline=[OLD], config=config, today=TODAY)


@pytest.mark.parametrize(
    ("budget", "run", "status"),
    [
        ({}, NEW, "regressed"),
        ({}, FAST, "improved"),
        ({"allow": 0.04}, NEW, "pass"),
        ({"allow": 0.02}, NEW, "regressed"),
        ({"allow": 0.0}, NEW, "regressed"),
        ({"direction": "down"}, NEW, "improved"),
        ({"direction": "down"}, FAST, "regressed"),
        ({"direction": "up"}, NEW, "regressed"),
        ({"direction": "both"}, FAST, "regressed"),
        ({"direction": "both"}, NEW, "regressed"),
        ({"direction": "both", "allow": 0.04}, FAST, "pass"),
        ({"device": "h100*", "allow": 0.5}, NEW, "regressed"),  # of another device: the default counts
    ],
)
def test_how_much_a_metric_may_change(budget: dict[str, Any], run: Any, status: str) -> None:
    report = gated(Budget(metric=TIME, **budget), run=run)
    assert [(check.metric, check.status) for check in report.checks] == [(TIME, status)]
    assert report.exit_code == (1 if status == "regressed" else 0)
    allowed = budget.get("allow") if "device" not in budget else None
    assert ("the budget allows" in report.checks[0].text) == (allowed is not None)


@pytest.mark.parametrize(
    ("bounds", "status", "text"),
    [
        ({"at_most": 102.0}, "regressed", "step_time_ms is 103, outside the budget of at most 102"),
        ({"at_most": 103.0}, "pass", "step_time_ms is 103, within the budget of at most 103"),
        ({"at_least": 103.0}, "pass", "within the budget of at least 103"),
        ({"at_least": 104.0}, "regressed", "outside the budget of at least 104"),
    ],
)
def test_bounds(bounds: dict[str, float], status: str, text: str) -> None:
    bound, change = gated(Budget(metric=TIME, allow=0.5, **bounds)).checks
    assert (bound.status, change.status) == (status, "pass")
    assert text in bound.text


def test_what_was_not_measured_is_within_no_bound() -> None:
    budget = Budget(metric="mfu", at_least=0.4)
    report = gated(budget, run=FAST)
    assert [(check.metric, check.status) for check in report.checks] == [
        ("mfu", "cannot tell"),
        (TIME, "improved"),
    ]
    assert (report.verdict, report.reasons[0].text) == (
        "could not be measured",
        "mfu was not measured, so the budget of at least 0.4 cannot be checked",
    )
    assert gated(budget, run=FAST, cannot_tell="pass").verdict == "pass"
    assert gated(budget, cannot_tell="pass").verdict == "regressed"


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(BadConfig, match="unknown metric 'step_time'"):
        gated(Budget(metric="step_time"))


def test_operations_have_budgets_by_name() -> None:
    """gemm_qkv went from 40 to 44 ms, rmsnorm is as it was."""

    def run(gemm: float) -> Baseline:
        ops = {"gemm_qkv": gemm, "rmsnorm": 10.0}
        samples = {name: tuple(ms + 0.001 * (n % 3) for n in range(30)) for name, ms in ops.items()}
        return Baseline(name="run", step_ms=100.0, operations_ms=ops, operation_samples_ms=samples)

    now, before = run(44.0), run(40.0)
    for metric, allow, count in (
        ("op:gemm*", None, 1),
        ("op:gemm*", 0.05, 1),
        ("op:gemm*", 0.2, 0),
        ("op:rms*", None, 0),
        ("layer:gemm*", None, 0),
    ):
        config = Config(gate=GateTable(run_noise=0.001), budgets=(Budget(metric=metric, allow=allow),))
        comparison = compare_runs([now], [before], config.gate)
        checks = judge(sg.score(OLD), comparison, config, (), TODAY).checks
        found = [check for check in checks if check.metric == metric]
        assert len(found) == count
        assert all(check.status == "regressed" for check in found)
        assert all(check.text.startswith("operation gemm_qkv +10.0 %") for check in found)


@pytest.mark.parametrize(
    ("until", "metric", "device", "status"),
    [
        (TODAY, "step_*", "*", "waived"),
        (TODAY + DAY, TIME, "*", "waived"),
        (TODAY - DAY, TIME, "*", "regressed"),
        (TODAY, "peak_*", "*", "regressed"),
        (TODAY, TIME, "h100*", "regressed"),
    ],
)
def test_waivers(until: dt.date, metric: str, device: str, status: str) -> None:
    waiver = Waiver(metric=metric, until=until, reason="a driver", device=device)
    report = gated(waivers=(waiver,))
    (check,) = report.checks
    assert check.status == status
    assert report.verdict == ("pass" if status == "waived" else "regressed")
    assert (check.waiver == f"until {until}: a driver") == (status == "waived")
    is_over = until < TODAY
    assert (f"; its waiver expired on {until}" in check.text) == is_over
    notes = [note.text for note in report.notes if note.code == "waiver_expired"]
    expected = f"the waiver for {metric} expired on {until} (a driver): renew it or remove it"
    assert notes == ([expected] if is_over else [])


def test_a_later_waiver_counts_where_an_earlier_one_is_over() -> None:
    over, good = (Waiver(metric=TIME, until=TODAY + days * DAY, reason="r") for days in (-1, 1))
    assert [check.status for check in gated(waivers=(over, good)).checks] == ["waived"]
    assert [check.status for check in gated(run=FAST, waivers=(good,)).checks] == ["improved"]


def test_why_there_is_no_earlier_run(tmp_path: Path) -> None:
    place = str(tmp_path / "history.db")

    def why(run: Any = NEW, machine: str | None = None, branch: str = "main") -> tuple[str, bool]:
        report = sg.gate([run], against=f"history:{branch}", history=place, machine=machine)
        return report.reasons[-1].text, report.is_comparable

    assert why() == (f"no history at {place} yet: nothing to compare with", True)
    with sg.history(place) as history:
        history.add(NewRun(card=sg.score(make_profile(mean_step_ms=None)), branch="untimed"))
        history.add(NewRun(card=sg.score(OLD), branch="main", labels={"machine": "b"}))
        history.add(NewRun(card=sg.score(OLD), branch="main", labels={"machine": "a"}))
    assert why(branch="dev") == ("no run of branch dev in the history", True)
    assert why(branch="untimed") == ("no run of branch untimed has a step time or a throughput", True)
    assert why(branch="untimed", machine="a") == why(branch="untimed")  # none of its runs has a label
    assert why(machine="c") == ("no run of branch main has the machine c, only a, b", True)
    other = sg.score(NEW, tokens_per_step=5.0)
    with sg.history(place) as history:
        history.add(NewRun(card=sg.score(OLD, tokens_per_step=9.0), branch="tokens"))
    text, is_comparable = why(other, branch="tokens")
    assert (text, is_comparable) == ("no run of branch tokens is comparable", False)

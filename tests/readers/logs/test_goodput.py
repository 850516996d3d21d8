"""Goodput of made-up runs: every planted second is found in its account, and healthy runs give no finding."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

import stepgrade as sg
from stepgrade.model.step_log import GOODPUT_ACCOUNTS, Goodput
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource
from stepgrade.units import show_ms
from tests.readers.logs.generated import DIALECTS, Plan, generate

PLANTED = {
    "checkpoints": (Plan(checkpoint_every=200), "slow-checkpoints"),
    "evaluations": (Plan(evaluate_every=250), "long-evaluations"),
    "both": (Plan(checkpoint_every=400, evaluate_every=250), "slow-checkpoints"),
    "late steps": (Plan(slow_every=100), "recurring-slow-steps"),
    "late steps, each logged": (Plan(every=1, slow_every=50, slow_s=1.5), "recurring-slow-steps"),
    "restart": (Plan(breaks_at=1250, resumes_at=1000), "run-restarts"),
    "restart without loss": (Plan(breaks_at=1250, resumes_at=1250), "run-restarts"),
    "drift": (Plan(drift=0.08), "slower-run"),
    "start": (Plan(startup_s=100.0, first_s=30.0, tail_s=50.0), "slow-start"),
}
# These print how long the first step took; of the others only when it was done is known.
TIMES_FIRST = {"megatron"}


def card_of(log: bytes) -> sg.Scorecard:
    profile = read_source(ByteSource(log)).log
    assert isinstance(profile, sg.Profile)
    return sg.score(profile)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_within_two_percent_of_its_cost(name: str, dialect: str) -> None:
    plan, rule = PLANTED[name]
    log, truth = generate(plan, dialect)
    card = card_of(log)
    assert card.goodput is not None
    found = {name: share * card.goodput.wall_s for name, share in shares(card.goodput).items()}
    planted = {name: truth.spent.get(name, 0.0) for name in GOODPUT_ACCOUNTS}
    if dialect not in TIMES_FIRST:
        for spent in (found, planted):
            spent["startup"] += spent.pop("compile")
    assert card.goodput.wall_s == pytest.approx(truth.wall_s, rel=0.002)
    for account, seconds in planted.items():
        assert found[account] == pytest.approx(seconds, rel=0.02, abs=0.6), account
    rules = {finding.rule: finding for finding in card.findings}
    assert rule in rules
    for finding in card.findings:
        if "pauses" in finding.evidence:
            count, mean_s = finding.evidence["pauses"], finding.evidence["mean_s"]
            assert count * mean_s == pytest.approx(finding.evidence["seconds"])
            assert finding.evidence["seconds"] == pytest.approx(
                finding.evidence["share"] * card.goodput.wall_s
            )
            assert show_ms(mean_s * 1e3) in finding.claim
    if rule == "slower-run":
        cost = plan.drift / 2.0 * plan.step_s * plan.steps
        assert rules[rule].evidence["seconds"] == pytest.approx(cost, rel=0.02)


def shares(goodput: Goodput) -> dict[str, float]:
    return {
        "productive": goodput.productive,
        "startup": goodput.startup,
        "compile": goodput.compile,
        "evaluation": goodput.evaluation,
        "checkpoint": goodput.checkpoint,
        "stall": goodput.stall,
        "restart": goodput.restart,
        "idle": goodput.idle,
    }


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_run_gives_no_finding(dialect: str, seed: int) -> None:
    for noise in (0.005, 0.03):
        card = card_of(generate(Plan(seed=seed, noise=noise), dialect)[0])
        assert card.goodput is not None
        assert [finding.rule for finding in card.findings] == []
        assert card.goodput.productive > 0.995


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_shares_add_up_to_one_whatever_happens(dialect: str) -> None:
    plan = Plan(
        checkpoint_every=130,
        evaluate_every=170,
        slow_every=90,
        drift=0.1,
        breaks_at=777,
        resumes_at=650,
        startup_s=40.0,
        tail_s=20.0,
        noise=0.05,
    )
    card = card_of(generate(plan, dialect)[0])
    assert card.goodput is not None
    assert sum(shares(card.goodput).values()) == pytest.approx(1.0, abs=1e-9)
    assert min(shares(card.goodput).values()) >= 0.0


def test_a_pause_says_how_often_it_comes() -> None:
    plan = PLANTED["late steps"][0]
    (finding,) = (
        f for f in card_of(generate(plan, "megatron")[0]).findings if f.rule == "recurring-slow-steps"
    )
    assert finding.evidence["every_steps"] == plan.slow_every
    assert finding.evidence["median_s"] == pytest.approx(plan.slow_s, rel=0.05)
    assert "every 100 steps" in finding.claim


def test_the_planted_plans_differ() -> None:
    assert len({tuple(asdict(plan).items()) for plan, _ in PLANTED.values()}) == len(PLANTED)


def test_what_a_clock_of_whole_seconds_cannot_tell_is_no_drift() -> None:
    # 5.06 s a step, ten to a line: 50 or 51 s by the clock, as a real log of ms-swift's has it.
    lines = [
        json.dumps(
            {"global_step/max_steps": f"{step}/430", "loss": 1.0, "elapsed_time": f"{int(step * 5.06)}s"}
        )
        for step in range(10, 431, 10)
    ]
    card = card_of("\n".join(lines).encode())
    assert card.step_time_ms == pytest.approx(5060.0, rel=0.02)
    assert not card.findings


def test_steps_that_were_done_again_count_alone_where_a_line_covers_more() -> None:
    def line(step: int, at_s: int) -> str:
        clock = f"2025-03-04 {at_s // 3600:02}:{at_s // 60 % 60:02}:{at_s % 60:02}"
        return f"[titan] {clock} - step: {step}  loss: 7.4  memory: 4.0GiB  tps: 8,192  mfu: 1.0%\n"

    steps = [*range(1, 101), *range(61, 161)]
    card = card_of("".join(line(step, place) for place, step in enumerate(steps)).encode())
    assert card.goodput is not None
    assert card.goodput.restart * card.goodput.wall_s == pytest.approx(40.0, abs=1.5)

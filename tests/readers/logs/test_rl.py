"""RL post-training: the parts of a step add up to it, whoever printed them, and the longest is named."""

from __future__ import annotations

import json
import random

import pytest

import stepgrade as sg
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource

PARTS = {
    "rollout": 12.0,
    "reward": 0.5,
    "reference": 4.0,
    "advantage": 0.1,
    "update": 8.0,
    "weight sync": 1.0,
}
IDLE = 2.0
# The timers of each framework, and the part of ours that each belongs to, with its share of the part.
TIMERS = {
    "verl": {
        "timing_s/gen": ("rollout", 1.0),
        "timing_s/reward": ("reward", 1.0),
        "timing_s/old_log_prob": ("reference", 0.6),
        "timing_s/ref": ("reference", 0.4),
        "timing_s/adv": ("advantage", 1.0),
        "timing_s/update_actor": ("update", 0.7),
        "timing_s/update_critic": ("update", 0.3),
        "timing_s/update_weights": ("weight sync", 1.0),
    },
    "NeMo-RL": {
        "timing/train/generation": ("rollout", 1.0),
        "timing/train/reward_calculation": ("reward", 1.0),
        "timing/train/policy_and_reference_logprobs": ("reference", 1.0),
        "timing/train/advantage_calculation": ("advantage", 1.0),
        "timing/train/policy_training": ("update", 1.0),
        "timing/train/prepare_for_generation/total": ("weight sync", 1.0),
    },
    "OpenRLHF": {
        "timing/generation": ("rollout", 1.0),
        "timing/make_experience": ("reference", 1.0),
        "timing/ppo_train": ("update", 1.0),
        "timing/broadcast": ("weight sync", 1.0),
    },
}
TOTALS = {"verl": "timing_s/step", "NeMo-RL": "timing/train/total_step_time", "OpenRLHF": "timing/step_total"}


def steps_of(framework: str, count: int = 40, slow: float = 1.0) -> list[dict[str, float]]:
    """Return what a framework says of each step; a step is as long as its parts and what lies between."""
    dice, rows = random.Random(3), []
    for step in range(1, count + 1):
        noise = dice.uniform(0.99, 1.01)
        timed = {name: PARTS[part] * share * noise for name, (part, share) in TIMERS[framework].items()}
        total = sum(timed.values()) + IDLE * noise
        rows.append({"step": step, **timed, TOTALS[framework]: total, "policy_loss": 0.1 * slow})
    return rows


def line_of(row: dict[str, float]) -> str:
    """Return a step as verl prints it, with numbers of NumPy among its own."""
    words = [f"{name}:{value}" for name, value in row.items() if name != "policy_loss"]
    words.insert(2, f"actor/pg_loss:np.float64({row['policy_loss']})")
    words += ["perf/total_num_tokens:64000", f"perf/throughput:{64_000 / row['timing_s/step'] / 4}"]
    return " - ".join(words) + "\n"


def read(text: str) -> sg.Profile:
    found = read_source(ByteSource(text.encode())).log
    assert isinstance(found, sg.Profile)
    return found


def assert_adds_up(card: sg.Scorecard, framework: str) -> None:
    expected = {part: 0.0 for part, _ in TIMERS[framework].values()}
    for part, share in TIMERS[framework].values():
        expected[part] += PARTS[part] * share
    expected["idle"] = IDLE
    total = sum(expected.values())
    assert card.work == "training"
    assert card.step_time_ms == pytest.approx(total * 1e3, rel=0.01)
    assert {name: phase.share for name, phase in card.phases.items()} == pytest.approx(
        {name: seconds / total for name, seconds in expected.items()}, rel=0.01
    )
    assert sum(phase.ms or 0.0 for phase in card.phases.values()) == pytest.approx(
        card.step_time_ms, rel=1e-6
    )
    assert card.ledger is None


def test_the_parts_of_verls_steps_add_up() -> None:
    card = sg.score(read("(TaskRunner pid=7) ".join(["", *map(line_of, steps_of("verl"))])))
    assert_adds_up(card, "verl")
    (finding,) = (each for each in card.findings if each.rule == "longest-rl-part")
    assert finding.evidence["part"] == "rollout"
    assert "The rollout takes" in finding.claim
    assert "generate the next batch" in finding.remedy
    assert card.throughput_tok_s == pytest.approx(64_000 / 27.6, rel=0.02)


@pytest.mark.parametrize("framework", TIMERS)
def test_the_parts_add_up_in_json_lines_as_well(framework: str) -> None:
    text = "".join(json.dumps(row) + "\n" for row in steps_of(framework))
    assert_adds_up(sg.score(read(text)), framework)


def test_parts_that_overlap_are_scaled_to_the_step() -> None:
    rows = steps_of("verl")
    for row in rows:
        row["timing_s/step"] = row["timing_s/gen"]
    card = sg.score(read("".join(map(line_of, rows))))
    assert "idle" not in card.phases
    assert sum(phase.share or 0.0 for phase in card.phases.values()) == pytest.approx(1.0)


def test_a_training_without_a_rollout_has_no_parts() -> None:
    text = "".join(json.dumps({"step": step, "loss": 1.0, "step_time": 0.5}) + "\n" for step in range(1, 40))
    assert not sg.score(read(text)).phases


def test_what_the_author_prints_is_kept_and_compared() -> None:
    lines = "".join(
        f"step {step:05d}/00500 | loss: 3.1 | dt: 500.00ms | tok/sec: 1,048,576 | mfu: 49.69\n"
        for step in range(60)
    )
    card = sg.score(read(lines))
    assert card.printed is not None
    assert card.printed.source == "nanochat"
    assert card.printed.mfu == pytest.approx(0.4969)
    assert card.printed.tok_s == pytest.approx(1_048_576)
    assert "printed_rate" not in {note.code for note in card.notes}

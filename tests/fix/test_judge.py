"""What counts as the same work, and what a gain needs to be accepted."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from msgspec import structs

from stepgrade.fix.changes import Equality
from stepgrade.fix.judge import Base, gain_of, same_work
from stepgrade.fix.run import LEAST_ROUNDS, MOST_ROUNDS
from stepgrade.fix.trial import StepSeen, Trial, Witnessed


def trial(losses: list[float | None], *, files: tuple[str, ...] = (), code: int = 0, **more: Any) -> Trial:
    steps = tuple(
        StepSeen(
            wall_ns=at * 10_000_000,
            processor_ns=at * 8_000_000,
            losses=(loss,),
            backwards=1,
            updates=1,
            gradients=4,
            evaluations=0,
        )
        for at, loss in enumerate(losses, 1)
    )
    seen = Witnessed(
        how="stopped", applied=1, rank=0, world_size=1, device="cpu", threads=1, steps=steps, batches={"Data": len(steps)},
        shapes=7, digests=("a", "b"), sampled=3, asked=(5,), modules=(), first_weights=((0.0, 0.0),), last_weights=((1.0, 2.0),),
        weights="w", dtypes=("float32",), peak_bytes=100e6, flops=1e9, sites=(),
    )  # fmt: skip
    return Trial(
        code=code, ranks=(structs.replace(seen, **more),), files=frozenset(files), seconds=1.0, said=""
    )


LOSSES: list[float | None] = [2.0, 1.9, 1.8, 1.7, 1.6, 1.5]
SEEDED: list[float | None] = [2.04, 1.94, 1.83, 1.74, 1.63, 1.53]
BASE = Base(one=trial(LOSSES), other=trial(LOSSES), seeded=trial(SEEDED))


def off(by: float) -> list[float | None]:
    return [loss * (1.0 + by) for loss in LOSSES if loss is not None]


def problem(changed: Trial, equality: Equality = "tolerance") -> str | None:
    return same_work(BASE, changed, equality).problem


def with_steps(**more: Any) -> Trial:
    one = trial(LOSSES)
    steps = [
        structs.replace(step, **more) if number == 3 else step
        for number, step in enumerate(one.ranks[0].steps)
    ]
    return structs.replace(one, ranks=(structs.replace(one.ranks[0], steps=tuple(steps)),))


@pytest.mark.parametrize("equality", ["exact", "rounding", "tolerance"])
def test_the_same_is_the_same(equality: Equality) -> None:
    found = same_work(BASE, trial(LOSSES), equality)
    assert found.problem is None
    assert found.is_known
    assert (found.loss.compared, found.loss.max_relative) == (6, 0.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (trial(LOSSES[:-1]), "5 steps, not 6"),
        (with_steps(backwards=0), "step 4 has 0 backward passes, not 1"),
        (with_steps(updates=0), "step 4 has 0 optimizer updates, not 1"),
        (with_steps(gradients=3), "step 4 has 3 weights with a gradient, not 4"),
        (trial(LOSSES, batches={"Data": 5}), "other numbers of batches"),
        (trial(LOSSES, shapes=8), "other shapes"),
        (trial(LOSSES, digests=("a", "a")), "other data"),
        (trial(LOSSES, peak_bytes=900e6), "memory"),
        (trial(LOSSES, flops=0.9e9), "a step computes 900 MFLOP, not 1.00 GFLOP"),
        (trial(LOSSES, files=("x.pt",)), "other files were written: x.pt"),
        (trial(LOSSES, code=1), "ended with code 1"),
        (trial(LOSSES, last_weights=((0.1, 0.2),)), "of their way elsewhere"),
        (trial(off(0.05)), "the first loss is"),
        (trial([*LOSSES[:-1], 1.0]), "a loss is"),
        (structs.replace(trial(LOSSES), ranks=()), "0 processes"),
    ],
)  # fmt: skip
def test_other_work_is_refused_whatever_it_gains(changed: Trial, words: str) -> None:
    assert words in (problem(changed) or "")


def test_how_equal_the_losses_must_be() -> None:
    assert problem(trial(off(1e-9)), "exact") == "the losses are not the same bits"
    assert problem(trial(LOSSES, weights="other"), "exact") == "the weights at the end are not the same bits"
    assert problem(trial(off(1e-4)), "rounding") is None
    assert "the first loss" in (problem(trial(off(2e-3)), "rounding") or "")
    assert problem(trial(off(0.01)), "tolerance") is None


def test_an_unchanged_script_that_differs_from_itself_allows_as_much() -> None:
    noisy = Base(one=trial(LOSSES), other=trial(off(1e-6), weights="v"), seeded=None)
    assert same_work(noisy, trial(off(9e-7), weights="u"), "exact").problem is None
    assert same_work(noisy, trial(off(2e-6), weights="u"), "exact").problem is not None


@pytest.mark.parametrize("changed", [trial([2.0, None, 1.8, 1.7, 1.6, 1.5])])
def test_a_loss_that_is_not_finite_proves_nothing(changed: Trial) -> None:
    assert not same_work(BASE, changed, "tolerance").is_known
    broken = Base(one=changed, other=changed, seeded=None)
    assert not same_work(broken, changed, "tolerance").is_known  # NaN in both is not equality


def test_without_a_loss_nothing_is_known() -> None:
    silent = with_steps(losses=())
    steps = tuple(structs.replace(step, losses=()) for step in silent.ranks[0].steps)
    silent = structs.replace(silent, ranks=(structs.replace(silent.ranks[0], steps=steps),))
    assert not same_work(Base(one=silent, other=silent, seeded=None), silent, "tolerance").is_known


def test_a_gain_is_that_of_the_pairs() -> None:
    """A machine that becomes twice as slow between pairs changes nothing."""
    base = [100.0, 200.0, 100.0, 200.0]
    found = gain_of(base, [0.8 * one for one in base])
    assert found.gain == pytest.approx(0.2)
    assert found.low < 0.2 < found.high
    assert found.rounds == 4


def decided(gain: float, noise: float, draw: random.Random, least: float = 0.02) -> str:
    """Run the rounds of one candidate as `fix` does; return what the first look that decides says."""
    base: list[float] = []
    changed: list[float] = []
    for rounds in range(1, MOST_ROUNDS + 1):
        base.append(math.exp(draw.gauss(0.0, noise)))
        changed.append((1.0 - gain) * math.exp(draw.gauss(0.0, noise)))
        if rounds >= LEAST_ROUNDS:
            found = gain_of(base, changed)
            if found.low > least:
                return "accepted"
            if found.high < least:
                return "rejected"
    return "cannot tell"


def test_looking_again_and_again_accepts_nothing_that_gains_nothing() -> None:
    draw = random.Random(7)
    for noise in (0.001, 0.02, 0.2):
        found = [decided(0.02, noise, draw) for _ in range(1500)]
        assert found.count("accepted") <= 0.035 * len(
            found
        )  # 2.5 % on this side, and what 1,500 draws may add


def test_a_real_gain_is_found() -> None:
    draw = random.Random(8)
    found = [decided(0.25, 0.03, draw) for _ in range(300)]
    assert found.count("accepted") >= 0.95 * len(found)

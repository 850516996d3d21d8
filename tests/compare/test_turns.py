"""Runs of two commits in turns: the interval holds at every look, and changes are found in few pairs."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.compare.turns import bayes_factor, changes_in_turns, compare_in_turns, is_decided, reach_of
from stepgrade.config import Sensitivity
from stepgrade.model.comparison import MetricChange
from stepgrade.model.scorecard import Baseline, Fingerprint

MOST = 12


def run(step_ms: float, processor_ms: float | None = None, **fields: object) -> Baseline:
    samples = () if processor_ms is None else (processor_ms,) * 10
    return Baseline(name="run", step_ms=step_ms, processor_samples_ms=samples, **fields)  # type: ignore[arg-type]


def decided(chance: random.Random, noise: float, slower: float) -> tuple[str, int]:
    """Return what is said in the end, and after how many pairs, while the machine drifts."""
    pairs: list[tuple[Baseline, Baseline]] = []
    for turn in range(1, MOST + 1):
        level = 100.0 * 1.5 ** math.sin(turn)
        before, now = (level * math.exp(chance.gauss(0.0, noise)) for _ in range(2))
        pairs.append((run(before), run(now * (1.0 + slower))))
        if turn > 1:
            comparison = compare_in_turns(pairs, Sensitivity())
            if is_decided(comparison):
                break
    return comparison.changes[0].outcome, turn


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.05])
def test_looking_after_each_pair_raises_no_false_alarm(noise: float) -> None:
    """At most 1 % of all series, however often they are looked at; chance may make it 2 % of 150."""
    chance = random.Random(3)
    said = [decided(chance, noise, 0.0)[0] for _ in range(150)]
    assert sum(outcome in ("regressed", "improved") for outcome in said) <= 3
    assert said.count("no change") >= (60 if noise > 0.02 else 145)


@pytest.mark.parametrize(("slower", "noise", "pairs"), [(0.10, 0.01, 5), (0.20, 0.02, 6), (0.10, 0.02, 8)])
def test_slowdowns_are_found_in_few_pairs_on_a_machine_that_drifts(
    slower: float, noise: float, pairs: int
) -> None:
    chance = random.Random(4)
    said = [decided(chance, noise, slower) for _ in range(60)]
    assert sum(outcome == "regressed" for outcome, _ in said) >= 57
    assert sum(count for _, count in said) / 60 <= pairs


@given(st.integers(min_value=2, max_value=60), st.floats(min_value=1e-4, max_value=0.2))
def test_the_reach_is_where_the_factor_is_one_over_the_level(count: int, level: float) -> None:
    reach = reach_of(level, count)
    if math.isfinite(reach):
        assert bayes_factor(reach, count) == pytest.approx(1.0 / level, rel=1e-6)
        assert bayes_factor(0.9 * reach, count) < 1.0 / level
    else:
        assert bayes_factor(1e9, count) <= 1.0 / level * (1.0 + 1e-6)


@pytest.mark.parametrize(("t", "count"), [(0.0, 3), (2.0, 4), (5.0, 6), (-3.0, 10)])
def test_the_factor_is_the_integral_that_it_stands_for(t: float, count: int) -> None:
    """By summing over effects and deviations, with the densities written out: no shared code."""
    rest = count - 1.0  # sum of squares for a deviation of 1

    def weight(effect: float, sigma: float) -> float:
        shift = t / math.sqrt(count)
        squares = (rest + count * (shift - effect * sigma) ** 2) / sigma**2
        return math.exp(-0.5 * squares) * sigma ** -(count + 1.0)

    sigmas = [math.exp(0.02 * place) for place in range(-150, 400)]
    effects = [0.1 * place for place in range(-300, 301)]
    prior = [math.exp(-0.5 * effect**2 / 25.0) * 0.1 / math.sqrt(2.0 * math.pi * 25.0) for effect in effects]
    change = sum(
        sigma * by * weight(effect, sigma)
        for sigma in sigmas
        for effect, by in zip(effects, prior, strict=True)
    )
    none = sum(sigma * weight(0.0, sigma) for sigma in sigmas)
    assert bayes_factor(t, count) == pytest.approx(change / none, rel=0.02)


def test_the_processor_time_decides_while_the_wall_time_is_open() -> None:
    chance = random.Random(5)
    pairs = [
        (run(chance.uniform(50.0, 200.0), 10.0 + 0.1 * n), run(chance.uniform(50.0, 200.0), 12.0 + 0.1 * n))
        for n in range(5)
    ]
    changes: dict[str, MetricChange] = {change.metric: change for change in changes_in_turns(pairs)}
    assert changes["processor_ms"].outcome == "regressed"
    assert changes["processor_ms"].noise.basis == "turns"
    assert changes["step_time_ms"].outcome in ("cannot tell", "probably slower")
    assert changes["step_time_ms"].more
    assert is_decided(compare_in_turns(pairs, Sensitivity()))


def test_runs_of_other_work_are_not_compared() -> None:
    pair = run(100.0, fingerprint=Fingerprint(batch=4)), run(100.0, fingerprint=Fingerprint(batch=8))
    comparison = compare_in_turns([pair, pair], Sensitivity())
    assert not comparison.is_comparable
    assert is_decided(comparison)
    assert compare_in_turns([pair] * 4, Sensitivity(), {"batch"}).changes[0].outcome == "no change"

"""How often the gate is wrong, and what it finds: a small, seeded part of benchmarks/regression.py.

The limits are those of docs/regressions.md and three standard deviations of the few hundred comparisons here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from stepgrade.compare.metrics import changes_of
from stepgrade.model import Baseline
from stepgrade.scoring.step_times import step_times
from stepgrade.statistics import median

COMPARISONS = 200
ALARMS = 6  # 1 % of 200 are 2, and three standard deviations
Noise = Callable[[random.Random], float]


def normal(width: float) -> Noise:
    return lambda chance: chance.gauss(0.0, width)


def student(width: float) -> Noise:
    """Return noise of this standard deviation by Student's distribution with three degrees of freedom."""

    def draw(chance: random.Random) -> float:
        squares = sum(chance.gauss(0.0, 1.0) ** 2 for _ in range(3))
        return width * chance.gauss(0.0, 1.0) / math.sqrt(squares)

    return draw


def two_kinds(width: float) -> Noise:
    """Return noise of machines of which one in five is 6 % slower."""
    return lambda chance: chance.gauss(0.0, width) + (math.log(1.06) if chance.random() < 0.2 else 0.0)


def run(chance: random.Random, noise: Noise, slower: float = 0.0) -> Baseline:
    level = 100.0 * math.exp(noise(chance)) * (1.0 + slower)
    samples = tuple(level * math.exp(chance.gauss(0.0, 0.02)) for _ in range(50))
    times = step_times(samples)
    return Baseline(name="run", step_ms=times.median_ms if times else median(samples), samples_ms=samples)


def outcomes(noise: Noise, earlier: int, slower: float = 0.0, count: int = COMPARISONS) -> list[str]:
    chance = random.Random(earlier)
    return [
        changes_of([run(chance, noise, slower)], [run(chance, noise) for _ in range(earlier)])[0].outcome
        for _ in range(count)
    ]


def test_three_earlier_runs_decide() -> None:
    unchanged = outcomes(normal(0.02), 3)
    assert unchanged.count("no change") >= 0.90 * COMPARISONS
    assert unchanged.count("regressed") + unchanged.count("improved") <= ALARMS
    slow = outcomes(normal(0.02), 3, slower=0.25)
    assert slow.count("regressed") >= 0.93 * COMPARISONS
    # What is not found is not passed.
    assert slow.count("no change") == 0


@pytest.mark.parametrize("earlier", [3, 5, 10])
@pytest.mark.parametrize(
    "noise",
    [normal(0.02), normal(0.05), student(0.01), student(0.02), two_kinds(0.01), two_kinds(0.02)],
    ids=["2 %", "5 %", "Student 1 %", "Student 2 %", "two kinds 1 %", "two kinds 2 %"],
)
def test_identical_runs_seldom_alarm(noise: Noise, earlier: int) -> None:
    said = outcomes(noise, earlier)
    assert said.count("regressed") + said.count("improved") <= ALARMS


@pytest.mark.parametrize("earlier", [1, 2])
def test_fewer_runs_than_three_accuse_nobody(earlier: int) -> None:
    for noise in (normal(0.05), normal(0.13)):
        said = outcomes(noise, earlier)
        assert said.count("regressed") + said.count("improved") <= ALARMS
    assert outcomes(normal(0.02), earlier, slower=2.0, count=50) == ["regressed"] * 50


def test_five_percent_is_found_by_a_dozen_runs() -> None:
    assert outcomes(normal(0.0), 12, slower=0.05, count=100).count("regressed") >= 96

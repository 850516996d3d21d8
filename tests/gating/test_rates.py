"""How often the gate is wrong, and what it finds: a small, seeded part of benchmarks/regression.py.

The limits are those of docs/regressions.md and three standard deviations of the few hundred comparisons here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from stepgrade.compare.metrics import change_of, changes_of
from stepgrade.compare.noise import Sample, noise_of
from stepgrade.config import Sensitivity
from stepgrade.model.comparison import METRICS
from stepgrade.model.scorecard import Baseline
from stepgrade.scoring.step_times import step_times
from stepgrade.statistics import median

COMPARISONS = 600
ALARMS = 13  # 1 % of 600 are 6, and three standard deviations
# What 50 steps of 2 % noise that resemble their neighbours leave open of their median.
STEP_SIGMA = 0.0057
STEPS = 30.0
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


def runs(chance: random.Random, noise: Noise, count: int, slower: float = 0.0) -> Sample:
    level = 100.0 * (1.0 + slower)
    values = (level * math.exp(noise(chance) + chance.gauss(0.0, STEP_SIGMA)) for _ in range(count))
    return Sample(values=tuple(values), sigmas=(STEP_SIGMA,) * count, steps=STEPS * count)


def outcomes(noise: Noise, earlier: int, slower: float = 0.0, count: int = COMPARISONS) -> list[str]:
    chance, metric = random.Random(earlier), METRICS["step_time_ms"]
    said = []
    for _ in range(count):
        now, before = runs(chance, noise, 1, slower), runs(chance, noise, earlier)
        said.append(change_of(metric, now, before, noise_of(now, before, metric), Sensitivity()).outcome)
    return said


def alarms(said: list[str]) -> int:
    return said.count("regressed") + said.count("improved")


def test_three_earlier_runs_decide() -> None:
    unchanged = outcomes(normal(0.02), 3)
    assert unchanged.count("no change") >= 0.90 * COMPARISONS
    assert alarms(unchanged) <= ALARMS
    slow = outcomes(normal(0.02), 3, slower=0.25)
    assert slow.count("regressed") >= 0.95 * COMPARISONS
    # What is not found is not passed.
    assert slow.count("no change") == 0


@pytest.mark.parametrize("earlier", [3, 5, 10, 20])
@pytest.mark.parametrize(
    "noise",
    [
        normal(0.02),
        normal(0.05),
        student(0.01),
        student(0.02),
        student(0.035),
        two_kinds(0.01),
        two_kinds(0.02),
    ],
    ids=["2 %", "5 %", "Student 1 %", "Student 2 %", "Student 3.5 %", "two kinds 1 %", "two kinds 2 %"],
)
def test_identical_runs_seldom_alarm(noise: Noise, earlier: int) -> None:
    assert alarms(outcomes(noise, earlier)) <= ALARMS


def test_a_second_kind_of_machine_that_was_seen_is_no_alarm() -> None:
    """Twenty runs have shown it, however little the others differ."""
    assert alarms(outcomes(two_kinds(0.0), 20)) <= ALARMS


@pytest.mark.parametrize("earlier", [1, 2])
def test_fewer_runs_than_three_accuse_nobody(earlier: int) -> None:
    for noise in (normal(0.05), normal(0.13)):
        assert alarms(outcomes(noise, earlier)) <= ALARMS
    assert outcomes(normal(0.02), earlier, slower=2.0, count=50) == ["regressed"] * 50


@pytest.mark.parametrize("earlier", [10, 20])
def test_five_percent_is_found_where_runs_agree(earlier: int) -> None:
    found = outcomes(normal(0.0), earlier, slower=0.05).count("regressed")
    assert found >= 0.95 * COMPARISONS - 3.0 * math.sqrt(0.95 * 0.05 * COMPARISONS)


@pytest.mark.parametrize(
    ("earlier", "noise", "slower", "share"),
    [(10, 0.02, 0.10, 0.70), (10, 0.02, 0.15, 0.98), (10, 0.05, 0.25, 0.80), (3, 0.02, 0.15, 0.60)],
)
def test_slowdowns_are_found(earlier: int, noise: float, slower: float, share: float) -> None:
    found = outcomes(normal(noise), earlier, slower=slower).count("regressed")
    assert found >= share * COMPARISONS - 3.0 * math.sqrt(share * (1.0 - share) * COMPARISONS)


def test_whole_runs_are_judged_as_their_samples_are() -> None:
    """The steps of 50 are drawn one by one, and the noise of each run is told from them."""
    chance = random.Random(7)

    def run(slower: float = 0.0) -> Baseline:
        level = 100.0 * (1.0 + slower)
        samples = tuple(level * math.exp(chance.gauss(0.0, 0.02)) for _ in range(50))
        times = step_times(samples)
        return Baseline(name="run", step_ms=times.median_ms if times else median(samples), samples_ms=samples)

    said = [
        changes_of([run(slower)], [run() for _ in range(10)])[0].outcome
        for slower in (0.0, 0.05)
        for _ in range(60)
    ]
    assert (said[:60].count("no change"), said[60:].count("regressed")) == (60, 60)

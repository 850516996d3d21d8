"""Steady steps and the interval of their median."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.model import Operation
from stepgrade.scoring.step_times import LEAST_STEPS, inflation, marks_of, step_times
from tests.builders import make_layers, make_phases, make_profile

EVEN = [100.0 + n % 3 for n in range(30)]
DURATIONS = st.lists(st.floats(min_value=0.0, max_value=1e6), max_size=80)


@pytest.mark.parametrize(
    ("samples", "warm_up", "outliers"),
    [
        (EVEN, 0, 0),
        ([900.0, 160.0, *EVEN], 2, 0),
        ([900.0, *EVEN[:10], 250.0, *EVEN], 1, 1),
        ([*EVEN, 20.0], 0, 1),
        ([103.0, *EVEN], 0, 0),
        ([900.0, 100.0, 100.0], 0, 0),
        ([100.0, 130.0] * 15, 0, 0),
        ([*EVEN, *[200.0] * 6], 0, 0),
        ([100.0] * 40, 0, 0),
        ([500.0] * 20 + [100.0] * 20, 20, 0),
    ],
)
def test_what_is_left_out(samples: list[float], warm_up: int, outliers: int) -> None:
    times = step_times(samples)
    assert times is not None
    assert (times.warm_up, times.outliers) == (warm_up, outliers)
    assert times.steady == len(samples) - warm_up - outliers


def test_one_cold_step_moves_nothing() -> None:
    cold = sg.score(make_profile(mean_step_ms=400.0, samples_ms=(9000.0, *EVEN)), tokens_per_step=1000)
    assert cold.step_time_ms == 101.0
    assert cold.throughput is not None
    assert cold.throughput.low is not None
    assert cold.throughput.high is not None
    assert cold.throughput.low <= cold.throughput.tok_s <= cold.throughput.high
    assert cold.steps is not None
    assert (cold.steps.warm_up, cold.steps.steady, cold.steps.most_ms) == (1, 30, 9000.0)
    assert any("1 warm-up" in note.text for note in cold.notes)


def test_an_average_has_no_interval_and_says_so() -> None:
    card = sg.score(make_profile(), tokens_per_step=1000)
    assert card.steps is not None
    assert card.steps.low_ms is None
    assert card.throughput is not None
    assert card.throughput.low is None
    assert any("no interval" in note.text for note in card.notes)


@given(DURATIONS)
def test_marks_and_intervals_make_sense(samples: list[float]) -> None:
    assert len(marks_of(samples)) == len(samples)
    times = step_times(samples)
    assert (times is None) is (not samples)
    if times is None:
        return
    assert times.steady + times.warm_up + times.outliers == len(samples)
    assert times.steady >= len(samples) / 2
    assert times.least_ms <= times.median_ms <= times.p95_ms <= times.most_ms
    if times.low_ms is not None and times.high_ms is not None:
        assert times.low_ms <= times.median_ms <= times.high_ms


@given(DURATIONS, st.sampled_from([2.0**-10, 0.5, 2.0, 2.0**10]))
def test_the_unit_does_not_matter(samples: list[float], unit: float) -> None:
    # Powers of two: what is scaled by them is rounded just as before.
    scaled = [ms * unit for ms in samples]
    assert marks_of(scaled) == marks_of(samples)
    if samples:
        assert inflation(samples) >= 1.0
        assert inflation(scaled) == pytest.approx(inflation(samples))


@given(DURATIONS)
def test_at_most_half_of_the_steps_are_warm_up(samples: list[float]) -> None:
    assert marks_of(samples).count("warm-up") <= len(samples) / 2


def test_few_steps_have_no_interval() -> None:
    few, enough = step_times([1.0] * (LEAST_STEPS - 1)), step_times([1.0] * 20)
    assert few is not None
    assert enough is not None
    assert (few.low_ms, few.high_ms) == (None, None)
    assert (enough.low_ms, enough.high_ms) == (1.0, 1.0)


@pytest.mark.parametrize(("correlation", "least"), [(0.0, 0.93), (0.5, 0.92), (0.8, 0.87)])
def test_the_interval_holds_the_median_as_often_as_it_says(correlation: float, least: float) -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(400):
        noise, samples = 0.0, []
        for _ in range(50):
            noise = correlation * noise + chance.gauss(0.0, (1.0 - correlation**2) ** 0.5)
            samples.append(100.0 + noise)
        times = step_times(samples)
        assert times is not None
        held += (times.low_ms or 0.0) <= 100.0 <= (times.high_ms or 1e9)
    assert held / 400 >= least


def test_a_scorecard_keeps_a_bounded_number_of_samples() -> None:
    ops = tuple(Operation(name=f"op{n}", ms=1.0, samples_ms=(1.23456789,) * 20_000) for n in range(90))
    small = Operation(name="small", ms=0.001, samples_ms=(0.001,) * 20_000)
    samples = tuple(100.0 + n % 3 for n in range(20_000))
    card = sg.score(
        make_profile(
            steps=20_000,
            mean_step_ms=101.0,
            samples_ms=samples,
            operations=(*ops, small),
            phases=(),
            layers=(),
        )
    )
    assert card.steps is not None
    assert card.steps.median_ms == 101.0
    assert card.steps.steady == 20_000
    assert len(card.steps.samples_ms) <= 4096
    kept = [op.samples_ms for op in card.operations if op.samples_ms]
    assert len(kept) == 64
    assert all(one == (1.2346,) * len(one) and 200 <= len(one) <= 256 for one in kept)
    assert any("of them are kept" in note.text for note in card.notes)
    assert len(card.to_json()) < 300_000


@given(st.lists(st.floats(10.0, 1000.0), min_size=1, max_size=40))
def test_phases_add_up_to_the_typical_step(samples_ms: list[float]) -> None:
    mean_ms = sum(samples_ms) / len(samples_ms)
    phases = make_phases(forward=mean_ms * 0.3, backward=mean_ms * 0.6)
    profile = make_profile(
        steps=len(samples_ms), mean_step_ms=mean_ms, phases=phases, samples_ms=tuple(samples_ms)
    )
    card = sg.score(profile)
    assert card.step_time_ms is not None
    told_ms = sum(phase.ms or 0.0 for phase in card.phases.values())
    assert told_ms == pytest.approx(0.9 * card.step_time_ms)


@given(st.lists(st.floats(10.0, 1000.0), min_size=1, max_size=40))
def test_layers_fit_into_the_typical_step(samples_ms: list[float]) -> None:
    mean_ms, steps = sum(samples_ms) / len(samples_ms), len(samples_ms)
    layers = make_layers(*((mean_ms * 10 * 0.1, mean_ms * 10 * 0.2) for _ in range(3)))
    profile = make_profile(steps=steps, mean_step_ms=mean_ms, layers=layers, samples_ms=tuple(samples_ms))
    card = sg.score(profile)
    assert card.step_time_ms is not None
    assert sum((layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0) for layer in card.layers) == pytest.approx(
        0.9 * card.step_time_ms
    )

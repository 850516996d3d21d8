"""Change points: real changes found, lone spikes not, and everything as fast as it must be."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.compare.change_points import LEAST_SEGMENT, change_points, level_around


def noise(count: int, level: float = 100.0, seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [chance.gauss(level, 1.0) for _ in range(count)]


def test_levels_are_found_where_they_begin() -> None:
    values = noise(40) + noise(30, 110.0, 1) + noise(30, 95.0, 2)
    found = change_points(values)
    assert [point.index for point in found] == [40, 70]
    assert found[0].change == pytest.approx(0.10, abs=0.02)
    assert level_around(values, len(values) - 1, 1000) == range(70, len(values))


def test_noise_alone_seldom_has_a_level() -> None:
    assert sum(bool(change_points(noise(300, seed=seed))) for seed in range(100)) <= 4


@pytest.mark.parametrize("width", range(1, LEAST_SEGMENT))
@pytest.mark.parametrize("place", [0, 20, 57])
def test_a_spike_is_no_change(width: int, place: int) -> None:
    values = noise(60)
    values[place : place + width] = [400.0] * width
    assert change_points(values[:60]) == ()


def test_a_short_stay_at_another_level_is_two_changes() -> None:
    values = noise(50) + noise(8, 130.0, 1) + noise(50, seed=2)
    assert [point.index for point in change_points(values)] == [50, 58]


def test_small_changes_can_be_left_out() -> None:
    values = noise(100) + noise(100, 103.0, 1)
    assert len(change_points(values)) == 1
    assert change_points(values, least_change=0.05) == ()


@pytest.mark.parametrize("values", [[], [1.0], [1.0] * 7, [0.0] * 50, [5.0] * 50, [-1.0] * 20 + [-2.0] * 20])
def test_plain_series(values: list[float]) -> None:
    found = change_points(values)
    assert [point.index for point in found] == ([20] if len(set(values)) == 2 else [])


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), max_size=60))
def test_segments_are_never_too_short(values: list[float]) -> None:
    edges = [0, *(point.index for point in change_points(values)), len(values)]
    assert edges == sorted(edges)
    if len(edges) > 2:
        assert min(b - a for a, b in pairwise(edges)) >= LEAST_SEGMENT


def test_the_work_grows_hardly_faster_than_the_series() -> None:
    """Processor time of this process alone, the least of three, and a ratio: 64 times if it were quadratic."""
    change_points(noise(1_000))  # what is loaded once

    def spent_s(half: int) -> float:
        values = noise(half) + noise(half, 103.0, 1)
        start = time.process_time()
        (found,) = change_points(values)
        assert abs(found.index - half) <= 2
        return time.process_time() - start

    small, large = (min(spent_s(half) for _ in range(3)) for half in (6_250, 50_000))
    assert large < 32.0 * max(small, 0.01)

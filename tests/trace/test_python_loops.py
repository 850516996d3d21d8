"""Loops in the order of operations: found where they were put, and not in layers."""

from __future__ import annotations

import numpy as np
import pytest

from stepgrade.model.activity import LoopTally
from stepgrade.trace.activity import FEWEST_TURNS, find_turns
from stepgrade.trace.profile import analyse_rank
from tests.trace_builder import TraceBuilder


def sequence(*parts: tuple[list[int], int]) -> np.ndarray:
    return np.array([name for turn, count in parts for _ in range(count) for name in turn], np.int32)


@pytest.mark.parametrize("turn", [[1], [1, 2], [1, 2, 1, 3, 4], list(range(20, 40))])
def test_a_loop_is_found_with_its_turns(turn: list[int]) -> None:
    names = sequence(([7, 8, 9, 5], 1), (turn, 100), ([9, 8], 1))
    first, last, period = find_turns(names, np.arange(len(names), dtype=np.int64) * 1000)
    assert ((last - first + 1) // period).tolist() == [100]
    assert period.tolist() == [len(turn)]
    assert first.tolist() == [4]


def test_layers_of_a_model_are_no_loop() -> None:
    names = sequence(([1, 2, 3, 4, 5, 6], FEWEST_TURNS - 1))
    assert not len(find_turns(names, np.arange(len(names), dtype=np.int64))[0])


def test_turns_that_take_as_long_as_layers_do_are_no_loop() -> None:
    names = sequence(([1, 2], 100))
    assert not len(find_turns(names, np.arange(len(names), dtype=np.int64) * 5_000_000)[0])


def test_two_loops_are_two() -> None:
    names = sequence(([1, 2], 80), ([9], 1), ([3, 4, 5], 70))
    first, last, period = find_turns(names, np.arange(len(names), dtype=np.int64))
    assert sorted(((last - first + 1) // period).tolist()) == [70, 80]


def test_a_few_turns_that_wait_for_a_core_do_not_hide_a_loop() -> None:
    names = sequence(([1, 2], 100))
    took = np.where(np.arange(len(names)) % 40 == 7, 60_000_000, 20_000)  # a turn of twenty is preempted
    first, last, _ = find_turns(names, np.cumsum(took))
    assert (first.tolist(), last.tolist()) == ([0], [len(names) - 1])


def loops_of(turns: int) -> LoopTally | None:
    """Return the loop of steps with so many turns of two operations, and nothing between the steps."""
    out = TraceBuilder(devices=())
    for step in range(8):
        begin = 400_000_000 * step
        out.range(f"ProfilerStep#{step}", begin, 400_000_000)
        for turn in range(turns):
            out.op("aten::mul", begin + 200_000 * turn, 50_000)
            out.op("aten::add", begin + 200_000 * turn + 60_000, 50_000)
    activity = analyse_rank(out.trace()).profile.activity
    return activity.loop if activity else None


def test_a_loop_is_of_one_step() -> None:
    found = loops_of(FEWEST_TURNS)
    assert found is not None
    assert found.turns == FEWEST_TURNS
    assert found.ms == pytest.approx(0.2 * FEWEST_TURNS, rel=0.02)  # without what is between the steps
    assert loops_of(FEWEST_TURNS // 2) is None

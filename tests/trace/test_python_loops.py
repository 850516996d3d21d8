"""Loops in the order of operations: found where they were put, and not in layers."""

from __future__ import annotations

import numpy as np
import pytest

from stepgrade.trace.python_loops import FEWEST_TURNS, find_turns


def sequence(*parts: tuple[list[int], int]) -> np.ndarray:
    return np.array([name for turn, count in parts for _ in range(count) for name in turn], np.int32)


@pytest.mark.parametrize("turn", [[1], [1, 2], [1, 2, 1, 3, 4], list(range(20, 40))])
def test_a_loop_is_found_with_its_turns(turn: list[int]) -> None:
    names = sequence(([7, 8, 9, 5], 1), (turn, 100), ([9, 8], 1))
    turns = find_turns(names, np.arange(len(names), dtype=np.int64) * 1000)
    assert turns.turns.tolist() == [100]
    assert turns.period.tolist() == [len(turn)]
    assert turns.first.tolist() == [4]


def test_layers_of_a_model_are_no_loop() -> None:
    names = sequence(([1, 2, 3, 4, 5, 6], FEWEST_TURNS - 1))
    assert not len(find_turns(names, np.arange(len(names), dtype=np.int64)).first)


def test_turns_that_take_as_long_as_layers_do_are_no_loop() -> None:
    names = sequence(([1, 2], 100))
    assert not len(find_turns(names, np.arange(len(names), dtype=np.int64) * 5_000_000).first)


def test_two_loops_are_two() -> None:
    names = sequence(([1, 2], 80), ([9], 1), ([3, 4, 5], 70))
    turns = find_turns(names, np.arange(len(names), dtype=np.int64))
    assert sorted(turns.turns.tolist()) == [70, 80]

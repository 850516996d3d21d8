"""What once took the square of its number gives what the obvious slow way gives, and no more than the file holds."""

from __future__ import annotations

from operator import sub
from pathlib import Path
from statistics import median

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade import Profile
from stepgrade.timeline.ledger import TOLERANCE, StepMark, _marked
from stepgrade.trace.activity import FEWEST_TURNS, LONGEST_TURN, SHORT_TURN_NS, find_turns
from tests.complexity.shapes import Files, blocks_that_wander, recordings_of_their_own


def slow_turns(names: list[int], starts: list[int]) -> list[tuple[int, int, int]]:
    found = []
    for period in range(1, min(LONGEST_TURN, len(names) // FEWEST_TURNS) + 1):
        first = 0
        while first < len(names) - period:
            stop = first
            while stop < len(names) - period and names[stop] == names[stop + period]:
                stop += 1
            turns = (stop - first) // period + 1
            last = first + turns * period - 1
            if (
                stop > first
                and turns >= FEWEST_TURNS
                and median(
                    map(sub, starts[first + period : last + 1 : period], starts[first : last + 1 : period])
                )
                <= SHORT_TURN_NS
            ):
                found.append((first, last, period))
            first = max(stop, first + 1)
    kept: list[tuple[int, int, int]] = []
    for first, last, period in sorted(found, key=lambda turn: (turn[0] - turn[1], turn[2])):
        if all(last < other[0] or first > other[1] for other in kept):
            kept.append((first, last, period))
    return kept


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(60, 140), st.integers(0, 9)), max_size=6))
def test_loops_do_not_overlap(loops: list[tuple[int, int, int]]) -> None:
    """Loops of one to three operations, with some other operations between them."""
    names: list[int] = []
    for period, turns, other in loops:
        names += [*range(period)] * turns + [10 + other] * (other % 3)
    starts = [1000 * place for place in range(len(names))]
    found = find_turns(np.array(names, np.int32), np.array(starts, np.int64))
    kept = [(first, last, period) for first, last, period in found.T.tolist()]
    assert sorted(kept) == sorted(slow_turns(names, starts))


@given(st.lists(st.integers(1, 400), min_size=2, max_size=40))
def test_warm_up_ends_where_a_later_step_is_alike(durations: list[int]) -> None:
    dur = np.array(durations, np.int64) * 1000
    start = np.cumsum(dur) - dur
    known = np.ones(len(dur), np.bool_)
    windows = _marked(start, start + dur, known, np.full(len(dur), 7), on_device=True)
    warm = sum(mark is StepMark.WARM_UP for mark in windows.mark)
    later = dur[len(dur) // 2 :]
    for place in range(warm):
        assert windows.mark[place] is StepMark.WARM_UP
        assert (np.abs(later - dur[place]) > TOLERANCE * later).all()
        # Each is far from the median of the steps that are left when it is taken out.
        middle = float(np.median(dur[place + 1 :]))
        assert abs(dur[place] - middle) > TOLERANCE * middle
    if warm < len(dur) // 2:  # why the next one is none
        middle = float(np.median(dur[warm + 1 :]))
        is_off = abs(dur[warm] - middle) > TOLERANCE * middle
        assert not (is_off and (np.abs(later - dur[warm]) > TOLERANCE * later).all())


def profile_of(folder: Path, files: Files) -> Profile:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return sg.load(folder / "f")


def test_blocks_that_run_in_few_steps_have_no_times_by_step(tmp_path: Path) -> None:
    profile = profile_of(tmp_path / "many", blocks_that_wander(60))
    assert len(profile.layers) > 50
    assert not any(layer.fwd_samples_ms for layer in profile.layers)
    few = profile_of(tmp_path / "few", blocks_that_wander(6))
    assert few.layers
    assert all(len(layer.fwd_samples_ms) == few.steps for layer in few.layers)


def test_operations_of_few_recordings_have_no_times_by_step(tmp_path: Path) -> None:
    profile = profile_of(tmp_path / "many", recordings_of_their_own(12))
    assert len(profile.operations) == 12
    assert not any(op.samples_ms for op in profile.operations)
    assert len(profile.samples_ms) == profile.steps
    pair = profile_of(tmp_path / "two", recordings_of_their_own(2))
    assert all(len(op.samples_ms) == pair.steps for op in pair.operations)

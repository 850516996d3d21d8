from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.timeline import intervals as iv

Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12)


def spans(pairs: Pairs) -> iv.Spans:
    return iv.union(
        np.array([pair[0] for pair in pairs], np.int64),
        np.array([pair[1] for pair in pairs], np.int64),
    )


def points(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {time for start, end in pairs for time in range(start, end)}


def points_of(found: iv.Spans) -> set[int]:
    return points(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def assert_normal(found: iv.Spans) -> None:
    assert (found.ends > found.starts).all()
    assert (found.starts[1:] > found.ends[:-1]).all()


@given(PAIRS)
def test_union_covers_the_same_points(pairs: Pairs) -> None:
    found = spans(pairs)
    assert points_of(found) == points(pairs)
    assert_normal(found)
    assert iv.total_ns(found) == len(points(pairs))


@given(PAIRS, PAIRS)
def test_set_operations_agree_with_sets_of_points(left: Pairs, right: Pairs) -> None:
    a, b = spans(left), spans(right)
    for found, wanted in (
        (iv.merge(a, b), points(left) | points(right)),
        (iv.intersect(a, b), points(left) & points(right)),
        (iv.subtract(a, b), points(left) - points(right)),
    ):
        assert points_of(found) == wanted
        assert_normal(found)


@given(PAIRS, st.integers(0, 60), st.integers(0, 60))
def test_gaps_and_clip_share_a_window(pairs: Pairs, start: int, end: int) -> None:
    inner, outer = iv.clip(spans(pairs), start, end), iv.gaps(spans(pairs), start, end)
    window = set(range(start, end))
    assert points_of(inner) == points(pairs) & window
    assert points_of(outer) == window - points(pairs)


@given(PAIRS, st.lists(st.integers(-5, 65), max_size=8))
def test_measures_count_points(pairs: Pairs, times: list[int]) -> None:
    found, when = spans(pairs), np.array(times, np.int64)
    covered = points(pairs)
    assert iv.covered_before(found, when).tolist() == [sum(p < t for p in covered) for t in times]
    for time, index in zip(times, iv.span_at(found, when).tolist(), strict=True):
        assert (index >= 0) == (time in covered)
        if index >= 0:
            assert found.starts[index] <= time < found.ends[index]


@given(PAIRS, st.lists(st.integers(0, 60), min_size=2, max_size=6))
def test_windows_add_up(pairs: Pairs, edges: list[int]) -> None:
    edge = np.array(sorted(edges), np.int64)
    found = iv.covered_within(spans(pairs), edge[:-1], edge[1:])
    assert found.sum() == iv.covered_within(spans(pairs), edge[:1], edge[-1:])[0]

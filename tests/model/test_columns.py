"""Values of columns, against numpy's own way to tell them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stepgrade.model.columns import among, distinct, groups, median, once_if_constant, quantile, sums

NEAR = st.integers(-3, 40)
FAR = st.integers(-(2**63), 2**63 - 1)
LISTS = st.one_of(st.lists(NEAR), st.lists(FAR), st.lists(st.one_of(NEAR, FAR)))
# Long columns are looked at in another way than short ones.
COLUMNS = st.builds(
    lambda values, times: np.array(values * times, np.int64), LISTS, st.sampled_from([1, 300])
)


@given(COLUMNS)
def test_distinct_values_are_those_of_numpy(column: NDArray[np.int64]) -> None:
    assert distinct(column).tolist() == np.unique(column).tolist()


@given(COLUMNS)
def test_groups_are_those_of_numpy(column: NDArray[np.int64]) -> None:
    values, which, counts = np.unique(column, return_inverse=True, return_counts=True)
    found = groups(column)
    assert found.values.tolist() == values.tolist()
    assert found.which.tolist() == which.tolist()
    assert found.counts.tolist() == counts.tolist()


@given(COLUMNS, st.one_of(st.lists(NEAR, max_size=30), st.lists(FAR, max_size=5)))
def test_among_is_what_numpy_calls_isin(column: NDArray[np.int64], values: list[int]) -> None:
    expected = np.isin(column, values).tolist() if values else [False] * len(column)
    assert among(column, values).tolist() == expected
    assert among(column, np.array(values, np.int64)).tolist() == expected


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_columns_keep_their_type(dtype: Any) -> None:
    column = np.array([127, -128, 3, 127], dtype)
    assert distinct(column).dtype == dtype
    assert groups(column).values.tolist() == [-128, 3, 127]
    assert among(column, [3, 500]).tolist() == [False, False, True, False]


@pytest.mark.parametrize("count", [3, 100_000])
def test_sums_are_exact_and_those_of_numpy(count: int) -> None:
    rng = np.random.default_rng(5)
    which = rng.integers(0, count, 200_000, np.int32)
    amounts = rng.integers(0, 2**31 - 1, 200_000, np.int32)
    found = sums(which, amounts, count)
    assert found.tolist() == np.bincount(which, amounts, count).tolist()
    assert sums(which[:0], amounts[:0], count).tolist() == [0.0] * count


def test_a_column_of_one_value_keeps_it_once() -> None:
    constant, other = np.full(1000, 7, np.int32), np.append(np.full(999, 7, np.int32), 8)
    assert once_if_constant(constant).tolist() == constant.tolist()
    assert once_if_constant(constant).strides == (0,)
    assert once_if_constant(other) is other
    assert len(once_if_constant(constant[:0])) == 0


FLOATS = st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40)


@given(FLOATS, st.floats(0.0, 1.0))
def test_median_and_quantile_are_those_of_numpy(values: list[float], share: float) -> None:
    column = np.array(values)
    assert median(column) == np.median(column)
    assert quantile(column, share) == np.quantile(column, share)


@given(st.lists(st.integers(0, 2**52), min_size=1, max_size=40))
def test_the_median_of_whole_numbers_is_that_of_numpy(values: list[int]) -> None:
    assert median(np.array(values)) == np.median(values)


@pytest.mark.parametrize("values", [[], [1.0, np.nan, 2.0]])
def test_the_median_of_none_or_nan_is_nan(values: list[float]) -> None:
    assert np.isnan(median(np.array(values)))

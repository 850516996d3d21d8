"""How steps spread: bins that hold every sample, stretches that hold every step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.scoring.charts import histogram, stretches
from stepgrade.scoring.step_times import marks_of
from stepgrade.statistics import quantile

SAMPLES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=300).map(tuple)


@given(SAMPLES)
def test_bins_hold_every_sample_once(samples: tuple[float, ...]) -> None:
    bins = histogram(samples)
    assert sum(one.count for one in bins) == len(samples)
    assert bins[0].low_ms == min(samples)
    assert bins[-1].high_ms == pytest.approx(max(samples))


@given(SAMPLES, st.integers(1, 50))
def test_stretches_hold_every_step_once(samples: tuple[float, ...], most: int) -> None:
    found = stretches(samples, marks_of(samples), most)
    assert len(found) <= most
    assert [step for one in found for step in range(one.first, one.last + 1)] == list(range(len(samples)))
    assert max(one.high_ms for one in found) == max(samples)
    assert all(one.low_ms <= one.median_ms <= one.high_ms for one in found)


def test_a_stretch_carries_the_mark_of_any_of_its_steps() -> None:
    assert [
        one.mark for one in stretches((1.0, 1.0, 9.0, 1.0), ("steady", "steady", "outlier", "steady"), 2)
    ] == [
        "steady",
        "outlier",
    ]


@given(SAMPLES, st.floats(0.0, 1.0))
def test_quantiles_lie_within(samples: tuple[float, ...], share: float) -> None:
    assert min(samples) <= quantile(sorted(samples), share) * (1 + 1e-12)
    assert quantile(sorted(samples), share) <= max(samples) * (1 + 1e-12)

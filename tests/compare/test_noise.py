"""The noise between runs where nothing is uncertain: a width of zero."""

from __future__ import annotations

import pytest

from stepgrade.compare.noise import Width, how_often


@pytest.mark.parametrize(("shift", "often"), [(0.0, 1.0), (0.1, 0.0), (-1e-9, 0.0)])
def test_without_noise_only_no_shift_is_chance(shift: float, often: float) -> None:
    assert how_often(shift, [Width(sigma=0.0)]) == often


def test_the_probability_is_that_of_the_widths_by_their_weights() -> None:
    narrow, wide = Width(sigma=0.0, weight=0.25), Width(sigma=0.1, weight=0.75)
    alone = how_often(0.1, [Width(sigma=0.1)])
    assert alone == pytest.approx(0.3173, abs=1e-3)  # one standard deviation, either way
    assert how_often(0.1, [narrow, wide]) == pytest.approx(0.75 * alone)
    assert how_often(-0.1, [narrow, wide]) == how_often(0.1, [narrow, wide])

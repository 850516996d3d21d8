"""Numbers to text: what is shown must not contradict what it is a number of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepgrade.contract import Grade
from stepgrade.units import show_graded_share

BOUNDS = (0.10, 0.20, 0.40, 0.60)


@given(st.floats(0.0, 1.0))
def test_a_share_is_never_rounded_into_another_grade(share: float) -> None:
    shown = float(show_graded_share(share, BOUNDS).removesuffix(" %")) / 100
    if abs(min((share - bound for bound in BOUNDS), key=abs)) > 1e-7:
        assert Grade.from_efficiency(shown) is Grade.from_efficiency(share)


def test_just_below_a_bound() -> None:
    assert show_graded_share(0.5996, BOUNDS) == "59.96 %"
    assert show_graded_share(0.512, BOUNDS) == "51.2 %"

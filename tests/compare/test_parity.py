"""Two runtimes: what is matched, what is not, and when nothing can be said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.contract import ParityComparison
from stepgrade.errors import NotMeasured
from stepgrade.model import Profile
from tests.builders import make_ops, make_profile
from tests.samples import shared


def runtime(name: str = "ours", **total_ms: float) -> Profile:
    return make_profile(runtime=name, operations=make_ops(**total_ms))


def test_gaps_and_matched_shares() -> None:
    report = sg.parity(
        runtime(gemm=60.0, norm=20.0, lora=20.0), runtime("theirs", gemm=40.0, norm=20.0, loss=20.0)
    )
    assert [(gap.op, gap.ratio) for gap in report.gaps] == [("gemm", 1.5), ("norm", 1.0)]
    assert (report.ours_matched_share, report.theirs_matched_share) == (
        pytest.approx(0.8),
        pytest.approx(0.75),
    )
    assert [one.op for one in report.only_ours] == ["lora"]
    assert [one.op for one in report.only_theirs] == ["loss"]
    assert report.parity_achieved is False


def test_little_in_common_cannot_be_told() -> None:
    report = sg.parity(runtime(gemm=10.0, a=90.0), runtime("theirs", gemm=10.0, b=90.0))
    assert report.parity_achieved is None
    assert "10.0 %" in report.notes[0].text


def test_both_sides_must_be_matched() -> None:
    assert sg.parity(runtime(a=1.0), runtime("theirs", a=1.0, b=9.0)).parity_achieved is None
    assert sg.parity(runtime(a=1.0, b=9.0), runtime("theirs", a=1.0)).parity_achieved is None


def test_nothing_in_common_is_not_parity() -> None:
    report = sg.parity(runtime(a=1.0), runtime("theirs", b=1.0))
    assert report.parity_achieved is None
    assert report.ours_matched_share == 0.0


def test_without_operations_there_is_nothing_to_compare() -> None:
    with pytest.raises(NotMeasured, match="no operations"):
        sg.parity(runtime(), runtime("theirs", a=1.0))


@given(st.dictionaries(st.text(max_size=4), st.floats(0.001, 1e6), min_size=1))
def test_parity_with_itself(total_ms: dict[str, float]) -> None:
    report = sg.parity(runtime(**total_ms), runtime(**total_ms))
    assert report.parity_achieved is True
    assert report.ours_matched_share == pytest.approx(1.0)
    assert all(gap.ratio == 1.0 for gap in report.gaps)


@pytest.mark.samples
def test_json_is_a_superset_of_contract_v1() -> None:
    samples = shared("samples/step_profiles")
    ours, theirs = (sg.load(samples / name) for name in ("parity_apr.json", "parity_pytorch.json"))
    report = sg.parity(ours, theirs)
    as_v1 = ParityComparison.from_json(report.to_json())
    assert not as_v1.parity_achieved
    assert report.ours_matched_share is not None
    assert 0.9 < report.ours_matched_share < 1.0

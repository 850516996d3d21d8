"""The roofline: where operations lie under the roofs, and what the roofs are."""

from __future__ import annotations

import pytest

import stepgrade as sg
from stepgrade.hardware.setup import Setup
from stepgrade.model import Operation, Profile
from stepgrade.scoring.charts import roofline_of
from tests.builders import make_profile

# Ten steps of 100 ms; peaks of 1 TFLOP/s and 100 GB/s meet at 10 FLOPs for each byte.
SETUP = Setup(peak_tflops=1.0, peak_bw_gb_s=100.0)


def profile_of(*ops: Operation) -> Profile:
    """Return a profile of operations whose figures are of all ten steps."""
    return make_profile(operations=tuple(op.per_step(10) for op in ops))


def test_operations_lie_under_the_lower_roof() -> None:
    dense = Operation(name="dense", ms=100.0, flops=50e9, bytes=0.5e9)  # 10 ms, 5 GFLOP, 50 MB a step
    thin = Operation(name="thin", ms=100.0, flops=0.5e9, bytes=0.5e9)
    found = roofline_of(sg.score(profile_of(dense, thin), setup=SETUP))
    assert found is not None
    assert found.ridge == pytest.approx(10.0)
    points = {point.name: point for point in found.points}
    assert (points["dense"].limit, points["thin"].limit) == ("compute", "memory")
    assert points["dense"].flops_per_byte == pytest.approx(100.0)
    assert points["dense"].flops_s == pytest.approx(0.5e12)
    assert points["dense"].roof_share == pytest.approx(0.5)
    assert points["thin"].roof_share == pytest.approx(0.05)


def test_the_run_is_all_known_work_over_the_whole_step() -> None:
    ops = (
        Operation(name="known", ms=100.0, flops=50e9, bytes=0.5e9),
        Operation(name="unknown", ms=300.0),
    )
    found = roofline_of(sg.score(profile_of(*ops), setup=SETUP))
    assert found is not None
    assert found.run is not None
    assert found.run.flops_s == pytest.approx(5e9 / 0.1)
    assert found.known_share == pytest.approx(0.25)


def test_without_shapes_there_is_none() -> None:
    assert roofline_of(sg.score(profile_of(Operation(name="x", ms=1.0)))) is None


def test_without_a_device_points_have_no_roof() -> None:
    found = roofline_of(sg.score(profile_of(Operation(name="x", ms=1.0, flops=1.0, bytes=1.0))))
    assert found is not None
    assert (found.roofs, found.ridge, found.points[0].roof_share) == ((), None, None)


def test_a_device_brings_stated_and_achievable_roofs() -> None:
    card = sg.score(make_profile(), device="h100-sxm5-80gb")
    assert {(roof.kind, roof.basis) for roof in card.roofs} == {
        ("compute", "data_sheet"),
        ("compute", "measured"),
        ("memory", "data_sheet"),
    }


@pytest.mark.parametrize(
    ("setup", "with_a_roof"),
    [
        ({"peak_tflops": 1.0}, {"aten::mm"}),
        ({"peak_bw_gb_s": 100.0}, {"aten::add"}),
        ({"peak_tflops": 1.0, "peak_bw_gb_s": 100.0}, {"aten::mm", "aten::add"}),
    ],
)
def test_one_rate_alone_is_the_roof_only_of_what_it_usually_limits(setup: dict, with_a_roof: set) -> None:
    shapes = {"calls": 10, "flops": 1e9, "bytes": 1e6}
    operations = (
        Operation(name="aten::mm", ms=100.0, kind="gemm", **shapes),
        Operation(name="aten::add", ms=100.0, kind="elementwise", **shapes),
    )
    card = sg.score(profile_of(*operations), setup=Setup(**setup))
    assert {op.name for op in card.operations if op.roof_share is not None} == with_a_roof

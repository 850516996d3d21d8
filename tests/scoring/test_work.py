"""What the operations' time is said to be in: the share of the classes that the sentence names, at any load."""

from __future__ import annotations

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.config.limits import Limits
from stepgrade.model import Operation
from stepgrade.model.activity import Activity
from stepgrade.scoring.causes import work_of
from stepgrade.trace.profile import analyse_rank
from tests.builders import make_profile
from tests.trace_builder import TraceBuilder

MS = 1_000_000


def card_of(operations: dict[str, float], *, slower: float = 1.0) -> sg.Scorecard:
    """Return the card of a processor's steps with these operations (ms), all of them so much slower."""
    out = TraceBuilder(devices=())
    step_ns = int(sum(operations.values()) * slower * MS * 1.02)
    for step in range(6):
        at = step * step_ns
        out.range(f"ProfilerStep#{step}", at, step_ns)
        for name, ms in operations.items():
            # A megabyte moved: far below any memory's rate once the operation takes milliseconds.
            out.op(name, at, int(ms * slower * MS), dims=[[512, 512], [512, 512]], types=["float", "float"])
            at += int(ms * slower * MS)
    return sg.score(analyse_rank(out.trace()).profile)


@pytest.mark.parametrize(
    ("operations", "bottleneck", "words"),
    [
        ({"aten::mm": 60, "aten::copy_": 40}, "compute", "60.0 % of the operations' time is in matrix products"),
        ({"aten::mm": 1, "aten::copy_": 60, "aten::fill_": 39}, "memory_bw", "99.0 % of the operations' time is in copies or fills, which"),
        ({"aten::mm": 20, "aten::index_put_": 80}, "memory_bw", "80.0 % of the operations' time is in index operations, which"),
        ({"aten::mm": 40, "aten::normal_": 60}, "compute", "100.0 % of the operations' time is in random numbers and matrix products"),
        ({"aten::mm": 30, "aten::add": 25, "aten::squiggle": 45}, "compute", "30.0 % of the operations' time is in matrix products, 25.0 % in work that mostly moves memory"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("slower", [1.0, 25.0])
def test_a_class_is_what_its_operations_are(
    operations: dict[str, float], bottleneck: str, words: str, slower: float
) -> None:
    card = card_of(operations, slower=slower)
    assert card.bottleneck == bottleneck
    assert words in card.bottleneck_evidence[0]


def test_slow_work_of_other_classes_counts_as_what_it_is() -> None:
    shares = {cause.bottleneck: cause.share for cause in card_of({"aten::mm": 60, "aten::copy_": 40}).causes}
    assert shares["compute"] == pytest.approx(0.6 / 1.02, abs=0.001)
    assert shares["memory_bw"] == pytest.approx(0.4 / 1.02, abs=0.001)


def test_random_numbers_are_arithmetic_on_a_processor_only() -> None:
    """Of a device's kernels, drawing numbers moves memory: most of the time in it is not limited by arithmetic."""
    on_device = make_profile(
        operations=(
            Operation(name="aten::normal_", kind="other", ms=60.0, calls=10.0),
            Operation(name="aten::mm", kind="gemm", ms=40.0, calls=10.0),
        ),
        launches_per_step=100.0,
        mean_step_ms=100.0,
    )
    on_processor = structs.replace(on_device, launches_per_step=None, activity=Activity(driver="host"))
    limits = Limits()
    device, processor = (work_of(one, one.operations, limits) for one in (on_device, on_processor))
    assert "random numbers" not in device.products
    assert "random numbers" in processor.products
    assert processor.products_share == pytest.approx(1.0)

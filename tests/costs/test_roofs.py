"""No operation of a real trace runs faster than its device can: FLOPs and bytes are never counted too high."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import BadInput
from stepgrade.model import DeviceSeen, Operation, Profile
from tests.builders import make_profile
from tests.samples import each_of

# Rows of a buffer that is made for the worst case: how many of them are multiplied, the sizes do not tell.
REFUSED = {"ao_syncless_ep_moe_fwd.json": "aten::_scaled_grouped_mm"}


@pytest.mark.parametrize("path", each_of("samples/kineto/*.json*", "samples/kineto_more/*.json*"))
def test_no_operation_is_above_its_roof(path: Path) -> None:
    try:
        card = sg.score(sg.load(path))
    except BadInput:
        pytest.skip("not a trace that can be read")
    assert all(0.0 <= op.roof_share <= 1.0 for op in card.operations if op.roof_share is not None)
    said = [note.text for note in card.notes if note.code == "count_above_roof"]
    assert len(said) == (path.name in REFUSED)
    assert all(f"sizes of {REFUSED[path.name]} give" in text for text in said)


def profile_of(*ops: Operation) -> Profile:
    """Return ten steps of an A100, with 40 MB of cache, 1,555 GB/s and 312 TFLOP/s."""
    device = DeviceSeen(name="NVIDIA A100-SXM4-40GB")
    flops = sum(op.flops or 0.0 for op in ops if op.kind == "gemm")
    return make_profile(
        operations=tuple(op.per_step(10) for op in ops),
        device=device,
        matmul_flops=flops / 10 or None,
        matmul_known_share=1.0,
        matmul_dtype="bf16",
    )


def test_a_count_above_the_roof_is_not_used() -> None:
    wrong = Operation(name="aten::_grouped_mm", kind="gemm", ms=10.0, calls=10.0, flops=1e13, bytes=1e9)
    right = Operation(name="aten::mm", kind="gemm", ms=10.0, calls=10.0, flops=1e12, bytes=1e9)
    card = sg.score(profile_of(wrong, right))
    found = {op.name: op for op in card.operations}
    assert (found[wrong.name].flops, found[wrong.name].roof_share) == (None, None)
    assert found[right.name].roof_share == pytest.approx(1e12 / 312e12 / 0.010)
    assert card.cost_known_share == pytest.approx(0.5)
    assert card.arithmetic is not None
    assert card.arithmetic.achieved_flops_s == pytest.approx(1e12 / 10 / 0.1)
    assert any(wrong.name in note.text for note in card.notes if note.code == "count_above_roof")


@pytest.mark.parametrize(("megabytes", "is_known"), [(30.0, False), (200.0, True)])
def test_what_fits_into_the_cache_has_no_roof_in_memory(megabytes: float, is_known: bool) -> None:
    """A call in half the time that memory would take is possible for what is in the cache alone."""
    moved = megabytes * 1e6
    op = Operation(
        name="aten::add",
        kind="elementwise",
        ms=moved / 1555e9 * 1e3 / (2 if not is_known else 0.8),
        calls=1.0,
        flops=1.0,
        bytes=moved,
    )
    found = sg.score(profile_of(op)).operations[0]
    assert found.bytes == moved / 10
    assert (found.roof_share is not None) is is_known


def test_an_operation_above_a_peak_that_the_user_gave_is_shown() -> None:
    op = Operation(name="aten::mm", kind="gemm", ms=10.0, calls=10.0, flops=1e13, bytes=1e9)
    card = sg.score(profile_of(op), setup=sg.Setup(peak_tflops=100.0, peak_bw_gb_s=1000.0))
    assert (card.operations[0].roof_share or 0.0) > 1.0

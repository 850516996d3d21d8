"""Ceilings side by side, which of them counts, MFU, and what a share above one means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.hardware.catalogue import find_device, read_device
from stepgrade.hardware.ceilings import (
    Ceiling,
    Costs,
    Figures,
    ceilings,
    lowest,
    lowest_achievable,
    utilisation,
    why_above_one,
)
from stepgrade.hardware.cost.model_costs import model_costs
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.estimate import estimate_plan
from stepgrade.hardware.measured import Measurement, Rate
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.setup import Setup, target_of
from tests.hardware import model_configs as configs

H100 = find_device("h100-sxm5-80gb")
COSTS = Costs(flops=50e9, bytes=50e6, link_bytes=1e6)
MEASURED = Measurement(
    key="h100-sxm5-80gb",
    name="H100",
    date="2026-01-02T03:04:05Z",
    method="torch",
    bandwidth_gb_s=Rate(best=3000.0, median=2990.0, spread_share=0.01, runs=5),
    tflops={"bf16": Rate(best=700.0, median=690.0, spread_share=0.02, runs=5)},
)


def estimated(config: Any, plan: Any, key: Any, tok_s: Any = None, **figures: Any) -> Any:
    shape = model_from_config(json.dumps(config))
    return estimate_plan(Figures(device=find_device(key), **figures), model_costs(shape, plan), plan, tok_s)


def test_data_sheet_and_achievable_side_by_side() -> None:
    found = ceilings(Figures(device=H100), COSTS, "bf16")
    assert [(limit.kind, limit.basis) for limit in found] == [
        ("compute", "data_sheet"),
        ("memory", "data_sheet"),
        ("link", "data_sheet"),
        ("compute", "measured"),
    ]
    assert found[0].tok_s == pytest.approx(989.4e12 / 50e9)
    assert found[3].tok_s == pytest.approx(794.5e12 / 50e9)
    assert all(limit.source for limit in found)


def test_what_is_measured_does_not_move_what_counts() -> None:
    found = ceilings(Figures(device=H100, measured=MEASURED), COSTS, "bf16")
    graded, reachable = lowest(found), lowest_achievable(found)
    assert graded is not None
    assert reachable is not None
    assert graded.basis == "data_sheet"
    assert reachable.tok_s == pytest.approx(700e12 / 50e9)
    assert "2026-01-02" in reachable.source
    assert lowest_achievable(found[:1]) is None


def test_what_the_user_says_goes_first() -> None:
    figures = Figures(device=H100, peak_bw_gb_s=1000, peak_tflops=100, link_gb_s=50)
    found = ceilings(figures, COSTS, "bf16")
    assert {limit.basis for limit in found} == {"given"}
    assert [limit.tok_s for limit in found] == [100e12 / 50e9, 1000e9 / 50e6, 50e9 / 1e6]


def test_a_device_from_a_file_is_given(tmp_path: Any) -> None:
    path = tmp_path / "my.toml"
    path.write_text('name = "x"\npeak_bw_gb_s = 100\n[peak_tflops]\nbf16 = 10')
    found = ceilings(Figures(device=read_device(str(path))), COSTS, "bf16")
    assert {limit.basis for limit in found} == {"given"}


def test_no_cost_no_ceiling() -> None:
    assert ceilings(Figures(device=H100), Costs(), "bf16") == ()
    assert lowest(()) is None


def test_a_precision_the_device_lacks_has_no_compute_ceiling() -> None:
    found = estimated(configs.GPT2, Plan(batch=1, seq=512), "v100-sxm2-32gb")
    assert {limit.kind for limit in found.ceilings} == {"memory"}
    assert found.notes[0].code == "no_peak"
    assert "no bf16 peak is known" in found.notes[0].text
    assert "fp16" in found.notes[0].text


def test_a_link_whose_rate_nobody_published() -> None:
    plan = Plan(batch=1, seq=512, parallel=Parallelism(devices=8))
    found = estimated(configs.GPT2, plan, "mi300a")
    assert any(note.supply == "{link_gb_s}" for note in found.notes)


def test_the_reference_constant_only_for_its_two_devices() -> None:
    assert roof_of(device="rtx_4060l").tok_s == pytest.approx(1620.25, abs=0.1)
    assert target_of(Setup(device="h100-sxm5-80gb")).roof is None
    assert roof_of(device="h100-sxm5-80gb", bytes_per_token=1e6).tok_s == pytest.approx(3.35e6)
    assert roof_of(peak_bw_gb_s=100, bytes_per_token=1e6).basis == "given"
    assert target_of(Setup(bytes_per_token=1e6)).roof is None


def roof_of(**fields: Any) -> Ceiling:
    roof = target_of(Setup(**fields)).roof
    assert roof is not None
    return roof


QLORA = Plan(
    batch=4,
    seq=512,
    method="qlora",
    optimizer="adamw-8bit",
    checkpointing="full",
    loss="fused",
    dequantise="fused",
)


def test_the_impossible_run_of_the_reference_is_explained() -> None:
    """6,628 tok/s of a QLoRA run on an RTX 4060 Laptop: nominal tokens, two thirds of them padding."""
    found = estimated(configs.QWEN25_15B, QLORA, "rtx-4060-laptop", 6628)
    assert found.utilisation.mfu > 1
    assert "padding" in found.utilisation.above_one_because[0]
    assert "512" in found.utilisation.above_one_because[0]


def test_the_same_run_with_its_real_tokens_is_possible() -> None:
    found = estimated(configs.QWEN25_15B, QLORA, "rtx-4060-laptop", 2140)
    assert found.utilisation.mfu == pytest.approx(0.59, abs=0.005)
    assert found.utilisation.above_one_because == ()
    assert found.utilisation.mfu_palm > found.utilisation.mfu
    assert found.utilisation.hfu > found.utilisation.mfu


def test_throughput_of_a_run_is_shared_by_its_devices() -> None:
    plan = Plan(batch=2, seq=8192, parallel=Parallelism(devices=8, data="fsdp"))
    found = estimated(configs.LLAMA3_8B, plan, "h100-sxm5-80gb", 8 * 5762)
    assert found.utilisation.mfu == pytest.approx(0.30, abs=0.001)
    assert found.utilisation.tok_s_per_device == 5762


def test_small_batches_are_limited_by_memory_and_large_ones_by_compute() -> None:
    small = estimated(configs.LLAMA3_8B, Plan(batch=1, seq=64), "h100-sxm5-80gb")
    large = estimated(configs.LLAMA3_8B, Plan(batch=64, seq=2048), "h100-sxm5-80gb")
    assert (small.bound_by.kind, large.bound_by.kind) == ("memory", "compute")
    assert small.intensity_flops_per_byte < small.ridge_flops_per_byte < large.intensity_flops_per_byte
    assert 64 < small.crossing_tokens < 64 * 2048


@given(st.floats(0.01, 1e9), st.floats(1e6, 1e15), st.floats(0.1, 1e5), st.integers(1, 10_000))
def test_utilisation_has_the_units_it_says(tok_s: Any, flops: Any, peak: Any, device_count: Any) -> None:
    share = utilisation(tok_s, flops, peak, device_count)
    assert share > 0
    assert utilisation(2 * tok_s, flops, peak, device_count) == pytest.approx(2 * share)
    assert utilisation(tok_s, flops, peak, 2 * device_count) == pytest.approx(share / 2)
    assert utilisation(tok_s, flops, 2 * peak, device_count) == pytest.approx(share / 2)


@given(st.floats(0, 10))
def test_causes_only_above_one(share: Any) -> None:
    assert bool(why_above_one(share, "compute")) is (share > 1.0)

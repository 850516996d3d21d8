"""Rules that use what the card knows: names that say nothing, needed copies, routers, and advice that fits."""

from __future__ import annotations

from typing import Any

import pytest

import stepgrade as sg
from stepgrade.errors import UnknownDevice
from stepgrade.hardware.catalogue import meant_device
from stepgrade.model.activity import PartTime
from stepgrade.model.operations import Operation
from stepgrade.model.profile import Profile
from stepgrade.naming.torch_names import BACKWARD
from stepgrade.naming.work_class import WorkClass, classify
from tests.diagnosis.test_rules import GEMMS, optimizer, trace


def rules_of(run: Profile) -> dict[str, str]:
    return {found.rule: found.remedy for found in sg.score(run).findings}


def copies(name: str) -> Profile:
    part = PartTime(work_class="copy", role=None, direction="forward", ms=30.0, calls=10.0, kernels=10.0)
    return trace(ops=(*GEMMS, Operation(name=name, ms=30.0, calls=10.0, kind="copy")), parts=(part,))


@pytest.mark.parametrize("name", ["triton_", "triton__0d1d2d3de", "triton_0"])
def test_a_name_that_says_nothing_has_no_class(name: str) -> None:
    assert classify(name) is WorkClass.OTHER


@pytest.mark.parametrize("name", ["triton_poi_fused_add_0", "triton_fused_gelu_3"])
def test_generated_loops_keep_their_class(name: str) -> None:
    assert classify(name) is WorkClass.ELEMENTWISE


def test_unknown_kernels_decide_no_bottleneck() -> None:
    card = sg.score(trace(ops=(Operation(name="triton_", ms=90.0, calls=10.0, kind="other"),)))
    assert card.bottleneck == "unknown"


@pytest.mark.parametrize(
    "name",
    ["vllm::reshape_and_cache_flash", "per_channel_cast_and_transpose<256>", "void set_kv_buffer_kernel"],
)
def test_needed_copies_are_not_avoidable(name: str) -> None:
    assert "device-copies" in rules_of(copies("aten::copy_"))
    assert "device-copies" not in rules_of(copies(name))


@pytest.mark.parametrize(("softmax_ms", "fires"), [(0.4, False), (12.0, True)])
def test_a_router_beside_its_experts_is_no_attention(softmax_ms: float, *, fires: bool) -> None:
    ops = (
        Operation(name="aten::_softmax", ms=softmax_ms, calls=12.0, kind="softmax"),
        Operation(name="aten::bmm", ms=40.0, calls=36.0, kind="gemm"),
    )
    assert ("unfused-attention" in rules_of(trace(ops=(*ops, *GEMMS)))) == fires


@pytest.mark.parametrize("name", ["mlp(B)", "attn(W)", "dispatch(B)"])
def test_passes_of_pipelines_are_backward_passes(name: str) -> None:
    assert BACKWARD.search(name)
    assert not BACKWARD.search("attn(F)")


def test_slow_attention_is_found_without_a_known_length() -> None:
    attention = Operation(
        name="aten::_flash_attention_forward", kind="attention", ms=50.0, calls=10.0, flops=3e12, bytes=1e9
    )
    run = trace(ops=(attention, *GEMMS), matmul_dtype="bf16")
    found = sg.score(run, device="a100-sxm4-80gb").findings
    assert "slow-attention" in {each.rule for each in found}


@pytest.mark.parametrize(("parallelism", "is_told"), [({"fsdp": 5.0}, False), ({"data": 5.0}, True)])
def test_a_sharded_run_is_not_told_to_shard(parallelism: dict[str, Any], *, is_told: bool) -> None:
    run = trace(optimizer=optimizer(ms=40.0, span_ms=40.0), parallelism_ms=parallelism)
    assert ("hard its state" in rules_of(run)["heavy-optimizer"]) == is_told


@pytest.mark.parametrize("fused", [True, False])
def test_a_fused_optimizer_is_not_told_to_be_fused(*, fused: bool) -> None:
    run = trace(optimizer=optimizer(ms=40.0, span_ms=40.0, fused=fused))
    assert ("fused=True" in rules_of(run)["heavy-optimizer"]) != fused


@pytest.mark.parametrize("seen", [True, False])
def test_an_unseen_device_does_not_hide_the_waits_of_its_host(*, seen: bool) -> None:
    waits = (40.0,) if seen else ()
    run = trace(driver="unseen", ledger=None, input_ms=waits, loader="_SingleProcessDataLoaderIter")
    assert ("loader-on-main-thread" in rules_of(run)) == seen


def test_images_are_not_asked_for_their_tokens() -> None:
    card = sg.score(trace(marks={"conv": 53.0}, ops=GEMMS))
    assert not any("tokens_per_step" in str(reason) for reason in card.ungraded_because)


def test_an_architecture_offers_its_devices() -> None:
    with pytest.raises(UnknownDevice, match=r"h100-sxm5-80gb.*h200-sxm"):
        meant_device("hopper")

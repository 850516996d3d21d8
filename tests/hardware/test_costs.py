"""The cost model: worked examples to their printed digits, and the laws that no example can show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepgrade.errors import BadOption
from stepgrade.hardware.catalogue import all_devices, find_device
from stepgrade.hardware.ceilings import Figures, ceilings, lowest
from stepgrade.hardware.cost.conventions import CONVENTIONS, find_convention
from stepgrade.hardware.cost.model_costs import (
    attended_span,
    count,
    flops_per_token,
    link_traffic,
    model_costs,
    traffic_per_token,
)
from stepgrade.hardware.cost.plan import Parallelism, Plan, find_dtype
from stepgrade.hardware.estimate import estimate_plan
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.models.shape import ModelShape
from tests.hardware import model_configs as configs

QLORA: dict[str, Any] = {"method": "qlora", "rank": 16, "optimizer": "adamw-8bit", "checkpointing": "full"}
# config, device, plan, then GFLOP/token model and hardware, MB/token, tok/s compute and memory
WORKED = {
    "QLoRA, fused kernels": (
        configs.QWEN25_15B,
        "rtx-4060-laptop",
        Plan(batch=4, seq=512, loss="fused", dequantise="fused", **QLORA),
        (6.42, 9.08, 18.8, 2555, 13638),
    ),
    "QLoRA, bitsandbytes": (
        configs.QWEN25_15B,
        "rtx-4060-laptop",
        Plan(batch=4, seq=512, **QLORA),
        (6.42, 9.08, 30.1, 2555, 8507),
    ),
    "QLoRA, one short text": (
        configs.QWEN25_15B,
        "rtx-4060-laptop",
        Plan(batch=1, seq=60, **QLORA),
        (6.30, 8.93, 338, 2599, 758),
    ),
    "full bf16 on GB10": (
        configs.QWEN25_15B,
        "gb10",
        Plan(batch=16, seq=512, optimizer="adamw-bf16"),
        (9.39, 9.39, 22.2, 13307, 12314),
    ),
    "Llama-3-8B on H100": (
        configs.LLAMA3_8B,
        "h100-sxm5-80gb",
        Plan(batch=2, seq=8192, checkpointing="selective"),
        (51.5, 53.6, 53.2, 18453, 62935),
    ),
    "Llama-3-8B QLoRA on 4090": (
        configs.LLAMA3_8B,
        "rtx-4090",
        Plan(batch=2, seq=2048, method="qlora", rank=8, checkpointing="full"),
        (31.8, 46.3, 66.1, 3572, 15247),
    ),
    "Llama-3-70B on H100": (
        configs.LLAMA3_70B,
        "h100-sxm5-80gb",
        Plan(batch=1, seq=8192, checkpointing="full"),
        (449, 597, 531, 1658, 6309),
    ),
    "Mixtral on H100": (
        configs.MIXTRAL_8X7B,
        "h100-sxm5-80gb",
        Plan(batch=1, seq=4096, checkpointing="full"),
        (79.7, 106, 478, 9332, 7015),
    ),
    "GPT-2 on A100": (
        configs.GPT2,
        "a100-sxm4-80gb",
        Plan(batch=16, seq=1024),
        (0.80, 0.80, 3.89, 391_000, 525_000),
    ),
}


def shape_of(config: Any) -> ModelShape:
    return model_from_config(json.dumps(config))


@pytest.mark.parametrize("name", WORKED)
def test_worked_examples(name: Any) -> None:
    config, device, plan, expected = WORKED[name]
    costs = model_costs(shape_of(config), plan)
    found = estimate_plan(Figures(device=find_device(device)), costs, plan)
    roofs = {limit.kind: limit.tok_s for limit in found.ceilings if limit.basis == "data_sheet"}
    got = (
        costs.flops.model / 1e9,
        costs.flops.hardware / 1e9,
        costs.traffic.total / 1e6,
        roofs["compute"],
        roofs["memory"],
    )
    assert got == pytest.approx(expected, rel=0.005)


def test_link_bytes_of_the_worked_examples() -> None:
    ddp = Plan(batch=1, seq=8192, parallel=Parallelism(devices=8))
    assert link_traffic(shape_of(configs.LLAMA3_8B), ddp).total == pytest.approx(28.1e9, rel=0.002)
    fsdp = Plan(batch=1, seq=8192, parallel=Parallelism(devices=64, data="fsdp"))
    assert link_traffic(shape_of(configs.LLAMA3_70B), fsdp).total == pytest.approx(417e9, rel=0.002)


def test_lora_sends_only_its_adapters() -> None:
    plan = Plan(batch=1, seq=512, method="lora", parallel=Parallelism(devices=8))
    shape = shape_of(configs.QWEN25_15B)
    assert link_traffic(shape, plan).total == 2 * 7 / 8 * shape.adapters(16, "all") * 2


def test_tensor_expert_and_pipeline_parallelism() -> None:
    shape = shape_of(configs.MIXTRAL_8X7B)
    tokens, depth, d = 4096, 32, 4096
    tensor = link_traffic(shape, Plan(batch=1, seq=4096, parallel=Parallelism(devices=8, tensor=8)))
    assert tensor.tensor == depth * 4 * 2 * 7 / 8 * tokens * d * 2
    assert tensor.data == 0
    expert = link_traffic(shape, Plan(batch=1, seq=4096, parallel=Parallelism(devices=8, expert=8)))
    assert expert.expert == depth * 4 * 7 / 8 * tokens * 2 * d * 2
    pipeline = link_traffic(shape, Plan(batch=1, seq=4096, parallel=Parallelism(devices=8, pipeline=8)))
    assert pipeline.pipeline == 2 * tokens * d * 2
    assert pipeline.tokens == tokens / 8


def test_one_device_sends_nothing() -> None:
    plan = Plan(batch=1, seq=128)
    assert link_traffic(shape_of(configs.MIXTRAL_8X7B), plan).total == 0
    assert model_costs(shape_of(configs.GPT2), plan).link is None


SHAPES = {name: shape_of(config) for name, (config, _) in configs.PARAMETERS.items()}
shapes = st.sampled_from(sorted(SHAPES)).map(SHAPES.__getitem__)
conventions = st.sampled_from(sorted(CONVENTIONS)).map(CONVENTIONS.__getitem__)
plans = st.builds(
    Plan,
    batch=st.integers(1, 512),
    seq=st.integers(1, 131_072),
    micro_batches=st.integers(1, 64),
    dtype=st.sampled_from(["bf16", "fp16", "fp32", "fp8"]),
    method=st.sampled_from(["full", "lora", "qlora"]),
    rank=st.integers(1, 256),
    optimizer=st.sampled_from(["adamw", "adamw-bf16", "adamw-8bit", "sgd"]),
    checkpointing=st.sampled_from(["none", "selective", "full"]),
    loss=st.sampled_from(["upcast", "chunked", "fused"]),
)


def changed(plan: Any, **fields: Any) -> Plan:
    known = {name: getattr(plan, name) for name in plan.__struct_fields__}
    return Plan(**{**known, **fields})


@given(shapes, plans, conventions)
def test_doubling_the_batch_halves_the_bytes_of_weights_only(shape: Any, plan: Any, convention: Any) -> None:
    double = changed(plan, batch=2 * plan.batch)
    one = flops_per_token(count(shape, plan), plan, convention)
    two = flops_per_token(count(shape, double), double, convention)
    assert one == two
    small, large = traffic_per_token(shape, plan), traffic_per_token(shape, double)
    assert large.weights == pytest.approx(small.weights / 2)
    assert large.gradients == pytest.approx(small.gradients / 2)
    assert large.optimizer == pytest.approx(small.optimizer / 2)
    assert (large.activations, large.loss) == (small.activations, small.loss)


@given(shapes, plans, conventions)
def test_lora_never_costs_more_flops_than_full_training(shape: Any, plan: Any, convention: Any) -> None:
    full, lora = changed(plan, method="full"), changed(plan, method="lora", rank=min(plan.rank, 16))
    whole = flops_per_token(count(shape, full), full, convention)
    part = flops_per_token(count(shape, lora), lora, convention)
    # Adapters on every one of many small experts may outweigh what the frozen weights save.
    if shape.adapters(lora.rank, "all", active=True) * 3 <= shape.matmul_weights:
        assert part.model <= whole.model
        assert part.hardware <= whole.hardware


@given(shapes, plans, conventions)
def test_hardware_flops_are_never_less_than_the_model_needs(shape: Any, plan: Any, convention: Any) -> None:
    counts = count(shape, plan)
    by_checkpointing = [
        flops_per_token(counts, changed(plan, checkpointing=kind), convention)
        for kind in ("none", "selective", "full")
    ]
    none, selective, full = by_checkpointing
    assert none.model == none.hardware == selective.model == full.model
    assert none.hardware <= selective.hardware <= full.hardware <= none.hardware * 4 / 3 * 1.2 + 1


@given(shapes, plans, conventions)
def test_flops_grow_with_the_sequence(shape: Any, plan: Any, convention: Any) -> None:
    longer = changed(plan, seq=plan.seq + 1)
    counts = count(shape, plan)
    assert (
        flops_per_token(counts, longer, convention).model >= flops_per_token(counts, plan, convention).model
    )


@given(shapes, plans)
def test_causal_exact_is_never_above_palm(shape: Any, plan: Any) -> None:
    counts = count(shape, plan)
    exact = flops_per_token(counts, plan, CONVENTIONS["causal-exact"]).model
    assert exact <= flops_per_token(counts, plan, CONVENTIONS["palm"]).model


@given(shapes, plans, st.sampled_from(sorted(all_devices())))
@settings(max_examples=200)
def test_roofs_are_positive_and_follow_the_device(shape: Any, plan: Any, key: Any) -> None:
    device = find_device(key)
    costs = model_costs(shape, plan)
    found = estimate_plan(Figures(device=device), costs, plan)
    assert all(limit.tok_s > 0 for limit in found.ceilings)
    twice = ceilings(Figures(peak_bw_gb_s=2 * (device.peak_bw_gb_s or 1)), costs.per_token, plan.dtype)
    memory = [limit for limit in found.ceilings if limit.kind == "memory"]
    assert twice[0].tok_s == pytest.approx(2 * memory[0].tok_s)
    assert found.bound_by == lowest(found.ceilings)


@given(shapes, plans, st.sampled_from(["h100-sxm5-80gb", "rtx-4090", "mi300x"]))
def test_the_crossing_point_is_where_the_roofs_meet(shape: Any, plan: Any, key: Any) -> None:
    figures = Figures(device=find_device(key))
    plan = changed(plan, dtype="bf16")
    found = estimate_plan(figures, model_costs(shape, plan), plan)
    if found.crossing_tokens is None:
        return
    scale = plan.tokens / found.crossing_tokens
    bytes_there = found.costs.traffic.shared * scale + found.costs.traffic.own
    assert found.costs.flops.hardware / bytes_there == pytest.approx(found.ridge_flops_per_byte)


@given(shapes, plans, st.integers(1, 6))
def test_more_devices_never_make_a_device_send_less_under_ddp(shape: Any, plan: Any, doublings: Any) -> None:
    few = changed(plan, parallel=Parallelism(devices=2**doublings))
    many = changed(plan, parallel=Parallelism(devices=2 ** (doublings + 1)))
    assert link_traffic(shape, many).total >= link_traffic(shape, few).total > 0


@given(st.floats(1, 1e6), st.integers(1, 100_000))
def test_a_window_is_never_wider_than_the_causal_span(seq: Any, window: Any) -> None:
    span = attended_span(seq, causal=True, window=window)
    assert 0 < span <= min(seq / 2, window) * (1 + 1e-12)
    assert attended_span(seq, causal=False, window=window) == seq


@given(shapes, plans)
def test_bytes_by_part_add_up_and_are_positive(shape: Any, plan: Any) -> None:
    traffic = traffic_per_token(shape, plan)
    parts = (traffic.weights, traffic.gradients, traffic.optimizer, traffic.activations, traffic.loss)
    assert all(part > 0 for part in parts)
    assert traffic.total == pytest.approx(sum(parts))


def test_sharding_divides_the_optimizer() -> None:
    shape = shape_of(configs.LLAMA3_8B)
    alone = traffic_per_token(shape, Plan(batch=1, seq=512))
    shared = traffic_per_token(shape, Plan(batch=1, seq=512, parallel=Parallelism(devices=8, data="fsdp")))
    assert shared.optimizer == alone.optimizer / 8


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("bf16", "bf16"), ("bfloat16", "bf16"), ("torch.float16", "fp16"), ("FP32", "fp32"), ("mxfp8", "fp8")],
)
def test_names_of_precisions(name: Any, dtype: Any) -> None:
    assert find_dtype(name) == dtype


@pytest.mark.parametrize("name", ["int3", "", "bf17", "nf4", "double"])
def test_an_unknown_precision(name: Any) -> None:
    with pytest.raises(BadOption) as error:
        find_dtype(name)
    assert error.value.field == "dtype"
    assert error.value.exit_code == 2


def test_an_unknown_convention_lists_those_there_are() -> None:
    with pytest.raises(BadOption, match="causal-exact"):
        find_convention("chinchilla")


@pytest.mark.parametrize(
    "fields",
    [
        {"batch": 0},
        {"batch": -1},
        {"seq": 0},
        {"rank": 0},
        {"micro_batches": 0},
        {"dtype": "int3"},
        {"method": "dora"},
        {"optimizer": "lion"},
        {"checkpointing": "some"},
        {"packed_seq": 4096.0},
        {"packed_seq": 0.0},
        {"lora_targets": "heads"},
    ],
)
def test_a_plan_that_makes_no_sense(fields: Any) -> None:
    with pytest.raises(BadOption):
        Plan(**{"batch": 1, "seq": 512, **fields})


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"devices": 0}, "must be a whole number"),
        ({"shard_group": 0}, "must be a whole number"),
        ({"devices": 6, "tensor": 4}, r"4 x 1 \(tensor x pipeline\) does not divide 6 devices"),
        ({"devices": 4, "tensor": 2, "context": 4}, r"2 x 1 x 4 \(tensor x pipeline x context\)"),
        ({"devices": 4, "expert": 3}, "over 3 does not divide 4 devices"),
        ({"devices": 8, "context": 2, "shard_group": 3}, "3 does not divide the 8 data-parallel devices"),
        ({"devices": 8, "tensor": 4, "shard_group": 4}, "4 does not divide the 2 data-parallel devices"),
        ({"virtual": 2}, "virtual stages need a pipeline"),
        ({"data": "zero9"}, "unknown"),
    ],
)
def test_devices_that_cannot_be_shared_out(fields: Any, problem: str) -> None:
    with pytest.raises(BadOption, match=problem):
        Parallelism(**fields)
    assert Parallelism(devices=8, context=2, shard_group=8).shards == 8

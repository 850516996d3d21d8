"""Memory and plans of a model small enough to count by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import structs

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.ceilings import Figures
from stepgrade.hardware.cluster import Cluster
from stepgrade.hardware.cost.model_costs import model_costs
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.estimate import estimate_plan
from stepgrade.hardware.memory.activations import layer_activations, loss_memory
from stepgrade.hardware.memory.device import stage_memory
from stepgrade.hardware.memory.fit import _WAYS
from stepgrade.hardware.memory.need import memory_need, verdict_of
from stepgrade.hardware.memory.static import (
    Held,
    held_parameters,
    optimizer_temporaries,
    sharing_buffers,
    stage_of,
    static_memory,
    stored,
)
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.hardware.planner import PlanRequest, rank_plans
from stepgrade.hardware.trainers import RankedPlan

TINY = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 10,
}
# q and o 64 each, k and v 32 each, gate, up and down 128 each; two norms of 8.
MATRICES, NORMS, TABLE = 576, 16, 80
TOTAL = 2 * (MATRICES + NORMS) + 8 + 2 * TABLE
EXPERTS = TINY | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
RUN = Plan(batch=1, seq=4)
MASTER = {"weights": 2 * TOTAL, "gradients": 2 * TOTAL, "optimizer": 12 * TOTAL}


def shape_of(config: dict[str, Any] = TINY, **changes: Any) -> ModelShape:
    return model_from_config(json.dumps(config | changes))


def on(devices: int, data: str = "ddp", **fields: Any) -> Plan:
    names = Parallelism.__struct_fields__
    parallel = {name: fields.pop(name) for name in names if name in fields}
    return structs.replace(RUN, parallel=Parallelism(devices=devices, data=data, **parallel), **fields)


def held(plan: Plan, rank: int = 0, shape: ModelShape | None = None) -> Held:
    shape = shape or shape_of()
    return held_parameters(shape, plan, stage_of(shape, plan, rank))


def static(plan: Plan, shape: ModelShape | None = None) -> dict[str, float]:
    shape = shape or shape_of()
    stage = stage_of(shape, plan, 0)
    found = static_memory(shape, plan, stage, held_parameters(shape, plan, stage))
    return structs.asdict(found)


def buffers(plan: Plan) -> dict[str, float]:
    """Return what data parallelism adds, without what is 0."""
    shape = shape_of()
    stage = stage_of(shape, plan, 0)
    here = held_parameters(shape, plan, stage)
    found = sharing_buffers(plan, here, static_memory(shape, plan, stage, here))
    return {name: size for name, size in structs.asdict(found).items() if size}


def test_what_a_device_holds() -> None:
    assert structs.astuple(held(RUN)) == (2 * MATRICES, 0, 2 * NORMS + 8, TABLE, TABLE, MATRICES + NORMS)
    assert held(RUN).total == TOTAL == shape_of().parameters
    assert structs.astuple(held(on(2, tensor=2))) == (
        MATRICES,
        0,
        2 * NORMS + 8,
        TABLE / 2,
        TABLE / 2,
        MATRICES / 2 + NORMS,
    )
    tied = shape_of(tie_word_embeddings=True)
    assert (held(RUN, 0, tied).embedding, held(RUN, 0, tied).head) == (TABLE, 0)
    ends = on(2, pipeline=2)
    first, last = (held(ends, rank, tied) for rank in (0, 1))
    assert (first.embedding, first.head, first.vectors) == (TABLE, 0, NORMS)
    assert (last.embedding, last.head, last.vectors) == (0, TABLE, NORMS + 8)


def test_what_a_device_holds_of_experts() -> None:
    """Each has 384 weights; attention has 192, the router 32, which nobody divides."""
    shape = shape_of(EXPERTS)
    whole = held(RUN, 0, shape)
    assert (whole.matrices, whole.experts, whole.vectors) == (2 * 192, 2 * 4 * 384, 2 * (NORMS + 32) + 8)
    assert whole.largest_layer == 192 + 4 * 384 + NORMS + 32
    spread = held(on(4, tensor=2, expert=2), 0, shape)
    assert (spread.matrices, spread.experts) == (192, 2 * 2 * 384)
    assert held(on(4, tensor=2, expert=2, kernels="te"), 0, shape).experts == 2 * 384


@pytest.mark.parametrize(
    ("depth", "rank", "layers", "first", "last"),
    [(5, 0, 3, True, False), (5, 1, 2, False, True), (4, 0, 2, True, False), (4, 1, 2, False, True)],
)
def test_layers_of_a_stage(depth: int, rank: int, layers: int, first: bool, last: bool) -> None:
    stage = stage_of(shape_of(num_hidden_layers=depth), on(2, pipeline=2), rank)
    assert [count for _, count in stage.layers] == [layers]
    assert (stage.is_first, stage.is_last) == (first, last)


def test_layers_of_two_kinds_are_divided_in_order() -> None:
    config = EXPERTS | {"model_type": "qwen3_moe", "moe_intermediate_size": 16, "mlp_only_layers": [0]}
    shape = shape_of(config, num_hidden_layers=4, num_experts=4)
    assert [layer.count for layer in shape.layers] == [1, 3]
    plan = on(2, pipeline=2)
    assert [count for _, count in stage_of(shape, plan, 0).layers] == [1, 1]
    assert [layer.expert_count for layer, _ in stage_of(shape, plan, 1).layers] == [4]


@pytest.mark.parametrize(
    ("rank", "virtual", "micro_batches", "in_flight"),
    [(0, 1, 8, 4), (3, 1, 8, 1), (0, 1, 2, 2), (0, 2, 8, 11 / 2), (3, 2, 8, 5 / 2), (0, 2, 4, 8 / 2)],
)
def test_micro_batches_in_flight(rank: int, virtual: int, micro_batches: int, in_flight: float) -> None:
    """1F1B holds one for each stage after this; interleaved, chunks: 2 x 3 + 4 + 1 on the first of four."""
    plan = on(4, pipeline=4, virtual=virtual, micro_batches=micro_batches)
    assert stage_of(shape_of(num_hidden_layers=8), plan, rank).in_flight == in_flight


@pytest.mark.parametrize(
    ("fields", "each"),
    [
        ({}, (2, 2, 12)),
        ({"weights": "bf16"}, (2, 2, 4)),
        ({"weights": "fp32"}, (4, 4, 8)),
        ({"weights": "megatron"}, (2, 4, 12)),
        ({"weights": "megatron-fp16"}, (2, 6, 12)),
        ({"weights": "megatron-bf16-gradients"}, (2, 2, 16)),
        ({"dtype": "fp32"}, (4, 4, 8)),
        ({"optimizer": "sgd"}, (2, 2, 4)),
        ({"optimizer": "sgd-momentum"}, (2, 2, 8)),
        ({"optimizer": "muon"}, (2, 2, 8)),
        ({"optimizer": "adamw-bf16"}, (2, 2, 8)),
        ({"optimizer": "adamw-8bit"}, (2, 2, 6 + 8 / 256)),
        ({"optimizer": "adamw-4bit"}, (2, 2, 5 + 8 / 128)),
        ({"method": "lora"}, (4, 4, 8)),
        ({"method": "lora", "kernels": "compiled"}, (2, 2, 4)),
        ({"method": "lora", "optimizer": "sgd-momentum"}, (4, 4, 4)),
    ],
)
def test_bytes_of_a_trained_parameter(fields: dict[str, Any], each: tuple[float, ...]) -> None:
    assert structs.astuple(stored(structs.replace(RUN, **fields))) == each


@pytest.mark.parametrize(
    ("plan", "changed"),
    [
        (RUN, {}),
        (structs.replace(RUN, micro_batches=2), {"gradients_kept": 2 * TOTAL}),
        (structs.replace(RUN, kernels="te"), {"gradients_kept": 2 * TOTAL}),
        (on(4), {"gradients_kept": 2 * TOTAL}),
        (on(4, "zero1"), {"optimizer": 3 * TOTAL}),
        (on(4, "zero2"), {"optimizer": 3 * TOTAL, "gradients": TOTAL / 2}),
        (on(4, "zero3"), {"optimizer": 3 * TOTAL, "gradients": TOTAL / 2, "weights": TOTAL / 2}),
        (on(4, "zero1", shard_group=2), {"optimizer": 6 * TOTAL}),
        (structs.replace(RUN, offload="optimizer"), {"optimizer": 0}),
        (structs.replace(RUN, offload="parameters"), {"optimizer": 0, "weights": 0, "gradients": 0}),
        (structs.replace(RUN, optimizer_in_backward=True), {"gradients": 2 * 2 * (MATRICES + NORMS)}),
        (structs.replace(RUN, optimizer_in_backward=True, micro_batches=2), {"gradients": 2 * 2 * 592}),
        # Muon has one state of 4 bytes beside the master copy; what is no matrix has another.
        (structs.replace(RUN, optimizer="muon"), {"optimizer": 8 * TOTAL + 4 * (40 + 160)}),
        (on(4, "zero1", optimizer="muon"), {"optimizer": (8 * TOTAL + 4 * (40 + 160)) / 4}),
        (structs.replace(RUN, optimizer="muon", dtype="fp32"), {
            "weights": 4 * TOTAL, "gradients": 4 * TOTAL, "optimizer": 4 * TOTAL + 4 * (40 + 160),
        }),
    ],
)  # fmt: skip
def test_weights_gradients_and_states(plan: Plan, changed: dict[str, float]) -> None:
    assert static(plan) == pytest.approx(MASTER | {"gradients_kept": 0} | changed)


def test_adapters_beside_frozen_weights() -> None:
    """Rank 2 on q and v: 2 x (8 + 8) and 2 x (8 + 4) in each of two layers, 112 in all, in fp32."""
    lora = structs.replace(RUN, method="lora", rank=2, lora_targets="q,v")
    assert static(lora) == {
        "weights": 2 * TOTAL + 4 * 112,
        "gradients": 4 * 112,
        "optimizer": 8 * 112,
        "gradients_kept": 0,
    }
    head = structs.replace(lora, lora_targets="q,v,head")
    assert static(head)["gradients"] == 4 * (112 + 2 * (8 + 10))
    shared = structs.replace(lora, parallel=Parallelism(devices=4, data="zero3"))
    assert static(shared) == {name: size / 4 for name, size in static(lora).items()}
    quantised = structs.replace(lora, method="qlora", quantisation="nf4")
    tables = 4 * (2 * TABLE + 2 * NORMS + 8)
    assert static(quantised)["weights"] == 2 * MATRICES * 0.5625 + tables + 4 * 112
    eager = structs.replace(quantised, kernels="eager")
    assert static(eager)["weights"] == 2 * MATRICES * 0.5625 + tables / 2 + 2 * 112


def test_experts_are_sharded_among_fewer() -> None:
    """Of eight devices, four hold the same expert; with two that share attention, twice as many."""
    shape = shape_of(EXPERTS)
    dense = 2 * (192 + NORMS + 32) + 8 + 2 * TABLE
    plan = on(8, "zero1", expert=2)
    assert static(plan, shape)["optimizer"] == 12 * (dense / 8 + 2 * 2 * 384 / 4)
    alone = on(2, "zero1", tensor=2, expert=2)
    parts = 2 * 192 / 2 + 2 * (NORMS + 32) + 8 + TABLE
    assert static(alone, shape)["optimizer"] == 12 * (parts + 2 * 2 * 384)


LAYER = MATRICES + NORMS


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (RUN, {}),
        (on(4), {"always": 2 * TOTAL}),
        (on(4, kernels="te"), {}),
        (on(4, "zero1", kernels="te"), {}),
        (on(4, weights="megatron-fp16"), {"flattened": 2 * TOTAL}),
        (structs.replace(RUN, offload="parameters"), {
            "always": 2 * (2 * LAYER + 2 * TABLE), "gradients": 2 * LAYER,
        }),
        (on(1, "zero2"), {"always": 6 * TOTAL}),
        (on(4, "zero3"), {"always": 6 * TOTAL + 2 * TOTAL}),
        (on(4, "zero3", method="lora"), {"always": 2 * TOTAL}),
        (on(4, "fsdp"), {
            "always": 2 * (2 * LAYER + 2 * TABLE), "layer_gradients": 2 * 2 * LAYER,
            "root_gradients": 2 * 2 * TABLE, "pools": 2 * LAYER * (2 + 4),
        }),
        (on(4, "fsdp", separate_embedding=True), {
            "always": 2 * (2 * LAYER + TABLE), "layer_gradients": 2 * 2 * LAYER,
            "root_gradients": 2 * TABLE, "pools": 2 * LAYER * (2 + 4),
        }),
        (on(4, "fsdp-no-reshard"), {
            "always": 2 * TOTAL, "layer_gradients": 2 * 2 * LAYER,
            "root_gradients": 2 * 2 * TABLE, "pools": 2 * LAYER * (2 + 4),
        }),
        (on(4, "fsdp", method="lora"), {"always": 2 * (2 * LAYER + 2 * TABLE), "pools": 2 * LAYER * 2}),
        # A pipeline keeps all weights of the stage gathered, and its gradients whole: one layer and the table.
        (on(4, "fsdp", pipeline=2), {"always": 2 * (LAYER + TABLE), "gradients": 2 * (LAYER + TABLE),
                                     "pools": (LAYER + TABLE) * (2 + 4)}),
    ],
)  # fmt: skip
def test_what_sharing_holds_besides_the_shards(plan: Plan, expected: dict[str, float]) -> None:
    assert buffers(plan) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 0),
        ({"data": "zero1"}, 6 * TOTAL / 4),
        ({"data": "zero3"}, 6 * TOTAL / 4),
        ({"data": "zero1", "offload": "optimizer"}, 0),
        ({"data": "zero1", "method": "lora"}, 0),
        ({"data": "fsdp", "weights": "fp32"}, 8 * TOTAL / 4 / 2),
        ({"data": "fsdp", "weights": "fp32", "optimizer": "sgd"}, 0),
        ({"data": "fsdp", "weights": "fp32", "kernels": "compiled"}, 0),
        ({"optimizer": "muon", "tensor": 2}, 4 * 2 * 128 / 2),
    ],
)
def test_what_the_optimizers_step_allocates(fields: dict[str, Any], expected: float) -> None:
    plan, shape = on(4, **fields), shape_of()
    stage = stage_of(shape, plan, 0)
    here = static_memory(shape, plan, stage, held_parameters(shape, plan, stage))
    assert optimizer_temporaries(plan, stage, here, stored(plan)) == pytest.approx(expected)


def kept(plan: Plan, config: dict[str, Any] = TINY) -> dict[str, float]:
    """Return what the first layer keeps of a token, without what is 0."""
    shape = shape_of(config)
    found = structs.asdict(layer_activations(shape.hidden, shape.layers[0], plan))
    return {name: size for name, size in found.items() if size}


FUSED = {
    "norms": 2 * (2 * 8 + 4),
    "inputs": 2 * 2 * 8,
    "attention": 2 * (2 * 8 + 2 * 4) + 4 * 2,
    "ffn": 16 * 2 * 4,
}


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({"kernels": "eager"}, {}),
        ({"kernels": "compiled"}, {"ffn": 16 * 2 * 3}),
        ({"kernels": "te"}, {"norms": 2 * 2 * 8, "ffn": 16 * 2 * 3}),
        ({}, {"norms": 2 * (4 * 8 + 2 * 8 + 4)}),
        ({"kernels": "eager-unfused"}, {"norms": 2 * (4 * 8 + 4 * 8 + 4)}),
        ({"kernels": "eager", "attention": "written-out"}, {"attention": 2 * 4 * 8, "scores": 2 * 4 * 2}),
        ({"kernels": "compiled", "attention": "written-out"}, {
            "attention": 2 * 4 * 8, "scores": 2 * 4 * 4, "ffn": 16 * 2 * 3,
        }),
        ({"attention": "written-out"}, {
            "norms": 2 * (4 * 8 + 2 * 8 + 4), "attention": 2 * 4 * 8, "scores": 2 * 4 * (4 + 2),
        }),
        ({"kernels": "eager", "tensor": 2}, {"attention": 56 / 2, "ffn": 16 * 2 * 4 / 2}),
        ({"kernels": "eager", "tensor": 2, "sequence": True}, {
            "norms": 40 / 2, "attention": 56 / 2, "ffn": 16 * 2 * 4 / 2,
        }),
        ({"kernels": "te", "tensor": 2, "sequence": True}, {
            "norms": 32 / 2, "inputs": 32 / 2, "attention": 56 / 2, "ffn": 16 * 2 * 3 / 2,
        }),
    ],
)  # fmt: skip
def test_what_a_layer_keeps_of_a_token(fields: dict[str, Any], changed: dict[str, float]) -> None:
    assert kept(on(4, **fields)) == FUSED | changed


def test_what_adapters_keep_of_a_token() -> None:
    """The inputs of q and v, copied to fp32 for each; and two ranks of 2."""
    lora = structs.replace(RUN, method="lora", rank=2, lora_targets="q,v")
    assert kept(lora)["adapters"] == 4 * (2 * 8 + 2 * 2)
    eager = structs.replace(lora, kernels="eager")
    assert kept(eager)["adapters"] == 2 * (8 + 2 * 2)  # one input, which both share
    assert kept(eager)["ffn"] == 16 * 2 * 3
    assert "inputs" not in kept(eager)
    with_output = structs.replace(eager, lora_targets="q,v,o")
    assert kept(with_output)["adapters"] == 2 * (8 + 3 * 2)  # attention keeps its output anyway
    dropout = structs.replace(lora, lora_dropout=True)
    assert kept(dropout)["adapters"] == (4 + 1) * 2 * 8 + 4 * 2 * 2


def test_what_experts_keep_of_a_token() -> None:
    """Logits of four in fp32; for each of two that it meets, its input, output and four values of the width."""
    assert kept(structs.replace(RUN, kernels="eager"), EXPERTS)["experts"] == 4 * 4 + 2 * (
        2 * 8 * 2 + 16 * 2 * 4
    )
    assert "ffn" not in kept(RUN, EXPERTS)


@pytest.mark.parametrize(
    ("fields", "per_token", "fixed"),
    [
        ({}, 12 * 10, 0),
        ({"loss": "plain"}, 6 * 10, 0),
        ({"loss": "plain", "dtype": "fp32"}, 12 * 10, 0),
        ({"loss": "upcast-copy", "dtype": "fp32"}, 16 * 10, 0),
        ({"loss": "megatron", "tensor": 2}, 6 * 10 / 2, 0),
        ({"loss": "fused"}, 8 * 8, 4 * 2 * TABLE),
        ({"loss": "fused", "method": "lora"}, 8 * 8, 0),
        ({"loss": "chunked", "method": "lora", "kernels": "compiled"}, 2.25 * 10, 0),
        ({"loss": "chunked", "method": "lora", "kernels": "compiled", "lora_targets": "head"}, 4 * 10, 0),
        ({"loss": "chunked", "kernels": "compiled"}, 4 * 10, 0),
    ],
)
def test_what_the_loss_holds(fields: dict[str, Any], per_token: float, fixed: float) -> None:
    assert structs.astuple(loss_memory(shape_of(), on(2, **fields))) == (per_token, fixed)


def test_the_phases_of_a_step() -> None:
    """Two layers of 256 bytes a token; the last norm and the head keep 36 and two token ids of 8 bytes."""
    plan = structs.replace(RUN, kernels="eager")
    memory = stage_memory(shape_of(), plan, 0)
    layer = sum(FUSED.values())
    inside = 4 * (2 * layer + 2 * 8 + 4 + 2 * 8 + 16)
    working = 4 * 2 * (3 * 16 + 2 * 8)
    found = {name: (parts.gradients, parts.activations, parts.loss) for name, parts in memory.phases.items()}
    assert found == {
        "loss": (0, inside, 4 * 120),
        "backward": (2 * TABLE, inside + working, 0),
        "end_of_backward": (2 * TOTAL, 4 * layer + working, 0),
        "optimizer": (2 * TOTAL, 0, 0),
    }
    assert {parts.optimizer for parts in memory.phases.values()} == {12 * TOTAL}
    full = stage_memory(shape_of(), structs.replace(plan, checkpointing="full"), 0).phases
    assert full["loss"].activations == 4 * (2 * 2 * 8 + 2 * 8 + 4 + 2 * 8 + 16)
    assert full["backward"].activations == full["loss"].activations + 4 * (layer - 2 * 8) + working
    half = stage_memory(shape_of(), structs.replace(plan, checkpointing="every-second"), 0).phases
    assert half["loss"].activations == (full["loss"].activations + inside) / 2
    assert half["backward"].activations - half["loss"].activations == (
        full["backward"].activations - full["loss"].activations
    )
    deep = shape_of(num_hidden_layers=8)
    offloaded = stage_memory(deep, structs.replace(plan, offload="activations"), 0).phases
    assert offloaded["loss"].activations == inside  # two layers of eight stay


def test_the_need_and_its_band() -> None:
    plan = structs.replace(RUN, allocator="expandable")
    memory, need = stage_memory(shape_of(), plan, 0), memory_need(shape_of(), plan)
    workspace, context = 0.1 * 2**30, 0.5 * 2**30
    assert need.allocated_bytes == memory.allocated == memory.parts.total
    assert need.need_bytes == pytest.approx(memory.allocated * 1.007 + context)
    assert need.low_bytes == pytest.approx(memory.allocated * 0.96 + context)
    assert need.high_bytes == pytest.approx(memory.allocated * 1.007 * 1.1 + context, rel=1e-5)
    assert need.reserved_bytes == pytest.approx(memory.allocated * 1.03)
    assert sum(need.parts.values()) == pytest.approx(need.need_bytes)
    assert need.parts["workspace"] == workspace
    several = memory_need(shape_of(), on(2, allocator="expandable"))
    assert several.parts["context"] == 1.6 * 2**30
    anchored = memory_need(shape_of(), plan, 1000.0)
    assert anchored.need_bytes == pytest.approx(need.need_bytes + 1000)
    assert anchored.parts["measured_difference"] == 1000
    assert anchored.low_bytes == pytest.approx((memory.allocated + 1000) * 0.92 + context)
    assert verdict_of(need, need.high_bytes) == "fits"
    assert verdict_of(need, need.high_bytes - 1) == "too_close"
    assert verdict_of(need, need.low_bytes) == "too_close"
    assert verdict_of(need, need.low_bytes - 1) == "does_not_fit"


FAST = Device(
    key="fast",
    name="Fast",
    memory_gb=8.0,
    peak_bw_gb_s=1e6,
    peak_tflops={"bf16": 1.0},
    link_gb_s=1e-3,
    source="by hand",
)


def plans(device: Device = FAST, batch: int = 4, **cluster: Any) -> list[RankedPlan]:
    request = PlanRequest(cluster=Cluster(**cluster), global_batch=batch, most=1000)
    return list(rank_plans(shape_of(), Figures(device=device), RUN, request).plans)


def test_the_most_that_a_plan_can_reach() -> None:
    """6 FLOPs a token for 1,232 weights and 6 x 2 x 8 x 4 of attention, at 1 TFLOP/s: 7,776 FLOPs a token."""
    found = plans(devices=1)
    best = next(plan for plan in found if plan.trainer == "accelerate")
    assert best.checkpointing == "none"
    assert best.mfu == pytest.approx(1.0)
    assert best.tok_s == pytest.approx(1e12 / (6 * (2 * MATRICES + TABLE) + 6 * 2 * 8 * 4))
    assert {plan.data for plan in found} == {"ddp"}
    # A pipeline of two stages is idle for one slot more than it has.
    joined = plans(structs.replace(FAST, link_gb_s=1e6), devices=2)
    pipeline = next(plan for plan in joined if plan.pipeline == 2)
    slots = pipeline.micro_batches * pipeline.virtual
    assert pipeline.tok_s == pytest.approx(2 * best.tok_s / (1 + 1 / slots))


def test_the_network_between_nodes_is_used_when_a_plan_spans_them() -> None:
    def waits(**cluster: Any) -> float:
        found = plans(devices=2, **cluster)
        plan = next(plan for plan in found if plan.data == "ddp" and plan.tensor * plan.pipeline == 1)
        return plan.step_s["data"]

    fast, slow = (waits(per_node=1, network_gb_s=rate) for rate in (1e-3, 1e-4))
    assert waits(per_node=2, network_gb_s=1e-4) == pytest.approx(fast, rel=0.01)
    assert slow == pytest.approx(10 * fast, rel=0.02)


@pytest.mark.parametrize(
    ("name", "applies", "does_not"),
    [
        ("expandable_segments", [RUN], [on(1, allocator="expandable")]),
        (
            "chunked_loss",
            [RUN, on(1, loss="plain-copy")],
            [on(1, loss="fused"), on(2, tensor=2)],
        ),
        ("compile", [RUN, on(1, kernels="eager")], [on(1, kernels="te"), on(1, method="lora")]),
        (
            "optimizer_in_backward",
            [RUN],
            [on(2), on(1, micro_batches=2), on(1, method="lora"), on(1, optimizer_in_backward=True)],
        ),
        ("zero1", [on(2)], [RUN, on(2, "zero1"), on(2, "fsdp"), on(2, tensor=2)]),
        ("zero2", [on(2, "zero1")], [on(2), on(1, "zero1"), on(4, "zero1", pipeline=2), on(2, "zero3")]),
        ("fsdp", [on(2), on(2, "zero3")], [RUN, on(2, "fsdp")]),
        ("adamw_8bit", [RUN, on(1, optimizer="adamw-bf16")], [on(1, optimizer="sgd")]),
        (
            "op_checkpointing",
            [RUN, on(1, checkpointing="selective")],
            [on(1, checkpointing="op"), on(1, checkpointing="full")],
        ),
        ("full_checkpointing", [RUN, on(1, checkpointing="op")], [on(1, checkpointing="full")]),
        ("smaller_micro_batch", [on(1, batch=2)], [RUN]),
        ("tensor_parallel", [on(2)], [RUN, on(3), on(4, tensor=2), on(2, "zero1", shard_group=2)]),
        ("offload_optimizer", [RUN], [on(1, offload="parameters"), on(1, method="qlora")]),
    ],
)
def test_where_a_change_applies(name: str, applies: list[Plan], does_not: list[Plan]) -> None:
    way = next(way for way in _WAYS if way.name == name)
    shape = shape_of()
    assert all(way.apply(shape, plan) not in (None, plan) for plan in applies)
    assert [way.apply(shape, plan) for plan in does_not] == [None] * len(does_not)


def test_every_change_has_its_test() -> None:
    (marks,) = test_where_a_change_applies.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks.args[1]} == {way.name for way in _WAYS}


def test_half_the_micro_batch_keeps_the_batch_of_a_step() -> None:
    way = next(way for way in _WAYS if way.name == "smaller_micro_batch")
    halved = [way.apply(shape_of(), on(1, batch=batch, micro_batches=3)) for batch in (2, 8)]
    assert [(plan.batch, plan.micro_batches) for plan in halved if plan] == [(1, 6), (4, 6)]


@pytest.mark.parametrize(
    ("tflops", "shown"), [(0.5, "500 GFLOP/s bf16"), (1.0, "1 TFLOP/s bf16"), (1.5, "1.5 TFLOP/s bf16")]
)
def test_rates_are_shown_in_a_unit_that_fits(tflops: float, shown: str) -> None:
    (rate,) = Figures(peak_tflops=tflops).compute("bf16")
    assert (rate.shown, rate.per_s) == (shown, tflops * 1e12)


def test_a_link_is_missed_only_by_several_devices() -> None:
    figures = Figures(device=structs.replace(FAST, link_gb_s=None))
    for devices, is_missed in ((1, False), (2, True)):
        plan = on(devices)
        notes = estimate_plan(figures, model_costs(shape_of(), plan), plan).notes
        assert any(note.code == "no_link_rate" for note in notes) == is_missed

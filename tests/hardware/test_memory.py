"""Properties of the memory model: what can only grow, what can only shrink, and what adds up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stepgrade.errors import BadOption
from stepgrade.hardware.catalogue import find_device
from stepgrade.hardware.cost.plan import (
    ATTENTION,
    CHECKPOINTING,
    KERNELS,
    LENGTHS,
    LOSSES,
    METHODS,
    OFFLOAD,
    OPTIMIZERS,
    WEIGHTS,
    Parallelism,
    Plan,
)
from stepgrade.hardware.memory.device import stage_memory
from stepgrade.hardware.memory.fit import Anchor, largest_micro_batch, memory_fit
from stepgrade.hardware.memory.need import memory_need, verdict_of
from stepgrade.hardware.models.hf_config import model_from_config
from tests.hardware import model_configs as configs

GIB = 2**30
NAMES = ("LLAMA3_8B", "QWEN3_8B", "GPT2", "GEMMA2_9B", "MIXTRAL_8X7B", "DEEPSEEK_V2_LITE", "STARCODER2_3B")
SHAPES = {name: model_from_config(json.dumps(getattr(configs, name))) for name in NAMES}
H100 = find_device("h100-sxm5-80gb")
WAYS = ("ddp", "zero1", "zero2", "fsdp")

shapes = st.sampled_from(NAMES).map(SHAPES.__getitem__)


@st.composite
def plans(draw: Any, **fixed: Any) -> Plan:
    fields = {
        "batch": st.integers(1, 16),
        "seq": st.sampled_from((128, 2048, 8192)),
        "micro_batches": st.integers(1, 8),
        "dtype": st.sampled_from(("bf16", "fp32")),
        "method": st.sampled_from(METHODS),
        "lora_targets": st.sampled_from(("all", "attention", "q,v", "head")),
        "optimizer": st.sampled_from(tuple(OPTIMIZERS)),
        "checkpointing": st.sampled_from(CHECKPOINTING),
        "loss": st.sampled_from(tuple(LOSSES)),
        "kernels": st.sampled_from(KERNELS),
        "attention": st.sampled_from(ATTENTION),
        "weights": st.sampled_from(tuple(WEIGHTS)),
        "offload": st.sampled_from(OFFLOAD),
        "lengths": st.sampled_from(LENGTHS),
        "optimizer_in_backward": st.booleans(),
        "lora_dropout": st.booleans(),
    }
    return Plan(**{name: fixed.get(name) or draw(values) for name, values in fields.items()})


def need(shape: Any, plan: Plan) -> float:
    return memory_need(shape, plan).need_bytes


@given(shapes, plans(), st.integers(0, 6))
def test_more_replicas_never_need_more_once_they_share(shape: Any, plan: Plan, doublings: int) -> None:
    for data in ("zero1", "zero2", "zero3", "fsdp", "fsdp-no-reshard"):
        few = structs.replace(plan, parallel=Parallelism(devices=2 ** (doublings + 1), data=data))
        many = structs.replace(plan, parallel=Parallelism(devices=2 ** (doublings + 2), data=data))
        assert need(shape, many) <= need(shape, few)


@given(shapes, plans(weights="master"), st.sampled_from((8, 64)))
def test_a_higher_stage_never_holds_more_for_good(shape: Any, plan: Plan, devices: int) -> None:
    """Buffers aside, which only some stages need, each stage shards what the one before it did not."""
    held = []
    for data in WAYS:
        shared = structs.replace(plan, parallel=Parallelism(devices=devices, data=data))
        parts = stage_memory(shape, shared, 0).phases["optimizer"]
        held.append(parts.weights + parts.gradients + parts.optimizer)
    assert held == sorted(held, reverse=True)


@given(shapes, plans(), st.sampled_from(WAYS))
def test_more_tensor_parallelism_never_needs_more(shape: Any, plan: Plan, data: str) -> None:
    """With the same replicas: twice the devices, each matrix in twice as many parts."""
    sizes = []
    for tensor in (1, 2, 4):
        parallel = Parallelism(devices=8 * tensor, data=data, tensor=tensor, sequence=tensor > 1)
        sizes.append(need(shape, structs.replace(plan, parallel=parallel)))
    assert sizes == sorted(sizes, reverse=True)


@given(shapes, plans(), st.integers(1, 3))
def test_more_context_parallelism_never_needs_more(shape: Any, plan: Plan, doublings: int) -> None:
    context = 2**doublings
    few = structs.replace(plan, parallel=Parallelism(devices=16, context=context, data="fsdp"))
    many = structs.replace(plan, parallel=Parallelism(devices=32, context=2 * context, data="fsdp"))
    assert need(shape, many) <= need(shape, few)


@given(shapes, plans())
def test_a_larger_batch_or_sequence_never_needs_less(shape: Any, plan: Plan) -> None:
    assert need(shape, structs.replace(plan, batch=plan.batch + 1)) >= need(shape, plan)
    assert need(shape, structs.replace(plan, seq=2 * plan.seq)) >= need(shape, plan)


@given(shapes, plans(), st.sampled_from(WAYS))
def test_every_phase_is_affine_in_the_micro_batch(shape: Any, plan: Plan, data: str) -> None:
    shared = structs.replace(plan, parallel=Parallelism(devices=4, data=data))
    one, two, nine = (
        stage_memory(shape, structs.replace(shared, batch=size), 0).phases for size in (1, 2, 9)
    )
    for phase, parts in nine.items():
        step = two[phase].total - one[phase].total
        assert parts.total == pytest.approx(one[phase].total + 8 * step, rel=1e-12)


@given(shapes, plans())
def test_more_recomputing_never_keeps_more(shape: Any, plan: Plan) -> None:
    kept = [
        stage_memory(shape, structs.replace(plan, checkpointing=name), 0).phases["loss"].activations
        for name in ("none", "selective", "full")
    ]
    assert kept == sorted(kept, reverse=True)


@given(shapes, plans())
def test_every_second_layer_lies_halfway_between_none_and_all(shape: Any, plan: Plan) -> None:
    none, some, full = (
        stage_memory(shape, structs.replace(plan, checkpointing=name), 0).phases["loss"].activations
        for name in ("none", "every-second", "full")
    )
    if plan.offload != "activations":
        assert some == pytest.approx((none + full) / 2)


def test_deepspeeds_step_copies_the_gradients_of_its_shard() -> None:
    """One flat copy of 2 bytes and one in fp32; its third stage at most for 10^9 of them at once."""
    shape = SHAPES["LLAMA3_8B"]
    for data, count in (("zero1", shape.parameters / 2), ("zero2", shape.parameters / 2), ("zero3", 1e9)):
        plan = Plan(batch=1, seq=128, parallel=Parallelism(devices=2, data=data))
        step = stage_memory(shape, plan, 0).phases["optimizer"].optimizer
        assert step - 12 * shape.parameters / 2 == pytest.approx(6 * count)


@given(shapes, plans())
def test_parts_add_up_and_the_band_is_around_the_need(shape: Any, plan: Plan) -> None:
    found = memory_need(shape, plan)
    assert sum(found.parts.values()) == pytest.approx(found.need_bytes)
    assert 0 < found.low_bytes <= found.need_bytes <= found.high_bytes
    assert all(part >= 0 for part in found.parts.values())


@given(shapes, plans())
def test_what_the_allocator_gives_back_is_not_needed(shape: Any, plan: Plan) -> None:
    """A full device holds less than the allocator keeps where there is room, and never less than tensors take."""
    found = memory_need(shape, plan)
    context, rounding = found.parts["context"], 1 + 1e-12
    assert found.allocated_bytes <= (found.need_bytes - context) * rounding
    assert found.need_bytes - context <= found.reserved_bytes * rounding


@given(shapes, plans())
def test_a_larger_batch_never_fits_where_a_smaller_does_not(shape: Any, plan: Plan) -> None:
    """Also where the moment that decides changes with it."""
    found = [memory_need(shape, structs.replace(plan, batch=size)) for size in (1, 2, 3, 5, 9)]
    for ends in ([one.low_bytes for one in found], [one.high_bytes for one in found]):
        assert ends == sorted(ends)


@given(shapes, plans(), st.sampled_from((2, 4)))
def test_the_worst_stage_is_the_first_or_the_last(shape: Any, plan: Plan, stages: int) -> None:
    parallel = Parallelism(devices=stages, pipeline=stages)
    shared = structs.replace(plan, parallel=parallel, micro_batches=8)
    every = [stage_memory(shape, shared, rank).reserved for rank in range(stages)]
    # Layers of several kinds are spread unevenly: a stage of experts may hold more than one of plain layers.
    if len(shape.layers) == 1:
        assert max(every) == max(every[0], every[-1])


@given(shapes, plans(), st.floats(8, 200))
def test_the_largest_micro_batch_is_the_last_that_fits(shape: Any, plan: Plan, gib: float) -> None:
    most = largest_micro_batch(shape, plan, gib * GIB)
    for size, fits in ((most, True), (most + 1, False)):
        if size:
            found = memory_need(shape, structs.replace(plan, batch=size))
            assert (verdict_of(found, gib * GIB) == "fits") is fits


@given(shapes, plans(method="full"), st.floats(8, 200))
def test_changes_lead_to_a_run_that_fits_or_say_that_they_do_not(shape: Any, plan: Plan, gib: float) -> None:
    device = structs.replace(H100, key="mine", memory_gb=gib)
    found = memory_fit(shape, plan, device)
    if found.verdict == "fits":
        assert found.changes == ()
        return
    assert all(change.saves_bytes > 0 for change in found.changes)
    ends_well = bool(found.changes) and found.changes[-1].verdict == "fits"
    assert ends_well or found.least_devices is None or found.least_devices >= 2
    assert all(change.verdict != "fits" for change in found.changes[:-1])


def test_adapters_are_another_training_and_no_change_of_this_one() -> None:
    """A 24 GB card holds no full fine-tune of 8B parameters; of adapters it holds the first that fits."""
    shape, rtx = SHAPES["LLAMA3_8B"], find_device("rtx-4090")
    found = memory_fit(shape, Plan(batch=1, seq=2048, rank=8), rtx)
    other = found.another_training
    assert other is not None
    assert not {"lora", "qlora"} & {change.change for change in found.changes}
    assert other.text == "train LoRA adapters of rank 8, with full checkpointing"
    alone = Plan(batch=1, seq=2048, rank=8, method="lora")
    assert memory_fit(shape, alone, rtx).verdict != "fits"
    held = memory_fit(shape, structs.replace(alone, checkpointing="full"), rtx)
    assert (held.verdict, held.another_training) == ("fits", None)
    assert other.saves_bytes == pytest.approx(found.need_bytes - held.need_bytes)
    assert memory_fit(shape, Plan(batch=1, seq=64), find_device("b200")).another_training is None
    assert memory_fit(shape, Plan(batch=64, seq=8192), rtx).another_training is None


def test_an_anchor_takes_the_error_off() -> None:
    """A run that took 3 GiB more than predicted predicts a run of twice the batch 3 GiB higher."""
    shape, plan = SHAPES["LLAMA3_8B"], Plan(batch=1, seq=2048, method="lora", kernels="eager")
    said = memory_need(shape, plan)
    anchor = Anchor(peak_bytes=said.reserved_bytes + 3 * GIB, kind="reserved", batch=1)
    twice = structs.replace(plan, batch=2)
    found, plain = memory_fit(shape, twice, H100, anchor), memory_fit(shape, twice, H100)
    assert found.need_bytes - plain.need_bytes == pytest.approx(3 * GIB)
    assert (found.high_bytes - found.low_bytes) < (plain.high_bytes - plain.low_bytes)


def test_the_run_of_the_issue_does_not_fit() -> None:
    shape, rtx = SHAPES["LLAMA3_8B"], find_device("rtx-4090")
    assert memory_fit(shape, Plan(batch=2, seq=8192), H100).verdict == "does_not_fit"
    assert memory_fit(shape, Plan(batch=1, seq=512), rtx).verdict == "does_not_fit"
    adapters = Plan(batch=1, seq=512, method="qlora", checkpointing="full")
    assert memory_fit(shape, adapters, rtx).verdict == "fits"


def test_capacity_is_what_the_driver_reports() -> None:
    fit = memory_fit(SHAPES["GPT2"], Plan(batch=1, seq=512), H100)
    assert fit.capacity_bytes == pytest.approx(79.19 * GIB)
    assert memory_fit(SHAPES["GPT2"], Plan(batch=1, seq=512), None).verdict is None


def test_more_stages_than_layers_are_refused() -> None:
    plan = Plan(batch=1, seq=512, parallel=Parallelism(devices=16, pipeline=16))
    with pytest.raises(BadOption, match="12 layers"):
        memory_need(SHAPES["GPT2"], plan)

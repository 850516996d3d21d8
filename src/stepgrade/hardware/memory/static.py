"""What stays on the device from step to step: weights, gradients and the optimizer's states."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import DTYPES, WEIGHTS, Plan
from stepgrade.hardware.memory.stages import Held, Stage
from stepgrade.hardware.models.shape import ModelShape

# Bytes of the optimizer's states per trained parameter; 8-bit states have an fp32 scale in 256, 4-bit in 128.
_STATES = {
    "adamw-fp32": 8.0,
    "adamw-bf16": 4.0,
    "adamw-8bit": 2.0 + 2 * 4 / 256,
    "adamw-4bit": 1.0 + 2 * 4 / 128,
    "sgd": 0.0,
}
# bitsandbytes' NF4 with blocks of 64 keeps half a byte and an fp32 scale; fp32 is what
# prepare_model_for_kbit_training makes of embedding, head and norms.
_KBIT_REST = 4.0
# DeepSpeed's step makes one flat copy of a shard's gradients and one in fp32; stage 3 does so in groups.
_FLAT_GRADIENT = 4.0 + 2.0
_GROUP = 1e9
# Newton-Schulz iterations keep so many bf16 copies of the matrix that Muon updates.
_MUON_MATRICES = 4


class Static(Struct, frozen=True, kw_only=True):
    """Bytes on one device, sharded; `gradients_kept` are there before a micro-batch begins."""

    weights: float
    gradients: float
    optimizer: float
    gradients_kept: float


class Stored(Struct, frozen=True, kw_only=True):
    """Bytes per trained parameter."""

    weight: float
    gradient: float
    states: float


def stored(plan: Plan) -> Stored:
    """Return how a trained parameter is kept: adapters in their own precision, else by `plan.weights`."""
    if plan.is_frozen:
        # PEFT's adapters are fp32 by default, those of litgpt and torchtune as the model.
        size = 4.0 if plan.kernels == "transformers" else plan.value_bytes
        return Stored(weight=size, gradient=size, states=_states(plan, size))
    if plan.value_bytes > 2:
        return Stored(weight=4.0, gradient=4.0, states=_states(plan, 4.0))
    weight, gradient, master = WEIGHTS[plan.weights]
    smallest = 2.0 if plan.weights == "bf16" else 4.0
    return Stored(weight=weight, gradient=gradient, states=master + _states(plan, smallest))


def _states(plan: Plan, size: float) -> float:
    """Return the optimizer's bytes per parameter; torch keeps AdamW's states in the parameter's precision."""
    states = {"adamw": 2 * size, "sgd-momentum": size, "muon": size}
    return states[plan.optimizer] if plan.optimizer in states else _STATES[plan.optimizer]


def static_memory(shape: ModelShape, plan: Plan, stage: Stage, held: Held) -> Static:
    """Return weights, gradients and optimizer states of one device."""
    parallel, each = plan.parallel, stored(plan)
    shards = parallel.shards
    # Fewer devices hold the same experts than the same attention.
    expert_shards = max(1.0, shards * parallel.tensor / (parallel.expert * plan.expert_tensor))
    weights = optimizer = gradients = 0.0
    if plan.is_frozen:
        adapters = adapter_parameters(shape, plan, stage)
        frozen = frozen_bytes(plan, held)
        by_weights = shards if parallel.zero_stage >= 3 else 1
        weights = (frozen + adapters * each.weight) / by_weights
        gradients = adapters * each.gradient / (shards if parallel.zero_stage >= 2 else 1)
        optimizer = adapters * each.states / (shards if parallel.zero_stage >= 1 else 1)
    else:
        for count, peers in ((held.dense, shards), (held.experts, expert_shards)):
            weights += count * each.weight / (peers if parallel.zero_stage >= 3 else 1)
            gradients += count * each.gradient / (peers if parallel.zero_stage >= 2 else 1)
            optimizer += count * each.states / (peers if parallel.zero_stage >= 1 else 1)
        if plan.optimizer == "muon":
            # Matrices have one state; embedding, head and norms have AdamW's two.
            rest = held.vectors + held.embedding + held.head
            states = each.states - (WEIGHTS[plan.weights][2] if plan.value_bytes == 2 else 0.0)
            optimizer += rest * states / (shards if parallel.zero_stage >= 1 else 1)
    if plan.optimizer_in_backward:
        gradients = min(gradients, 2 * held.largest_layer * each.gradient)
    if plan.offload in ("optimizer", "parameters"):
        optimizer = 0.0
    if plan.offload == "parameters":
        weights = gradients = 0.0
    # Megatron's and DDP's buffers are never freed; else only what earlier micro-batches left is there.
    has_buffer = plan.kernels == "te" or (parallel.zero_stage == 0 and parallel.replicas > 1)
    is_kept = has_buffer or (plan.micro_batches > 1 and not plan.optimizer_in_backward)
    return Static(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        gradients_kept=gradients if is_kept else 0.0,
    )


def optimizer_temporaries(plan: Plan, stage: Stage, static: Static, each: Stored) -> float:
    """Return what the optimizer's step allocates besides its states."""
    is_deepspeed = plan.parallel.data.startswith("zero") and plan.kernels != "te"
    if is_deepspeed and plan.weights == "master" and plan.offload == "none" and not plan.is_frozen:
        sharded = static.optimizer / each.states if each.states else 0.0
        return _FLAT_GRADIENT * (min(sharded, _GROUP) if plan.parallel.zero_stage == 3 else sharded)
    if plan.optimizer == "muon":
        largest = max((part.weights for layer, _ in stage.layers for part in layer.linears), default=0)
        return _MUON_MATRICES * 2.0 * largest / plan.parallel.tensor
    is_foreach = plan.kernels == "transformers" and plan.weights in ("bf16", "fp32")
    if is_foreach and plan.optimizer in ("adamw", "adamw-bf16", "adamw-fp32") and each.states:
        return static.optimizer / 2  # the root of the second moments, of all parameters at once
    return 0.0


def adapter_parameters(shape: ModelShape, plan: Plan, stage: Stage) -> float:
    """Return the adapters' parameters of one device; the thin matrices are divided on one side only."""
    inside = sum(count * layer.adapter_size(plan.rank, plan.lora_targets) for layer, count in stage.layers)
    head = plan.rank * (shape.hidden + shape.vocab) if "head" in plan.lora_targets.split(",") else 0
    return inside + (head if stage.is_last else 0)


def frozen_bytes(plan: Plan, held: Held) -> float:
    """Return the bytes of the frozen weights: quantised matrices, and what is never quantised."""
    tables = held.embedding + held.head + held.vectors
    if plan.method != "qlora":
        return held.total * max(DTYPES[plan.dtype], 2.0)
    rest = _KBIT_REST if plan.kernels == "transformers" else plan.value_bytes
    return (held.matrices + held.experts) * plan.weight_bytes + tables * rest

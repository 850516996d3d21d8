"""What a device must have for a run, within which bounds, and whether it has it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.memory.allocator import context_bytes, varying_bytes
from stepgrade.hardware.memory.device import Phase, StageMemory, stage_memory
from stepgrade.hardware.models.shape import ModelShape

Verdict = Literal["fits", "does_not_fit", "too_close"]

# How far below and above the prediction measured runs lie, as shares of it: 95 of 100 published rows are
# inside. What is not known of a run (versions of kernels and loaders) makes a band wide, not the arithmetic.
_TORCH = (0.09, 0.10)
_MEGATRON = (0.08, 0.12)
_TORCH_TENSOR = (0.10, 0.25)
_EXPERTS = (0.08, 0.20)
_LORA = (0.12, 0.30)
_QLORA = (0.15, 0.55)
# After one run of the same setup was measured, with sequences of one length.
_ANCHORED = (0.08, 0.08)


class MemoryNeed(Struct, frozen=True, kw_only=True):
    """Bytes of one device, the one that needs most: what it must have, at least and at most.

    `parts` are those of the moment `phase` of pipeline stage `stage`, and add up to `need_bytes`.
    """

    need_bytes: float
    low_bytes: float
    high_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    phase: Phase
    stage: int
    parts: dict[str, float]


def error_band(shape: ModelShape, plan: Plan) -> tuple[float, float]:
    """Return how far below and above its prediction the run may lie, as shares of it."""
    bands = [_MEGATRON if plan.kernels == "te" else _TORCH]
    if plan.parallel.tensor > 1 and plan.kernels != "te":
        bands.append(_TORCH_TENSOR)
    if any(layer.expert_count for layer in shape.layers):
        bands.append(_EXPERTS)
    if plan.is_frozen:
        bands.append(_QLORA if plan.method == "qlora" else _LORA)
    return bands[-1] if len(bands) <= 2 else (max(low for low, _ in bands), max(high for _, high in bands))


def memory_need(shape: ModelShape, plan: Plan, anchor_offset: float | None = None) -> MemoryNeed:
    """Return the need of the device that needs most; with the offset of a measured run, corrected by it."""
    ranks = {0, plan.parallel.pipeline - 1}  # those between hold less than the first
    worst = max((stage_memory(shape, plan, rank) for rank in ranks), key=lambda memory: memory.reserved)
    return need_of(shape, plan, worst, anchor_offset)


def need_of(
    shape: ModelShape, plan: Plan, memory: StageMemory, anchor_offset: float | None = None
) -> MemoryNeed:
    """Return what a device must have for what it holds."""
    context, reserved = context_bytes(plan), memory.reserved + (anchor_offset or 0.0)
    varies = plan.lengths == "variable" and plan.allocator == "default"
    below, above = _ANCHORED if anchor_offset is not None and not varies else error_band(shape, plan)
    low, high = reserved * (1 - below), reserved * (1 + above)
    if varies:
        # Blocks of other lengths may all be given back, or none of them; one run says little of the next.
        low = min(low, memory.allocated * (1 - below))
        high += varying_bytes(memory.parts.passing)
    parts = {
        "weights": memory.parts.weights,
        "gradients": memory.parts.gradients,
        "optimizer": memory.parts.optimizer,
        "activations": memory.parts.activations,
        "loss": memory.parts.loss,
        "buffers": memory.parts.buffers,
        "workspace": memory.parts.workspace,
        "allocator": memory.reserved - memory.allocated,
        "context": context,
    }
    if anchor_offset is not None:
        parts["measured_difference"] = anchor_offset
    return MemoryNeed(
        need_bytes=reserved + context,
        low_bytes=low + context,
        high_bytes=high + context,
        allocated_bytes=memory.allocated,
        reserved_bytes=reserved,
        phase=memory.phase,
        stage=memory.stage,
        parts=parts,
    )


def verdict_of(need: MemoryNeed, capacity: float) -> Verdict:
    """Return whether the run fits into `capacity` bytes, with its whole band on one side of it."""
    if need.high_bytes <= capacity:
        return "fits"
    return "does_not_fit" if need.low_bytes > capacity else "too_close"

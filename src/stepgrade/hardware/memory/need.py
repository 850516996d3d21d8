"""The memory that a run needs on a device, its error band, and whether the device has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, structs

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.memory.device import Parts, Phase, StageMemory, stage_memory
from stepgrade.hardware.memory.static import (
    GIB,
    blocks_vary,
    context_bytes,
    fragment_bytes_at_limit,
)
from stepgrade.hardware.models.shape import ModelShape

Verdict = Literal["fits", "does_not_fit", "too_close"]


class Band(Struct, frozen=True, kw_only=True):
    """How far measured runs of one kind lie from the prediction.

    `below` is a share of all that is allocated; above, what lasts, what passes within a step, and what does
    not depend on either each have a part.
    """

    below: float
    lasting: float
    passing: float
    fixed_bytes: float = 0.0

    def most(self, lasting: float, passing: float) -> float:
        """Return the upper end for so many bytes that last, and that pass within a step."""
        return lasting * (1 + self.lasting) + passing * (1 + self.passing) + self.fixed_bytes


# By kind of run. Of the kind's published rows one in 40 lies above, to the nearest row, and as many below;
# rounded up to a whole percent, and never less than 10 % above and 4 % below: tests/hardware/bands.py works
# them out. What is not known of a run (versions of kernels and loaders) makes a band wide, not arithmetic.
BANDS = {
    "torch": Band(below=0.04, lasting=0.10, passing=0.10),
    "megatron": Band(below=0.04, lasting=0.12, passing=0.12),
    "deepspeed": Band(below=0.04, lasting=0.23, passing=0.23),
    "torch-tensor": Band(below=0.04, lasting=0.28, passing=0.28),
    "experts": Band(below=0.04, lasting=0.21, passing=0.21),
    # Frozen weights are counted to the byte, and errors are of a size rather than a share.
    "lora": Band(below=0.10, lasting=0.03, passing=0.10, fixed_bytes=1.5 * GIB),
    "qlora": Band(below=0.10, lasting=0.03, passing=0.25, fixed_bytes=1.5 * GIB),
}
# After one run of the same setup was measured, with sequences of one length.
_ANCHORED = Band(below=0.08, lasting=0.08, passing=0.08)


class MemoryNeed(Struct, frozen=True, kw_only=True):
    """Bytes of one device, the one that needs most: what it must have, at least and at most.

    `parts` are those of the moment `phase` of pipeline stage `stage`, and add up to `need_bytes`: what
    tensors take, what the allocator cannot give back, and the context. Where there is room the allocator
    keeps more: `reserved_bytes`.
    """

    need_bytes: float
    low_bytes: float
    high_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    phase: Phase
    stage: int
    parts: dict[str, float]


def kinds_of(shape: ModelShape, plan: Plan) -> tuple[str, ...]:
    """Return the kinds of run, by what is hard to predict about them, whose bands count for this one."""
    kinds = []
    if plan.is_frozen:
        kinds.append(plan.method)
    elif plan.parallel.data.startswith("zero") and plan.kernels != "te":
        kinds.append("deepspeed")
    if plan.parallel.tensor > 1 and plan.kernels != "te":
        kinds.append("torch-tensor")
    if any(layer.expert_count for layer in shape.layers):
        kinds.append("experts")
    return tuple(kinds) or ("megatron" if plan.kernels == "te" else "torch",)


def error_band(shape: ModelShape, plan: Plan, bands: Mapping[str, Band] = BANDS) -> Band:
    """Return how far from its prediction the run may lie; of several kinds, the widest of each."""
    found = [bands[kind] for kind in kinds_of(shape, plan)]
    return Band(**{name: max(getattr(band, name) for band in found) for name in Band.__struct_fields__})


def memory_need(shape: ModelShape, plan: Plan, anchor_offset: float | None = None) -> MemoryNeed:
    """Return the need of the device that needs most; with the offset of a measured run, corrected by it."""
    ranks = {0, plan.parallel.pipeline - 1}  # those between hold less than the first
    every = [need_of(shape, plan, stage_memory(shape, plan, rank), anchor_offset) for rank in ranks]
    return max(every, key=lambda need: need.high_bytes)


def need_of(
    shape: ModelShape,
    plan: Plan,
    memory: StageMemory,
    anchor_offset: float | None = None,
    *,
    bands: Mapping[str, Band] = BANDS,
) -> MemoryNeed:
    """Return the memory that a device needs for what it holds."""
    context, offset = context_bytes(plan), anchor_offset or 0.0
    # With blocks of many lengths, one run predicts little about the next.
    is_known = anchor_offset is not None and not blocks_vary(plan)
    band = _ANCHORED if is_known else error_band(shape, plan, bands)

    def at_limit(part: Parts) -> tuple[float, float]:
        unreturned = fragment_bytes_at_limit(plan, part.lasting, part.passing)
        return part.lasting + offset, part.passing + unreturned

    phases = memory.phases.values()
    limit = max(sum(at_limit(part)) for part in phases)
    unreturned = limit - memory.allocated - offset
    parts = structs.asdict(memory.parts) | {"allocator": unreturned, "context": context}
    if anchor_offset is not None:
        parts["measured_difference"] = anchor_offset
    return MemoryNeed(
        need_bytes=limit + context,
        low_bytes=(memory.allocated + offset) * (1 - band.below) + context,
        high_bytes=max(band.most(*at_limit(part)) for part in phases) + context,
        allocated_bytes=memory.allocated,
        reserved_bytes=memory.reserved + offset,
        phase=memory.phase,
        stage=memory.stage,
        parts=parts,
    )


def verdict_of(need: MemoryNeed, capacity: float) -> Verdict:
    """Return whether the run fits into `capacity` bytes, with its whole band on one side of it."""
    if need.high_bytes <= capacity:
        return "fits"
    return "does_not_fit" if need.low_bytes > capacity else "too_close"

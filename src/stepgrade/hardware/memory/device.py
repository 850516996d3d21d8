"""The memory of one device as the maximum over the phases of a step."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.memory.activations import (
    backward_temporaries,
    checkpointed,
    layer_activations,
    loss_memory,
    outside_layers,
)
from stepgrade.hardware.memory.static import (
    fragment_bytes,
    held_parameters,
    optimizer_temporaries,
    sharing_buffers,
    stage_of,
    static_memory,
    stored,
)
from stepgrade.hardware.models.shape import ModelShape

Phase = Literal["loss", "backward", "end_of_backward", "optimizer"]

# Workspaces of cuBLAS and the like, the same in every run.
WORKSPACE_BYTES = 0.1 * 2**30


class Parts(Struct, frozen=True, kw_only=True):
    """Bytes that are allocated on one device at one moment, by what they are for."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    loss: float
    buffers: float
    workspace: float = WORKSPACE_BYTES

    @property
    def passing(self) -> float:
        """Return the bytes that are allocated and freed in every step."""
        return self.activations + self.loss + self.buffers

    @property
    def lasting(self) -> float:
        """Return the bytes that stay from step to step."""
        return self.weights + self.gradients + self.optimizer + self.workspace

    @property
    def total(self) -> float:
        """Return all bytes."""
        return self.lasting + self.passing


class StageMemory(Struct, frozen=True, kw_only=True):
    """What one device of a pipeline stage holds: at its peak, in every phase, in idle pools, and reserved."""

    stage: int
    phase: Phase
    parts: Parts
    phases: dict[Phase, Parts]
    pools: float
    reserved: float

    @property
    def allocated(self) -> float:
        """Return the most bytes that tensors take at once."""
        return self.parts.total


def stage_memory(shape: ModelShape, plan: Plan, rank: int) -> StageMemory:
    """Return what a device of pipeline rank `rank` holds."""
    stage = stage_of(shape, plan, rank)
    held = held_parameters(shape, plan, stage)
    static, each = static_memory(shape, plan, stage, held), stored(plan)
    buffers = sharing_buffers(plan, held, static)
    tokens = plan.tokens / plan.parallel.context

    # Bytes of all layers in flight, of what backward adds to them for one layer, and of that layer alone.
    kept = again = one_layer = 0.0
    for layer, count in stage.layers:
        whole = layer_activations(shape.hidden, layer, plan)
        per_token = checkpointed(shape.hidden, layer, plan, whole)
        stay = min(count, 2) if plan.offload == "activations" else count
        kept += stay * stage.in_flight * (per_token * tokens + whole.fixed)
        working = backward_temporaries(shape.hidden, layer, plan)
        recomputed = whole.per_token - per_token
        if plan.checkpointing == "every-second":
            recomputed *= 2  # of two layers one has lost everything, the other nothing
        again = max(again, (recomputed + working) * tokens)
        one_layer = max(one_layer, (whole.per_token + working) * tokens)
    loss = 0.0
    if stage.is_last:
        at_peak = loss_memory(shape, plan)
        kept += outside_layers(shape, plan) * tokens
        loss = at_peak.per_token * tokens + at_peak.fixed
    if plan.parallel.context > 1:
        # Keys and values of the next part of the sequence arrive while this one is used.
        widest = max((layer.kv_width for layer, _ in stage.layers), default=0)
        again += 2 * widest * plan.value_bytes * tokens / plan.parallel.tensor

    # The head's gradient is the first of the backward pass, and whole before it is sharded.
    head_bytes = 0.0
    if stage.is_last and not plan.is_frozen and not static.gradients_kept:
        size = plan.value_bytes if plan.parallel.zero_stage == 3 else min(each.gradient, 4.0)
        head_bytes = (held.head or held.embedding) * size
    temporary = optimizer_temporaries(plan, stage, static, each)

    def parts(
        gradients: float, activations: float, loss: float = 0.0, more: float = 0.0, states: float = 0.0
    ) -> Parts:
        return Parts(
            weights=static.weights,
            gradients=gradients,
            optimizer=static.optimizer + states,
            activations=activations,
            loss=loss,
            buffers=buffers.always + more,
        )

    before, unsharded = static.gradients_kept, buffers.gradients + buffers.layer_gradients
    phases: dict[Phase, Parts] = {
        "loss": parts(before, kept, loss, buffers.gradients if plan.micro_batches > 1 else 0.0),
        "backward": parts(before or head_bytes, kept + again, 0.0, unsharded),
        "end_of_backward": parts(
            static.gradients,
            one_layer,
            0.0,
            unsharded + buffers.root_gradients + buffers.flattened,
        ),
        "optimizer": parts(static.gradients, 0.0, states=temporary),
    }
    peak = max(phases, key=lambda phase: phases[phase].total)
    reserved = max(part.total + fragment_bytes(plan, part.lasting, part.passing) for part in phases.values())
    return StageMemory(
        stage=rank,
        phase=peak,
        parts=phases[peak],
        phases=phases,
        pools=buffers.pools,
        reserved=reserved + buffers.pools,
    )

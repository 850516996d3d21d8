"""Peak memory of the loss on top of the activations."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.models.shape import ModelShape

# Bytes per token and vocabulary entry when most of them are there, by how the loss is computed.
_PER_ENTRY = {
    "upcast": 12.0,
    "upcast-copy": 16.0,
    "plain": 6.0,
    "plain-copy": 8.0,
    "parallel": 18.0,
    "megatron": 6.0,
    "megatron-native": 10.0,
    "compiled": 4.0,
    "chunked": 4.0,
    "chunked-head": 2.0,
    "fused": 0.0,
}
# Liger's fused loss makes the head's gradient in the forward pass: two copies in fp32, and 8 bytes per value.
_FUSED_COPIES = 2
_FUSED_PER_VALUE = 8.0


# A compiled loss keeps the logits alone; where the head is frozen, their gradient exists in one of 8 chunks.
_FROZEN_CHUNKED = 2.0 + 2.0 / 8


class LossMemory(Struct, frozen=True, kw_only=True):
    """Bytes of the loss on one device: per token, and fixed."""

    per_token: float
    fixed: float


def loss_memory(shape: ModelShape, plan: Plan) -> LossMemory:
    """Return what the loss holds at its peak."""
    tensor = plan.parallel.tensor
    per_token = _PER_ENTRY[plan.loss] * shape.vocab / tensor
    is_frozen = plan.is_frozen and "head" not in plan.lora_targets.split(",")
    if is_frozen and plan.loss == "chunked" and plan.kernels == "compiled":
        per_token = _FROZEN_CHUNKED * shape.vocab / tensor
    if plan.value_bytes > 2:
        # Nothing is cast: values take four bytes instead of two.
        per_token = {"upcast": 12.0, "upcast-copy": 16.0}.get(plan.loss, 2 * _PER_ENTRY[plan.loss])
        per_token *= shape.vocab / tensor
    if plan.loss != "fused":
        return LossMemory(per_token=per_token, fixed=0.0)
    copies = 0 if plan.is_frozen else _FUSED_COPIES
    return LossMemory(per_token=_FUSED_PER_VALUE * shape.hidden, fixed=4.0 * copies * shape.head / tensor)

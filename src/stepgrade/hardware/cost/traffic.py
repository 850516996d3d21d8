"""Bytes that a token moves through the device's memory, by what they are for.

An estimate of compulsory traffic: every operation reads its inputs and writes its output once. It
is not validated against DRAM counters; fusion and caches move activations by up to a factor of two.
"""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import LOSSES, OPTIMIZERS, Plan
from stepgrade.hardware.models.shape import ModelShape

# bitsandbytes reads the packed weights, writes them as bf16, and the matmul reads those.
UNFUSED_EXTRA_BYTES = 4.0


class Traffic(Struct, frozen=True, kw_only=True):
    """Bytes per token by part; the first three are shared by the tokens of a micro-batch or step."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    loss: float

    @property
    def total(self) -> float:
        """Return all bytes per token."""
        return self.shared + self.own

    @property
    def shared(self) -> float:
        """Return the bytes that shrink as a micro-batch grows."""
        return self.weights + self.gradients + self.optimizer

    @property
    def own(self) -> float:
        """Return the bytes that every token brings itself."""
        return self.activations + self.loss


def traffic_per_token(shape: ModelShape, plan: Plan) -> Traffic:
    """Return the bytes per token of one replica of the model."""
    adapters = shape.adapters(plan.rank, plan.lora_targets) if plan.is_frozen else 0
    # Written once in the first micro-batch of a step, read and written in each that follows.
    gradient_accesses = 2 - 1 / plan.micro_batches
    trained = adapters if plan.is_frozen else shape.layer_weights + shape.head
    sharers = plan.parallel.shards if plan.parallel.zero_stage else 1
    optimizer = trained_parameters(shape, plan) * OPTIMIZERS[plan.optimizer] / sharers
    # Backward moves twice what forward does, recomputing once more.
    passes = 3.0 + plan.recomputed_share - 0.5 * plan.is_frozen
    values = 0.0  # that one token's forward pass reads and writes
    for layer in shape.layers:
        ffn = (6 if layer.gated else 4) * layer.ffn_width
        values += layer.count * (14 * shape.hidden + 6 * layer.query_width + 6 * layer.kv_width + ffn)
    return Traffic(
        weights=_weight_bytes(shape, plan, adapters) / plan.tokens,
        gradients=trained * plan.value_bytes * gradient_accesses / plan.tokens,
        optimizer=optimizer / (plan.tokens * plan.micro_batches),
        activations=values * plan.value_bytes * passes,
        loss=shape.vocab * LOSSES[plan.loss],
    )


def trained_parameters(shape: ModelShape, plan: Plan) -> int:
    """Return the parameters that the optimizer updates."""
    return shape.adapters(plan.rank, plan.lora_targets) if plan.is_frozen else shape.parameters


def _weight_bytes(shape: ModelShape, plan: Plan, adapters: int) -> float:
    """Return the bytes of one micro-batch: forward, input gradients, and once more when recomputing."""
    passes = 2 + plan.recomputed_share
    per_weight = plan.weight_bytes
    if plan.method == "qlora" and plan.dequantise != "fused":
        per_weight += UNFUSED_EXTRA_BYTES
    # Of the experts only those that live on this device.
    experts = sum(layer.count * layer.expert_weights for layer in shape.layers)
    local = shape.layer_weights - experts * (1 - 1 / plan.parallel.expert)
    return passes * (local * per_weight + adapters * plan.value_bytes) + 2 * shape.head * plan.value_bytes

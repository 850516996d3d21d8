"""Bytes that a token moves through the device's memory, by what they are for.

An estimate of compulsory traffic: every operation reads its inputs and writes its output once. It
is not validated against DRAM counters; fusion and caches move activations by up to a factor of two.
"""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import LOSSES, OPTIMIZERS, Plan
from stepgrade.hardware.models.shape import Layer, ModelShape

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
    return Traffic(
        weights=_weight_bytes(shape, plan) / plan.tokens,
        gradients=_gradient_bytes(shape, plan) / plan.tokens,
        optimizer=_optimizer_bytes(shape, plan) / (plan.tokens * plan.micro_batches),
        activations=_activation_bytes(shape, plan),
        loss=shape.vocab * LOSSES[plan.loss],
    )


def trained_weights(shape: ModelShape, plan: Plan) -> int:
    """Return the weights whose gradients are computed."""
    return (
        shape.adapters(plan.rank, plan.lora_targets) if plan.is_frozen else shape.layer_weights + shape.head
    )


def trained_parameters(shape: ModelShape, plan: Plan) -> int:
    """Return the parameters that the optimizer updates."""
    return shape.adapters(plan.rank, plan.lora_targets) if plan.is_frozen else shape.parameters


def _weight_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return the bytes of one micro-batch: forward, input gradients, and once more when recomputing."""
    passes = 3 if plan.checkpointing == "full" else 2
    per_weight = plan.weight_bytes
    if plan.method == "qlora" and plan.dequantise == "unfused":
        per_weight += UNFUSED_EXTRA_BYTES
    adapters = shape.adapters(plan.rank, plan.lora_targets) if plan.is_frozen else 0
    layers = _local_layer_weights(shape, plan) * per_weight + adapters * plan.value_bytes
    return passes * layers + 2 * shape.head * plan.value_bytes


def _local_layer_weights(shape: ModelShape, plan: Plan) -> float:
    """Return the layers' weights, of the experts only those that live on this device."""
    experts = sum(layer.count * layer.expert_weights for layer in shape.layers)
    return shape.layer_weights - experts * (1 - 1 / plan.parallel.expert)


def _gradient_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return the mean bytes of one micro-batch: written once, read and written from the second on."""
    accesses = 2 - 1 / plan.micro_batches
    return trained_weights(shape, plan) * plan.value_bytes * accesses


def _optimizer_bytes(shape: ModelShape, plan: Plan) -> float:
    sharers = plan.parallel.replicas if plan.parallel.data == "fsdp" else 1
    return trained_parameters(shape, plan) * OPTIMIZERS[plan.optimizer] / sharers


def _activation_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return the bytes per token: backward moves twice what forward does, recomputing once more."""
    passes = 3.0 + (plan.checkpointing == "full") - 0.5 * plan.is_frozen
    values = sum(layer.count * _values(layer, shape.hidden) for layer in shape.layers)
    return values * plan.value_bytes * passes


def _values(layer: Layer, hidden: int) -> float:
    """Return the values that one token's forward pass reads and writes in one layer."""
    ffn = (6 if layer.gated else 4) * layer.ffn_width
    return 14 * hidden + 6 * layer.query_width + 6 * layer.kv_width + ffn

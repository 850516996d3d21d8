"""Bytes that a device sends over its link in one optimizer step, by the kind of parallelism."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.cost.traffic import trained_parameters
from stepgrade.hardware.models.shape import Layer, ModelShape


class LinkTraffic(Struct, frozen=True, kw_only=True):
    """Bytes one device sends per optimizer step, and the tokens that are its share of the step."""

    data: float
    tensor: float
    pipeline: float
    expert: float
    tokens: float

    @property
    def total(self) -> float:
        """Return all bytes that one device sends per step."""
        return self.data + self.tensor + self.pipeline + self.expert

    @property
    def per_token(self) -> float:
        """Return the bytes sent for each token of the device's share."""
        return self.total / self.tokens


def link_traffic(shape: ModelShape, plan: Plan) -> LinkTraffic:
    """Return what one device sends per optimizer step."""
    parallel = plan.parallel
    stages = parallel.tensor * parallel.pipeline
    return LinkTraffic(
        data=_data_bytes(shape, plan),
        tensor=_tensor_bytes(shape, plan),
        pipeline=_pipeline_bytes(shape, plan),
        expert=_expert_bytes(shape, plan),
        tokens=plan.tokens * plan.micro_batches / stages,
    )


def _data_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return gradients all-reduced, or weights gathered twice and gradients scattered per micro-batch."""
    replicas = plan.parallel.replicas
    others = (replicas - 1) / replicas
    share = 1 / (plan.parallel.tensor * plan.parallel.pipeline)
    gradients = trained_parameters(shape, plan) * plan.value_bytes
    if plan.parallel.data == "ddp":
        return 2 * others * gradients * share
    adapters = trained_parameters(shape, plan) * plan.value_bytes if plan.is_frozen else 0.0
    gathered = shape.parameters * plan.weight_bytes + adapters
    return others * plan.micro_batches * (2 * gathered + gradients) * share


def _tensor_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return two all-reduces forward and two backward in every layer of the device's stage."""
    peers = plan.parallel.tensor
    per_layer = 4 * 2 * (peers - 1) / peers * plan.tokens * shape.hidden * plan.value_bytes
    return plan.micro_batches * shape.depth / plan.parallel.pipeline * per_layer


def _pipeline_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return activations sent on and gradients sent back across one boundary."""
    if plan.parallel.pipeline == 1:
        return 0.0
    return plan.micro_batches * 2 * plan.tokens * shape.hidden * plan.value_bytes / plan.parallel.tensor


def _expert_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return tokens dispatched to experts and back, forward and backward, in every layer with experts."""
    peers = plan.parallel.expert
    visits = sum(layer.count * _active_experts(layer) for layer in shape.layers)
    per_visit = 4 * (peers - 1) / peers * plan.tokens * shape.hidden * plan.value_bytes
    return plan.micro_batches * visits * per_visit / plan.parallel.pipeline


def _active_experts(layer: Layer) -> int:
    return max((linear.active for linear in layer.linears if linear.copies > 1), default=0)

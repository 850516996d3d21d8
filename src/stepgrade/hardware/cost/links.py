"""Bytes that a device sends over its link in one optimizer step, by the kind of parallelism."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.cost.traffic import trained_parameters
from stepgrade.hardware.models.shape import ModelShape


class LinkTraffic(Struct, frozen=True, kw_only=True):
    """Bytes one device sends per optimizer step, and the tokens that are its share of the step."""

    data: float
    tensor: float
    pipeline: float
    expert: float
    context: float
    tokens: float

    @property
    def total(self) -> float:
        """Return all bytes that one device sends per step."""
        return self.data + self.tensor + self.pipeline + self.expert + self.context

    @property
    def per_token(self) -> float:
        """Return the bytes sent for each token of the device's share."""
        return self.total / self.tokens


def link_traffic(shape: ModelShape, plan: Plan) -> LinkTraffic:
    """Return what one device sends per optimizer step."""
    parallel, count = plan.parallel, plan.micro_batches
    # Two all-reduces forward and two backward in every layer of the stage, on a part of the sequence.
    peers, tokens = parallel.tensor, plan.tokens / parallel.context
    per_layer = 4 * 2 * (peers - 1) / peers * tokens * shape.hidden * plan.value_bytes
    # Activations sent on and gradients sent back across one boundary.
    boundary = count * 2 * tokens * shape.hidden * plan.value_bytes / parallel.tensor
    # Tokens dispatched to experts and back, forward and backward, in every layer with experts.
    visits = sum(
        layer.count * max((linear.active for linear in layer.linears if linear.copies > 1), default=0)
        for layer in shape.layers
    )
    peers = parallel.expert
    # With sequence parallelism each device sends only its part, unless expert matrices are divided too.
    own = tokens / (parallel.tensor if parallel.sequence and plan.expert_tensor == 1 else 1)
    per_visit = 4 * (peers - 1) / peers * own * shape.hidden * plan.value_bytes
    # Keys and values go around the ring forward, and backward with their gradients.
    ring = 3 * (parallel.context - 1) * tokens * plan.value_bytes / parallel.tensor
    keys = sum(layer.count * 2 * layer.kv_width for layer in shape.layers) / parallel.pipeline
    return LinkTraffic(
        data=data_parallel_bytes(shape, plan),
        tensor=count * shape.depth / parallel.pipeline * per_layer,
        pipeline=boundary if parallel.pipeline > 1 else 0.0,
        expert=count * visits * per_visit / parallel.pipeline,
        context=count * keys * ring,
        tokens=tokens * count / (parallel.tensor * parallel.pipeline),
    )


def data_parallel_bytes(shape: ModelShape, plan: Plan) -> float:
    """Return gradients all-reduced, or weights gathered twice and gradients scattered per micro-batch."""
    shards = plan.parallel.shards
    others = (shards - 1) / shards
    share = 1 / (plan.parallel.tensor * plan.parallel.pipeline)
    gradients = trained_parameters(shape, plan) * plan.value_bytes
    if plan.parallel.zero_stage < 3:
        return 2 * others * gradients * share
    gathered = shape.parameters * plan.weight_bytes + (gradients if plan.is_frozen else 0.0)
    # Kept for the backward pass, or for the whole step where a pipeline would gather them over and over.
    if plan.parallel.pipeline > 1:
        return others * (gathered + gradients) * share
    passes = 1 if plan.parallel.data == "fsdp-no-reshard" else 2
    return others * plan.micro_batches * (passes * gathered + gradients) * share

"""What one token of a planned run costs: FLOPs, bytes through memory, and bytes over the link.

A weight costs a token 2 FLOPs forward, 2 for the gradient of its input, 2 for its own gradient.
Attention has no weights: scores and values cost 4 x width x span forward and twice that backward,
where the span is the sequence length, or half of it with a causal mask.

Memory traffic is an estimate: every operation reads its inputs and writes its output once. It is not
validated against DRAM counters; fusion and caches move activations by up to a factor of two.
"""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.ceilings import Costs
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION, Convention
from stepgrade.hardware.cost.plan import LOSSES, OPTIMIZERS, Plan
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.units import show_number


class AttentionKind(Struct, frozen=True, kw_only=True):
    """`layers` layers of one attention width, with a window where they have one."""

    layers: int
    width: float
    window: int | None = None


class Counts(Struct, frozen=True, kw_only=True):
    """The numbers of a model that the conventions differ about; N is what one token meets."""

    active: float
    matmul: float
    head: float
    lookup: float
    positions: float
    hidden: int
    attention: tuple[AttentionKind, ...]
    adapters: float = 0.0
    total: float | None = None


class Flops(Struct, frozen=True, kw_only=True):
    """FLOPs per trained token by one convention; `hardware` adds what is computed twice."""

    convention: str
    model: float
    hardware: float
    weights: float
    attention: float


def count(shape: ModelShape, plan: Plan) -> Counts:
    """Return the counts of a model under a plan; adapters are 0 unless only they are trained."""
    adapters = shape.adapters(plan.rank, plan.lora_targets, active=True) if plan.is_frozen else 0
    kinds = [AttentionKind(layers=k.count, width=k.score_width, window=k.window) for k in shape.layers]
    return Counts(
        active=shape.active_parameters,
        matmul=shape.matmul_weights,
        head=shape.head,
        lookup=0 if shape.tied else shape.head,
        positions=shape.positions,
        hidden=shape.hidden,
        attention=tuple(kinds),
        adapters=adapters,
        total=shape.parameters,
    )


def flops_per_token(counts: Counts, plan: Plan, convention: Convention) -> Flops:
    """Return a token's FLOPs by `convention`, forward and backward."""
    weights = {
        "matmul": counts.matmul,
        "all": counts.active,
        "without_lookup": counts.active - counts.lookup,
        "without_positions": counts.active - counts.positions,
    }[convention.weights]
    # 12 x width x span over all layers: forward 4, backward 8.
    attention, seq = 0.0, plan.packed_seq or plan.seq
    if convention.attention is not None:
        by_hidden = convention.attention == "hidden"
        attention = sum(
            12
            * kind.layers
            * (counts.hidden if by_hidden else kind.width)
            * attended_span(seq, causal=convention.causal, window=kind.window)
            for kind in counts.attention
        )
    if not plan.is_frozen:
        model = 6 * weights + attention
    elif convention.frozen == "scaled":
        model = (2 + counts.adapters / (counts.total or counts.active)) / 3 * (6 * weights + attention)
    else:
        model = 4 * weights + attention + 6 * counts.adapters
    recomputed = 0.0
    if plan.checkpointing == "selective":
        recomputed = attention / 3
    elif plan.checkpointing == "op":
        # Of q, k, v, o, gate, up and down every second is computed again: about a third of the layers.
        recomputed = 2 * (weights - counts.head) / 3
    elif plan.checkpointing in ("full", "every-second"):
        again = weights - counts.head if convention.recompute == "layers" else weights
        recomputed = (2 * again + attention / 3) * plan.recomputed_share
    return Flops(
        convention=convention.name,
        model=model,
        hardware=model + recomputed,
        weights=model - attention,
        attention=attention,
    )


def attended_span(seq: float, *, causal: bool, window: int | None = None) -> float:
    """Return how many positions a token's scores are counted for, on average over the sequence."""
    if not causal:
        return seq
    if window is None or seq <= window:
        return seq / 2
    return window - window * window / (2 * seq)


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
    # Weights are read forward, for input gradients, and once more when recomputing.
    per_weight = plan.weight_bytes
    if plan.method == "qlora" and plan.dequantise != "fused":
        per_weight += UNFUSED_EXTRA_BYTES
    # Only the experts on this device count.
    experts = sum(layer.count * layer.expert_weights for layer in shape.layers)
    local = shape.layer_weights - experts * (1 - 1 / plan.parallel.expert)
    weights = (2 + plan.recomputed_share) * (local * per_weight + adapters * plan.value_bytes)
    return Traffic(
        weights=(weights + 2 * shape.head * plan.value_bytes) / plan.tokens,
        gradients=trained * plan.value_bytes * gradient_accesses / plan.tokens,
        optimizer=optimizer / (plan.tokens * plan.micro_batches),
        activations=values * plan.value_bytes * passes,
        loss=shape.vocab * LOSSES[plan.loss],
    )


def trained_parameters(shape: ModelShape, plan: Plan) -> int:
    """Return the parameters that the optimizer updates."""
    return shape.adapters(plan.rank, plan.lora_targets) if plan.is_frozen else shape.parameters


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
    # Gradients all-reduced, or weights gathered twice and gradients scattered per micro-batch.
    gradients = trained_parameters(shape, plan) * plan.value_bytes
    amount, times = gradients, 2
    if parallel.zero_stage == 3:
        gathered = shape.parameters * plan.weight_bytes + (gradients if plan.is_frozen else 0.0)
        # Kept for the backward pass, or for the whole step where a pipeline would gather them over and over.
        is_kept = parallel.pipeline > 1 or parallel.data == "fsdp-no-reshard"
        amount = (1 if is_kept else 2) * gathered + gradients
        times = 1 if parallel.pipeline > 1 else count
    others = (parallel.shards - 1) / parallel.shards
    return LinkTraffic(
        data=others * times * amount * (1 / (parallel.tensor * parallel.pipeline)),
        tensor=count * shape.depth / parallel.pipeline * per_layer,
        pipeline=boundary if parallel.pipeline > 1 else 0.0,
        expert=count * visits * per_visit / parallel.pipeline,
        context=count * keys * ring,
        tokens=tokens * count / (parallel.tensor * parallel.pipeline),
    )


class ModelCosts(Struct, frozen=True, kw_only=True):
    """What one token of a planned run costs, whatever the device."""

    architecture: str
    parameters: int
    active_parameters: int
    trained_parameters: int
    flops: Flops
    flops_palm: Flops
    traffic: Traffic
    link: LinkTraffic | None
    notes: tuple[str, ...] = ()

    @property
    def per_token(self) -> Costs:
        """Return the costs that ceilings are made of."""
        return Costs(
            flops=self.flops.hardware,
            flops_count=f"{show_number(self.flops.hardware / 1e9, 4)} GFLOP per token "
            f"({self.flops.convention})",
            bytes=self.traffic.total,
            bytes_count=f"{show_number(self.traffic.total / 1e6, 4)} MB per token (compulsory traffic)",
            link_bytes=self.link.per_token if self.link else None,
            link_count=f"{show_number(self.link.per_token / 1e6, 4)} MB sent per token" if self.link else "",
        )


def model_costs(shape: ModelShape, plan: Plan, convention: Convention | None = None) -> ModelCosts:
    """Return FLOPs, bytes and link bytes of one token, by `convention` and by PaLM's."""
    counts = count(shape, plan)
    return ModelCosts(
        architecture=shape.architecture,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        trained_parameters=trained_parameters(shape, plan),
        flops=flops_per_token(counts, plan, convention or CONVENTIONS[DEFAULT_CONVENTION]),
        flops_palm=flops_per_token(counts, plan, CONVENTIONS["palm"]),
        traffic=traffic_per_token(shape, plan),
        link=link_traffic(shape, plan) if plan.parallel.devices > 1 else None,
        notes=shape.notes,
    )

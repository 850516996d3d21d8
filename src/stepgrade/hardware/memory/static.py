"""What one device of a pipeline stage holds: parameters, optimizer states, buffers, allocator overhead."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.errors import BadOption
from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.cost.plan import DTYPES, WEIGHTS, Plan
from stepgrade.hardware.models.shape import Layer, ModelShape


class Stage(Struct, frozen=True, kw_only=True):
    """One pipeline stage: its layers with how many of each, and how many micro-batches it holds at once.

    `in_flight` counts micro-batches of all the stage's layers: interleaved schedules hold some chunks twice.
    """

    layers: tuple[tuple[Layer, int], ...]
    in_flight: float
    is_first: bool
    is_last: bool


class Held(Struct, frozen=True, kw_only=True):
    """Parameters of one device before data parallelism shards them, by who shards them and how."""

    matrices: float  # of the layers, without experts
    experts: float
    vectors: float  # norms, routers and biases, which tensor parallelism does not divide
    embedding: float  # and the table of positions
    head: float
    largest_layer: float

    @property
    def dense(self) -> float:
        """Return the parameters that all of a device's data-parallel peers hold too."""
        return self.matrices + self.vectors + self.embedding + self.head

    @property
    def total(self) -> float:
        """Return every parameter of the device."""
        return self.dense + self.experts


def stage_of(shape: ModelShape, plan: Plan, rank: int) -> Stage:
    """Return what pipeline rank `rank` holds; layers are divided evenly, with extra ones first."""
    parallel, count = plan.parallel, plan.micro_batches
    if parallel.pipeline * parallel.virtual > shape.depth + 2:  # embedding and loss may have their own
        raise BadOption(f"more stages than the model's {shape.depth} layers", field="pipeline")
    least, more = divmod(shape.depth, parallel.pipeline)
    first = rank * least + min(rank, more)
    last = first + least + (rank < more)
    held, layer_index = [], 0
    for layer in shape.layers:
        inside = min(last, layer_index + layer.count) - max(first, layer_index)
        if inside > 0:
            held.append((layer, inside))
        layer_index += layer.count
    in_flight = float(min(count, parallel.pipeline - rank))
    if parallel.virtual > 1:
        # Interleaved 1F1B: chunks in flight, each a part of the stage.
        chunks = 2 * (parallel.pipeline - rank - 1) + (parallel.virtual - 1) * parallel.pipeline + 1
        in_flight = min(count * parallel.virtual, chunks) / parallel.virtual
    return Stage(
        layers=tuple(held),
        in_flight=in_flight,
        is_first=rank == 0,
        is_last=rank == parallel.pipeline - 1,
    )


def held_parameters(shape: ModelShape, plan: Plan, stage: Stage) -> Held:
    """Return the parameters of one device of the stage."""
    tensor = plan.parallel.tensor
    split = plan.parallel.expert * plan.expert_tensor
    matrices = experts = vectors = largest = 0.0
    for layer, count in stage.layers:
        expert_size = sum(part.copies * part.size for part in layer.linears if part.copies > 1) / split
        routers = sum(part.size for part in layer.linears if part.name == "router")
        whole = sum(part.size for part in layer.linears if part.copies == 1) - routers
        matrices += count * whole / tensor
        experts += count * expert_size
        vectors += count * (layer.vectors + routers)
        largest = max(largest, whole / tensor + expert_size + layer.vectors + routers)
    table = (shape.head + shape.positions) / tensor if stage.is_first else 0.0
    # A tied head is the embedding itself, unless they are on different stages.
    has_head = stage.is_last and not (shape.tied and stage.is_first)
    return Held(
        matrices=matrices,
        experts=experts,
        vectors=vectors + (shape.vectors if stage.is_last else 0),
        embedding=table,
        head=shape.head / tensor if has_head else 0.0,
        largest_layer=largest,
    )


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
        # The adapters' thin matrices are divided on one side only.
        adapters = sum(
            count * layer.adapter_size(plan.rank, plan.lora_targets) for layer, count in stage.layers
        )
        if stage.is_last and "head" in plan.lora_targets.split(","):
            adapters += plan.rank * (shape.hidden + shape.vocab)
        frozen = held.total * max(DTYPES[plan.dtype], 2.0)
        if plan.method == "qlora":  # tables and vectors are never quantised
            rest = _KBIT_REST if plan.kernels == "transformers" else plan.value_bytes
            tables = (held.embedding + held.head + held.vectors) * rest
            frozen = (held.matrices + held.experts) * plan.weight_bytes + tables
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


# DeepSpeed's defaults: elements of a reduce and of a gather bucket, and of parameters gathered at once.
_BUCKET = 5e8
_LIVE_PARAMETERS = 1e9
# FSDP gathers the next layer while it computes one.
_LAYERS_AT_ONCE = 2


class Buffers(Struct, frozen=True, kw_only=True):
    """Bytes of one device; `pools` are reserved and not allocated, `gradients` there only in backward.

    `layer_gradients` and `root_gradients` are whole before they are scattered; `flattened` is the copy that
    an all-reduce makes of all gradients at the end of the backward pass.
    """

    always: float = 0.0
    gradients: float = 0.0
    layer_gradients: float = 0.0
    root_gradients: float = 0.0
    flattened: float = 0.0
    pools: float = 0.0


def sharing_buffers(plan: Plan, held: Held, static: Static) -> Buffers:
    """Return what data parallelism holds besides the shards."""
    parallel, is_frozen = plan.parallel, plan.is_frozen
    if plan.offload == "parameters":
        layers = _LAYERS_AT_ONCE * held.largest_layer + held.embedding + held.head
        return Buffers(always=layers * plan.value_bytes, gradients=held.largest_layer * plan.value_bytes)
    if plan.weights == "megatron-fp16":
        return Buffers(flattened=2.0 * held.total)
    is_deepspeed = parallel.data.startswith("zero") and plan.kernels != "te"  # on one device too
    if (parallel.shards == 1 and not is_deepspeed) or (plan.kernels == "te" and parallel.zero_stage < 3):
        return Buffers()
    if parallel.zero_stage == 0:
        return Buffers(always=static.gradients)  # DDP's buckets
    value = plan.weight_bytes if plan.method == "qlora" else plan.value_bytes
    root = held.head if parallel.separate_embedding else held.embedding + held.head
    unit = max(_LAYERS_AT_ONCE * held.largest_layer, root)
    if is_deepspeed:
        trained = 0.0 if is_frozen else held.total
        # One bucket fills while another is sent.
        buckets = 2 * min(_BUCKET, trained) * plan.value_bytes + min(_BUCKET, trained) * plan.value_bytes
        live = min(_LIVE_PARAMETERS, held.total) if parallel.zero_stage == 3 else 0.0
        return Buffers(always=buckets + live * value)
    gathered = _LAYERS_AT_ONCE * held.largest_layer + root
    gradients = 0.0
    if parallel.pipeline > 1 and not is_frozen:
        # Between micro-batches of a pipeline nothing is sharded again, and gradients are summed whole.
        gathered, gradients = held.total, held.total * stored(plan).gradient
    elif parallel.data == "fsdp-no-reshard":
        gathered = held.total
    reduced = 0.0 if is_frozen else 4.0
    # The root's gradients are whole until the backward pass ends, those of a layer while they are scattered.
    whole = 0.0 if is_frozen or gradients else plan.value_bytes
    return Buffers(
        always=min(gathered, held.total) * value,
        gradients=gradients,
        layer_gradients=whole * min(_LAYERS_AT_ONCE * held.largest_layer, held.total),
        root_gradients=whole * root,
        pools=min(unit, held.total) * (value + reduced),
    )


GIB = 2**30
# Reserved over allocated, less 1: with expandable segments, and with constant shapes.
_FRAGMENTS = {"expandable": 0.03, "default": 0.06}
# With varying lengths, blocks of one length do not fit the next: this share of a step's allocations more.
_VARYING = 1.5
# The part that stays when memory runs short: cached blocks are released then, parts of blocks are not.
# The most that 40 out-of-memory errors with expandable segments left unused; for constant shapes without them
# all is taken to stay. Of varying lengths, runs that filled their device bound it to 0.6 of a step's bytes.
_FRAGMENTS_AT_LIMIT = {"expandable": 0.007, "default": _FRAGMENTS["default"]}
_VARYING_AT_LIMIT = 0.5
# The driver's context, alone and with NCCL's buffers: what OOM messages leave unexplained.
_CONTEXT = 0.5 * GIB
_CONTEXT_WITH_PEERS = 1.6 * GIB
# Total memory as drivers report it, in GiB, by device key.
_REPORTED_GIB = {
    key: gib
    for gib, keys in {
        39.4: "a100-sxm4-40gb a100-pcie-40gb",
        79.2: "a100-sxm4-80gb a100-pcie-80gb",
        79.19: "h100-sxm5-80gb h100-pcie",
        95.0: "h100-sxm5-96gb-hbm2e",
        139.8: "h200-sxm",
        178.35: "b200",
        184.0: "gb200",
        191.98: "mi300x",
        63.98: "mi210",
        31.74: "v100-sxm2-32gb v100-pcie-32gb",
        15.77: "v100-sxm2-16gb v100-pcie-16gb",
        # Cards with ECC on GDDR memory reserve a part of it.
        14.56: "t4",
        22.06: "a10 a10g",
        22.03: "l4",
        44.4: "l40 l40s",
    }.items()
    for key in keys.split()
}
# For other GPUs: the GiB in the name, less what the firmware reserves.
_REPORTED_SHARE = 0.985


def fragment_bytes(plan: Plan, lasting: float, passing: float) -> float:
    """Return how much more the allocator reserves than tensors take: those that last, those of one step."""
    share = _FRAGMENTS[plan.allocator]
    return share * lasting + (_VARYING if blocks_vary(plan) else share) * passing


def fragment_bytes_at_limit(plan: Plan, lasting: float, passing: float) -> float:
    """Return how much of that is left when the device is full and the allocator has released what it can."""
    share = _FRAGMENTS_AT_LIMIT[plan.allocator]
    return share * (lasting + passing) + (_VARYING_AT_LIMIT * passing if blocks_vary(plan) else 0.0)


def blocks_vary(plan: Plan) -> bool:
    """Return whether blocks of one step do not fit the next."""
    return plan.lengths == "variable" and plan.allocator == "default"


def context_bytes(plan: Plan) -> float:
    """Return the memory of the driver and the collectives library, outside PyTorch."""
    return _CONTEXT_WITH_PEERS if plan.parallel.devices > 1 else _CONTEXT


def capacity_bytes(device: Device | None) -> float | None:
    """Return the memory as the driver reports it; None if unknown."""
    if device is None or device.memory_gb is None:
        return None
    return _REPORTED_GIB.get(device.key, device.memory_gb * _REPORTED_SHARE) * GIB

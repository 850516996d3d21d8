"""Memory that parallelism adds: gathered layers, buckets, and the pools of their streams."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.memory.stages import Held
from stepgrade.hardware.memory.static import Static, stored

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

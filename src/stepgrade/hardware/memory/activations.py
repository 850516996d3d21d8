"""What autograd saves per token for the backward pass, with and without checkpointing, and the loss.

The eager and compiled columns are counted to the byte on real models; Transformer Engine's fits the
memory that Megatron-LM's own tests record.
"""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.models.shape import Layer, Linear, ModelShape

_FP32 = 4.0
_INDEX = 8.0  # bytes of a token id


class LayerActivations(Struct, frozen=True, kw_only=True):
    """Bytes per token that one layer keeps, by what they are; `fixed` does not grow with tokens."""

    norms: float
    inputs: float  # of the matrices behind the norms
    attention: float
    scores: float  # attention written out, quadratic in the sequence
    ffn: float
    experts: float
    adapters: float
    dropout: float
    fixed: float = 0.0

    @property
    def per_token(self) -> float:
        """Return the bytes of one token."""
        total: float = sum(getattr(self, name) for name in self.__struct_fields__ if name != "fixed")
        return total


def layer_activations(hidden: int, layer: Layer, plan: Plan) -> LayerActivations:
    """Return what one layer keeps of a token on one device when nothing is recomputed."""
    parallel, value = plan.parallel, plan.value_bytes
    tensor = parallel.tensor
    split = tensor if parallel.sequence else 1
    # Megatron gathers a sequence's parts again in backward; torch keeps the gathered input.
    split_inputs = split if plan.kernels == "te" else 1
    norm_inputs = min(layer.norms, 2)
    norms = layer.norms * _norm(hidden, layer, plan)
    if layer.is_parallel:
        norms -= value * hidden  # both keep the same
    scores = 0.0  # of attention that is written out
    if plan.attention != "flash":
        # Eager softmax is in fp32, with a copy beside it.
        each = {"transformers": _FP32 + value, "compiled": _FP32}.get(plan.kernels, value)
        if plan.kernels == "te" and layer.has_dropout:
            each = 2 * value + 1
        scores = layer.heads * (plan.seq / parallel.context) * each
    # Gemma's modules keep one plus the weight of each norm.
    scales = layer.norms * hidden + layer.qk_norms * layer.query_width / layer.heads
    return LayerActivations(
        norms=norms / split,
        inputs=0.0 if plan.is_frozen else norm_inputs * value * hidden / split_inputs,
        attention=attention_activations(layer, plan) / tensor,
        scores=scores / tensor,
        ffn=_dense_width(layer) * _ffn(layer, plan) / tensor,
        experts=expert_activations(hidden, layer, plan),
        adapters=adapter_activations(layer, plan) / split_inputs,
        dropout=2.0 * hidden / split if layer.has_dropout else 0.0,
        fixed=_FP32 * scales if layer.norm == "gemma" and plan.kernels == "transformers" else 0.0,
    )


def checkpointed(hidden: int, layer: Layer, plan: Plan, whole: LayerActivations) -> float:
    """Return the bytes per token that one layer, or each on average, keeps under the plan's checkpointing."""
    value, tensor = plan.value_bytes, plan.parallel.tensor
    split = tensor if plan.parallel.sequence else 1
    query, key = layer.query_width, layer.kv_width
    width = _dense_width(layer) + layer.experts_met * layer.expert_width
    statistics = _FP32 * layer.heads / tensor
    match plan.checkpointing:
        case "full":
            kept = value * hidden / split
        case "every-second":
            kept = (value * hidden / split + whole.per_token) / 2
        case "op":
            # The layer's input, the outputs of every second matmul, and attention's. With torch's sequence
            # parallelism the last matmul's output is whole, and both scattered sums are kept beside it.
            wide = 2 * hidden if split == 1 else hidden + 3 * hidden / split
            if plan.kernels == "compiled":
                wide -= hidden  # no gradient needs the last matmul's output, and the compiler drops it
            kept = value * wide + value * (2 * query + key + width) / tensor + statistics
        case "op-all":
            wide = 2 * width if layer.gated else width
            kept = value * 3 * hidden / split + value * (2 * query + 2 * key + wide) / tensor + statistics
        case "selective":
            kept = whole.per_token - whole.scores
        case _:
            kept = whole.per_token
    return min(kept, whole.per_token)


def outside_layers(shape: ModelShape, plan: Plan) -> float:
    """Return the bytes per token that the last norm and the head keep."""
    split = plan.parallel.tensor if plan.parallel.sequence else 1
    last = shape.layers[-1]
    # LoRA on the head keeps its input as well.
    has_input = not plan.is_frozen or "head" in plan.lora_targets.split(",")
    return (
        _norm(shape.hidden, last, plan) + plan.value_bytes * shape.hidden * has_input
    ) / split + 2 * _INDEX


def _norm(width: float, layer: Layer, plan: Plan) -> float:
    """Return what one norm over `width` values keeps of a token."""
    value = plan.value_bytes
    if layer.norm == "layer":
        return value * width + 2 * _FP32
    trained = 0.0 if plan.is_frozen else 1.0
    if plan.kernels == "te":
        return value * width
    if plan.kernels in ("compiled", "eager"):
        return value * width + _FP32
    # Written out: the input in fp32, and what is multiplied by the weight, if that is trained.
    is_fp32 = layer.norm != "rms" or plan.kernels == "eager-unfused"
    return _FP32 * width + trained * (_FP32 if is_fp32 else value) * width + _FP32


def attention_activations(layer: Layer, plan: Plan) -> float:
    """Return what attention keeps of a token: query, key, value, its output, and their norms."""
    value, by_name = plan.value_bytes, {linear.name: linear for linear in layer.linears}
    query, key = float(layer.query_width), float(layer.kv_width)
    if plan.attention == "written-out":
        key = query  # keys and values are repeated for every query head
    kept = value * (2 * query + 2 * key) + (0.0 if plan.attention == "written-out" else _FP32 * layer.heads)
    if "kv_up" in by_name:
        # Latent attention: the small vectors before and after their norms, and values of a size of their own.
        down, out = by_name["kv_down"], by_name["o"]
        ups = [by_name[name].inputs for name in ("kv_up", "q_up") if name in by_name]
        latent = sum(_norm(width, layer, plan) + value * width for width in ups)
        latent += value * (down.outputs - by_name["kv_up"].inputs)
        kept += latent * plan.parallel.tensor + value * 2 * (out.inputs - query)
    if _is_copied(layer, plan) and not plan.is_frozen:
        kept += value * by_name["o"].inputs
    is_view = "qkv" in by_name and layer.rotation != "none" and plan.attention == "flash"
    if is_view and plan.kernels != "te":
        kept += value * (query + key)  # the value is a view into all three as they were, which stay
    if layer.qk_norms:
        width = layer.query_width + layer.kv_width
        heads = layer.heads * width / layer.query_width if layer.qk_norm_per_head else 2.0
        each = _norm(1.0, layer, plan) - _FP32 if plan.kernels != "te" else value
        kept += each * width + (_FP32 * heads if plan.kernels != "te" else 0.0)
    return kept


def _is_copied(layer: Layer, plan: Plan) -> bool:
    """Return whether the last matrix of attention reads a copy of its output.

    Joining the parts of each head lays the query out by heads, the output is laid out like it, and the matrix
    needs it by tokens.
    """
    return layer.rotation == "part" and plan.attention == "flash" and plan.kernels != "te"


def backward_temporaries(hidden: int, layer: Layer, plan: Plan) -> float:
    """Return the bytes per token of gradients that one layer's backward pass has at once."""
    width = (_dense_width(layer) + layer.experts_met * layer.expert_width) / plan.parallel.tensor
    return plan.value_bytes * ((3 if layer.gated else 2) * width + 2 * hidden)


def _dense_width(layer: Layer) -> float:
    """Return the width of the feed-forward that every token meets."""
    return layer.ffn_width - layer.experts_met * layer.expert_width


def _ffn(layer: Layer, plan: Plan) -> float:
    """Return what a feed-forward keeps of a token, for each unit of its width."""
    value, is_eager = plan.value_bytes, plan.kernels not in ("compiled", "te")
    if layer.gated:
        kept = 4 if is_eager else 3  # gate, its activation, up, product
        return value * (kept - plan.is_frozen)  # the product is the input of a matrix
    kept = 5 if layer.activation == "gelu_new" and plan.kernels == "transformers" else 2
    return value * (kept - plan.is_frozen)


def expert_activations(hidden: int, layer: Layer, plan: Plan) -> float:
    """Return what router and experts keep of a token, when tokens are spread evenly."""
    if not layer.expert_count:
        return 0.0
    split = plan.parallel.tensor if plan.parallel.sequence else 1
    gathered = min(plan.expert_tensor, split)
    met, value = layer.experts_met, plan.value_bytes
    # Weighting the experts' hidden values by the router's keeps one more of them where there is no gate.
    weighted = 0.0 if layer.gated else value
    inside = value * hidden * (gathered + 1) + layer.expert_width * (_ffn(layer, plan) + weighted)
    # A shared expert's output is weighted by a gate of its own.
    gates = sum(1 for linear in layer.linears if linear.name == "router" and linear.outputs == 1)
    return (_FP32 * layer.expert_count + met * inside + gates * value * hidden) / split


def adapter_activations(layer: Layer, plan: Plan) -> float:
    """Return what LoRA's thin matrices keep of a token."""
    if not plan.is_frozen:
        return 0.0
    kept = 0.0
    if plan.method == "qlora" and plan.dequantise == "unfused-old":
        kept = plan.value_bytes * sum(
            {_input_of(linear): linear.active * linear.inputs for linear in layer.linears}.values()
        )
    targets: list[Linear] = layer.adapted(plan.lora_targets)
    size = _FP32 if plan.kernels == "transformers" else plan.value_bytes
    # An input in another precision is copied for every target; else those that share it keep it once.
    shared = {_input_of(linear): linear.active * linear.inputs for linear in targets}
    every = sum(linear.active * linear.inputs for linear in targets)
    inputs = every if size != plan.value_bytes else sum(shared.values())
    # Attention keeps its output anyway.
    if size == plan.value_bytes and "o" in shared and not _is_copied(layer, plan):
        inputs -= shared["o"]
    ranks = plan.rank * sum(linear.active for linear in targets)
    if plan.lora_dropout:
        return kept + (size + 1) * every + size * ranks  # each target has a mask and a copy of its own
    return kept + size * (inputs + ranks)


def _input_of(linear: Linear) -> str:
    return {"q": "norm", "k": "norm", "v": "norm", "qkv": "norm", "gate": "norm2", "up": "norm2"}.get(
        linear.name, linear.name
    )


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

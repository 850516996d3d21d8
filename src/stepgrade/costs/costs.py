"""How many FLOPs and bytes an operation takes, from the recorded sizes of its inputs.

FLOPs are the model's: a multiply-add is two; a causal mask halves attention; attention's backward is twice
its forward, without the recomputed scores. Bytes are compulsory traffic: each input read once, each output
written once, an element that a broadcast repeats once. What the sizes do not tell is None, never a guess.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from msgspec import structs

from stepgrade.costs.library_costs import LIBRARIES
from stepgrade.costs.moving_costs import MOVING
from stepgrade.costs.own_costs import plugged_in, registered
from stepgrade.costs.recorded_inputs import UNKNOWN, Cost, Dims, Rule, Shapes, decode_shapes, plus, times
from stepgrade.costs.triton_costs import GENERATED, symmetric_flops, triton_cost
from stepgrade.model.events import Inputs
from stepgrade.naming.work_class import WorkClass, classify

NORM_FLOPS_PER_ELEMENT = 5
NORM_BACKWARD_FLOPS_PER_ELEMENT = 8
_MOST_TENSORS = 64  # of a compiler's kernel, among which the factors of its product are looked for


def cost_of(name: str, inputs: Inputs, item: int | None = None) -> Cost:
    """Return the cost of one call of the operation with these recorded inputs.

    `item` is how many bytes an element has whose type was not recorded, where a kernel says so.
    """
    if inputs.compiled is not None:
        return Cost(flops=inputs.compiled.flops, bytes=inputs.compiled.bytes)
    rule = _rule_of(name, is_triton=inputs.is_triton)
    shapes = decode_shapes(inputs, item) if rule else None
    return rule(shapes) if rule and shapes else UNKNOWN


def _rule_of(name: str, *, is_triton: bool) -> Rule | None:
    """Return how the cost of an operation follows from its sizes: by its name, else by its class."""
    plain = name.removeprefix("aten::")
    rule = registered(name) or _RULES.get(plain) or LIBRARIES.get(name)
    if rule is not None:
        return rule
    if is_triton or name.startswith(GENERATED):
        return _triton(name)
    if not name.startswith("aten::"):
        return plugged_in(name)
    if plain in MOVING:
        return MOVING[plain]
    work_class = classify(name)
    if work_class is WorkClass.ELEMENTWISE:
        return _elementwise(plain)
    is_norm_backward = work_class is WorkClass.NORM and "backward" in name
    return _NORM_BACKWARD if is_norm_backward else _CLASS_RULES.get(work_class)


def _triton(name: str) -> Rule:
    def rule(shapes: Shapes) -> Cost:
        is_template = name.startswith(_TEMPLATES) and "mm" in name
        flops = template_cost(shapes).flops if is_template else symmetric_flops(name, shapes)
        return structs.replace(triton_cost(name, shapes), flops=flops)

    return rule


def broadcast(*shapes: Dims) -> Dims:
    """Return the sizes of what an element-wise operation on these makes; those of the largest if none fit."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(dims)) + dims for dims in shapes]
    result = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))
    fits = all(size in (1, whole) for dims in padded for size, whole in zip(dims, result, strict=True))
    return result if fits else max(shapes, key=math.prod)


def _matmul_at(place: int, result_size: int | None = None) -> Rule:
    """Return the rule of [..., m, k] @ [..., k, n] at `place` and the next; batches broadcast."""

    def rule(shapes: Shapes) -> Cost:
        left, right = shapes.tensor(place), shapes.tensor(place + 1)
        if not left or not right:
            return UNKNOWN
        rows = left if len(left) > 1 else (1, *left)
        columns = right if len(right) > 1 else (*right, 1)
        if rows[-1] != columns[-2]:
            return UNKNOWN
        batch = math.prod(broadcast(rows[:-2], columns[:-2]))
        made = batch * rows[-2] * columns[-1]
        size = result_size or shapes.item_size()
        moved = plus(shapes.bytes_at(place, place + 1), times(made, size))
        return Cost(flops=2 * made * rows[-1], bytes=moved)

    return rule


def linear_cost(shapes: Shapes) -> Cost:
    """Return the cost of [..., k] @ [n, k] transposed."""
    data, weight = shapes.tensor(0), shapes.tensor(1)
    if not data or not weight or len(weight) != 2 or data[-1] != weight[1]:
        return UNKNOWN
    made = math.prod(data[:-1]) * weight[0]
    moved = plus(shapes.bytes_at(0, 1), times(made, shapes.item_size()))
    return Cost(flops=2 * made * data[-1], bytes=moved)


def grouped_cost(shapes: Shapes) -> Cost:
    """Return the cost of rows that are each multiplied by the matrix of their group.

    Groups may divide the rows, the columns, or (for the gradient of the weights) what is summed over.
    """
    left, right = shapes.tensor(0), shapes.tensor(1)
    if not left or not right or len(left) not in (2, 3) or len(right) not in (2, 3) or left[-1] != right[-2]:
        return UNKNOWN
    batch = left[0] if len(left) == len(right) == 3 else 1
    flops = 2 * batch * left[-2] * left[-1] * right[-1]
    made = batch * left[-2] * right[-1]
    return Cost(flops=flops, bytes=plus(shapes.bytes_at(0, 1), times(made, shapes.item_size())))


def template_cost(shapes: Shapes) -> Cost:
    """Return the cost of a compiler's product: two of its tensors are multiplied into a later one."""
    tensors = [dims for dims in shapes.dims if dims and len(dims) in (2, 3)][:_MOST_TENSORS]
    for place, left in enumerate(tensors):
        for right in tensors[place + 1 :]:
            made = (*left[:-1], right[-1])
            if len(left) == len(right) and left[-1] == right[-2] and made in tensors[place + 2 :]:
                return Cost(flops=2 * math.prod(made) * left[-1])
    return UNKNOWN


class Places(NamedTuple):
    """Where the settings of a convolution stand among its parameters."""

    stride: int
    padding: int
    dilation: int | None = None
    transposed: int | bool = False  # where it says so, or whether it is


def _convolution(places: Places) -> Rule:
    """Return the rule of a convolution; data and weight are its first parameters."""

    def rule(shapes: Shapes) -> Cost:
        data, weight, flag = shapes.tensor(0), shapes.tensor(1), places.transposed
        if not data or not weight or len(data) != len(weight):
            return UNKNOWN
        # bool is an int: True at a place of its own would be place 1, the weight's.
        if flag is True or (flag is not False and shapes.value(flag) is True):
            # Every element of the input is multiplied by the weights of its channel.
            return Cost(flops=2 * math.prod(data) * math.prod(weight[1:]))
        settings = [shapes.value(place) for place in (places.stride, places.padding)]
        settings.append([1] if places.dilation is None else shapes.value(places.dilation))
        if not all(
            isinstance(sizes, list) and sizes and all(type(size) is int for size in sizes)
            for sizes in settings
        ):
            return UNKNOWN
        spatial = len(weight) - 2
        steps, pads, spreads = ((setting * spatial)[:spatial] for setting in settings)
        output = [
            max(0, data[2 + i] + 2 * pads[i] - spreads[i] * (weight[2 + i] - 1) - 1) // max(steps[i], 1) + 1
            for i in range(spatial)
        ]
        return convolution_cost(shapes, (data[0], weight[0], *output))

    return rule


def convolution_cost(shapes: Shapes, result: Dims) -> Cost:
    """Return the cost of a convolution whose result has these sizes."""
    made, weight = math.prod(result), shapes.tensor(1) or ()
    moved = plus(shapes.bytes_at(0, 1), times(made, shapes.item_size()))
    return Cost(flops=2 * made * math.prod(weight[1:]), bytes=moved)


def cost_of_result(inputs: Inputs, of_taker: Inputs) -> Cost:
    """Return the cost of a convolution by the input of what may have taken its result."""
    shapes, taken = decode_shapes(inputs), decode_shapes(of_taker)
    data, weight, result = (
        (shapes.tensor(0), shapes.tensor(1), taken.tensor(0)) if shapes and taken else (None, None, None)
    )
    if not data or not weight or not result or not len(data) == len(weight) == len(result):
        return UNKNOWN
    fits = result[:2] == (data[0], weight[0]) and math.prod(result[2:]) <= math.prod(data[2:])
    return convolution_cost(shapes, result) if shapes and fits else UNKNOWN


def _convolution_backward(grad: int, data: int, mask: int | None, transposed: int | None = None) -> Rule:
    """Return the rule of the gradients that the output mask asks for (data, weight); the weight is third."""

    def rule(shapes: Shapes) -> Cost:
        weight = shapes.tensor(2)
        if not shapes.tensor(grad) or not shapes.tensor(data) or not weight:
            return UNKNOWN
        asked = shapes.value(mask) if mask is not None else None
        wanted = [*map(bool, asked[:2])] if isinstance(asked, list) and len(asked) == 3 else [True, True]
        is_transposed = transposed is not None and shapes.value(transposed) is True
        once = 2 * math.prod(shapes.tensor(data if is_transposed else grad) or ()) * math.prod(weight[1:])
        # For the gradient of one of the two, the other is read; the result has the size of the first.
        moved = [shapes.bytes_at(grad, data, 2) for is_wanted in wanted if is_wanted]
        return Cost(flops=once * sum(wanted), bytes=plus(*moved))

    return rule


def one_gradient_cost(shapes: Shapes) -> Cost:
    """Return the cost of one gradient of a convolution, as cuDNN's operations of 2021 made them.

    The gradient is second, the weight third. That of the weight itself has the input there: only the sizes of
    the operation around it, which has an input first, tell.
    """
    grad, weight = shapes.tensor(1), shapes.tensor(2)
    return Cost(flops=2 * math.prod(grad) * math.prod(weight[1:])) if grad and weight else UNKNOWN


def weight_gradient_cost(shapes: Shapes) -> Cost:
    """Return the same for the weight, from the sizes of the operation around it."""
    return one_gradient_cost(shapes) if shapes.tensor(0) else UNKNOWN


class AttentionPlaces(NamedTuple):
    """Where attention has what among its parameters."""

    first: int  # query; key and value follow
    causal: int | None
    heads: int = 1  # the axis of the heads
    passes: int = 1
    packed: tuple[int, ...] = ()  # where it has the starts of sequences that are packed into one
    window: int | None = None  # where it says how far back a position looks


def _attention(places: AttentionPlaces) -> Rule:
    def rule(shapes: Shapes) -> Cost:
        query, key, value = (shapes.tensor(places.first + i) for i in range(3))
        if not query or not key or not value or not len(query) == len(key) == len(value) == 4:
            return UNKNOWN
        if any(shapes.tensor(place) for place in places.packed):
            return UNKNOWN  # how long each sequence is, is not recorded
        along = 3 - places.heads
        moved = shapes.bytes_at(places.first, places.first, places.first + 1, places.first + 2)
        moved = times(places.passes, moved)
        mask = None if places.causal is None else shapes.value(places.causal)
        window = None if places.window is None else shapes.value(places.window)
        if (mask is None and query[along] > 1) or (type(window) is int and window >= 0):
            return Cost(bytes=moved)
        scores = query[0] * query[places.heads] * query[along] * key[along]
        # PyTorch's own kernels take True, those of xFormers a kind of mask: 0 is none.
        flops = 2 * scores * (query[3] + value[3]) // (2 if mask else 1)
        return Cost(flops=flops * places.passes, bytes=moved)

    return rule


def _recurrent(passes: int) -> Rule:
    """Return the rule of recurrent layers: every position meets every weight matrix of its layers."""

    def rule(shapes: Shapes) -> Cost:
        data = shapes.tensor(0)
        # cuDNN and MIOpen take the weights of all layers as a list, the last one; oneDNN one layer's as two.
        given = shapes.lists[-1] if shapes.lists else shapes.dims[1:3]
        weights = [dims for dims in given if dims and len(dims) == 2]
        if not data or len(data) not in (2, 3) or not weights:
            return UNKNOWN
        positions = math.prod(data[:-1])
        moved = times(math.prod(data) + sum(map(math.prod, weights)), shapes.item_size())
        flops = 2 * positions * sum(map(math.prod, weights)) * passes
        return Cost(flops=flops, bytes=times(passes, moved))

    return rule


def embedding_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading and writing the rows that are looked up, and of their indices.

    A row that is looked up twice is read once.
    """
    weight, places = shapes.tensor(0), shapes.tensor(1)
    if not weight or places is None or len(weight) != 2:
        return UNKNOWN
    count = math.prod(places)
    moved = times((count + min(count, weight[0])) * weight[1], shapes.item_size())
    return Cost(flops=0, bytes=None if moved is None else moved + 8 * count)


def _streamed(each: int, passes: int) -> Rule:
    """Return the rule of `each` FLOPs for an element that is read or written `passes` times."""

    def rule(shapes: Shapes) -> Cost:
        if not shapes.is_tensor(0) and not shapes.tensor(0):
            return UNKNOWN
        return Cost(flops=each * math.prod(shapes.tensor(0) or ()), bytes=times(passes, shapes.bytes_at(0)))

    return rule


def _elementwise(name: str) -> Rule:
    """Return the rule of one FLOP for each element of the result; every input is read, the result written."""
    in_place, plain = name.endswith("_"), name.strip("_")

    def rule(shapes: Shapes) -> Cost:
        places = shapes.tensors
        places = places[: _ARITY.get(plain, len(places))]  # one more is what the result is written to
        sizes = [dims for place in places if (dims := shapes.tensor(place)) is not None]
        if not sizes:
            return UNKNOWN
        result = math.prod(broadcast(*sizes))
        # A tensor of one element without sizes does not widen the result.
        wide = [place for place in places if shapes.tensor(place)] or places
        items = [shapes.item_bytes[place] for place in wide if place < len(shapes.item_bytes)]
        known = [item for item in items if item is not None]
        size = 1 if plain.startswith(_TRUTHS) else max(known, default=None)
        written = shapes.bytes_at(places[0]) if in_place else times(result, size)
        moved = plus(shapes.bytes_at(*places), written)
        return Cost(flops=result, bytes=moved, at_most=not shapes.strides)

    return rule


def copy_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading the source and writing the target, each at its own width.

    Without strides an expanded source looks as large as the target.
    """
    places = shapes.tensors
    if len(places) != 2:
        return UNKNOWN
    return Cost(flops=0, bytes=shapes.bytes_at(*places), at_most=not shapes.strides)


def _foreach(read: int | None, written: int) -> Rule:
    """Return the rule of an operation on lists of tensors: so many lists are read (None: all) and written."""

    def rule(shapes: Shapes) -> Cost:
        if not shapes.lists or not shapes.lists[0]:
            return UNKNOWN
        sizes = [sum(map(math.prod, tensors)) for tensors in shapes.lists]
        moved = sum(sizes if read is None else sizes[-read:] if read else ()) + sizes[0] * written
        return Cost(flops=sizes[0], bytes=times(moved, shapes.list_item))

    return rule


_SDPA = "_scaled_dot_product"
SETTINGS = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), Places(3, 4, 5, 6)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), Places(3, 4, 5)),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), Places(3, 4, 7, transposed=True)
    ),
    "cudnn_convolution": Places(3, 2, 4),
    "cudnn_convolution_transpose": Places(4, 2, 5, transposed=True),
    "cudnn_convolution_relu": Places(3, 4, 5),
    "cudnn_convolution_add_relu": Places(5, 6, 7),
    "miopen_convolution": Places(4, 3, 5),
    "miopen_depthwise_convolution": Places(4, 3, 5),
    "miopen_convolution_transpose": Places(5, 3, 6, transposed=True),
    "miopen_convolution_relu": Places(3, 4, 5),
    "miopen_convolution_add_relu": Places(5, 6, 7),
    "mkldnn_convolution": Places(4, 3, 5),
    "mkldnn::_convolution_pointwise": Places(4, 3, 5),
    "_mps_convolution": Places(4, 3, 5),
    "_nnpack_spatial_convolution": Places(4, 3),
    **dict.fromkeys(("thnn_conv2d", "_slow_conv2d_forward"), Places(4, 5)),
    **dict.fromkeys(("slow_conv3d", "slow_conv3d_forward"), Places(4, 5)),
    **dict.fromkeys(("slow_conv_dilated2d", "slow_conv_dilated3d"), Places(4, 5, 6)),
    **dict.fromkeys(("_conv_depthwise2d", "conv_depthwise3d"), Places(4, 5, 6)),
    **dict.fromkeys(("slow_conv_transpose2d", "slow_conv_transpose3d"), Places(4, 5, 7, transposed=True)),
}
ATTENTION = {
    f"{_SDPA}_flash_attention": AttentionPlaces(0, 4),
    f"{_SDPA}_flash_attention_for_cpu": AttentionPlaces(0, 4),
    f"{_SDPA}_efficient_attention": AttentionPlaces(0, 6),
    f"{_SDPA}_cudnn_attention": AttentionPlaces(0, 6),
    f"{_SDPA}_fused_attention_overrideable": AttentionPlaces(0, 5),
    "scaled_dot_product_attention": AttentionPlaces(0, 5),
    "_flash_attention_forward": AttentionPlaces(0, 8, heads=2, packed=(3, 4), window=11),
    "_efficient_attention_forward": AttentionPlaces(0, 9, heads=2, packed=(4, 5), window=13),
    "_cudnn_attention_forward": AttentionPlaces(0, 10, packed=(4, 5)),
    f"{_SDPA}_flash_attention_backward": AttentionPlaces(1, 11, passes=2, packed=(6, 7)),
    f"{_SDPA}_flash_attention_for_cpu_backward": AttentionPlaces(1, 7, passes=2),
    f"{_SDPA}_efficient_attention_backward": AttentionPlaces(1, 11, passes=2),
    f"{_SDPA}_cudnn_attention_backward": AttentionPlaces(1, 14, passes=2, packed=(9, 10)),
    f"{_SDPA}_fused_attention_overrideable_backward": AttentionPlaces(1, 13, passes=2, packed=(8, 9)),
    "_flash_attention_backward": AttentionPlaces(1, 11, heads=2, passes=2, packed=(6, 7), window=15),
    "_efficient_attention_backward": AttentionPlaces(1, 14, heads=2, passes=2, packed=(6, 7), window=18),
    "_cudnn_attention_backward": AttentionPlaces(1, 14, passes=2, packed=(9, 10)),
    "flash_attn::_flash_attn_forward": AttentionPlaces(0, 5, heads=2, window=6),
    "flash_attn::_flash_attn_backward": AttentionPlaces(1, 11, heads=2, passes=2, window=12),
}
CONVOLUTIONS = frozenset(name if "::" in name else f"aten::{name}" for name in SETTINGS)
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn")
_RECURRENT_BACKWARD = ("mkldnn_rnn_layer_backward", "_cudnn_rnn_backward", "miopen_rnn_backward")
_ONE = (
    "abs bitwise_not ceil clamp clamp_max clamp_min cos elu erf exp floor gelu hardtanh isfinite isinf isnan"
    " leaky_relu log logical_not neg reciprocal relu round rsqrt sigmoid sign silu sin sqrt square tanh"
    " threshold"
)
_TWO = (
    "add bitwise_and bitwise_or bitwise_xor div eq fmod ge gt le logical_and logical_or logical_xor lt"
    " maximum minimum mul ne pow remainder rsub sub"
)
# How many tensors an operation takes.
_ARITY = {
    name: count
    for count, names in ((1, _ONE), (2, _TWO), (3, "addcdiv addcmul lerp where"))
    for name in names.split()
}
# Comparisons make booleans, of one byte.
_TRUTHS = ("eq", "ne", "gt", "ge", "lt", "le", "logical_", "isnan", "isinf", "isfinite")
_TEMPLATES = ("triton_tem_", "triton_mm", "triton_bmm")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "_scaled_mm", "mv", "dot", "vdot"), _matmul_at(0)),
    "_int_mm": _matmul_at(0, result_size=4),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "baddbmm", "baddbmm_", "addbmm"), _matmul_at(1)),
    **dict.fromkeys(("addmv", "addmv_"), _matmul_at(1)),
    **dict.fromkeys(("linear", "mkldnn_linear", "mkldnn::_linear_pointwise"), linear_cost),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), grouped_cost),
    **{name: _convolution(places) for name, places in SETTINGS.items()},
    "convolution_backward": _convolution_backward(0, 1, mask=10, transposed=7),
    "convolution_backward_overrideable": _convolution_backward(0, 1, mask=9, transposed=6),
    **dict.fromkeys(("thnn_conv2d_backward", "_slow_conv2d_backward"), _convolution_backward(0, 1, mask=6)),
    **dict.fromkeys(
        ("cudnn_convolution_backward", "miopen_convolution_backward"),
        _convolution_backward(1, 0, mask=10),
    ),
    "mkldnn_convolution_backward": _convolution_backward(1, 0, mask=7),
    **dict.fromkeys(
        ("cudnn_convolution_backward_input", "miopen_convolution_backward_input"), one_gradient_cost
    ),
    **dict.fromkeys(
        ("cudnn_convolution_backward_weight", "miopen_convolution_backward_weight"), weight_gradient_cost
    ),
    **{name: _attention(places) for name, places in ATTENTION.items()},
    **dict.fromkeys(_RECURRENT, _recurrent(1)),
    **dict.fromkeys(_RECURRENT_BACKWARD, _recurrent(2)),
    "embedding": embedding_cost,
    "copy_": copy_cost,
    **dict.fromkeys(("fill_", "zero_"), _streamed(0, passes=1)),
    **dict.fromkeys(("_softmax", "_log_softmax"), _streamed(NORM_FLOPS_PER_ELEMENT, passes=2)),
    **dict.fromkeys(
        ("_softmax_backward_data", "_log_softmax_backward_data"),
        _streamed(NORM_FLOPS_PER_ELEMENT, passes=3),
    ),
    # Statistics are read from the data alone; the gradient's need data and gradient.
    **dict.fromkeys(("batch_norm_stats", "batch_norm_update_stats"), _streamed(3, passes=1)),
    "batch_norm_gather_stats_with_counts": _streamed(0, passes=0),
    "batch_norm_backward_reduce": _streamed(3, passes=2),
    "_foreach_zero_": _foreach(read=0, written=1),
    "_foreach_copy_": _foreach(read=1, written=1),
    "_foreach_norm": _foreach(read=None, written=0),
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), _foreach(read=None, written=3)),
    "_fused_sgd_": _foreach(read=None, written=1),
}
_CLASS_RULES: dict[WorkClass, Rule] = {
    WorkClass.NORM: _streamed(NORM_FLOPS_PER_ELEMENT, passes=2),
    WorkClass.REDUCTION: _streamed(1, passes=1),
    WorkClass.OPTIMIZER: _foreach(read=None, written=1),
}
_NORM_BACKWARD = _streamed(NORM_BACKWARD_FLOPS_PER_ELEMENT, passes=3)

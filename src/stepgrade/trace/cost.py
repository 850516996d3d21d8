"""How many FLOPs and bytes an operation takes, from the sizes of its inputs.

FLOPs are the model's: a multiply-add is two; a causal mask halves attention; attention's backward is twice
its forward, without the recomputed scores. Bytes are compulsory traffic: each input read once, each output
written once. What the sizes do not tell is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from stepgrade.trace.classify import WorkClass, classify
from stepgrade.trace.shapes import Dims, Shapes, elements

NORM_FLOPS_PER_ELEMENT = 5
NORM_BACKWARD_FLOPS_PER_ELEMENT = 8


class Cost(Struct, frozen=True, kw_only=True):
    """What one call takes; None where the sizes do not tell."""

    flops: int | None = None
    bytes: int | None = None


UNKNOWN = Cost()
Rule = Callable[[Shapes], Cost]


def op_cost(name: str, shapes: Shapes) -> Cost:
    """Return the cost of one call of the operation `name` with inputs of these sizes."""
    if not name.startswith("aten::"):
        return UNKNOWN
    rule = _RULES.get(name.removeprefix("aten::")) or _rule_of_class(name)
    return rule(shapes) if rule else UNKNOWN


def _rule_of_class(name: str) -> Rule | None:
    work_class = classify(name)
    if work_class is WorkClass.NORM and "backward" in name:
        return _norm_backward
    return _CLASS_RULES.get(work_class)


def _times(count: int | None, size: int | None) -> int | None:
    return None if count is None or size is None else count * size


def _product(left: Dims | None, right: Dims | None, size: int | None) -> Cost:
    """Return the cost of [..., m, k] @ [..., k, n]; batches broadcast."""
    if not left or not right or len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return UNKNOWN
    batch = max(math.prod(left[:-2]), math.prod(right[:-2]))
    m, k, n = left[-2], left[-1], right[-1]
    moved = elements(left) + elements(right) + batch * m * n
    return Cost(flops=2 * batch * m * k * n, bytes=_times(moved, size))


def _matmul_at(place: int) -> Rule:
    def rule(shapes: Shapes) -> Cost:
        return _product(shapes.tensor(place), shapes.tensor(place + 1), shapes.item_size())

    return rule


def _linear(shapes: Shapes) -> Cost:
    data, weight = shapes.tensor(0), shapes.tensor(1)
    if not data or not weight or len(weight) != 2:
        return UNKNOWN
    rows = (math.prod(data[:-1]), data[-1])
    return _product(rows, (weight[1], weight[0]), shapes.item_size())


def _grouped(shapes: Shapes) -> Cost:
    """Return the cost of rows that each meet one of the groups' matrices."""
    data, weight = shapes.tensor(0), shapes.tensor(1)
    if not data or not weight or len(data) != 2 or len(weight) != 3 or data[1] != weight[1]:
        return UNKNOWN
    moved = elements(data) + elements(weight) + data[0] * weight[2]
    return Cost(flops=2 * data[0] * data[1] * weight[2], bytes=_times(moved, shapes.item_size()))


def _convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> Rule:
    """Return the rule of a convolution whose settings stand at these places."""

    def rule(shapes: Shapes) -> Cost:
        data, weight = shapes.tensor(0), shapes.tensor(1)
        settings = [shapes.value(place) for place in (stride, padding, dilation)]
        turned = transposed is not None and shapes.value(transposed)
        if not data or not weight or turned or not all(_is_sizes(one) for one in settings):
            return UNKNOWN
        return _convolved(data, weight, _output_sizes(data, weight, settings), shapes.item_size())

    return rule


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _output_sizes(data: Dims, weight: Dims, settings: list[list[int]]) -> Dims:
    spatial = len(weight) - 2
    stride, padding, dilation = ((one * spatial)[:spatial] for one in settings)
    return tuple(
        (data[2 + i] + 2 * padding[i] - dilation[i] * (weight[2 + i] - 1) - 1) // max(stride[i], 1) + 1
        for i in range(min(spatial, len(data) - 2))
    )


def _convolved(data: Dims, weight: Dims, output: Dims, size: int | None) -> Cost:
    positions = data[0] * weight[0] * math.prod(output)
    moved = elements(data) + elements(weight) + positions
    return Cost(flops=2 * positions * math.prod(weight[1:]), bytes=_times(moved, size))


def _convolution_backward(shapes: Shapes) -> Cost:
    """Return the cost of the gradients that the output mask asks for (data, weight)."""
    grad, data, weight = shapes.tensor(0), shapes.tensor(1), shapes.tensor(2)
    if not grad or not data or not weight:
        return UNKNOWN
    mask = shapes.value(10)
    wanted = [bool(one) for one in mask[:2]] if isinstance(mask, list) and len(mask) == 3 else [True, True]
    once = 2 * elements(grad) * math.prod(weight[1:])
    moved = elements(grad) * sum(wanted) + 2 * sum(
        elements(one) for one, asked in ((data, wanted[0]), (weight, wanted[1])) if asked
    )
    return Cost(flops=once * sum(wanted), bytes=_times(moved, shapes.item_size()))


def _attention(first: int, causal: int | None, *, heads_at: int, passes: int) -> Rule:
    """Return the rule of attention: query, key and value from place `first`, heads on axis `heads_at`."""

    def rule(shapes: Shapes) -> Cost:
        query, key, value = (shapes.tensor(first + i) for i in range(3))
        if not query or not key or not value or not len(query) == len(key) == len(value) == 4:
            return UNKNOWN
        along = 3 - heads_at
        scores = query[0] * query[heads_at] * query[along] * key[along]
        masked = causal is not None and shapes.value(causal) is True
        flops = 2 * scores * (query[3] + value[3]) // (2 if masked else 1)
        moved = 2 * elements(query) + elements(key) + elements(value)
        return Cost(flops=flops * passes, bytes=_times(moved * passes, shapes.item_size()))

    return rule


def _embedding(shapes: Shapes) -> Cost:
    weight, places = shapes.tensor(0), shapes.tensor(1)
    if not weight or places is None or len(weight) != 2:
        return UNKNOWN
    moved = _times(2 * elements(places) * weight[1], shapes.item_size())
    return Cost(flops=0, bytes=None if moved is None else moved + 8 * elements(places))


def _norm(shapes: Shapes) -> Cost:
    return _streamed(shapes, NORM_FLOPS_PER_ELEMENT, passes=2)


def _norm_backward(shapes: Shapes) -> Cost:
    return _streamed(shapes, NORM_BACKWARD_FLOPS_PER_ELEMENT, passes=3)


def _streamed(shapes: Shapes, each: int, *, passes: int) -> Cost:
    """Return the cost of so many FLOPs for each element, which goes through memory so many times."""
    data = shapes.tensor(0)
    if not data:
        return UNKNOWN
    return Cost(flops=each * elements(data), bytes=_times(passes * elements(data), shapes.item_size()))


def _elementwise(shapes: Shapes) -> Cost:
    """Return one FLOP for each element of the result; every input is read, the result is written."""
    tensors = [one for one in shapes.dims if one]
    if not tensors:
        return UNKNOWN
    result = max(map(elements, tensors))
    moved = sum(map(elements, tensors)) + result
    return Cost(flops=result, bytes=_times(moved, shapes.item_size()))


def _copy(shapes: Shapes) -> Cost:
    """Return the traffic of reading the source and writing the target, each at its own width."""
    pairs = [(d, s) for d, s in zip(shapes.dims, shapes.item_bytes, strict=False) if d]
    if len(pairs) != 2 or None in (pairs[0][1], pairs[1][1]):
        return UNKNOWN
    return Cost(flops=0, bytes=sum(elements(dims) * (size or 0) for dims, size in pairs))


def _reduction(shapes: Shapes) -> Cost:
    data = shapes.tensor(0)
    return Cost(flops=elements(data), bytes=_times(elements(data), shapes.item_size())) if data else UNKNOWN


def _foreach(shapes: Shapes) -> Cost:
    """Return the cost of an operation on lists of tensors: each is read, the first list is written."""
    if not shapes.lists or not shapes.lists[0]:
        return UNKNOWN
    first = sum(map(elements, shapes.lists[0]))
    read = sum(elements(one) for group in shapes.lists for one in group)
    return Cost(flops=first, bytes=_times(read + first, next((s for s in shapes.item_bytes if s), None)))


_SDPA = "_scaled_dot_product"
_RULES: dict[str, Rule] = {
    "mm": _matmul_at(0),
    "bmm": _matmul_at(0),
    "matmul": _matmul_at(0),
    "_scaled_mm": _matmul_at(0),
    "_int_mm": _matmul_at(0),
    "addmm": _matmul_at(1),
    "addmm_": _matmul_at(1),
    "_addmm_activation": _matmul_at(1),
    "baddbmm": _matmul_at(1),
    "addbmm": _matmul_at(1),
    "linear": _linear,
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "convolution": _convolution(3, 4, 5, transposed=6),
    "_convolution": _convolution(3, 4, 5, transposed=6),
    "conv1d": _convolution(3, 4, 5),
    "conv2d": _convolution(3, 4, 5),
    "conv3d": _convolution(3, 4, 5),
    "cudnn_convolution": _convolution(3, 2, 4),
    "miopen_convolution": _convolution(4, 3, 5),
    "mkldnn_convolution": _convolution(4, 3, 5),
    "convolution_backward": _convolution_backward,
    f"{_SDPA}_flash_attention": _attention(0, 4, heads_at=1, passes=1),
    f"{_SDPA}_flash_attention_for_cpu": _attention(0, 4, heads_at=1, passes=1),
    f"{_SDPA}_efficient_attention": _attention(0, 6, heads_at=1, passes=1),
    f"{_SDPA}_cudnn_attention": _attention(0, 6, heads_at=1, passes=1),
    "scaled_dot_product_attention": _attention(0, 5, heads_at=1, passes=1),
    "_flash_attention_forward": _attention(0, 8, heads_at=2, passes=1),
    "_efficient_attention_forward": _attention(0, None, heads_at=2, passes=1),
    f"{_SDPA}_flash_attention_backward": _attention(1, 10, heads_at=1, passes=2),
    f"{_SDPA}_flash_attention_for_cpu_backward": _attention(1, 7, heads_at=1, passes=2),
    f"{_SDPA}_efficient_attention_backward": _attention(1, 10, heads_at=1, passes=2),
    f"{_SDPA}_cudnn_attention_backward": _attention(1, 13, heads_at=1, passes=2),
    "_flash_attention_backward": _attention(1, 11, heads_at=2, passes=2),
    "embedding": _embedding,
    "copy_": _copy,
}
_CLASS_RULES: dict[WorkClass, Rule] = {
    WorkClass.NORM: _norm,
    WorkClass.ELEMENTWISE: _elementwise,
    WorkClass.REDUCTION: _reduction,
    WorkClass.OPTIMIZER: _foreach,
}

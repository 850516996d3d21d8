"""How many FLOPs and bytes an operation takes, from the recorded sizes of its inputs.

FLOPs are the model's: a multiply-add is two; a causal mask halves attention; attention's backward is twice
its forward, without the recomputed scores. Bytes are compulsory traffic: each input read once, each output
written once. What the sizes do not tell is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from stepgrade.model.events import Inputs
from stepgrade.naming.work_class import WorkClass, classify

NORM_FLOPS_PER_ELEMENT = 5
NORM_BACKWARD_FLOPS_PER_ELEMENT = 8
# What decoding a stranger's text may raise: no JSON, no UTF-8, nested too deep.
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
Dims = tuple[int, ...]
_ITEM_BYTES = {
    name: size
    for size, names in (
        (1, ("bool", "signed char", "unsigned char", "c10::float8_e4m3fn", "c10::float8_e5m2")),
        (1, ("c10::float8_e4m3fnuz", "c10::float8_e5m2fnuz")),
        (2, ("c10::bfloat16", "c10::half", "bfloat16", "half", "short", "short int")),
        (4, ("float", "int")),
        (8, ("double", "long", "long int", "c10::complex<float>")),
        (16, ("c10::complex<double>",)),
    )
    for name in names
}


class Shapes(NamedTuple):
    """The decoded inputs of an operation, in the order of its parameters."""

    dims: tuple[Dims | None, ...]  # None: not a tensor, or a list of tensors
    lists: tuple[tuple[Dims, ...], ...]  # lists of tensors, in order
    item_bytes: tuple[int | None, ...]
    concrete: tuple[Any, ...]

    def tensor(self, place: int) -> Dims | None:
        """Return the sizes of the tensor at `place`; None if it is none or is not known."""
        return self.dims[place] if place < len(self.dims) else None

    def value(self, place: int) -> Any:
        """Return the plain value at `place`, None if it was not recorded."""
        return self.concrete[place] if place < len(self.concrete) else None

    def item_size(self) -> int | None:
        """Return the bytes of an element of the first tensor whose type is known."""
        sizes = zip(self.dims, self.item_bytes, strict=False)
        return next((size for dims, size in sizes if dims and size), None)


def decode_shapes(inputs: Inputs) -> Shapes | None:
    """Return the decoded inputs, None if they do not have the form PyTorch writes."""
    try:
        dims = msgspec.json.decode(inputs.dims)
        types = msgspec.json.decode(inputs.types)
        concrete = msgspec.json.decode(inputs.concrete)
    except UNREADABLE:
        return None
    if not all(isinstance(part, list) for part in (dims, types, concrete)):
        return None
    nested = [part for part in dims if isinstance(part, list) and part and isinstance(part[0], list)]
    return Shapes(
        dims=tuple(_decode_dims(part) for part in dims),
        lists=tuple(tuple(d for d in map(_decode_dims, part) if d is not None) for part in nested),
        item_bytes=tuple(_ITEM_BYTES.get(str(name).lower()) for name in types),
        concrete=tuple(_decode_value(text) for text in concrete),
    )


def _decode_dims(sizes: Any) -> Dims | None:
    if not isinstance(sizes, list) or not all(type(size) is int and 0 <= size < 2**40 for size in sizes):
        return None
    return tuple(sizes)


def _decode_value(text: Any) -> Any:
    """Return numbers, booleans and lists of them; None for everything else."""
    if not isinstance(text, str):
        return text if isinstance(text, int | float) else None
    plain = text.replace("True", "true").replace("False", "false")
    try:
        return msgspec.json.decode(plain) if len(plain) < 200 else None
    except UNREADABLE:
        return None


class Cost(Struct, frozen=True, kw_only=True):
    """The cost of one call; None where the sizes do not tell."""

    flops: int | None = None
    bytes: int | None = None


UNKNOWN = Cost()
Rule = Callable[[Shapes], Cost]


def cost_of(name: str, inputs: Inputs) -> Cost:
    """Return the cost of one call of the operation with these recorded inputs."""
    shapes = decode_shapes(inputs)
    if shapes is None or not name.startswith("aten::"):
        return UNKNOWN
    rule = _RULES.get(name.removeprefix("aten::"))
    if rule is None:
        work_class = classify(name)
        is_norm_backward = work_class is WorkClass.NORM and "backward" in name
        rule = _NORM_BACKWARD if is_norm_backward else _CLASS_RULES.get(work_class)
    return rule(shapes) if rule else UNKNOWN


def _times(count: int, size: int | None) -> int | None:
    return None if size is None else count * size


def _product(left: Dims | None, right: Dims | None, size: int | None) -> Cost:
    """Return the cost of [..., m, k] @ [..., k, n]; batches broadcast."""
    if not left or not right or len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
        return UNKNOWN
    batch = max(math.prod(left[:-2]), math.prod(right[:-2]))
    m, k, n = left[-2], left[-1], right[-1]
    moved = math.prod(left) + math.prod(right) + batch * m * n
    return Cost(flops=2 * batch * m * k * n, bytes=_times(moved, size))


def _matmul_at(place: int) -> Rule:
    def rule(shapes: Shapes) -> Cost:
        return _product(shapes.tensor(place), shapes.tensor(place + 1), shapes.item_size())

    return rule


def linear_cost(shapes: Shapes) -> Cost:
    """Return the cost of [..., k] @ [n, k] transposed."""
    data, weight = shapes.tensor(0), shapes.tensor(1)
    if not data or not weight or len(weight) != 2:
        return UNKNOWN
    rows = (math.prod(data[:-1]), data[-1])
    return _product(rows, (weight[1], weight[0]), shapes.item_size())


def grouped_cost(shapes: Shapes) -> Cost:
    """Return the cost of rows that are each multiplied by the matrix of their group."""
    data, weight = shapes.tensor(0), shapes.tensor(1)
    if not data or not weight or len(data) != 2 or len(weight) != 3 or data[1] != weight[1]:
        return UNKNOWN
    moved = math.prod(data) + math.prod(weight) + data[0] * weight[2]
    return Cost(flops=2 * data[0] * data[1] * weight[2], bytes=_times(moved, shapes.item_size()))


def _convolution(stride: int, padding: int, dilation: int, transposed: int | None = None) -> Rule:
    """Return the rule of a convolution whose settings are at these places."""

    def rule(shapes: Shapes) -> Cost:
        data, weight = shapes.tensor(0), shapes.tensor(1)
        settings = [shapes.value(place) for place in (stride, padding, dilation)]
        known = all(isinstance(sizes, list) and sizes for sizes in settings)
        known = known and all(type(size) is int for sizes in settings for size in sizes)
        if not data or not weight or not known or (transposed is not None and shapes.value(transposed)):
            return UNKNOWN
        spatial = len(weight) - 2
        steps, pads, spreads = ((setting * spatial)[:spatial] for setting in settings)
        output = [
            (data[2 + i] + 2 * pads[i] - spreads[i] * (weight[2 + i] - 1) - 1) // max(steps[i], 1) + 1
            for i in range(min(spatial, len(data) - 2))
        ]
        positions = data[0] * weight[0] * math.prod(output)
        moved = math.prod(data) + math.prod(weight) + positions
        flops = 2 * positions * math.prod(weight[1:])
        return Cost(flops=flops, bytes=_times(moved, shapes.item_size()))

    return rule


def convolution_backward_cost(shapes: Shapes) -> Cost:
    """Return the cost of the gradients that the output mask asks for (data, weight)."""
    grad, data, weight = shapes.tensor(0), shapes.tensor(1), shapes.tensor(2)
    if not grad or not data or not weight:
        return UNKNOWN
    mask = shapes.value(10)
    wanted = [*map(bool, mask[:2])] if isinstance(mask, list) and len(mask) == 3 else [True, True]
    once = 2 * math.prod(grad) * math.prod(weight[1:])
    moved = math.prod(grad) * sum(wanted) + 2 * sum(
        math.prod(dims) for dims, asked in zip((data, weight), wanted, strict=True) if asked
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
        moved = 2 * math.prod(query) + math.prod(key) + math.prod(value)
        return Cost(flops=flops * passes, bytes=_times(moved * passes, shapes.item_size()))

    return rule


def embedding_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading and writing the rows that are looked up, and of their indices."""
    weight, places = shapes.tensor(0), shapes.tensor(1)
    if not weight or places is None or len(weight) != 2:
        return UNKNOWN
    moved = _times(2 * math.prod(places) * weight[1], shapes.item_size())
    return Cost(flops=0, bytes=None if moved is None else moved + 8 * math.prod(places))


def _streamed(each: int, passes: int) -> Rule:
    """Return the rule of `each` FLOPs for an element that is read or written `passes` times."""

    def rule(shapes: Shapes) -> Cost:
        data = shapes.tensor(0)
        if not data:
            return UNKNOWN
        size = math.prod(data)
        return Cost(flops=each * size, bytes=_times(passes * size, shapes.item_size()))

    return rule


def elementwise_cost(shapes: Shapes) -> Cost:
    """Return one FLOP for each element of the result; every input is read, the result is written."""
    sizes = [math.prod(dims) for dims in shapes.dims if dims]
    if not sizes:
        return UNKNOWN
    result = max(sizes)
    moved = sum(sizes) + result
    return Cost(flops=result, bytes=_times(moved, shapes.item_size()))


def copy_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading the source and writing the target, each at its own width."""
    pairs = [(d, s) for d, s in zip(shapes.dims, shapes.item_bytes, strict=False) if d]
    if len(pairs) != 2 or None in (pairs[0][1], pairs[1][1]):
        return UNKNOWN
    return Cost(flops=0, bytes=sum(math.prod(dims) * (size or 0) for dims, size in pairs))


def foreach_cost(shapes: Shapes) -> Cost:
    """Return the cost of an operation on lists of tensors: each is read, the first list is written."""
    if not shapes.lists or not shapes.lists[0]:
        return UNKNOWN
    first = sum(map(math.prod, shapes.lists[0]))
    read = sum(math.prod(dims) for tensors in shapes.lists for dims in tensors)
    return Cost(flops=first, bytes=_times(read + first, next((s for s in shapes.item_bytes if s), None)))


_SDPA = "_scaled_dot_product"
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm", "matmul", "_scaled_mm", "_int_mm"), _matmul_at(0)),
    **dict.fromkeys(("addmm", "addmm_", "_addmm_activation", "baddbmm", "addbmm"), _matmul_at(1)),
    "linear": linear_cost,
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm"), grouped_cost),
    **dict.fromkeys(("convolution", "_convolution"), _convolution(3, 4, 5, transposed=6)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution(3, 4, 5)),
    **dict.fromkeys(("miopen_convolution", "mkldnn_convolution"), _convolution(4, 3, 5)),
    "cudnn_convolution": _convolution(3, 2, 4),
    "convolution_backward": convolution_backward_cost,
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
    "embedding": embedding_cost,
    "copy_": copy_cost,
}
_CLASS_RULES: dict[WorkClass, Rule] = {
    WorkClass.NORM: _streamed(NORM_FLOPS_PER_ELEMENT, passes=2),
    WorkClass.ELEMENTWISE: elementwise_cost,
    WorkClass.REDUCTION: _streamed(1, passes=1),
    WorkClass.OPTIMIZER: foreach_cost,
}
_NORM_BACKWARD = _streamed(NORM_BACKWARD_FLOPS_PER_ELEMENT, passes=3)

"""Bytes of PyTorch's operations that move and pick data: indexing, sorting, pooling, dropout, losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from stepgrade.costs.recorded_inputs import UNKNOWN, Cost, Dims, Rule, Shapes, plus, times

INDEX_BYTES = 8


def each_once(*written_again: int) -> Rule:
    """Return the rule of reading or writing every tensor once, those at these places twice."""

    def rule(shapes: Shapes) -> Cost:
        if not shapes.tensors:
            return UNKNOWN
        return Cost(flops=0, bytes=shapes.bytes_at(*shapes.tensors, *written_again))

    return rule


def passes_over(place: int, passes: int, result_item: int | None = None) -> Rule:
    """Return the rule of going over one tensor so many times, and writing a result of another width."""

    def rule(shapes: Shapes) -> Cost:
        if not shapes.is_tensor(place):
            return UNKNOWN
        moved = times(passes, shapes.bytes_at(place))
        return Cost(flops=0, bytes=plus(moved, shapes.elements(place) * (result_item or 0)))

    return rule


def _at(shapes: Shapes, place: int) -> int | None:
    """Return the bytes of an element of the tensor at `place`."""
    return shapes.item_bytes[place] if place < len(shapes.item_bytes) else None


def cat_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading a list of tensors and writing them as one."""
    if not shapes.lists:
        return UNKNOWN
    return Cost(flops=0, bytes=times(2 * sum(map(math.prod, shapes.lists[0])), shapes.list_item))


def index_select_cost(shapes: Shapes) -> Cost:
    """Return the traffic of picking slices along one dimension: read, written, and their indices."""
    data, index, along = shapes.tensor(0), shapes.tensor(2), shapes.value(1)
    if not data or index is None or type(along) is not int or not -len(data) <= along < len(data):
        return UNKNOWN
    count = math.prod(index)
    made = math.prod(data) // max(data[along], 1) * count
    return Cost(flops=0, bytes=plus(times(2 * made, _at(shapes, 0)), INDEX_BYTES * count))


def _picked(index: int, moves: int) -> Rule:
    """Return the rule of one element for each index, moved so many times."""

    def rule(shapes: Shapes) -> Cost:
        if not shapes.is_tensor(index):
            return UNKNOWN
        count = math.prod(shapes.tensor(index) or ())
        return Cost(flops=0, bytes=plus(times(moves * count, _at(shapes, 0)), INDEX_BYTES * count))

    return rule


def index_put_cost(shapes: Shapes) -> Cost:
    """Return the traffic of writing values to picked places; where they are added, those are read too."""
    if not shapes.is_tensor(2):
        return UNKNOWN
    adds = shapes.value(3) is True
    written = times(math.prod(shapes.tensor(2) or ()), _at(shapes, 0))
    return Cost(flops=0, bytes=plus(shapes.bytes_at(2), times(2 if adds else 1, written)))


def index_cost(shapes: Shapes) -> Cost:
    """Return the traffic of picking elements by lists of indices, where these were recorded."""
    data = shapes.tensor(0)
    if not data or not shapes.lists or len(shapes.lists[0]) > len(data):
        return UNKNOWN
    picked = max(map(math.prod, shapes.lists[0]), default=0)
    made = picked * math.prod(data[len(shapes.lists[0]) :])
    return Cost(flops=0, bytes=plus(times(2 * made, _at(shapes, 0)), INDEX_BYTES * picked))


def sort_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading the data and writing it in order, with where each came from."""
    if not shapes.is_tensor(0):
        return UNKNOWN
    return Cost(flops=0, bytes=plus(times(2, shapes.bytes_at(0)), INDEX_BYTES * shapes.elements(0)))


def topk_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading the data and writing the largest with their places."""
    data, count = shapes.tensor(0), shapes.value(1)
    if not data or type(count) is not int or count < 0:
        return UNKNOWN
    made = math.prod(data[:-1]) * count
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0), times(made, _at(shapes, 0)), INDEX_BYTES * made))


def nonzero_cost(shapes: Shapes) -> Cost:
    """Return the traffic of reading a mask and writing the places of what holds: at most all of them."""
    data = shapes.tensor(0)
    if not data:
        return UNKNOWN
    most = INDEX_BYTES * len(data) * math.prod(data)
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0), most), at_most=True)


def _window(sizes: Dims, shapes: Shapes, places: Sequence[int | None]) -> Dims | None:
    """Return the spatial sizes after a window (kernel, stride, padding, dilation) has gone over them."""
    given: list[Any] = [None if place is None else shapes.value(place) for place in places]
    settings = [given[0], given[1] or given[0], given[2] or [0], given[3] or [1]]
    if not all(isinstance(part, list) and part and all(type(n) is int for n in part) for part in settings):
        return None
    count = len(sizes)
    kernels, strides, pads, spreads = ([*part, *part, *part][:count] for part in settings)
    return tuple(
        max(0, sizes[i] + 2 * pads[i] - spreads[i] * (kernels[i] - 1) - 1) // max(strides[i], 1) + 1
        for i in range(count)
    )


def _pool(spatial: int, *, with_indices: bool) -> Rule:
    def rule(shapes: Shapes) -> Cost:
        data, item = shapes.tensor(0), _at(shapes, 0)
        if not data or len(data) <= spatial or item is None:
            return UNKNOWN
        result = _window(data[-spatial:], shapes, (1, 2, 3, 4 if with_indices else None))
        if result is None:
            return UNKNOWN
        made = math.prod(data[:-spatial]) * math.prod(result)
        written = made * (item + (INDEX_BYTES if with_indices else 0))
        return Cost(flops=math.prod(data), bytes=plus(shapes.bytes_at(0), written))

    return rule


def _resized(shapes: Shapes) -> Cost:
    """Return the traffic of reading an image and writing one of another size."""
    data, size = shapes.tensor(0), shapes.value(1)
    if (
        not data
        or not isinstance(size, list)
        or not all(type(n) is int for n in size)
        or len(size) >= len(data)
    ):
        return UNKNOWN
    made = math.prod(data[: -len(size)]) * math.prod(size)
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0), times(made, _at(shapes, 0))))


def embedding_backward_cost(shapes: Shapes) -> Cost:
    """Return the traffic of a table's gradient: gradients and indices are read, the table is written."""
    grad, rows = shapes.tensor(0), shapes.value(2)
    if not grad or type(rows) is not int:
        return UNKNOWN
    count = math.prod(grad[:-1])
    table = times(rows * grad[-1], _at(shapes, 0))
    return Cost(flops=math.prod(grad), bytes=plus(shapes.bytes_at(0), table, INDEX_BYTES * count))


def embedding_bag_cost(shapes: Shapes) -> Cost:
    """Return the traffic of adding up rows in bags: at most one row for each index, and one for each bag."""
    table, index, bags = shapes.tensor(0), shapes.tensor(1), shapes.tensor(2)
    if not table or len(table) != 2 or not index or bags is None:
        return UNKNOWN
    count = math.prod(index)
    rows = min(count, table[0]) + (math.prod(bags) if bags else count)
    moved = plus(times(rows * table[1], _at(shapes, 0)), INDEX_BYTES * count)
    return Cost(flops=count * table[1], bytes=moved, at_most=True)


def nll_loss_cost(shapes: Shapes) -> Cost:
    """Return the traffic of picking one element of each row."""
    rows = shapes.tensor(1)
    if rows is None:
        return UNKNOWN
    count = math.prod(rows)
    return Cost(flops=count, bytes=plus(times(count, _at(shapes, 0)), INDEX_BYTES * count))


def _loss(reads: tuple[int, ...], written: int | None = None) -> Rule:
    """Return the rule of a loss over tensors at these places, with a gradient as large as the one written."""

    def rule(shapes: Shapes) -> Cost:
        if not shapes.is_tensor(reads[0]):
            return UNKNOWN
        made = 0 if written is None else shapes.bytes_at(written)
        return Cost(flops=shapes.elements(reads[0]), bytes=plus(shapes.bytes_at(*reads), made))

    return rule


_LOSSES = (
    "mse_loss smooth_l1_loss huber_loss l1_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div"
)
MOVING: dict[str, Rule] = {
    **dict.fromkeys(("cat", "_cat"), cat_cost),
    "index_select": index_select_cost,
    **dict.fromkeys(("index", "_unsafe_index"), index_cost),
    "_index_put_impl_": index_put_cost,
    "gather": _picked(2, 2),
    **dict.fromkeys(("scatter", "scatter_"), _picked(2, 2)),
    **dict.fromkeys(("scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"), _picked(2, 3)),
    "sort": sort_cost,
    "topk": topk_cost,
    "nonzero": nonzero_cost,
    **dict.fromkeys(("cumsum", "cumsum_", "cumprod", "logcumsumexp"), passes_over(0, 2)),
    **dict.fromkeys(("flip", "roll", "tril", "triu", "tril_", "triu_"), passes_over(0, 2)),
    "max_pool2d_with_indices": _pool(2, with_indices=True),
    "max_pool3d_with_indices": _pool(3, with_indices=True),
    "avg_pool2d": _pool(2, with_indices=False),
    "avg_pool3d": _pool(3, with_indices=False),
    # The gradient of the input is as large as the input, the second.
    **dict.fromkeys(
        (
            f"{kind}_pool{n}d{which}_backward"
            for n in (2, 3)
            for kind, which in (("max", "_with_indices"), ("avg", ""))
        ),
        each_once(),
    ),
    **dict.fromkeys(
        ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "upsample_nearest2d", "upsample_bilinear2d"),
        _resized,
    ),
    **dict.fromkeys(("upsample_bicubic2d", "upsample_nearest3d", "upsample_trilinear3d"), _resized),
    **dict.fromkeys(("native_dropout", "_fused_dropout"), passes_over(0, 2, result_item=1)),
    "native_dropout_backward": each_once(0),
    **dict.fromkeys(("bernoulli_", "normal_", "uniform_", "random_", "exponential_"), passes_over(0, 1)),
    "embedding_dense_backward": embedding_backward_cost,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), embedding_bag_cost),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), nll_loss_cost),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), passes_over(1, 1)),
    **{name: _loss((0, 1)) for name in _LOSSES.split()},
    **{f"{name}_backward": _loss((1, 2), 1) for name in _LOSSES.split()},
    "_local_scalar_dense": each_once(),
    "masked_fill_": each_once(0),
    **dict.fromkeys(("bincount", "histc", "isin"), passes_over(0, 1)),
}

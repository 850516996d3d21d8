"""Patterns of cost: how FLOPs and bytes follow from the sizes of an operation's inputs.

A pattern takes the indices of parameters and is a rule then: `matmul(0, 1)` gives the cost of any operation
that multiplies its first two inputs. FLOPs are the model's: a multiply-add is two; a causal mask halves
attention; attention's backward is twice its forward, without the recomputed scores. Bytes are compulsory
traffic: each input read once, each output written once, an element repeated by broadcasting once. What the
sizes do not determine is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from msgspec import Struct

from stepgrade.costs.recorded_inputs import Cost, Dims, NotRecorded, Rule, Shapes, plus, require, times

INDEX_BYTES = 8
P = ParamSpec("P")


def pattern(function: Callable[Concatenate[Shapes, P], Cost]) -> Callable[P, Rule]:
    """Turn a function of shapes and settings into one of settings that returns a rule."""
    return lambda *args, **settings: lambda shapes: function(shapes, *args, **settings)


# Traffic


@pattern
def each_once(shapes: Shapes, *written_again: int) -> Cost:
    """Read or write every tensor once, those at these indices twice."""
    require(shapes.tensors)
    return Cost(flops=0, bytes=shapes.bytes_at(*shapes.tensors, *written_again))


@pattern
def pass_over(shapes: Shapes, index: int, passes: int, result_item: int = 0) -> Cost:
    """Go over one tensor so many times, and write a result with elements of another width."""
    require(shapes.is_tensor(index))
    moved = times(passes, shapes.bytes_at(index))
    return Cost(flops=0, bytes=plus(moved, shapes.elements(index) * result_item))


@pattern
def streamed(shapes: Shapes, flops: int, passes: int) -> Cost:
    """Do `flops` for each element of the first tensor, and go over it `passes` times."""
    require(shapes.is_tensor(0))
    return Cost(flops=flops * math.prod(shapes.tensor(0) or ()), bytes=times(passes, shapes.bytes_at(0)))


@pattern
def copy(shapes: Shapes) -> Cost:
    """Read the source and write the target; without strides an expanded source looks as large."""
    require(len(shapes.tensors) == 2)
    return Cost(flops=0, bytes=shapes.bytes_at(*shapes.tensors), at_most=not shapes.strides)


@pattern
def foreach(shapes: Shapes, read: int | None, written: int) -> Cost:
    """Read so many lists of tensors (None: all) and write so many."""
    require(shapes.lists and shapes.lists[0])
    sizes = [sum(map(math.prod, tensors)) for tensors in shapes.lists]
    moved = sum(sizes if read is None else sizes[-read:] if read else ()) + sizes[0] * written
    return Cost(flops=sizes[0], bytes=times(moved, shapes.list_item))


@pattern
def concatenated(shapes: Shapes) -> Cost:
    """Read a list of tensors and write them as one."""
    require(shapes.lists)
    return Cost(flops=0, bytes=times(2 * sum(map(math.prod, shapes.lists[0])), shapes.list_item))


@pattern
def elementwise(shapes: Shapes, arity: int | None, *, in_place: bool, to_bool: bool) -> Cost:
    """Do one FLOP for each element of the result; read every input, write the result."""
    inputs = shapes.tensors[:arity]  # one more is what the result is written to
    sizes = [dims for index in inputs if (dims := shapes.tensor(index)) is not None]
    require(sizes)
    result = math.prod(broadcast(*sizes))
    # A tensor of one element without sizes does not widen the result.
    wide = [index for index in inputs if shapes.tensor(index)] or inputs
    item = 1 if to_bool else max((item for index in wide if (item := shapes.item(index))), default=None)
    written = shapes.bytes_at(inputs[0]) if in_place else times(result, item)
    return Cost(flops=result, bytes=plus(shapes.bytes_at(*inputs), written), at_most=not shapes.strides)


def broadcast(*shapes: Dims) -> Dims:
    """Return the sizes of the result of an element-wise operation; those of the largest if none fit."""
    longest = max(map(len, shapes), default=0)
    padded = [(1,) * (longest - len(dims)) + dims for dims in shapes]
    result = tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))
    fits = all(size in (1, whole) for dims in padded for size, whole in zip(dims, result, strict=True))
    return result if fits else max(shapes, key=math.prod)


# Products


def product(shapes: Shapes, made: int, inner: int, factors: tuple[int, ...], item: int | None) -> Cost:
    """Return the cost of `made` elements of `item` bytes, each a sum of `inner` products."""
    return Cost(flops=2 * made * inner, bytes=plus(shapes.bytes_at(*factors), times(made, item)))


@pattern
def matmul(shapes: Shapes, left: int, right: int, result_item: int | None = None) -> Cost:
    """Multiply [..., m, k] by [..., k, n]; batches broadcast."""
    rows, columns = shapes.need(left), shapes.need(right)
    rows = rows if len(rows) > 1 else (1, *rows)
    columns = columns if len(columns) > 1 else (*columns, 1)
    require(rows[-1] == columns[-2])
    made = math.prod(broadcast(rows[:-2], columns[:-2])) * rows[-2] * columns[-1]
    return product(shapes, made, rows[-1], (left, right), result_item or shapes.item_size())


@pattern
def linear(shapes: Shapes, data: int, weight: int, result_item: int | None = None) -> Cost:
    """Multiply [..., k] by [n, k] transposed."""
    given, matrix = shapes.need(data), shapes.need(weight)
    require(len(matrix) == 2 and given[-1] == matrix[1])
    made = math.prod(given[:-1]) * matrix[0]
    return product(shapes, made, given[-1], (data, weight), result_item or shapes.item(data))


@pattern
def linear_with_loss(shapes: Shapes) -> Cost:
    """Work out logits and both gradients of Liger's last layer with its loss."""
    data, weight = shapes.tensor(0), shapes.tensor(1)
    flops = None
    if data and weight and len(weight) == 2 and data[-1] == weight[1]:
        flops = 3 * 2 * math.prod(data) * weight[0]
    return Cost(flops=flops, bytes=times(3, shapes.bytes_at(0, 1)))


@pattern
def grouped_matmul(shapes: Shapes) -> Cost:
    """Multiply each row by the matrix of its group.

    Groups may divide the rows, the columns, or (for the gradient of the weights) what is summed over.
    """
    left, right = shapes.need(0), shapes.need(1)
    require(len(left) in (2, 3) and len(right) in (2, 3) and left[-1] == right[-2])
    batch = left[0] if len(left) == len(right) == 3 else 1
    return product(shapes, batch * left[-2] * right[-1], left[-1], (0, 1), shapes.item_size())


@pattern
def product_into(shapes: Shapes, left: int, right: int, result: int) -> Cost:
    """Multiply into a result that is among the parameters, whichever factor is transposed.

    (m k)(k n) / (m n) is the square of what is summed over.
    """
    require(shapes.need(left) and shapes.need(right) and shapes.need(result))
    both, made = shapes.elements(left) * shapes.elements(right), shapes.elements(result)
    require(made)
    inner = math.isqrt(both // made)
    require(inner * inner * made == both)
    return Cost(flops=2 * made * inner, bytes=shapes.bytes_at(left, right, result))


@pattern
def linear_4bit(shapes: Shapes, data: int, packed: int) -> Cost:
    """Multiply by weights of four bits, two to a byte."""
    given, weights = shapes.need(data), shapes.elements(packed) * 2
    require(given[-1] and weights and weights % given[-1] == 0)
    made = math.prod(given[:-1]) * (weights // given[-1])
    return product(shapes, made, given[-1], (data, packed), shapes.item(data))


@pattern
def linear_int4(shapes: Shapes) -> Cost:
    """Multiply by PyTorch's packed four bits, whose scales have as many columns as the result."""
    given, scales = shapes.need(0), shapes.need(3)
    require(len(scales) == 3)
    return product(shapes, math.prod(given[:-1]) * scales[1], given[-1], (0, 1, 3), shapes.item(0))


@pattern
def recurrent(shapes: Shapes, passes: int) -> Cost:
    """Multiply every position by every weight matrix of its recurrent layers."""
    data = shapes.need(0)
    # cuDNN and MIOpen take the weights of all layers as a list, the last one; oneDNN one layer's as two.
    given = shapes.lists[-1] if shapes.lists else shapes.dims[1:3]
    weights = sum(math.prod(dims) for dims in given if dims and len(dims) == 2)
    require(len(data) in (2, 3) and any(dims and len(dims) == 2 for dims in given))
    moved = times(math.prod(data) + weights, shapes.item_size())
    return Cost(flops=2 * math.prod(data[:-1]) * weights * passes, bytes=times(passes, moved))


@pattern
def experts(shapes: Shapes, data: int, up: int, down: int, chosen: int) -> Cost:
    """Multiply each token by both matrices of each expert chosen for it."""
    require(shapes.need(data))
    first, second, rows = shapes.need(up), shapes.need(down), math.prod(shapes.need(chosen))
    require(len(first) == len(second) == 3)
    used = min(rows, first[0])  # an expert that no token was sent to is not read
    weights = shapes.bytes_at(up, down)
    read = None if weights is None else weights * used // max(first[0], 1)
    flops = 2 * rows * (math.prod(first[1:]) + math.prod(second[1:]))
    return Cost(flops=flops, bytes=plus(read, times(2, shapes.bytes_at(data))), at_most=True)


# Convolutions


def ints(value: Any) -> list[int]:
    """Return a recorded list of whole numbers."""
    require(isinstance(value, list) and value and all(type(number) is int for number in value))
    found: list[int] = value
    return found


def windows(sizes: Dims, kernel: list[int], stride: Any, padding: Any, dilation: Any) -> int:
    """Return at how many positions a window lies over these sizes."""
    settings = (kernel, ints(stride), ints(padding), ints(dilation))
    count = len(sizes)
    each = zip(sizes, *((setting * count)[:count] for setting in settings), strict=True)
    return math.prod(
        max(0, size + 2 * pad - spread * (width - 1) - 1) // max(step, 1) + 1
        for size, width, step, pad, spread in each
    )


class Convolution(Struct, frozen=True):
    """A convolution of its first two parameters, by the indices of its settings."""

    stride: int
    padding: int
    dilation: int | None = None
    transposed: int | bool = False  # the index of that setting, or whether it is

    def __call__(self, shapes: Shapes) -> Cost:
        """Return the cost."""
        data, weight = shapes.need(0), shapes.need(1)
        require(len(data) == len(weight))
        # bool is an int: True as an index would be 1, the weight's.
        if self.transposed is True or (self.transposed and shapes.value(self.transposed) is True):
            # Every element of the input is multiplied by the weights of its channel.
            return Cost(flops=2 * math.prod(data) * math.prod(weight[1:]))
        stride, padding = shapes.value(self.stride), shapes.value(self.padding)
        dilation = [1] if self.dilation is None else shapes.value(self.dilation)
        made = data[0] * weight[0] * windows(data[2:], [*weight[2:]], stride, padding, dilation)
        return product(shapes, made, math.prod(weight[1:]), (0, 1), shapes.item_size())


def cost_by_result(shapes: Shapes, taken: Shapes) -> Cost:
    """Return the cost of a convolution by the input of the operation that may have taken its result."""
    data, weight, result = shapes.need(0), shapes.need(1), taken.need(0)
    require(len(data) == len(weight) == len(result))
    require(result[:2] == (data[0], weight[0]) and math.prod(result[2:]) <= math.prod(data[2:]))
    return product(shapes, math.prod(result), math.prod(weight[1:]), (0, 1), shapes.item_size())


@pattern
def convolution_backward(
    shapes: Shapes, grad: int, data: int, mask: int, transposed: int | None = None
) -> Cost:
    """Work out the gradients that the output mask selects (data, weight); the weight is third."""
    sizes, weight = {grad: shapes.need(grad), data: shapes.need(data)}, shapes.need(2)
    asked = shapes.value(mask)
    wanted = sum(map(bool, asked[:2])) if isinstance(asked, list) and len(asked) == 3 else 2
    is_transposed = transposed is not None and shapes.value(transposed) is True
    once = 2 * math.prod(sizes[data if is_transposed else grad]) * math.prod(weight[1:])
    # For the gradient of one of the two, the other is read; the result has the size of the first.
    return Cost(flops=once * wanted, bytes=times(wanted, shapes.bytes_at(grad, data, 2)) if wanted else 0)


@pattern
def convolution_gradient(shapes: Shapes, *, of_weight: bool) -> Cost:
    """Work out one gradient as cuDNN's operations of 2021 did: the gradient is second, the weight third.

    That of the weight itself has the input there: it needs the sizes of the operation around it, which has an
    input first.
    """
    require(not of_weight or shapes.need(0))
    return Cost(flops=2 * math.prod(shapes.need(1)) * math.prod(shapes.need(2)[1:]))


# Attention


class BatchedAttention(Struct, frozen=True):
    """Attention over a batch of sequences, by the indices of its parameters."""

    query: int  # key and value follow
    causal: int
    heads: int = 1  # the axis of the heads
    passes: int = 1
    packed: tuple[int, ...] = ()  # the starts of sequences that are packed into one
    window: int | None = None  # how far back a position looks

    def __call__(self, shapes: Shapes) -> Cost:
        """Return the cost; without a recorded mask, or with a window, only bytes are known."""
        query, key, value = (shapes.need(self.query + i) for i in range(3))
        require(len(query) == len(key) == len(value) == 4)
        require(not any(map(shapes.tensor, self.packed)))  # how long each sequence is, is not recorded
        along = 3 - self.heads
        first = self.query
        moved = times(self.passes, shapes.bytes_at(first, first, first + 1, first + 2))
        mask = shapes.value(self.causal)
        window = None if self.window is None else shapes.value(self.window)
        if (mask is None and query[along] > 1) or (type(window) is int and window >= 0):
            return Cost(bytes=moved)
        scores = query[0] * query[self.heads] * query[along] * key[along]
        # PyTorch's own kernels take True, those of xFormers a kind of mask: 0 is none.
        flops = 2 * scores * (query[3] + value[3]) // (2 if mask else 1)
        return Cost(flops=flops * self.passes, bytes=moved)


class PackedAttention(Struct, frozen=True):
    """Attention over sequences packed one behind the other, by the indices of its parameters.

    FLOPs are known only if all sequences have one length, which they have if so many of the longest fill the
    tensor; else their number and the longest bound the FLOPs. Without starts it is attention over a batch.
    """

    query: int  # key and value follow
    starts: int  # where each sequence begins, and the end of the last
    longest: int  # the longest sequence of the queries; of the keys: the next
    causal: int
    window: int  # how far back a position looks; how far ahead: the next
    passes: int = 1

    def __call__(self, shapes: Shapes) -> Cost:
        """Return the cost."""
        first = self.query
        query, key, value = (shapes.need(first + i) for i in range(3))
        require(len(query) == len(key) == len(value) > 1)
        moved = times(self.passes, shapes.bytes_at(first, first, first + 1, first + 2))
        window = shapes.value(self.window), shapes.value(self.window + 1)
        causal, per_pair = shapes.value(self.causal), 2 * query[-2] * (query[-1] + value[-1]) * self.passes
        starts = shapes.tensor(self.starts)
        if len(query) == 4 and not starts:
            pairs = score_pairs((query[1], key[1]), causal, window)
            sequences = query[0]
        elif len(query) == 3 and starts:
            sequences = starts[0] - 1
            lengths = shapes.value(self.longest), shapes.value(self.longest + 1)
            if lengths != (query[0] / max(sequences, 1), key[0] / max(sequences, 1)):
                within = None
                if query[0] == key[0] and lengths[0] == lengths[1]:
                    within = packed_pairs(query[0], sequences, lengths[0], causal, window)
                bounds = within and (within[0] * per_pair, within[1] * per_pair)
                return Cost(bytes=moved, flops_within=bounds)
            pairs = score_pairs((int(lengths[0]), int(lengths[1])), causal, window)
        else:
            return Cost(bytes=moved)
        return Cost(flops=times(sequences * per_pair, pairs), bytes=moved)


def packed_pairs(
    tokens: int, sequences: int, longest: object, causal: object, window: tuple[object, object]
) -> tuple[int, int] | None:
    """Return the fewest and the most pairs of query and key of so many sequences; None if not known.

    Longer sequences have more pairs for each token: the fewest are those of sequences of one length, the most
    those of as many of the longest as there are tokens for.
    """
    if type(longest) is not int or not 0 < longest <= tokens or not 0 < sequences <= tokens:
        return None
    each = tokens // sequences
    least = score_pairs((each, each), causal, window)
    most = score_pairs((longest, longest), causal, window)
    if least is None or most is None:
        return None
    return sequences * least, max(-(-tokens * most // longest), sequences * least)


def score_pairs(lengths: tuple[int, int], causal: object, window: tuple[object, object]) -> int | None:
    """Return how many pairs of query and key attention looks at; None if a setting is not known.

    A causal mask halves them; a window keeps those that are so near.
    """
    queries, keys = lengths
    back, ahead = window
    if type(causal) is not bool or type(back) is not int or type(ahead) is not int:
        return None
    if back < 0 and ahead < 0:
        return queries * keys // (2 if causal else 1)
    if queries != keys:
        return None
    reaches = (keys - 1 if reach < 0 else min(reach, keys - 1) for reach in (back, 0 if causal else ahead))
    return keys + sum(keys * reach - reach * (reach + 1) // 2 for reach in reaches)


# Rows and elements that are picked


@pattern
def embedding(shapes: Shapes) -> Cost:
    """Read and write the rows that are looked up, and their indices; a row read twice counts once."""
    weight, indices = shapes.need(0), shapes.tensor(1)
    require(indices is not None and len(weight) == 2)
    count = math.prod(indices or ())
    moved = times((count + min(count, weight[0])) * weight[1], shapes.item_size())
    return Cost(flops=0, bytes=plus(moved, INDEX_BYTES * count))


@pattern
def embedding_backward(shapes: Shapes) -> Cost:
    """Read gradients and indices, write the table."""
    grad, rows = shapes.need(0), shapes.value(2)
    require(type(rows) is int)
    moved = plus(shapes.bytes_at(0), times(rows * grad[-1], shapes.item(0)))
    return Cost(flops=math.prod(grad), bytes=plus(moved, INDEX_BYTES * math.prod(grad[:-1])))


@pattern
def embedding_bag(shapes: Shapes) -> Cost:
    """Add up rows in bags: at most one row for each index, and one for each bag."""
    table, index, bags = shapes.need(0), shapes.need(1), shapes.tensor(2)
    require(len(table) == 2 and bags is not None)
    count = math.prod(index)
    rows = min(count, table[0]) + (math.prod(bags) if bags else count)
    moved = plus(times(rows * table[1], shapes.item(0)), INDEX_BYTES * count)
    return Cost(flops=count * table[1], bytes=moved, at_most=True)


class EmbeddingTables(Struct, frozen=True):
    """Lookups in FBGEMM's tables: at most a row of the widest table for each index.

    Besides the tables, a row of the widest one moves for each bag forward; backward it is the gradient's row
    for each index.
    """

    weights: tuple[int, ...]  # on the device, else on the host: the first that holds any
    width: int | None  # of the widest table; None: not recorded, and known only for a single table
    indices: int
    bags: int
    gradient: int | None = None  # [samples, columns of all tables]
    limits: int | None = None  # where the columns of each table begin, and the last one's end
    row_passes: int = 1  # how often a row of a table is read or written

    def __call__(self, shapes: Shapes) -> Cost:
        """Return the cost."""
        weights = next((index for index in self.weights if (shapes.tensor(index) or (0,))[0]), None)
        rows, bags = math.prod(shapes.need(self.indices)), math.prod(shapes.need(self.bags))
        width = shapes.value(self.width) if self.width is not None else None
        if self.gradient is not None and self.limits is not None and width is None:
            gradient = shapes.tensor(self.gradient)
            width = gradient[-1] if gradient and shapes.tensor(self.limits) == (2,) else None
        if weights is None or type(width) is not int:
            raise NotRecorded
        moved = times(self.row_passes * rows * width, shapes.item(weights))
        if self.gradient is None:
            moved = plus(moved, bags * width * _SUM_BYTES)
        else:
            moved = plus(moved, rows * width * (shapes.item(self.gradient) or _SUM_BYTES))
        return Cost(flops=0, bytes=plus(moved, shapes.bytes_at(self.indices, self.bags)), at_most=True)


_SUM_BYTES = 4  # of an element of what a lookup makes, which is fp32 or narrower


@pattern
def index_select(shapes: Shapes) -> Cost:
    """Read and write slices along one dimension, and read their indices."""
    data, index, along = shapes.need(0), shapes.tensor(2), shapes.value(1)
    require(index is not None and type(along) is int and -len(data) <= along < len(data))
    count = math.prod(index or ())
    made = math.prod(data) // max(data[along], 1) * count
    return Cost(flops=0, bytes=plus(times(2 * made, shapes.item(0)), INDEX_BYTES * count))


@pattern
def picked(shapes: Shapes, index: int, moves: int) -> Cost:
    """Move one element for each index so many times."""
    require(shapes.is_tensor(index))
    count = math.prod(shapes.tensor(index) or ())
    return Cost(flops=0, bytes=plus(times(moves * count, shapes.item(0)), INDEX_BYTES * count))


@pattern
def index_put(shapes: Shapes) -> Cost:
    """Write values to picked elements; where they are added, those are read too."""
    require(shapes.is_tensor(2))
    written = times(math.prod(shapes.tensor(2) or ()), shapes.item(0))
    return Cost(flops=0, bytes=plus(shapes.bytes_at(2), times(1 + (shapes.value(3) is True), written)))


@pattern
def indexed(shapes: Shapes) -> Cost:
    """Pick elements by lists of indices, where these were recorded."""
    data = shapes.need(0)
    require(shapes.lists and len(shapes.lists[0]) <= len(data))
    count = max(map(math.prod, shapes.lists[0]), default=0)
    made = count * math.prod(data[len(shapes.lists[0]) :])
    return Cost(flops=0, bytes=plus(times(2 * made, shapes.item(0)), INDEX_BYTES * count))


@pattern
def top_k(shapes: Shapes) -> Cost:
    """Read the data and write the largest with their indices."""
    data, count = shapes.need(0), shapes.value(1)
    require(type(count) is int and count >= 0)
    made = math.prod(data[:-1]) * count
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0), times(made, shapes.item(0)), INDEX_BYTES * made))


@pattern
def nonzero(shapes: Shapes) -> Cost:
    """Read a mask and write the indices of what holds: at most all of them."""
    data = shapes.need(0)
    most = INDEX_BYTES * len(data) * math.prod(data)
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0), most), at_most=True)


@pattern
def picked_loss(shapes: Shapes) -> Cost:
    """Pick one element of each row."""
    rows = shapes.tensor(1)
    require(rows is not None)
    count = math.prod(rows or ())
    return Cost(flops=count, bytes=plus(times(count, shapes.item(0)), INDEX_BYTES * count))


@pattern
def loss(shapes: Shapes, *reads: int, written: int | None = None) -> Cost:
    """Read the tensors at these indices and write a gradient as large as the one at `written`."""
    require(shapes.is_tensor(reads[0]))
    made = 0 if written is None else shapes.bytes_at(written)
    return Cost(flops=shapes.elements(reads[0]), bytes=plus(shapes.bytes_at(*reads), made))


# Results of another size or width


@pattern
def pool(shapes: Shapes, spatial: int, *, with_indices: bool) -> Cost:
    """Pool over the last `spatial` dimensions."""
    data, item = shapes.need(0), shapes.item(0)
    require(len(data) > spatial and item is not None)
    kernel, stride, padding = (shapes.value(index) for index in (1, 2, 3))
    dilation = (shapes.value(4) if with_indices else None) or [1]
    made = windows(data[-spatial:], ints(kernel), stride or kernel, padding or [0], dilation)
    written = math.prod(data[:-spatial]) * made * ((item or 0) + INDEX_BYTES * with_indices)
    return Cost(flops=math.prod(data), bytes=plus(shapes.bytes_at(0), written))


@pattern
def resized(shapes: Shapes) -> Cost:
    """Read an image and write one of another size."""
    data, size = shapes.need(0), shapes.value(1)
    require(isinstance(size, list) and all(type(n) is int for n in size) and len(size) < len(data))
    made = math.prod(data[: -len(size)]) * math.prod(size)
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0), times(made, shapes.item(0))))


@pattern
def unpacked_4bit(shapes: Shapes) -> Cost:
    """Write two values of 16 bits for each byte."""
    require(shapes.is_tensor(0))
    return Cost(flops=0, bytes=plus(shapes.bytes_at(*shapes.tensors), 4 * shapes.elements(0)))


@pattern
def to_mx(shapes: Shapes) -> Cost:
    """Write one byte for each element, and a scale for each 32 of them."""
    require(shapes.need(0))
    count = shapes.elements(0)
    return Cost(flops=count, bytes=plus(shapes.bytes_at(0), count + count // 32))


@pattern
def rows_quantised(shapes: Shapes, extra: int, to_item: int) -> Cost:
    """Write rows of another width, with `extra` bytes more in each."""
    data = shapes.need(0)
    made = math.prod(data[:-1]) * max(data[-1] + extra, 0) * to_item
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0), made))


@pattern
def permuted_tokens(shapes: Shapes, data: int, chosen: int) -> Cost:
    """Copy every token once for each expert chosen for it."""
    tokens, count = shapes.need(data), math.prod(shapes.need(chosen))
    made = times(count * tokens[-1], shapes.item(data))
    return Cost(flops=0, bytes=plus(shapes.bytes_at(data), made, INDEX_BYTES * count))


@pattern
def rotary(shapes: Shapes) -> Cost:
    """Rotate queries and keys in place; of the table only the used rows are read."""
    require(shapes.need(1))
    return Cost(flops=0, bytes=plus(times(2, shapes.bytes_at(1, 2)), shapes.bytes_at(0)))


@pattern
def cache_write(shapes: Shapes) -> Cost:
    """Copy keys and values into a cache of perhaps another width."""
    require(shapes.need(0) and len(shapes.item_bytes) > 3)
    written = [times(shapes.elements(index), shapes.item(index + 2)) for index in (0, 1)]
    return Cost(flops=0, bytes=plus(shapes.bytes_at(0, 1), *written))

"""The cost of each call: by its own sizes, else by those of the operations around it or after it.

Operations nest: linear calls addmm, a convolution its backend. Only the innermost with a known cost counts,
and the rest of an outer operation's cost goes to those inside whose own sizes do not determine theirs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stepgrade.costs.recorded_inputs import DTYPES, UNKNOWN, UNREADABLE, Cost, decode_dims, decode_shapes
from stepgrade.costs.table import CONVOLUTIONS, cost_of, cost_of_result
from stepgrade.decoding import from_json
from stepgrade.model.activity import GemmTally
from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import NONE, Ids, Inputs, Longs, Trace
from stepgrade.model.operations import ShapeRow
from stepgrade.naming.kernels import PRECISIONS, item_bytes_of_kernel, precision_of_kernel
from stepgrade.naming.torch_names import Mask, classes_of
from stepgrade.naming.work_class import MATMULS
from stepgrade.timeline.links import compiled_of, nearest, pick
from stepgrade.timeline.timeline import Driver, Pieces, Timeline
from stepgrade.units import NS_PER_MS

_UNKNOWN, _FREE = -1, -2  # the last two rows of a column of costs
# Of what an operation costs, a part too small to be one of its products.
_REST_SHARE = 0.01
# How many operations may lie between a convolution and the one that takes its result.
_MOST_BETWEEN = 8
# How deep operations with a product's name lie in each other.
_DEEPEST = 8
_WIDEST = 32  # more bytes than any element has
Floats = NDArray[np.float64]
MOST_SHAPES = 32  # of an operation; what the others take is one row
_MOST_TENSORS = 8  # in the text of a shape
_TRANSFORMED = re.compile(r"winograd|fft", re.IGNORECASE)
_ADDED = ("ms", "calls", "flops", "bytes", "flops_least", "flops_most")
_KNOWN = 4  # whether FLOPs are known, whether bytes are
# Tensors of fp32 may be multiplied in fewer bits; only the kernel's name shows it.
_NARROWER = frozenset({"tf32", "bf16", "fp16", "fp8", "int8"})
SHAPES_KEPT = 40
_LEFT_OPERAND = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


class CallCosts:
    """The cost of one call of each operation of a trace; calls with the same cost share it."""

    def __init__(self, operations: int) -> None:
        self._sort = np.full(operations, _UNKNOWN, np.int32)
        self._costs: list[Cost] = []

    def give(self, ops: NDArray[np.intp], costs: Sequence[Cost], which: NDArray[np.intp]) -> None:
        """Set the costs of these operations: `which` of the costs each has."""
        self._sort[ops] = which + len(self._costs)
        self._costs += costs

    def free(self, ops: Mask) -> None:
        """Set the cost of these operations to nothing: others have it."""
        self._sort[ops] = _FREE

    def flops(self) -> Floats:
        """Return the FLOPs of each operation, NaN where they are not known."""
        return np.array([*(cost.flops for cost in self._costs), 0, None], np.float64)[self._sort]

    def table(self, ops: Ids) -> Floats:
        """Return FLOPs, bytes, at_most, least and most FLOPs of these operations; NaN is unknown."""
        costs = (*self._costs, Cost(flops=0, bytes=0), UNKNOWN)
        rows = [(c.flops, c.bytes, c.at_most, *(c.flops_within or (None, None))) for c in costs]
        return np.array(rows, np.float64).T[:, self._sort[ops]]


def find_costs(timeline: Timeline, pieces: Pieces, rows: Ids) -> CallCosts:
    """Return the cost of a call of each operation that has one of these pieces."""
    trace = timeline.trace
    used, computes = (np.zeros(len(trace.ops.name), np.bool_) for _ in range(2))
    linked = rows[pieces.op[rows] >= 0]
    used[pieces.op[linked]] = True
    computes[pieces.op[linked[among(pieces.work_class[linked], MATMULS)]]] = True
    product = among(classes_of(trace.strings, trace.ops.name), MATMULS)
    costs = CallCosts(len(used))
    recorded = np.flatnonzero((used | product) & (trace.ops.inputs >= 0))
    # Types of lists are never recorded, and in early 2021 none were: kernels carry them in their names.
    items = np.zeros(len(used), np.int64)  # bytes of an element; 0: not known, or recorded
    untyped = [i for i, each in enumerate(trace.inputs) if each.types == b"[]" or b"TensorList" in each.types]
    if timeline.driver is Driver.DEVICE and untyped:
        unknown = linked[among(trace.ops.inputs[pieces.op[linked]], untyped)]
        kernels, which, _ = groups(pieces.kernel[unknown])
        widths = [item_bytes_of_kernel(trace.strings[name]) or 0 for name in kernels.tolist()]
        np.maximum.at(items, pieces.op[unknown], np.array(widths, np.int64)[which])
    pairs, which = _pairs(
        trace.ops.name[recorded], trace.ops.inputs[recorded].astype(np.int64) * _WIDEST + items[recorded]
    )
    found = [
        cost_of(trace.strings[name], trace.inputs[given // _WIDEST], given % _WIDEST or None)
        for name, given in pairs
    ]
    costs.give(recorded, found, which)
    if compiled_of(trace):
        return costs  # no operation calls another: those of two streams may only overlap
    convolutions = [index for index, text in enumerate(trace.strings) if text in CONVOLUTIONS]
    wanting = used & among(trace.ops.name, convolutions) & (trace.ops.inputs >= 0)
    _give_by_results(timeline, costs, np.flatnonzero(wanting & np.isnan(costs.flops())))
    costed = costs.flops() > 0
    around = _nearest_above(timeline, costed & product)
    # An operation that calls costed ones, as linear calls addmm, has no cost of its own. A bias that is added
    # inside a convolution does not make the convolution free.
    outer = _holds(around, costed & product) & product
    outer |= _holds(_nearest_above(timeline, costed), costed) & costed & ~product
    # Operations with a product's name that call costed ones, as the nodes of a backward pass do. On a host
    # every operation has a time of its own; only on a device does it show which of them compute.
    product_above = _nearest_above(timeline, product)
    wraps = _holds(product_above, costed & product)
    for _ in range(_DEEPEST):
        more = wraps | _holds(product_above, wraps)
        if (more == wraps).all():
            break
        wraps = more
    wraps &= np.isnan(costs.flops())
    if timeline.driver is Driver.DEVICE:
        wraps &= ~computes
    _give_from_around(timeline, costs, around, outer, used & (product | computes) & ~wraps, computes)
    costs.free(wraps)
    return costs


def _holds(around: Ids, inside: Mask) -> Mask:
    """Return which operations are the nearest ones around others."""
    found = np.zeros(len(around), np.bool_)
    found[around[inside & (around >= 0)]] = True
    return found


def _nearest_above(timeline: Timeline, wanted: Mask) -> Ids:
    """Return for each operation the nearest one around it for which `wanted` holds, or NONE."""
    tree = timeline.tree
    rows = np.zeros(len(tree.parent), np.bool_)
    rows[tree.of_op[wanted]] = True
    return pick(tree.origin, pick(nearest(tree.parent, rows), tree.parent[tree.of_op]))


def _pairs(left: Ids, right: Ids | Longs) -> tuple[list[tuple[int, int]], NDArray[np.intp]]:
    """Return the pairs of two columns that occur, and for each row the index of its own."""
    width = int(right.max(initial=0)) + 1
    values, which, _ = groups(left.astype(np.int64) * width + right)
    return [divmod(value, width) for value in values.tolist()], which


def _give_by_results(timeline: Timeline, costs: CallCosts, ops: NDArray[np.intp]) -> None:
    """Set the costs of convolutions without recorded settings by what takes their result.

    That is the first operation after them whose input has their batch and channels.
    """
    table, inputs = timeline.trace.ops, timeline.trace.inputs
    others = np.flatnonzero(table.inputs >= 0)
    others = others[np.lexsort((table.inputs[others], table.start_ns[others], table.thread[others]))]
    wanting = np.arange(len(ops))
    # Where each of them ends in the order of threads and times; ends sort before starts at the same time.
    order = np.lexsort(
        (
            np.repeat([1, 0], [len(others), len(ops)]),
            np.append(table.start_ns[others], table.end_ns[ops]),
            np.append(table.thread[others], table.thread[ops]),
        )
    )
    index = np.empty(len(order), np.intp)
    index[order] = np.cumsum(order < len(others))
    after = index[len(others) :]
    for step in range(_MOST_BETWEEN):
        near = after + step < len(others)
        near[near] = table.thread[others[after[near] + step]] == table.thread[ops[wanting[near]]]
        wanting, after = wanting[near], after[near]
        takers = others[after + step]
        pairs, which = _pairs(table.inputs[ops[wanting]], table.inputs[takers])
        found = [cost_of_result(inputs[own], inputs[taker]) for own, taker in pairs]
        known = np.array([cost is not UNKNOWN for cost in found], np.bool_)[which]
        costs.give(ops[wanting[known]], found, which[known])
        wanting, after = wanting[~known], after[~known]


def _give_from_around(
    timeline: Timeline, costs: CallCosts, around: Ids, outer: Mask, wanted: Mask, computes: Mask
) -> None:
    """Give the rest of an operation's cost to those inside it whose own sizes do not show theirs."""
    trace, whole = timeline.trace, costs.flops()
    ops = np.flatnonzero(wanted & np.isnan(whole) & (around >= 0))
    # With the sizes of the operation around it an operation's own rule may do.
    pairs, which = _pairs(trace.ops.name[ops], trace.ops.inputs[around[ops]])
    found = [cost_of(trace.strings[name], trace.inputs[inputs]) for name, inputs in pairs]
    known = np.array([cost.flops is not None for cost in found], np.bool_)[which]
    costs.give(ops[known], found, which[known])
    inside = (around >= 0) & (costs.flops() > 0)
    rest = whole - np.bincount(around[inside], costs.flops()[inside], len(whole))
    # What remains goes to the first that asks: one inside, or the outer one itself if it computes.
    itself = np.flatnonzero(outer & computes & (whole > 0))
    asking = np.append(ops[~known], itself)
    holder: Longs = np.append(around[ops[~known]], itself)
    order = np.lexsort((trace.ops.name[asking], trace.ops.start_ns[asking]))
    asking, holder = asking[order], holder[order]
    free = outer.copy()
    free[asking] = True
    holders, places, _ = groups(holder)
    first = np.full(len(holders), len(asking), np.intp)
    np.minimum.at(first, places, np.arange(len(asking)))
    takes = rest[holders] > _REST_SHARE * whole[holders]
    takers = asking[first[takes]]
    free[takers] = False
    costs.free(free)
    left: Longs = rest[holders[takes]].astype(np.int64)
    amounts, which, _ = groups(left)
    costs.give(takers, [Cost(flops=amount) for amount in amounts.tolist()], which)


class Calls(NamedTuple):
    """The calls that pieces of work belong to, those of one label together.

    A call is one operation, however many pieces it has.
    """

    label: Ids
    op: Ids  # row in trace.ops
    pieces: Ids  # those that an operation launched
    of_piece: NDArray[np.intp]  # the call of each of these

    @classmethod
    def of(cls, pieces: Pieces, rows: Ids) -> Calls:
        """Return the calls of these pieces."""
        linked = rows[pieces.op[rows] >= 0]  # the others are kernels that no recorded operation launched
        width = int(pieces.op.max(initial=0)) + 1
        values, which, _ = groups(pieces.label[linked].astype(np.int64) * width + pieces.op[linked])
        label, op = np.divmod(values, width)
        return cls(label.astype(np.int32), op.astype(np.int32), linked, which)


def shapes_by_label(
    trace: Trace, pieces: Pieces, rows: Ids, calls: Calls, costs: CallCosts
) -> dict[int, tuple[ShapeRow, ...]]:
    """Return the calls under each label by the shape of their inputs, longest first.

    Pieces that no operation launched are a call each.
    """
    numbers: dict[tuple[bytes, bytes], int] = {}
    shape_of = [numbers.setdefault((each.dims, each.types), len(numbers)) for each in trace.inputs]
    shapes = [Inputs(dims=dims, types=types) for dims, types in numbers]
    shape = np.array([*shape_of, NONE], np.int64)[trace.ops.inputs[calls.op]]  # the last is that of none
    flops, moved, at_most, *within = costs.table(calls.op)
    known = 2 * ~np.isnan(flops) + ~np.isnan(moved)
    width = (len(shapes) + 1) * _KNOWN
    values, which, counts = groups(calls.label * np.int64(width) + (shape + 1) * _KNOWN + known)
    of_piece = which[calls.of_piece]
    total_ns = np.bincount(of_piece, pieces.dur_ns[calls.pieces], len(values))
    # Convolutions that transform their data multiply less than is counted.
    transforms = np.zeros(len(trace.strings) + 1, np.bool_)  # the last is that of none
    for index in distinct(pieces.kernel).tolist():
        transforms[index] = index >= 0 and _TRANSFORMED.search(trace.strings[index]) is not None
    bounded = np.bincount(of_piece, transforms[pieces.kernel[calls.pieces]], len(values))
    # Only where all calls of a shape have bounds do they add up to some.
    added = (np.nan_to_num(flops), np.nan_to_num(moved), at_most, *within)
    totals = (np.bincount(which, column, len(values)) for column in added)
    columns = (values, counts, total_ns, bounded, *totals)
    order = np.lexsort((-total_ns, values // width))
    found: dict[int, list[ShapeRow]] = {}
    for value, count, ns, transformed, flops_sum, bytes_sum, bounds, least, most in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        label, rest = divmod(value, width)
        number, flags = divmod(rest, _KNOWN)
        alike = found.setdefault(label, [])
        is_listed = len(alike) < MOST_SHAPES and number > 0
        alike.append(
            ShapeRow(
                shape=shape_text(shapes[number - 1]) if is_listed else None,
                ms=ns / NS_PER_MS,
                calls=float(count),
                flops=float(int(flops_sum)) if flags & 2 else None,
                bytes=float(int(bytes_sum)) if flags & 1 else None,
                at_most=bool(bounds or transformed),
                flops_least=None if math.isnan(least) else least,
                flops_most=None if math.isnan(most) else most,
            )
        )
    alone = rows[pieces.op[rows] < 0]
    of_alone = pieces.label[alone]
    labels = distinct(of_alone)
    firsts = [*np.searchsorted(of_alone, labels).tolist(), len(alone)]
    for label, (first, last) in zip(labels.tolist(), pairwise(firsts), strict=True):
        group = alone[first:last]
        row = ShapeRow(
            shape=None,
            ms=float(pieces.dur_ns[group].sum()) / NS_PER_MS,
            calls=float(len(group)),
            at_most=bool(transforms[pieces.kernel[group]].any()),
        )
        found.setdefault(label, []).append(row)
    return {label: add_shapes([alike]) for label, alike in found.items()}


def shape_text(inputs: Inputs) -> str | None:
    """Return the sizes and types of the tensors for people: 16384x768, 768x3072 bf16."""
    try:
        dims, types = (msgspec.json.decode(text) for text in (inputs.dims, inputs.types))
    except UNREADABLE:
        return None
    if not isinstance(dims, list) or not isinstance(types, list):
        return None
    shown: list[tuple[str, str]] = []
    for index, part in enumerate(dims):
        sizes = decode_dims(part)
        name = types[index] if index < len(types) else ""
        if sizes:
            shown.append(("x".join(map(str, sizes)), DTYPES.get(str(name).lower(), (None, ""))[1]))
        elif isinstance(part, list) and part and isinstance(part[0], list):
            shown.append((f"{len(part)} tensors", ""))
    more = f", {len(shown) - _MOST_TENSORS} more" if len(shown) > _MOST_TENSORS else ""
    if len({dtype for _, dtype in shown}) == 1:
        text = f"{', '.join(sizes for sizes, _ in shown[:_MOST_TENSORS])}{more} {shown[0][1]}"
    else:
        text = ", ".join(f"{sizes} {dtype}".rstrip() for sizes, dtype in shown[:_MOST_TENSORS]) + more
    return text.rstrip() or None


def add_shapes(of_parts: Iterable[Sequence[ShapeRow]]) -> tuple[ShapeRow, ...]:
    """Return rows with equal shapes added up, longest first; beyond the most, as one row each.

    Calls of a shape with known costs stay apart from those without, so that FLOPs and bytes are those of the
    time beside them.
    """
    alike: dict[tuple[str | None, bool, bool], ShapeRow] = {}
    for row in (row for rows in of_parts for row in rows):
        key = (row.shape, row.flops is not None, row.bytes is not None)
        if key not in alike:
            alike[key] = row
            continue
        both = [(name, getattr(alike[key], name), getattr(row, name)) for name in _ADDED]
        sums = {name: None if a is None or b is None else a + b for name, a, b in both}
        alike[key] = structs.replace(alike[key], **sums, at_most=alike[key].at_most or row.at_most)
    rows = sorted(alike.values(), key=lambda row: (-row.ms, row.shape or ""))
    if len(rows) > MOST_SHAPES + _KNOWN:
        rest = [structs.replace(row, shape=None) for row in rows[MOST_SHAPES:]]
        return add_shapes([[*rows[:MOST_SHAPES], *rest]])
    return tuple(rows)


def time_by_precision(trace: Trace, pieces: Pieces, rows: Ids) -> dict[str, int]:
    """Return the nanoseconds of these pieces in each known precision, in the order of PRECISIONS.

    It is that of the recorded inputs, and where these are fp32 or not recorded, that of the kernel.
    """
    op, dur_ns = pieces.op[rows], pieces.dur_ns[rows]
    inputs = np.where(op >= 0, trace.ops.inputs[np.maximum(op, 0)], NONE) if len(trace.ops.name) else op
    number = {name: index for index, name in enumerate(PRECISIONS)}
    kernels, which, _ = groups(pieces.kernel[rows])
    names = (precision_of_kernel(trace.strings[index]) if index >= 0 else None for index in kernels.tolist())
    by_kernel = np.array([number.get(name or "", NONE) for name in names], np.int8)[which]
    used, which, _ = groups(inputs)
    names = (dtype_of(trace.inputs[index]) if index >= 0 else None for index in used.tolist())
    by_inputs = np.array([number.get(name or "", NONE) for name in names], np.int8)
    # Helper kernels of a product, such as the sum of its parts, have other names: most of the time decides.
    width = len(PRECISIONS) + 1
    spent = np.bincount(which * width + by_kernel + 1, dur_ns, len(used) * width)
    by_name = spent.reshape(len(used), width)
    most = by_name.argmax(axis=1)
    narrowed = (by_inputs == number["fp32"]) & among(most - 1, [number[name] for name in _NARROWER])
    narrowed &= 2 * by_name.max(axis=1, initial=0) > by_name.sum(axis=1)
    by_inputs = np.where(narrowed, most - 1, by_inputs).astype(np.int8)
    precisions = np.where(by_inputs[which] >= 0, by_inputs[which], by_kernel)
    known = precisions >= 0
    sums = np.bincount(precisions[known], weights=dur_ns[known], minlength=len(PRECISIONS)).tolist()
    return {name: int(ns) for name, ns in zip(PRECISIONS, sums, strict=True) if ns}


def dtype_of(inputs: Inputs) -> str | None:
    """Return the precision of the first input with an arithmetic type."""
    try:
        types = from_json(inputs.types, list[str])
    except UNREADABLE:
        return None
    names = (DTYPES.get(name.lower(), (None, ""))[1].split("_")[0] for name in types)
    return next((name for name in names if name in PRECISIONS), None)


def most_of(amounts: Mapping[str, float]) -> str | None:
    """Return the name with the largest amount, of equal ones the first by name."""
    return max(sorted(amounts), key=lambda name: amounts[name]) if amounts else None


def tally_gemms(trace: Trace, pieces: Pieces, steps: int) -> tuple[GemmTally, ...]:
    """Return the shapes of matrix products with the most time in a steady step, longest first."""
    names = [index for index, text in enumerate(trace.strings) if text in _LEFT_OPERAND]
    chosen = pieces.steady & (pieces.op >= 0) & among(pieces.name, names)
    rows = np.flatnonzero(chosen)
    rows = rows[trace.ops.inputs[pieces.op[rows]] >= 0] if len(rows) else rows
    if not len(rows):
        return ()
    ops, of_op, _ = groups(pieces.op[rows])
    width = max(1, len(trace.inputs))
    pairs, which, calls = groups(trace.ops.name[ops].astype(np.int64) * width + trace.ops.inputs[ops])
    total = np.bincount(which[of_op], weights=pieces.dur_ns[rows])
    found = []
    for pair, count, ns in zip(pairs.tolist(), calls.tolist(), total.tolist(), strict=True):
        name, inputs = trace.strings[pair // width], trace.inputs[pair % width]
        shapes = decode_shapes(inputs)
        if shapes is None:
            continue
        left, right = (shapes.tensor(_LEFT_OPERAND[name] + side) for side in (0, 1))
        if not left or not right or len(left) < 2 or len(right) < 2 or left[-1] != right[-2]:
            continue
        batch, m, k, n = math.prod(left[:-2]), left[-2], left[-1], right[-1]
        item = shapes.item_size()
        moved = None if item is None else float(item * batch * (m * k + k * n + m * n))
        found.append(
            GemmTally(
                batch=batch,
                m=m,
                k=k,
                n=n,
                dtype=dtype_of(inputs),
                calls=count / steps,
                ms=ns / steps / NS_PER_MS,
                flops=2.0 * batch * m * k * n * (count / steps),
                bytes=None if moved is None else moved * (count / steps),
            )
        )
    found.sort(key=lambda gemm: (-gemm.ms, gemm.m, gemm.n, gemm.k, gemm.dtype or ""))
    return tuple(found[:SHAPES_KEPT])

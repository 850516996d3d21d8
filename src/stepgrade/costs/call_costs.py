"""What each call costs: by its own sizes, else by those of the operations around it or after it.

Operations nest: linear calls addmm, a convolution its backend. Only the innermost that is known counts, and
what an outer one costs beyond it belongs to those inside whose own sizes do not tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stepgrade.costs.recorded_inputs import UNKNOWN, Cost
from stepgrade.costs.table import CONVOLUTIONS, cost_of, cost_of_result
from stepgrade.model.columns import among, groups
from stepgrade.model.events import Ids, Longs
from stepgrade.naming.precision import item_bytes_of_kernel
from stepgrade.naming.torch_names import Mask, classes_of
from stepgrade.naming.work_class import MATMULS
from stepgrade.timeline.compiled import compiled_of
from stepgrade.timeline.links import nearest, pick
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.timeline import Driver, Timeline

_UNKNOWN, _FREE = -1, -2
# Of what an operation costs, a part too small to be one of its products.
_REST_SHARE = 0.01
# How many operations may lie between a convolution and the one that takes its result.
_MOST_BETWEEN = 8
# How deep operations with a product's name lie in each other.
_DEEPEST = 8
_WIDEST = 32  # more bytes than any element has
Floats = NDArray[np.float64]


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
        return np.array([*(cost.flops for cost in self._costs), 0.0, None], np.float64)[self._sort]

    def bytes(self) -> Floats:
        """Return the bytes of each operation, NaN where they are not known."""
        return np.array([*(cost.bytes for cost in self._costs), 0.0, None], np.float64)[self._sort]

    def flops_within(self) -> tuple[Floats, Floats] | None:
        """Return the least and the most FLOPs of each operation, NaN without bounds; None if none has any."""
        if all(cost.flops_within is None for cost in self._costs):
            return None
        bounds = [*(cost.flops_within or (None, None) for cost in self._costs), (None, None), (None, None)]
        least, most = np.array(bounds, np.float64).T
        return least[self._sort], most[self._sort]

    def at_most(self) -> Mask:
        """Tell of which operations the bytes are a bound."""
        return np.array([*(cost.at_most for cost in self._costs), False, False], np.bool_)[self._sort]


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
    items = _list_items(timeline, pieces, linked)
    pairs, which = _pairs(
        trace.ops.name[recorded], trace.ops.inputs[recorded].astype(np.int64) * _WIDEST + items[recorded]
    )
    found = [
        cost_of(trace.strings[name], trace.inputs[given // _WIDEST], given % _WIDEST or None)
        for name, given in pairs
    ]
    costs.give(recorded, found, which)
    if compiled_of(trace):
        return costs  # none calls another: those of two streams may only lie over each other
    convolutions = [index for index, text in enumerate(trace.strings) if text in CONVOLUTIONS]
    wanting = used & among(trace.ops.name, convolutions) & (trace.ops.inputs >= 0)
    _give_by_results(timeline, costs, np.flatnonzero(wanting & np.isnan(costs.flops())))
    costed = costs.flops() > 0
    around = _nearest_above(timeline, costed & product)
    # What calls costed operations, as linear calls addmm, has no cost of its own. A bias that is added inside
    # a convolution does not make the convolution free.
    outer = _holds(around, costed & product) & product
    outer |= _holds(_nearest_above(timeline, costed), costed) & costed & ~product
    # On a host every operation has a time of its own; only on a device does it show who computes.
    own_work = computes if timeline.driver is Driver.DEVICE else np.zeros(len(used), np.bool_)
    wraps = _wraps(timeline, costed & product, product) & np.isnan(costs.flops()) & ~own_work
    _give_from_around(timeline, costs, around, outer, used & (product | computes) & ~wraps, computes)
    costs.free(wraps)
    return costs


def _wraps(timeline: Timeline, costed: Mask, product: Mask) -> Mask:
    """Tell which operations with a product's name call costed ones, as the nodes of a backward pass do."""
    around = _nearest_above(timeline, product)
    found = _holds(around, costed)
    for _ in range(_DEEPEST):
        more = _holds(around, found) | found
        if (more == found).all():
            break
        found = more
    return found


def _holds(around: Ids, inside: Mask) -> Mask:
    """Tell which operations are the nearest ones around others."""
    found = np.zeros(len(around), np.bool_)
    found[around[inside & (around >= 0)]] = True
    return found


def _nearest_above(timeline: Timeline, wanted: Mask) -> Ids:
    """Return for each operation the nearest one around it for which `wanted` holds, or NONE."""
    tree = timeline.tree
    rows = np.zeros(len(tree.parent), np.bool_)
    rows[tree.of_op[wanted]] = True
    return pick(tree.origin, pick(nearest(tree.parent, rows), tree.parent[tree.of_op]))


def _list_items(timeline: Timeline, pieces: Pieces, linked: Ids) -> Longs:
    """Return how many bytes the elements of each operation have whose types were not recorded, else 0.

    Types of lists never are, and those of early 2021 not at all; the kernels carry them in their names.
    """
    trace = timeline.trace
    items = np.zeros(len(trace.ops.name), np.int64)
    of_lists = [
        place
        for place, inputs in enumerate(trace.inputs)
        if inputs.types == b"[]" or b"TensorList" in inputs.types
    ]
    if timeline.driver is not Driver.DEVICE or not of_lists:
        return items
    rows = linked[among(trace.ops.inputs[pieces.op[linked]], of_lists)]
    kernels, which, _ = groups(pieces.kernel[rows])
    widths = np.array([item_bytes_of_kernel(trace.strings[name]) or 0 for name in kernels.tolist()], np.int64)
    if len(widths):  # of several kernels, those that say nothing do not count, in whatever order they ran
        np.maximum.at(items, pieces.op[rows], widths[which])
    return items


def _pairs(left: Ids, right: Ids | Longs) -> tuple[list[tuple[int, int]], NDArray[np.intp]]:
    """Return the pairs of two columns that occur, and for each row the place of its own."""
    width = int(right.max(initial=0)) + 1
    values, which, _ = groups(left.astype(np.int64) * width + right)
    return [divmod(value, width) for value in values.tolist()], which


def _give_by_results(timeline: Timeline, costs: CallCosts, ops: NDArray[np.intp]) -> None:
    """Set the costs of convolutions without recorded settings by what takes their result.

    It is the first operation after them whose input has their batch and channels.
    """
    table, inputs = timeline.trace.ops, timeline.trace.inputs
    ends: Longs = table.start_ns[ops] + table.dur_ns[ops]
    others = np.flatnonzero(table.inputs >= 0)
    others = others[np.lexsort((table.inputs[others], table.start_ns[others], table.thread[others]))]
    wanting = np.arange(len(ops))
    # Where in the order of threads and times each of them ends; the ends sort before what starts then.
    order = np.lexsort(
        (
            np.repeat([1, 0], [len(others), len(ops)]),
            np.append(table.start_ns[others], ends),
            np.append(table.thread[others], table.thread[ops]),
        )
    )
    place = np.empty(len(order), np.intp)
    place[order] = np.cumsum(order < len(others))
    after = place[len(others) :]
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
    """Give what an operation costs beyond the known ones inside it to those whose own sizes do not tell."""
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

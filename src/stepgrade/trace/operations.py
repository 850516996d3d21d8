"""The operations of a step by the time they take: names, calls, kernels, sizes, FLOPs and bytes."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import Ids, Inputs, Longs, Trace
from stepgrade.trace.classify import WorkClass, classify
from stepgrade.trace.cost import UNKNOWN, Cost, op_cost
from stepgrade.trace.links import HostTree
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.precision import MATMULS, dtype_of_calls
from stepgrade.trace.shapes import decode_shapes
from stepgrade.trace.timeline import Timeline

KERNELS_SHOWN = 5
UNKNOWN_SORT, FREE = -1, -2


class KernelFacts(Struct, frozen=True, kw_only=True):
    """One kernel under an operation, in totals over the steady steps."""

    name: str
    count: int
    total_ns: int


class OperationFacts(Struct, frozen=True, kw_only=True):
    """One operation, in totals over the steady steps."""

    name: str
    work_class: str
    total_ns: int
    calls: int
    kernel_count: int
    kernels: tuple[KernelFacts, ...]  # the longest ones
    flops: int | None  # None unless known for all calls
    bytes: int | None
    costed_ns: int  # the time of the calls whose FLOPs are known
    costed_flops: int
    dtype: str | None  # of most of its calls, for matmuls
    linked: bool  # False: the name is a kernel's, no operation is known to have launched it
    longest_start_ns: int  # of its longest piece
    longest_ns: int
    step_ns: tuple[int, ...]  # one for each steady step


class _Costs(NamedTuple):
    """The cost of one call of each operation, by the sort of call that it is."""

    sort: Ids  # of each operation: a place in the two tables, UNKNOWN_SORT or FREE
    flops: NDArray[np.float64]  # NaN where it is not known
    bytes: NDArray[np.float64]


def sum_operations(line: Timeline, pieces: Pieces) -> tuple[OperationFacts, ...]:
    """Return the operations of the steady steps, longest first."""
    trace = line.trace
    rows, edges = _by_operation(pieces)
    costs = _without_the_same_twice(_costs(trace, pieces.op[rows]), line.tree)
    found = [_operation(line, pieces, rows[a:b], costs) for a, b in pairwise(edges)]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.name)))


def _by_operation(pieces: Pieces) -> tuple[Ids, list[int]]:
    """Return the steady pieces sorted by operation, and where each operation begins and the last one ends."""
    rows = np.flatnonzero(pieces.steady).astype(np.int32)
    key = pieces.name[rows].astype(np.int64) * 2
    key += pieces.op[rows] >= 0
    order = np.argsort(key, kind="stable").astype(np.int32)
    rows, key = rows[order], key[order]
    edges = np.flatnonzero(key[1:] != key[:-1]) + 1
    return rows, [0, *edges.tolist(), len(rows)] if len(rows) else []


def _operation(line: Timeline, pieces: Pieces, group: Ids, costs: _Costs) -> OperationFacts:
    trace = line.trace
    name = trace.strings[int(pieces.name[group[0]])]
    linked = bool(pieces.op[group[0]] >= 0)
    calls, per_call, _ = groups(pieces.op[group])
    call_ns = np.bincount(per_call, weights=pieces.dur_ns[group]).astype(np.int64)
    kernels = _kernels(trace, pieces, group)
    flops = costs.flops[costs.sort[calls]] if linked else np.full(len(calls), np.nan)
    known = ~np.isnan(flops)
    own_class = _class_of(name, pieces, group)
    longest = _longest(pieces, group)
    return OperationFacts(
        name=name,
        work_class=own_class.label,
        total_ns=int(call_ns.sum()),
        calls=len(calls) if linked else len(group),
        kernel_count=len(group) if kernels else 0,
        kernels=kernels,
        flops=_whole(flops),
        bytes=_whole(costs.bytes[costs.sort[calls]]) if linked else None,
        costed_ns=int(call_ns[known].sum()),
        costed_flops=int(flops[known].sum()),
        dtype=dtype_of_calls(trace, calls) if linked and own_class in MATMULS else None,
        linked=linked,
        longest_start_ns=int(pieces.start_ns[longest]),
        longest_ns=int(pieces.dur_ns[longest]),
        step_ns=per_steady_step(line, pieces.step[group], pieces.dur_ns[group]),
    )


def per_steady_step(line: Timeline, step: Ids, dur_ns: Longs) -> tuple[int, ...]:
    """Return the time of pieces in each steady step."""
    steady = line.windows.steady
    sums = np.bincount(step, weights=dur_ns, minlength=len(steady)).astype(np.int64)
    return tuple(sums[: len(steady)][steady].tolist())


def _longest(pieces: Pieces, group: Ids) -> int:
    """Return the longest piece, of several the first in time."""
    tied = group[pieces.dur_ns[group] == pieces.dur_ns[group].max()]
    return int(tied[pieces.start_ns[tied].argmin()])


def _whole(numbers: NDArray[np.float64]) -> int | None:
    """Return the sum, None if one is not known."""
    total = float(numbers.sum())
    return None if math.isnan(total) else int(total)


def _class_of(name: str, pieces: Pieces, group: Ids) -> WorkClass:
    """Return the class of the name, or that of its kernels' time where the name says little."""
    own = classify(name)
    if own is not WorkClass.OTHER:
        return own
    weights = np.bincount(pieces.work_class[group], weights=pieces.dur_ns[group])
    return WorkClass(int(weights.argmax()))


def _kernels(trace: Trace, pieces: Pieces, group: Ids) -> tuple[KernelFacts, ...]:
    names = pieces.kernel[group]
    if names[0] < 0:
        return ()
    used, which, counts = groups(names)
    total = np.bincount(which, weights=pieces.dur_ns[group]).astype(np.int64)
    facts = [
        KernelFacts(name=trace.strings[name], count=count, total_ns=ns)
        for name, count, ns in zip(used.tolist(), counts.tolist(), total.tolist(), strict=True)
    ]
    return tuple(sorted(facts, key=lambda one: (-one.total_ns, one.name))[:KERNELS_SHOWN])


def _costs(trace: Trace, ops: Ids) -> _Costs:
    """Return the cost of a call of each of the operations; each pair of name and inputs is decoded once."""
    sort = np.full(len(trace.ops.name), UNKNOWN_SORT, np.int32)
    used = np.zeros(len(sort), np.bool_)
    used[ops[ops >= 0]] = True
    used &= trace.ops.inputs >= 0
    width = max(1, len(trace.inputs))
    pairs, which, _ = groups(trace.ops.name[used].astype(np.int64) * width + trace.ops.inputs[used])
    sort[used] = which
    found = [cost_of(trace.strings[one // width], trace.inputs[one % width]) for one in pairs.tolist()]
    # The last two places are those that FREE and UNKNOWN_SORT point to.
    flops = np.array([*(_or_nan(one.flops) for one in found), 0.0, np.nan])
    moved = np.array([*(_or_nan(one.bytes) for one in found), 0.0, np.nan])
    return _Costs(sort, flops, moved)


def _without_the_same_twice(costs: _Costs, tree: HostTree) -> _Costs:
    """Return the costs without those of operations that call costed ones: linear calls addmm."""
    calls_costed = np.zeros(len(tree.parent), np.bool_)
    costed = (costs.flops > 0)[costs.sort]
    above = tree.parent[tree.of_op[costed]]
    while len(above := distinct(above[above >= 0])):
        calls_costed[above] = True
        above = tree.parent[above]
    costs.sort[calls_costed[tree.of_op] & costed] = FREE
    return costs


def _or_nan(number: int | None) -> float:
    return math.nan if number is None else float(number)


def cost_of(name: str, inputs: Inputs) -> Cost:
    """Return the cost of one call of the operation with these recorded inputs."""
    shapes = decode_shapes(inputs)
    return UNKNOWN if shapes is None else op_cost(name, shapes)

"""The operations of a step by the time they take: names, calls, kernels, sizes, FLOPs and bytes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepgrade.analysis.trace.classify import WorkClass, classify
from stepgrade.analysis.trace.cost import UNKNOWN, Cost, op_cost
from stepgrade.analysis.trace.pieces import Pieces
from stepgrade.analysis.trace.shapes import decode_shapes
from stepgrade.model.events import NONE, Ids, Inputs, Longs, Trace

KERNELS_SHOWN = 5
VAGUE = {WorkClass.OTHER, WorkClass.ELEMENTWISE}


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
    linked: bool  # False: the name is a kernel's, no operation is known to have launched it


def sum_operations(trace: Trace, pieces: Pieces) -> tuple[OperationFacts, ...]:
    """Return the operations of the steady steps, longest first."""
    rows = np.flatnonzero(pieces.steady)
    linked = pieces.op[rows] >= 0
    key = pieces.name[rows].astype(np.int64) * 2 + linked
    order = np.argsort(key, kind="stable")
    edges = np.flatnonzero(np.diff(key[order], prepend=NONE, append=np.iinfo(np.int64).max))
    groups = [rows[order[a:b]] for a, b in zip(edges[:-1], edges[1:], strict=True)]
    costs = _costs(trace, pieces.op[rows])
    found = [_operation(trace, pieces, group, costs) for group in groups]
    return tuple(sorted(found, key=lambda one: (-one.total_ns, one.name)))


def _operation(
    trace: Trace, pieces: Pieces, group: Ids, costs: dict[tuple[int, int], Cost]
) -> OperationFacts:
    name = trace.strings[int(pieces.name[group[0]])]
    linked = bool(pieces.op[group[0]] >= 0)
    calls, per_call = np.unique(pieces.op[group], return_inverse=True)
    call_ns = np.bincount(per_call, weights=pieces.dur_ns[group]).astype(np.int64)
    kernels = _kernels(trace, pieces, group)
    flops, moved, costed_ns, costed_flops = _cost_sums(trace, calls, call_ns, costs) if linked else _NO_COST
    return OperationFacts(
        name=name,
        work_class=_class_of(name, pieces, group).label,
        total_ns=int(call_ns.sum()),
        calls=len(calls) if linked else len(group),
        kernel_count=len(group) if kernels else 0,
        kernels=kernels,
        flops=flops,
        bytes=moved,
        costed_ns=costed_ns,
        costed_flops=costed_flops,
        linked=linked,
    )


_NO_COST = (None, None, 0, 0)


def _class_of(name: str, pieces: Pieces, group: Ids) -> WorkClass:
    """Return the class of the name, or that of its kernels' time where the name says little."""
    own = classify(name)
    if own not in VAGUE:
        return own
    weights = np.bincount(pieces.work_class[group], weights=pieces.dur_ns[group])
    by_kernel = WorkClass(int(weights.argmax()))
    return by_kernel if by_kernel is not WorkClass.OTHER else own


def _kernels(trace: Trace, pieces: Pieces, group: Ids) -> tuple[KernelFacts, ...]:
    names = pieces.kernel[group]
    if names[0] < 0:
        return ()
    used, which, counts = np.unique(names, return_inverse=True, return_counts=True)
    total = np.bincount(which, weights=pieces.dur_ns[group]).astype(np.int64)
    facts = [
        KernelFacts(name=trace.strings[name], count=count, total_ns=ns)
        for name, count, ns in zip(used.tolist(), counts.tolist(), total.tolist(), strict=True)
    ]
    return tuple(sorted(facts, key=lambda one: (-one.total_ns, one.name))[:KERNELS_SHOWN])


def _costs(trace: Trace, ops: Ids) -> dict[tuple[int, int], Cost]:
    """Return the cost of each pair of a name and inputs that occurs among the operations."""
    used = np.unique(ops[ops >= 0])
    shaped = used[trace.ops.inputs[used] >= 0]
    pairs = np.unique(np.stack([trace.ops.name[shaped], trace.ops.inputs[shaped]]), axis=1)
    return {
        (name, inputs): cost_of(trace.strings[name], trace.inputs[inputs])
        for name, inputs in zip(*pairs.tolist(), strict=True)
    }


def cost_of(name: str, inputs: Inputs) -> Cost:
    """Return the cost of one call of the operation with these recorded inputs."""
    shapes = decode_shapes(inputs)
    return UNKNOWN if shapes is None else op_cost(name, shapes)


def _cost_sums(
    trace: Trace, calls: Ids, call_ns: Longs, costs: dict[tuple[int, int], Cost]
) -> tuple[int | None, int | None, int, int]:
    """Return FLOPs and bytes of all calls (None if one is unknown), and time and FLOPs of the known ones."""
    pairs = zip(trace.ops.name[calls].tolist(), trace.ops.inputs[calls].tolist(), strict=True)
    found = [costs.get(pair, UNKNOWN) for pair in pairs]
    flops = [cost.flops for cost in found]
    moved = [cost.bytes for cost in found]
    known = [(f, ns) for f, ns in zip(flops, call_ns.tolist(), strict=True) if f is not None]
    return (
        None if None in flops else sum(f for f in flops if f is not None),
        None if None in moved else sum(b for b in moved if b is not None),
        sum(ns for _, ns in known),
        sum(f for f, _ in known),
    )

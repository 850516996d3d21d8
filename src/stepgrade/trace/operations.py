"""The work of a step by operation, and by its part in the model: class, role and direction."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stepgrade.model.activity import PartTime
from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import NONE, Ids, Kinds
from stepgrade.model.profile import OpTime, Span
from stepgrade.naming.roles import role_of
from stepgrade.naming.torch_names import BACKWARD, classes_of, matching
from stepgrade.naming.work_class import WorkClass, classify
from stepgrade.trace.costs import cost_of
from stepgrade.trace.layers import match_forward
from stepgrade.trace.ledger import HOST_COPIES
from stepgrade.trace.links import MODULE, nearest, pick
from stepgrade.trace.matmuls import MATMULS, dtype_of_calls
from stepgrade.trace.phases import PHASES
from stepgrade.trace.pieces import Pieces, per_steady_step
from stepgrade.trace.timeline import Driver, Timeline
from stepgrade.units import NS_PER_MS

UNKNOWN_SORT, FREE = -1, -2
MOST_SAMPLES = 4  # for each piece of work
_DIRECTIONS = ("forward", "backward", "optimizer")


class Operations(NamedTuple):
    """The operations of the steady steps, and what is known of their matrix products together."""

    times: tuple[OpTime, ...]
    # Of matmuls, convolutions and attention whose sizes are known; None if none is.
    matmul_flops: float | None
    matmul_known_share: float  # of the time of those operations, how much has its FLOPs known


class _Costs(NamedTuple):
    """The cost of one call of each operation, by the sort of call that it is."""

    sort: Ids  # of each operation: a place in the two tables, UNKNOWN_SORT or FREE
    flops: NDArray[np.float64]  # NaN where it is not known
    bytes: NDArray[np.float64]


def sum_operations(timeline: Timeline, pieces: Pieces) -> Operations:
    """Return the operations of the steady steps, longest first, with totals over these steps."""
    if timeline.driver is Driver.UNSEEN:
        return Operations((), None, 0.0)
    rows = np.flatnonzero(pieces.steady).astype(np.int32)
    rows = rows[np.argsort(pieces.name[rows], kind="stable")]
    names = pieces.name[rows]
    edges = np.flatnonzero(names[1:] != names[:-1]) + 1
    costs = _find_costs(timeline, pieces.op[rows])
    found: list[OpTime] = []
    members: dict[str, Ids] = {}
    matmul_ns = known_ns = known_flops = 0
    for first, last in pairwise([0, *edges.tolist(), len(rows)] if len(rows) else []):
        group = rows[first:last]
        linked = group[pieces.op[group] >= 0]  # the others are kernels that no recorded operation launched
        calls, per_call, _ = groups(pieces.op[linked])
        flops = costs.flops[costs.sort[calls]]
        name = timeline.trace.strings[int(pieces.name[group[0]])]
        work_class = classify(name)
        if work_class is WorkClass.OTHER:
            # The name says little: take the class of most of its kernels' time.
            weights = np.bincount(pieces.work_class[group], weights=pieces.dur_ns[group])
            work_class = WorkClass(int(weights.argmax()))
        total_ns = int(pieces.dur_ns[group].sum())
        is_matmul = work_class in MATMULS
        if is_matmul:
            known = ~np.isnan(flops)
            call_ns = np.bincount(per_call, weights=pieces.dur_ns[linked], minlength=len(calls))
            matmul_ns += total_ns
            known_ns += int(call_ns[known].sum())
            known_flops += int(flops[known].sum())
        all_linked, longest = len(linked) == len(group), pieces.longest(group)
        found.append(
            OpTime(
                name=name,
                total_ms=total_ns / NS_PER_MS,
                calls=float(len(calls) + len(group) - len(linked)),
                kind=work_class.label,
                flops=_sum_known(flops) if all_linked else None,
                bytes=_sum_known(costs.bytes[costs.sort[calls]]) if all_linked else None,
                dtype=dtype_of_calls(timeline.trace, calls) if is_matmul and len(calls) else None,
                longest=Span(
                    file=0,
                    start_ns=timeline.trace.file_zero_ns + int(pieces.start_ns[longest]),
                    dur_ns=int(pieces.dur_ns[longest]),
                ),
            )
        )
        members[name] = group
    found.sort(key=lambda op: (-op.total_ms, op.name))
    # An operation has a time for each step. That thousands of them have one for each of thousands of steps
    # is no training: then only the longest do.
    sampled = MOST_SAMPLES * len(rows) // max(1, int(timeline.windows.steady.sum()))
    for place, op in enumerate(found[:sampled]):
        group = members[op.name]
        step_ns = per_steady_step(timeline, pieces.step[group], pieces.dur_ns[group])
        found[place] = structs.replace(op, samples_ms=tuple((step_ns / NS_PER_MS).tolist()))
    flops_sum = float(known_flops) if known_flops else None
    return Operations(tuple(found), flops_sum, known_ns / matmul_ns if matmul_ns else 0.0)


def _sum_known(amounts: NDArray[np.float64]) -> float | None:
    """Return the sum, None if one is not known."""
    total = float(amounts.sum())
    return None if math.isnan(total) else float(int(total))


def _find_costs(timeline: Timeline, ops: Ids) -> _Costs:
    """Return the cost of a call of each of the operations; each pair of name and inputs is decoded once."""
    trace, tree = timeline.trace, timeline.tree
    sort = np.full(len(trace.ops.name), UNKNOWN_SORT, np.int32)
    used = np.zeros(len(sort), np.bool_)
    used[ops[ops >= 0]] = True
    used &= trace.ops.inputs >= 0
    width = max(1, len(trace.inputs))
    pairs, which, _ = groups(trace.ops.name[used].astype(np.int64) * width + trace.ops.inputs[used])
    sort[used] = which
    found = [cost_of(trace.strings[pair // width], trace.inputs[pair % width]) for pair in pairs.tolist()]
    # The last two places are those that FREE and UNKNOWN_SORT point to; None becomes NaN.
    flops = np.array([*(cost.flops for cost in found), 0.0, None], np.float64)
    moved = np.array([*(cost.bytes for cost in found), 0.0, None], np.float64)
    # An operation that calls costed ones, as linear calls addmm, has no cost of its own.
    costed = (flops > 0)[sort]
    calls_costed = np.zeros(len(tree.parent), np.bool_)
    above = tree.parent[tree.of_op[costed]]
    while len(above := distinct(above[above >= 0])):
        above = above[~calls_costed[above]]  # what is above those is marked already
        calls_costed[above] = True
        above = tree.parent[above]
    sort[calls_costed[tree.of_op] & costed] = FREE
    return _Costs(sort, flops, moved)


def tally_parts(timeline: Timeline, pieces: Pieces, phase: Kinds, steps: int) -> tuple[PartTime, ...]:
    """Return the parts of a steady step, longest first, without collectives and host copies."""
    trace, on_device = timeline.trace, timeline.driver is Driver.DEVICE
    chosen = pieces.steady & (pieces.work_class != WorkClass.COMMUNICATION)
    if on_device:
        chosen &= ~among(trace.work.kind[pieces.work], HOST_COPIES)
    rows = np.flatnonzero(chosen).astype(np.int32)
    if not len(rows):
        return ()
    by_name = classes_of(trace.strings, pieces.name[rows])
    classes = np.where(by_name == WorkClass.OTHER, pieces.work_class[rows], by_name)
    roles, names = _find_roles(timeline, pieces, rows)
    key = (classes.astype(np.int64) * (len(names) + 1) + roles + 1) * len(PHASES) + phase[rows]
    found = []
    for value in distinct(key).tolist():
        rest, phase_index = divmod(value, len(PHASES))
        work_class, role = divmod(rest, len(names) + 1)
        group = rows[key == value]
        ops = pieces.op[group]
        linked = ops[ops >= 0]
        direction = PHASES[phase_index]
        found.append(
            PartTime(
                work_class=WorkClass(work_class).label,
                role=names[role - 1] if role else None,
                direction=direction if direction in _DIRECTIONS else None,
                ms=float(pieces.dur_ns[group].sum()) / steps / NS_PER_MS,
                calls=(len(distinct(linked)) + len(ops) - len(linked)) / steps,
                kernels=len(group) / steps if on_device else 0.0,
                dtype=dtype_of_calls(trace, linked) if WorkClass(work_class) in MATMULS else None,
            )
        )
    found.sort(key=lambda part: (-part.ms, part.work_class, part.role or "", part.direction or ""))
    return tuple(found)


def _find_roles(timeline: Timeline, pieces: Pieces, rows: Ids) -> tuple[Ids, list[str]]:
    """Return the role of each piece (of its module, else of its name) as an index into the names, or NONE."""
    strings, tree, ops = timeline.trace.strings, timeline.tree, timeline.trace.ops
    used = distinct(np.append(distinct(tree.name), distinct(pieces.name))).tolist()
    roles = {index: role for index in used if (role := role_of(strings[index]))}
    names = sorted(set(roles.values()))
    table = np.full(max(len(strings), 1), NONE, np.int32)
    for index, role in roles.items():
        table[index] = names.index(role)
    own = table[pieces.name[rows]]
    if not len(tree.name):
        return own, names
    module_row = pieces.row[rows]
    if len(ops.name):
        # The module of a backward node is that of the forward operation that made it.
        node = matching(strings, BACKWARD)[ops.name]
        maker = np.full(len(tree.kind), NONE, np.int32)
        maker[tree.of_op[node]] = pick(tree.of_op, match_forward(timeline.trace, node))
        made = pick(maker, pick(nearest(tree.parent, maker >= 0), module_row))
        module_row = np.where(made >= 0, made, module_row).astype(np.int32)
    module = nearest(tree.parent, (tree.kind == MODULE) & (table[tree.name] >= 0))
    by_module = pick(table, pick(tree.name, pick(module, module_row)))
    return np.where(by_module >= 0, by_module, own).astype(np.int32), names

"""The work of a step by operation, and by its part in the model: class, role and direction."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import structs

from stepgrade.costs.call_costs import find_costs
from stepgrade.costs.matmuls import most_of, precisions_of, time_by_precision
from stepgrade.costs.shapes import Calls, shapes_by_label
from stepgrade.model.activity import PartTime
from stepgrade.model.columns import among, distinct
from stepgrade.model.events import NONE, Ids, Kinds
from stepgrade.model.operations import Operation, Span
from stepgrade.naming.roles import role_of
from stepgrade.naming.torch_names import BACKWARD, classes_of, matching
from stepgrade.naming.work_class import MATMULS, WorkClass, classify
from stepgrade.timeline.compiled import compiled_of
from stepgrade.timeline.ledger import HOST_COPIES
from stepgrade.timeline.links import MODULE, nearest, pick
from stepgrade.timeline.pieces import Pieces, per_steady_step
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.trace.kernels import kernels_by_label
from stepgrade.trace.layers import match_forward
from stepgrade.trace.phases import PHASES
from stepgrade.units import NS_PER_MS

MOST_SAMPLES = 4  # for each piece of work
_DIRECTIONS = ("forward", "backward", "optimizer")
# Operations of PyTorch itself whose class is not known make, view or move data: they do no arithmetic.
_PLAIN = ("aten::", "autograd::", "torch::", "c10d::", "profiler::", "detach")


class Operations(NamedTuple):
    """The operations of a steady step, and what is known of their arithmetic together."""

    longest_first: tuple[Operation, ...]
    # Of matmuls, convolutions and attention whose sizes are known; None if none is.
    matmul_flops: float | None
    known_share: float | None  # of the time in operations that do arithmetic, how much has its FLOPs known


def sum_operations(timeline: Timeline, pieces: Pieces) -> Operations:
    """Return the operations of the mean steady step."""
    if timeline.driver is Driver.UNSEEN:
        return Operations((), None, None)
    rows = np.flatnonzero(pieces.steady).astype(np.int32)
    rows = rows[np.argsort(pieces.label[rows], kind="stable")]
    costs = find_costs(timeline, pieces, rows)
    calls = Calls.of(pieces, rows)
    flops_of = costs.flops()[calls.op]
    known_of = ~np.isnan(flops_of)
    call_ns = np.bincount(calls.of_piece, pieces.dur_ns[calls.pieces], len(calls.op))
    shapes = shapes_by_label(timeline.trace, pieces, rows, calls, costs)
    kernels = kernels_by_label(timeline, pieces, rows)
    # Where the rows, the linked ones and the calls of each label begin.
    ordered = pieces.label[rows]
    labels = distinct(ordered)
    of_rows, of_linked, of_calls = (
        [*np.searchsorted(column, labels).tolist(), len(column)]
        for column in (ordered, pieces.label[calls.pieces], calls.label)
    )
    found: list[Operation] = []
    members: dict[str, Ids] = {}
    arithmetic_ns = known_ns = known_flops = 0
    for place, label in enumerate(labels.tolist()):
        group, own = rows[of_rows[place] : of_rows[place + 1]], slice(of_calls[place], of_calls[place + 1])
        unlinked = len(group) - (of_linked[place + 1] - of_linked[place])
        name = pieces.labels[label]
        work_class = classify(timeline.trace.strings[int(pieces.name[group[0]])])
        if work_class is WorkClass.OTHER or label != pieces.name[group[0]]:
            # Where the name says little the kernels tell.
            work_class = WorkClass(int(np.bincount(pieces.work_class[group], pieces.dur_ns[group]).argmax()))
        total_ns, is_matmul = int(pieces.dur_ns[group].sum()), work_class in MATMULS
        if is_matmul:
            known = known_of[own]
            known_ns += int(call_ns[own][known].sum())
            known_flops += int(flops_of[own][known].sum())
        # What has no known class may do arithmetic; on a host, what calls others has a time of its own too.
        is_library = ("::" in name or timeline.driver is Driver.DEVICE) and not name.startswith(_PLAIN)
        is_told = not unlinked and bool(known_of[own].all())  # a compiler knows all that it does
        if is_matmul or (work_class is WorkClass.OTHER and is_library and not is_told):
            arithmetic_ns += total_ns
        longest = pieces.longest(group)
        op = Operation(
            name=name,
            ms=total_ns / NS_PER_MS,
            calls=float(own.stop - own.start + unlinked),
            kind=work_class.label,
            dtype=_precision(timeline, pieces, group) if is_matmul else None,
            longest=Span(
                file=0,
                start_ns=timeline.trace.file_zero_ns + int(pieces.start_ns[longest]),
                dur_ns=int(pieces.dur_ns[longest]),
            ),
            kernels=kernels.get(label, ()),
        )
        found.append(op.with_rows(shapes[label]))
        members[name] = group
    found.sort(key=lambda op: (-(op.ms or 0.0), op.name))
    # An operation has a time for each step. That thousands of them have one for each of thousands of steps
    # is no training: then only the longest do.
    steps = max(1, int(timeline.windows.steady.sum()))
    sampled = MOST_SAMPLES * len(rows) // steps
    for place, op in enumerate(found[:sampled]):
        group = members[op.name]
        step_ns = per_steady_step(timeline, pieces.step[group], pieces.dur_ns[group])
        found[place] = structs.replace(op, samples_ms=tuple((step_ns / NS_PER_MS).tolist()))
    return Operations(
        tuple(op.per_step(steps) for op in found),
        known_flops / steps if known_flops else None,
        known_ns / arithmetic_ns if arithmetic_ns else None,
    )


def _precision(timeline: Timeline, pieces: Pieces, group: Ids) -> str | None:
    """Return the precision of most of the time of an operation's matrix products."""
    products = group[among(pieces.work_class[group], MATMULS)]
    precisions = precisions_of(timeline.trace, pieces, products)
    return most_of(time_by_precision(precisions, pieces.dur_ns[products]))


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
    is_inner = np.zeros(len(rows), bool)
    if not on_device:  # aten::linear and the aten::addmm in it are pieces of their own, but one product
        class_of = np.full(len(timeline.tree.name), NONE, classes.dtype)
        class_of[pieces.row[rows]] = classes
        is_inner = pick(class_of, pick(timeline.tree.parent, pieces.row[rows])) == classes
    found = []
    for value in distinct(key).tolist():
        rest, phase_index = divmod(value, len(PHASES))
        work_class, role = divmod(rest, len(names) + 1)
        group = rows[key == value]
        ops = pieces.op[rows[(key == value) & ~is_inner]]
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
                dtype=_precision(timeline, pieces, group) if WorkClass(work_class) in MATMULS else None,
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
    scopes = [role_of(one.path) if one else None for one in compiled_of(timeline.trace)]
    if scopes:
        names = sorted({*names, *(role for role in scopes if role)})
        by_scope = np.array([*(names.index(role) if role else NONE for role in scopes), NONE], np.int32)
        return by_scope[pick(ops.inputs, pieces.op[rows])], names
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

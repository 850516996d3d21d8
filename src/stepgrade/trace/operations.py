"""Operations and modules of a step: their time, costs, part in the model, and line in the user's code."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from stepgrade.costs.call_costs import (
    Calls,
    find_costs,
    most_of,
    shapes_by_label,
    time_by_precision,
)
from stepgrade.model.activity import PartTime
from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import NONE, Floats, Ids
from stepgrade.model.operations import ModuleStep, Operation, Span
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.torch_names import BACKWARD, Mask, classes_of, matching
from stepgrade.naming.work_class import MATMULS, WorkClass, classify, role_of
from stepgrade.timeline.ledger import HOST_COPIES
from stepgrade.timeline.links import CALL, MODULE, OP, compiled_of, nearest, pick
from stepgrade.timeline.timeline import IN_BACKWARD, PHASES, Driver, Phase, Pieces, Timeline
from stepgrade.trace.kernels import kernels_by_label
from stepgrade.trace.layers import MODULE_PREFIX, makers_of_rows, match_forward
from stepgrade.trace.memory import LocatedEvents
from stepgrade.units import NS_PER_MS

MOST_SAMPLES = 4  # for each piece of work
_DIRECTIONS = ("forward", "backward", "optimizer")
# Operations of PyTorch itself whose class is not known make, view or move data: they do no arithmetic.
_PLAIN = ("aten::", "autograd::", "torch::", "c10d::", "profiler::", "detach")
MOST_MODULES = 2_000  # a model of a hundred layers has about a thousand


class Operations(NamedTuple):
    """The operations of a steady step, and the known part of their arithmetic."""

    longest_first: tuple[Operation, ...]
    # Of matmuls, convolutions and attention with known sizes; None if there are none.
    matmul_flops: float | None
    known_share: float | None  # of the time in operations that do arithmetic, the share with known FLOPs


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
    for index, label in enumerate(labels.tolist()):
        group, own = rows[of_rows[index] : of_rows[index + 1]], slice(of_calls[index], of_calls[index + 1])
        unlinked = len(group) - (of_linked[index + 1] - of_linked[index])
        name = pieces.labels[label]
        work_class = classify(timeline.trace.strings[int(pieces.name[group[0]])])
        if work_class is WorkClass.OTHER or label != pieces.name[group[0]]:
            # Where the name says little the kernels decide.
            work_class = WorkClass(int(np.bincount(pieces.work_class[group], pieces.dur_ns[group]).argmax()))
        total_ns, is_matmul = int(pieces.dur_ns[group].sum()), work_class in MATMULS
        if is_matmul:
            known = known_of[own]
            known_ns += int(call_ns[own][known].sum())
            known_flops += int(flops_of[own][known].sum())
        # An operation of no known class may do arithmetic; on a host, one that calls others has own time too.
        is_library = ("::" in name or timeline.driver is Driver.DEVICE) and not name.startswith(_PLAIN)
        is_known = not unlinked and bool(known_of[own].all())  # a compiler knows all costs
        if is_matmul or (work_class is WorkClass.OTHER and is_library and not is_known):
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
    # Thousands of operations in thousands of steps are not training: then only the longest get samples.
    steps = max(1, int(timeline.windows.steady.sum()))
    for index, op in enumerate(found[: MOST_SAMPLES * len(rows) // steps]):
        group = members[op.name]
        step_ns = timeline.per_steady_step(pieces.step[group], pieces.dur_ns[group])
        found[index] = structs.replace(op, samples_ms=tuple((step_ns / NS_PER_MS).tolist()))
    return Operations(
        tuple(op.per_step(steps) for op in found),
        known_flops / steps if known_flops else None,
        known_ns / arithmetic_ns if arithmetic_ns else None,
    )


def _precision(timeline: Timeline, pieces: Pieces, group: Ids) -> str | None:
    """Return the precision of most of the time of an operation's matrix products."""
    products = group[among(pieces.work_class[group], MATMULS)]
    return most_of(time_by_precision(timeline.trace, pieces, products))


def tally_parts(timeline: Timeline, pieces: Pieces, steps: int) -> tuple[PartTime, ...]:
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
    key = (classes.astype(np.int64) * (len(names) + 1) + roles + 1) * len(PHASES) + pieces.phase[rows]
    is_inner = np.zeros(len(rows), bool)
    if not on_device:  # aten::linear and the aten::addmm in it are pieces of their own, but one product
        class_of = np.full(len(timeline.tree.name), NONE, classes.dtype)
        class_of[pieces.row[rows]] = classes
        is_inner = pick(class_of, pick(timeline.tree.parent, pieces.row[rows])) == classes
    found = []
    for value in distinct(key).tolist():
        rest, phase = divmod(value, len(PHASES))
        work_class, role = divmod(rest, len(names) + 1)
        group = rows[key == value]
        ops = pieces.op[rows[(key == value) & ~is_inner]]
        linked = ops[ops >= 0]
        found.append(
            PartTime(
                work_class=WorkClass(work_class).label,
                role=names[role - 1] if role else None,
                direction=PHASES[phase] if PHASES[phase] in _DIRECTIONS else None,
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
    scopes = [role_of(compiled.path) if compiled else None for compiled in compiled_of(timeline.trace)]
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


def find_places(
    timeline: Timeline,
    pieces: Pieces,
    recomputed: Mask,
    located: LocatedEvents | None,
    operations: tuple[Operation, ...],
) -> tuple[tuple[ModuleStep, ...], tuple[Operation, ...]]:
    """Return the modules of the steady steps, parents first, and the operations with their line and module.

    Work of the backward pass comes from the forward operation that made its autograd node.
    """
    rows = np.flatnonzero(pieces.steady & (pieces.row >= 0)).astype(np.int32)
    own, tree = pieces.row[rows], timeline.tree
    is_module = tree.kind == MODULE
    if not len(rows) or not (is_module.any() or len(timeline.frames.start_ns)):
        return (), operations
    module = nearest(tree.parent, is_module)
    makers = makers_of_rows(timeline, own)
    # Rows inside a module stay there: forward work, and recomputed work.
    source = np.where((pick(module, own) < 0) & (makers >= 0), makers, own)
    nodes = _nodes_of_modules(timeline, module)
    # A collective is launched from wherever the gradients happen to be ready: it belongs to no module.
    is_own = pieces.work_class[rows] != WorkClass.COMMUNICATION
    node = np.where(is_own, pick(nodes.of_row, pick(module, source)), NONE).astype(np.int32)
    steps = max(1, int(timeline.windows.steady.sum()))
    held: Floats | None = None
    if located is not None:  # what the forward pass of each module leaves allocated, with all inside it
        events, row = located
        event_node = pick(nodes.of_row, pick(module, row))
        in_forward = (event_node >= 0) & ((pick(timeline.context, row) & IN_BACKWARD) == 0)
        in_forward &= timeline.in_steady_step(events.start_ns)
        amounts = np.bincount(event_node[in_forward], events.bytes[in_forward], len(nodes.name))
        held = nodes.with_children(amounts) / steps
    modules = tuple(
        module if held is None else structs.replace(module, memory_bytes=float(held[index]))
        for index, module in _sum_modules(nodes, node, pieces, rows, recomputed, steps).items()
    )
    places = _places_by_name(timeline, pieces, rows, source, nodes, node)
    return modules, tuple(structs.replace(op, **places.get(op.name, {})) for op in operations)


class _Nodes(NamedTuple):
    """The modules by their path: those of different steps with the same path are one."""

    of_row: Ids  # of each row of the host tree that is a module
    parent: list[int]
    name: list[str]
    kind: list[str]  # the path with classes instead of instances: GPT.Block.Attention

    def with_children(self, amounts: NDArray[Any]) -> NDArray[Any]:
        """Return the amount of each module with those of all modules inside it."""
        for child in range(len(self.parent) - 1, -1, -1):  # a parent has a lower number than its children
            if self.parent[child] >= 0:
                amounts[self.parent[child]] += amounts[child]
        return amounts


def _nodes_of_modules(timeline: Timeline, module: Ids) -> _Nodes:
    """Return the tree of modules, level by level; recomputed modules are those of the forward pass."""
    tree, strings = timeline.tree, timeline.trace.strings
    rows = np.flatnonzero(tree.kind == MODULE).astype(np.int32)
    above = pick(module, tree.parent[rows])  # the module around each of them
    again = (timeline.context[rows] & IN_BACKWARD) > 0
    found = _Nodes(np.full(len(tree.kind), NONE, np.int32), [], [], [])
    known: dict[tuple[int, str], int] = {}
    by_name: dict[str, int] = {}
    width = max(len(strings), 1)
    for chosen in (~again, again):
        todo = chosen.copy()
        while todo.any() and len(found.name) < MOST_MODULES:
            ready = todo & ((above < 0) | (found.of_row[np.maximum(above, 0)] >= 0))
            if not ready.any():
                break
            parent = pick(found.of_row, above[ready])
            values, which, _ = groups((parent.astype(np.int64) + 1) * width + tree.name[rows[ready]])
            numbers = []
            for value in values.tolist():
                upper, name = value // width - 1, strings[value % width].removeprefix(MODULE_PREFIX)
                number = known.get((upper, name), by_name.get(name, NONE) if upper < 0 else NONE)
                if number < 0:
                    number = known[upper, name] = by_name[name] = len(found.name)
                    kind = name.rsplit("_", 1)[0]
                    found.parent.append(upper)
                    found.name.append(name)
                    found.kind.append(kind if upper < 0 else f"{found.kind[upper]}.{kind}")
                numbers.append(number)
            found.of_row[rows[ready]] = np.array(numbers, np.int32)[which]
            todo &= ~ready
    return found


def _sum_modules(
    nodes: _Nodes, node: Ids, pieces: Pieces, rows: Ids, recomputed: Mask, steps: int
) -> dict[int, ModuleStep]:
    """Return the time of each module, with all modules inside it, and of the operations it calls itself."""
    phase, steps_ms = pieces.phase[rows], steps * NS_PER_MS
    inside = (node >= 0) & ((phase == Phase.FORWARD) | (phase == Phase.BACKWARD))
    rows, node, phase = rows[inside], node[inside].astype(np.int64), phase[inside]
    direction = np.where(phase == Phase.FORWARD, 0, np.where(recomputed[rows], 2, 1))
    count, dur_ns, width = len(nodes.name), pieces.dur_ns[rows], len(pieces.labels)
    deep = int(pieces.kernel.max(initial=NONE)) + 2
    triples, which, _ = groups((node * width + pieces.label[rows]) * deep + pieces.kernel[rows] + 1)
    own: list[dict[str, float]] = [{} for _ in range(count)]
    of_kernel: list[dict[str, dict[str, float]]] = [{} for _ in range(count)]
    times = np.bincount(which, weights=dur_ns, minlength=len(triples))
    for triple, ns in zip(triples.tolist(), times.tolist(), strict=True):
        index, label = divmod(triple // deep, width)
        name, kernel = pieces.labels[label], triple % deep - 1
        own[index][name] = own[index].get(name, 0.0) + ns / steps_ms
        if kernel >= 0:
            of_kernel[index].setdefault(name, {})[pieces.labels[kernel]] = ns / steps_ms
    sums = np.bincount(node * 3 + direction, weights=dur_ns, minlength=count * 3).reshape(-1, 3)
    order = np.flatnonzero(nodes.with_children(sums).any(axis=1)).tolist()
    number = {index: at for at, index in enumerate(order)}
    return {
        index: ModuleStep(
            name=nodes.name[index],
            parent=number.get(nodes.parent[index]),
            fwd_ms=float(sums[index][0]) / steps_ms,
            bwd_ms=float(sums[index][1]) / steps_ms,
            recompute_ms=float(sums[index][2]) / steps_ms,
            ops=own[index],
            kernels=of_kernel[index],
        )
        for index in order
    }


def _places_by_name(
    timeline: Timeline, pieces: Pieces, rows: Ids, source: Ids, nodes: _Nodes, node: Ids
) -> dict[str, dict[str, str | None]]:
    """Return for each label the module and the user's line that most of its time comes from."""
    tree, trace, strings = timeline.tree, timeline.trace, timeline.trace.strings
    # The line is that of the user's function in which the loop's thread was when the row began.
    start, thread = np.zeros(len(source), np.int64), np.full(len(source), NONE, np.int32)
    for kind, table in ((OP, trace.ops), (CALL, trace.calls)):
        own = np.flatnonzero(tree.kind[source] == kind)
        origin = tree.origin[source[own]]
        start[own], thread[own] = table.start_ns[origin], table.thread[origin]
    at = np.where(thread == timeline.steps.thread, timeline.frames.at(start), NONE)
    line = pick(timeline.frames.user, at)
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(nodes.kind))}
    module = pick(np.array([kinds[kind] for kind in nodes.kind], np.int32), node)
    best: list[dict[int, int]] = []
    for value in (module, line):
        known = value >= 0
        width = int(value.max(initial=0)) + 1
        pairs, which, _ = groups(pieces.label[rows[known]].astype(np.int64) * width + value[known])
        times = np.bincount(which, weights=pieces.dur_ns[rows][known], minlength=len(pairs))
        order = np.argsort(times, kind="stable")  # the last entry of a label, with the most time, stays
        best.append({int(pairs[index]) // width: int(pairs[index]) % width for index in order.tolist()})
    names = list(kinds)
    return {
        pieces.labels[label]: {
            "where": read_frame(strings[best[1][label]]).where if label in best[1] else None,
            "module": names[best[0][label]] if label in best[0] else None,
        }
        for label in {*best[0], *best[1]}
    }

"""Where in the user's code work comes from: the modules around it, and the line of the user's own code.

Work of the backward pass comes from where the forward operation stands that made its autograd node.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import structs

from stepgrade.model.columns import groups
from stepgrade.model.events import NONE, Floats, Ids, Kinds
from stepgrade.model.layers import ModuleStep
from stepgrade.model.operations import Operation
from stepgrade.naming.python_frames import read_frame
from stepgrade.naming.torch_names import Mask
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline.links import MODULE, nearest, pick
from stepgrade.timeline.pieces import Pieces
from stepgrade.timeline.timeline import IN_BACKWARD, Timeline
from stepgrade.trace import phases
from stepgrade.trace.layers import MODULE_PREFIX, makers_of_rows
from stepgrade.trace.memory import LocatedEvents
from stepgrade.units import NS_PER_MS

MOST_MODULES = 2_000  # a model of a hundred layers has about a thousand


class Place(NamedTuple):
    """Where most of an operation's time comes from."""

    where: str | None  # file.py:line
    module: str | None  # the kinds of the modules around it, outermost first: GPT.Block.Attention


class CodePlaces(NamedTuple):
    """The modules of the steady steps as a tree, a parent before its children; the place of each label."""

    modules: tuple[ModuleStep, ...]
    of_label: dict[str, Place]

    def put_into(self, op: Operation) -> Operation:
        """Return the operation with the place that it comes from, if that is known."""
        place = self.of_label.get(op.name)
        return op if place is None else structs.replace(op, where=place.where, module=place.module)


def find_places(
    timeline: Timeline, pieces: Pieces, phase: Kinds, again: Mask, located: LocatedEvents | None = None
) -> CodePlaces:
    """Return where the work of the steady steps comes from; `again` is forward work done once more."""
    rows = np.flatnonzero(pieces.steady & (pieces.row >= 0)).astype(np.int32)
    own, tree = pieces.row[rows], timeline.tree
    has_modules = bool((tree.kind == MODULE).any())
    if not len(rows) or not (has_modules or len(timeline.frames.start_ns)):
        return CodePlaces((), {})
    module = nearest(tree.parent, tree.kind == MODULE)
    makers = makers_of_rows(timeline, own)
    # What has a module around it is where it stands: forward work, and that done again.
    source = np.where((pick(module, own) < 0) & (makers >= 0), makers, own)
    nodes = _nodes_of_modules(timeline, module)
    # A collective is launched from wherever the gradients happen to be ready: that is no module's work.
    is_own = pieces.work_class[rows] != WorkClass.COMMUNICATION
    node = np.where(is_own, pick(nodes.of_row, pick(module, source)), NONE).astype(np.int32)
    steps = max(1, int(timeline.windows.steady.sum()))
    modules = _add_up(nodes, node, pieces, rows, _directions(phase[rows], again[rows]), steps)
    held = None if located is None else _held_bytes(timeline, nodes, module, located)
    return CodePlaces(
        modules=tuple(
            one if held is None else structs.replace(one, memory_bytes=float(held[place]))
            for place, one in modules
        ),
        of_label=_places_of_labels(timeline, pieces, rows, source, nodes, node),
    )


class _Nodes(NamedTuple):
    """The modules by their path: those of different steps that stand at the same place are one."""

    of_row: Ids  # of each row of the host tree that is a module
    parent: list[int]
    name: list[str]
    kind: list[str]  # the path with classes instead of instances: GPT.Block.Attention


def _nodes_of_modules(timeline: Timeline, module: Ids) -> _Nodes:
    """Return the tree of modules, level by level; forward work done again stands where it stood before."""
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


_FORWARD, _BACKWARD, _AGAIN, _OTHER = range(4)


def _directions(phase: Kinds, again: Mask) -> Kinds:
    direction = np.full(len(phase), _OTHER, np.int8)
    direction[phase == phases.FORWARD] = _FORWARD
    direction[phase == phases.BACKWARD] = _BACKWARD
    direction[(phase == phases.BACKWARD) & again] = _AGAIN
    return direction


def _add_up(
    nodes: _Nodes, node: Ids, pieces: Pieces, rows: Ids, direction: Kinds, steps: int
) -> tuple[tuple[int, ModuleStep], ...]:
    """Return the time of each module with all that is in it, and of what it calls itself, by its node."""
    steps_ms = steps * NS_PER_MS
    inside = (node >= 0) & (direction < _OTHER)
    count, dur_ns, width = len(nodes.name), pieces.dur_ns[rows], len(pieces.labels)
    deep = int(pieces.kernel.max(initial=NONE)) + 2
    pair = node[inside].astype(np.int64) * width + pieces.label[rows[inside]]
    triples, which, _ = groups(pair * deep + pieces.kernel[rows[inside]] + 1)
    own: list[dict[str, float]] = [{} for _ in range(count)]
    of_kernel: list[dict[str, dict[str, float]]] = [{} for _ in range(count)]
    times = np.bincount(which, weights=dur_ns[inside], minlength=len(triples))
    for triple, ns in zip(triples.tolist(), times.tolist(), strict=True):
        place, label = divmod(triple // deep, width)
        name, kernel = pieces.labels[label], triple % deep - 1
        own[place][name] = own[place].get(name, 0.0) + ns / steps_ms
        if kernel >= 0:
            known = of_kernel[place].setdefault(name, {})
            known[pieces.labels[kernel]] = ns / steps_ms
    sums = np.bincount(
        node[inside].astype(np.int64) * _OTHER + direction[inside],
        weights=dur_ns[inside],
        minlength=count * _OTHER,
    ).reshape(-1, _OTHER)
    for child in range(count - 1, -1, -1):  # a parent has a lower number than what is in it
        if nodes.parent[child] >= 0:
            sums[nodes.parent[child]] += sums[child]
    order = [place for place in range(count) if sums[place].any()]
    number = {place: index for index, place in enumerate(order)}
    return tuple(
        (
            place,
            ModuleStep(
                name=nodes.name[place],
                parent=number.get(nodes.parent[place]),
                fwd_ms=float(sums[place][_FORWARD]) / steps_ms,
                bwd_ms=float(sums[place][_BACKWARD]) / steps_ms,
                recompute_ms=float(sums[place][_AGAIN]) / steps_ms,
                ops=own[place],
                kernels=of_kernel[place],
            ),
        )
        for place in order
    )


def _held_bytes(timeline: Timeline, nodes: _Nodes, module: Ids, located: LocatedEvents) -> Floats:
    """Return what the forward pass of each module leaves allocated in a steady step, with all in it."""
    events, row = located
    node = pick(nodes.of_row, pick(module, row))
    in_forward = (node >= 0) & ((pick(timeline.context, row) & IN_BACKWARD) == 0)
    in_forward &= timeline.in_steady_step(events.start_ns)
    held = np.bincount(node[in_forward], weights=events.bytes[in_forward], minlength=len(nodes.name))
    for child in range(len(nodes.name) - 1, -1, -1):  # a parent has a lower number than what is in it
        if nodes.parent[child] >= 0:
            held[nodes.parent[child]] += held[child]
    per_step: Floats = held / max(int(timeline.windows.steady.sum()), 1)
    return per_step


def _places_of_labels(
    timeline: Timeline, pieces: Pieces, rows: Ids, source: Ids, nodes: _Nodes, node: Ids
) -> dict[str, Place]:
    """Return for each label the module and the line that most of its time comes from."""
    line = _lines_of_rows(timeline, source)
    weight, strings = pieces.dur_ns[rows], timeline.trace.strings
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(nodes.kind))}
    kind = pick(np.array([kinds[kind] for kind in nodes.kind], np.int32), node)
    best: list[dict[int, int]] = []
    for value in (kind, line):
        known = value >= 0
        width = int(value.max(initial=0)) + 1
        pairs, which, _ = groups(pieces.label[rows[known]].astype(np.int64) * width + value[known])
        times = np.bincount(which, weights=weight[known], minlength=len(pairs))
        order = np.argsort(times, kind="stable")  # the last one, which has most, stays
        best.append({int(pairs[place]) // width: int(pairs[place]) % width for place in order.tolist()})
    names = list(kinds)
    return {
        pieces.labels[label]: Place(
            where=read_frame(strings[best[1][label]]).where if label in best[1] else None,
            module=names[best[0][label]] if label in best[0] else None,
        )
        for label in {*best[0], *best[1]}
    }


def _lines_of_rows(timeline: Timeline, rows: Ids) -> Ids:
    """Return the name of the user's function that the loop's thread was in when the row began, or NONE."""
    frames, tree, trace = timeline.frames, timeline.tree, timeline.trace
    found = np.full(len(rows), NONE, np.int32)
    if not len(frames.start_ns):
        return found
    start, thread = np.zeros(len(tree.kind), np.int64), np.full(len(tree.kind), NONE, np.int32)
    for of_table, table in ((tree.of_op, trace.ops), (tree.of_call, trace.calls)):
        start[of_table], thread[of_table] = table.start_ns, table.thread
    place = np.searchsorted(frames.start_ns, start[rows], side="right") - 1
    inside = (place >= 0) & (thread[rows] == timeline.steps.thread)
    inside[inside] = start[rows][inside] < frames.end_ns[place[inside]]
    found[inside] = frames.user[place[inside]]
    return found

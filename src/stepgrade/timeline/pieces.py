"""The pieces of work that a step's time is made of: device work, or a host's operations by their own time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import among, groups
from stepgrade.model.events import NONE, Ids, Kinds, Longs, Wholes
from stepgrade.naming.torch_names import COLLECTIVE, Mask, classes_of, matching
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.timeline.compiled import compiled_of
from stepgrade.timeline.links import nearest, pick, self_times
from stepgrade.timeline.steps import steps_of
from stepgrade.timeline.timeline import Driver, Timeline


class Pieces(NamedTuple):
    """One row for each piece of work on the analysed device."""

    start_ns: Longs
    dur_ns: Wholes  # on a host: its own time, without what is nested in it
    launch_ns: Longs  # on a host: its start
    step: Ids
    row: Ids  # in the host tree, or NONE
    op: Ids  # row in trace.ops, or NONE
    name: Ids  # of the operation, else of the kernel
    kernel: Ids  # name of the kernel, or NONE on a host
    work: Ids  # row in trace.work, or NONE on a host
    work_class: Kinds
    context: Kinds  # IN_INPUT | IN_BACKWARD | IN_OPTIMIZER
    steady: Mask  # belongs to a steady step
    label: Ids  # its name for people, in `labels`
    labels: tuple[str, ...]  # those of the trace; and of operations with work of several classes each of them

    def longest(self, rows: Ids) -> int:
        """Return the longest of the pieces in `rows`, of several the first in time."""
        tied = rows[self.dur_ns[rows] == self.dur_ns[rows].max()]
        return int(tied[self.start_ns[tied].argmin()])


def find_pieces(timeline: Timeline) -> Pieces:
    """Return the pieces of the timeline's steps."""
    trace, tree, links, work = timeline.trace, timeline.tree, timeline.links, timeline.trace.work
    if timeline.driver is not Driver.DEVICE:
        ops = trace.ops
        none = np.full(len(ops.name), NONE, np.int32)
        step = steps_of(ops.start_ns, timeline.steps)
        return Pieces(
            start_ns=ops.start_ns,
            dur_ns=self_times(trace, tree),
            launch_ns=ops.start_ns,
            step=step,
            row=tree.of_op,
            op=np.arange(len(ops.name), dtype=np.int32),
            name=ops.name,
            kernel=none,
            work=none,
            work_class=classes_of(trace.strings, ops.name),
            context=timeline.context[tree.of_op],
            steady=timeline.windows.is_steady(step),
            label=ops.name,
            labels=trace.strings,
        )
    rows = np.flatnonzero(timeline.chosen).astype(np.int32)
    own = slice(None) if timeline.chosen.all() else rows  # of an only device nothing is copied
    step, op, row, kernel = timeline.attribution.step[own], links.op[own], links.row[own], work.name[own]
    name = np.where(op >= 0, pick(trace.ops.name, op), kernel) if (op >= 0).any() else kernel
    if len(tree.name):
        # All collectives have an operation of the same name inside: show the name of the collective itself.
        above = pick(nearest(tree.parent, matching(trace.strings, COLLECTIVE)[tree.name]), row)
        is_collective = (timeline.classes[own] == WorkClass.COMMUNICATION) & (above >= 0)
        if is_collective.any():
            name = np.where(is_collective, pick(tree.name, above), name)
    context = np.maximum(pick(timeline.context, row), 0)
    if compiled_of(trace):  # the compiler knows the operation, whichever call launched it
        context |= np.maximum(pick(timeline.context, pick(tree.of_op, op)), 0)
    label, labels = _label(trace.strings, np.where(op >= 0, name, NONE), timeline.classes[own], name)
    return Pieces(
        start_ns=work.start_ns[own],
        dur_ns=work.dur_ns[own],
        launch_ns=links.launch_ns[own],
        step=step,
        row=row,
        op=op,
        name=name,
        kernel=kernel,
        work=rows,
        work_class=timeline.classes[own],
        context=context,
        steady=timeline.windows.is_steady(step),
        label=label,
        labels=labels,
    )


def _label(
    strings: tuple[str, ...], operation: Ids, work_class: Kinds, name: Ids
) -> tuple[Ids, tuple[str, ...]]:
    """Return the label of each piece: its name, and its class where its operation has work of several.

    A compiled region is such an operation, and so is one of a library whose name does not say what it does.
    """
    width = len(WorkClass)
    values, which, _ = groups(operation.astype(np.int64) * width + work_class)
    of, own = values // width, values % width
    said = classes_of(strings, np.maximum(of, 0).astype(np.int32))
    is_library = np.array([not strings[index].startswith("aten::") for index in np.maximum(of, 0).tolist()])
    computes = among(of, of[among(own, MATMULS)])
    vague = (said == WorkClass.OTHER) | (is_library & computes & ~among(said, MATMULS))
    several = np.append(of[1:] == of[:-1], False) | np.append(False, of[1:] == of[:-1])
    split = (of >= 0) & vague & several & (own != WorkClass.COMMUNICATION)
    if not split.any():
        return name, strings
    place = np.full(len(values), NONE, np.int32)
    place[split] = len(strings) + np.arange(int(split.sum()))
    added = (
        f"{strings[index]} ({WorkClass(number).label})"
        for index, number in zip(of[split].tolist(), own[split].tolist(), strict=True)
    )
    return np.where(place[which] >= 0, place[which], name), (*strings, *added)


def per_steady_step(timeline: Timeline, step: Ids, dur_ns: Wholes) -> Longs:
    """Return the time of pieces in each steady step."""
    steady = timeline.windows.steady
    sums = np.bincount(step, weights=dur_ns, minlength=len(steady)).astype(np.int64)
    return sums[: len(steady)][steady]

"""The pieces that a step's time is made of: device work, or a host's operations by their own time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import distinct
from stepgrade.model.events import NONE, Ids, Kinds, Longs, Wholes
from stepgrade.naming.torch_names import COLLECTIVE, Mask, matching
from stepgrade.trace.classify import Classes, WorkClass, classify
from stepgrade.trace.links import nearest, pick, self_times
from stepgrade.trace.steps import steps_of
from stepgrade.trace.timeline import Driver, Timeline


class Pieces(NamedTuple):
    """One row for each piece of work of the device that is looked at."""

    start_ns: Longs
    dur_ns: Wholes  # on a host: its own time, without what is nested in it
    launch_ns: Longs  # on a host: its start
    step: Ids
    row: Ids  # in the host tree, or NONE
    op: Ids  # row in trace.ops, or NONE
    name: Ids  # of the operation, else of the kernel
    kernel: Ids  # name of the kernel, or NONE on a host
    work: Ids  # row in trace.work, or NONE on a host
    work_class: Classes
    context: Kinds  # IN_INPUT | IN_BACKWARD | IN_OPTIMIZER
    steady: Mask  # belongs to a step that stands for the run


def break_up(line: Timeline) -> Pieces:
    """Return the pieces of the timeline's steps."""
    pieces = _device_pieces(line) if line.driver is Driver.DEVICE else _host_pieces(line)
    known = np.append(line.windows.steady, [False, False])
    return pieces._replace(steady=known[np.where(pieces.step >= 0, pieces.step, len(known) - 1)])


def _device_pieces(line: Timeline) -> Pieces:
    rows = np.flatnonzero(line.chosen).astype(np.int32)
    mine = slice(None) if line.chosen.all() else rows  # of the only device nothing is copied
    work, links = line.trace.work, line.links
    op, row, kernel = links.op[mine], links.row[mine], work.name[mine]
    op_name = pick(line.trace.ops.name, op)
    return Pieces(
        start_ns=work.start_ns[mine],
        dur_ns=work.dur_ns[mine],
        launch_ns=links.launch_ns[mine],
        step=line.attribution.step[mine],
        row=row,
        op=op,
        name=_shown_names(line, rows, np.where(op >= 0, op_name, kernel)),
        kernel=kernel,
        work=rows,
        work_class=line.classes[mine],
        context=np.maximum(pick(line.context, row), 0),
        steady=np.zeros(len(rows), np.bool_),
    )


def _shown_names(line: Timeline, rows: Ids, names: Ids) -> Ids:
    """Return the names with that of the collective in place of the operation that every collective has."""
    if not len(line.tree.name):
        return names
    is_collective = matching(line.trace.strings, COLLECTIVE)[line.tree.name]
    above = pick(nearest(line.tree.parent, is_collective), line.links.row[rows])
    talks = (line.classes[rows] == WorkClass.COMMUNICATION) & (above >= 0)
    return np.where(talks, pick(line.tree.name, above), names)


def _host_pieces(line: Timeline) -> Pieces:
    ops = line.trace.ops
    rows = np.arange(len(ops.name), dtype=np.int32)
    none = np.full(len(rows), NONE, np.int32)
    return Pieces(
        start_ns=ops.start_ns,
        dur_ns=self_times(line.trace, line.tree),
        launch_ns=ops.start_ns,
        step=steps_of(ops.start_ns, line.steps),
        row=line.tree.of_op,
        op=rows,
        name=ops.name,
        kernel=none,
        work=none,
        work_class=classes_of(line.trace.strings, ops.name),
        context=line.context[line.tree.of_op],
        steady=np.zeros(len(rows), np.bool_),
    )


def classes_of(strings: tuple[str, ...], names: Ids) -> Classes:
    """Return the class of each operation by its name."""
    table = np.full(max(len(strings), 1), WorkClass.OTHER, np.int8)
    used = distinct(names)
    table[used] = [classify(strings[index]) for index in used.tolist()]
    return table[names]

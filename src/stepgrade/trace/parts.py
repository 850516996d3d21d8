"""Device work by what it is in the model: class, role and direction, whatever the runtime calls it."""

from __future__ import annotations

import numpy as np

from stepgrade.model.activity import PartTime
from stepgrade.model.columns import among, distinct
from stepgrade.model.events import NONE, DeviceEvent, Ids, Kinds
from stepgrade.naming.roles import role_of
from stepgrade.naming.torch_names import BACKWARD, Mask, matching
from stepgrade.trace.classify import WorkClass
from stepgrade.trace.layers import match_forward
from stepgrade.trace.links import MODULE, nearest, pick
from stepgrade.trace.phases import PHASES
from stepgrade.trace.pieces import Pieces, classes_of
from stepgrade.trace.precision import MATMULS, dtype_of_calls
from stepgrade.trace.timeline import Driver, Timeline
from stepgrade.units import NS_PER_MS

_DIRECTIONS = {"forward": "forward", "backward": "backward", "optimizer": "optimizer"}
_HOST_COPIES = (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H, DeviceEvent.COPY_OTHER)


def tally_parts(line: Timeline, pieces: Pieces, phase: Kinds, steps: int) -> tuple[PartTime, ...]:
    """Return the parts of a steady step, longest first; collectives and copies to and from the host not."""
    chosen = pieces.steady & (pieces.work_class != WorkClass.COMMUNICATION)
    if line.driver is Driver.DEVICE:
        chosen &= ~among(line.trace.work.kind[pieces.work], _HOST_COPIES)
    rows = np.flatnonzero(chosen).astype(np.int32)
    if not len(rows):
        return ()
    classes = _classes(line, pieces, rows)
    roles, names = _roles(line, pieces, rows)
    key = (classes.astype(np.int64) * (len(names) + 1) + roles + 1) * len(PHASES) + phase[rows]
    found = [
        _part(line, pieces, rows[key == one], int(one), names, steps=steps) for one in distinct(key).tolist()
    ]
    return tuple(
        sorted(found, key=lambda one: (-one.ms, one.work_class, one.role or "", one.direction or ""))
    )


def _classes(line: Timeline, pieces: Pieces, rows: Ids) -> Kinds:
    """Return the class of each piece by its operation's name, else by its kernel's."""
    own = classes_of(line.trace.strings, pieces.name[rows])
    return np.where(own == WorkClass.OTHER, pieces.work_class[rows], own).astype(np.int8)


def _part(line: Timeline, pieces: Pieces, rows: Ids, key: int, names: list[str], *, steps: int) -> PartTime:
    rest, phase = divmod(key, len(PHASES))
    work_class, role = divmod(rest, len(names) + 1)
    ops = pieces.op[rows]
    calls = len(distinct(ops[ops >= 0])) + int((ops < 0).sum())
    return PartTime(
        work_class=WorkClass(work_class).label,
        role=names[role - 1] if role else None,
        direction=_DIRECTIONS.get(PHASES[phase]),
        ms=float(pieces.dur_ns[rows].sum()) / steps / NS_PER_MS,
        calls=calls / steps,
        kernels=len(rows) / steps if line.driver is Driver.DEVICE else 0.0,
        dtype=dtype_of_calls(line.trace, ops[ops >= 0]) if WorkClass(work_class) in MATMULS else None,
    )


def _roles(line: Timeline, pieces: Pieces, rows: Ids) -> tuple[Ids, list[str]]:
    """Return the role of each piece (of its module, else of its name) as an index into the names."""
    strings, tree = line.trace.strings, line.tree
    used = distinct(np.append(distinct(tree.name), distinct(pieces.name))).tolist()
    roles = {index: role_of(strings[index]) for index in used}
    names = sorted({role for role in roles.values() if role})
    table = np.full(max(len(strings), 1), NONE, np.int32)
    for index, role in roles.items():
        table[index] = names.index(role) if role else NONE
    own = table[pieces.name[rows]]
    if not len(tree.name):
        return own, names
    module = nearest(tree.parent, (tree.kind == MODULE) & (table[tree.name] >= 0))
    by_module = pick(table, pick(tree.name, pick(module, _forward_rows(line, pieces, rows))))
    return np.where(by_module >= 0, by_module, own).astype(np.int32), names


def _forward_rows(line: Timeline, pieces: Pieces, rows: Ids) -> Ids:
    """Return for each piece the row that tells its module: for a backward node that of its maker."""
    tree, ops = line.tree, line.trace.ops
    if not len(ops.name):
        return pieces.row[rows]
    node: Mask = matching(line.trace.strings, BACKWARD)[ops.name]
    maker = np.full(len(tree.kind), NONE, np.int32)
    maker[tree.of_op[node]] = pick(tree.of_op, match_forward(line.trace, node))
    around = pick(nearest(tree.parent, maker >= 0), pieces.row[rows])
    made = pick(maker, around)
    return np.where(made >= 0, made, pieces.row[rows]).astype(np.int32)

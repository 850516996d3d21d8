"""The work of devices: what ran on the streams of a GPU and on the line of a TPU, and of which operations."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from stepgrade.model.columns import distinct
from stepgrade.model.events import NONE, DeviceEvent, Ids, Kinds, Longs
from stepgrade.naming.torch_names import Mask
from stepgrade.readers.processes import Events
from stepgrade.readers.rocprof.facts import direction_of as copy_direction
from stepgrade.readers.rocprof.facts import kind_of_kernel
from stepgrade.readers.xplane.operations import PlaneOperations, describe, touches_host
from stepgrade.readers.xplane.planes import MISSING, Plane
from stepgrade.readers.xplane.steps import ProgramRuns

_COPY: Final = re.compile(r"mem(cpy|set)", re.IGNORECASE)
_ASYNC_COPY: Final = re.compile(r"%?copy-(start|done)")
_SIZE: Final = re.compile(r"\bsize:(\d{1,15})")
# A thread for device programs: on the device's clock, outside any host call.
PROGRAM_THREAD: Final = 1 << 40


def is_streams(plane: Plane) -> bool:
    """Tell whether a device has streams, as a GPU has; its other lines are then redundant."""
    return any(line.name.startswith("Stream #") for line in plane.lines)


def work_rows(plane: Plane) -> Longs:
    """Return the events that are work of the device: of its streams, else of its line of operations."""
    prefix = "Stream #" if is_streams(plane) else "XLA Ops"
    lines = np.array([line.name.startswith(prefix) for line in plane.lines] or [False], np.bool_)
    return np.flatnonzero(lines[plane.events.line]).astype(np.int64)


def add_tpu(events: Events, number: int, plane: Plane, operations: PlaneOperations) -> ProgramRuns:
    """Add the operations of a TPU, each of which is work as well; return the runs of its main program."""
    table, rows = plane.events, work_rows(plane)
    leaves, control = operations.parted(rows[operations.which[rows] >= 0])
    identity = np.arange(len(leaves), dtype=np.int64)
    kinds = np.zeros(len(plane.names) + 1, np.int8)
    for index in distinct(table.name[leaves]).tolist():
        kinds[index] = _copy_kind(plane.names[index])
    events.add(
        "work",
        process=0,
        name=operations.name_ids(events)[operations.which[leaves]],
        kind=kinds[table.name[leaves]],
        device=number,
        stream=table.line[leaves],
        start=table.start_ns[leaves],
        end=table.end_ns[leaves],
        external_id=identity,
        collective=_collectives(events, operations)[operations.which[leaves]],
    )
    executions = ProgramRuns.of_modules(plane)
    runs = executions.at(table.start_ns[leaves])
    add_operations(events, plane, operations, leaves, {"external_id": identity}, runs)
    start, end = own_time(plane, control, leaves)
    name = events.name_id("control flow")
    events.add("work", process=0, name=name, device=number, stream=0, start=start, end=end)
    return executions


def add_gpu(
    events: Events, number: int, plane: Plane, operations: PlaneOperations, host: list[Plane]
) -> ProgramRuns:
    """Add the kernels and copies of a GPU, and the operations that they are of."""
    table, rows = plane.events, work_rows(plane)
    rows = rows[np.lexsort((table.start_ns[rows], table.line[rows]))]
    correlation = table.numbers["correlation_id"][rows]
    correlation = np.where(correlation == MISSING, NONE, correlation)
    which, name, line = operations.which[rows], table.name[rows], table.line[rows]
    begins = first_kernels(which, line, name)
    identity = (np.cumsum(begins) - 1).astype(np.int64)
    found = (_SIZE.search(text) for text in plane.texts)
    sizes = np.array([*(int(size[1]) if size else NONE for size in found), NONE], np.int64)
    texts = {index: text.removesuffix(".kd") for index, text in enumerate(plane.names)}
    moved = sizes[table.texts["memcpy_details"][rows]]
    events.add(
        "work",
        process=0,
        name=events.name_ids(name, texts),
        kind=_kinds(plane, rows, correlation, host),
        device=number,
        stream=np.array([each.number & 0xFFFFFFFF for each in plane.lines], np.int64)[line],
        start=table.start_ns[rows],
        end=table.end_ns[rows],
        correlation=correlation,
        external_id=identity,
        bytes=np.where(moved > 0, moved, NONE),
        collective=_collectives(events, operations)[which],
    )
    starts = np.flatnonzero(begins)
    ends = rows[np.append(starts[1:], len(rows)) - 1] if len(starts) else starts
    named = which[starts] >= 0
    more = {"external_id": identity[starts[named]], "end": table.end_ns[ends[named]]}
    leaves = rows[starts[named]]
    add_operations(events, plane, operations, leaves, more, np.zeros(len(leaves), np.int64))
    return ProgramRuns.of_modules(plane)


def first_kernels(which: Ids, line: Ids, name: Ids) -> Mask:
    """Tell which kernels begin an execution of their operation.

    Kernels of one operation follow each other. Those of several executions repeat: each has the kernels of
    the one before, of which an execution may itself have several alike.
    """
    begins = np.ones(len(which), np.bool_)
    begins[1:] = (which[1:] != which[:-1]) | (line[1:] != line[:-1])
    edges = np.append(np.flatnonzero(begins), len(which))
    stretch = np.cumsum(begins) - 1
    begins |= name == name[edges[stretch]]  # the first kernel again: certain where all are alike
    counts = np.bincount(stretch[begins], minlength=len(edges) - 1)
    for index in np.flatnonzero((counts > 1) & (counts < np.diff(edges))).tolist():
        kernels = slice(edges[index], edges[index + 1])
        begins[kernels] = False
        begins[kernels][:: _period(name[kernels].tolist())] = True
    return begins


def _period(names: list[int]) -> int:
    """Return after how many names they are those from the beginning again, up to the end."""
    same = [0]  # of each beginning, how many of its last names are its first ones
    for name in names[1:]:
        count = same[-1]
        while count and name != names[count]:
            count = same[count - 1]
        same.append(count + (name == names[count]))
    return len(names) - same[-1]


def add_operations(
    events: Events,
    plane: Plane,
    operations: PlaneOperations,
    rows: Longs,
    more: dict[str, Longs],
    runs: Longs,
) -> None:
    """Add executions of operations, with what their program says of each; `runs` are those of the program."""
    table = plane.events
    executions = describe(operations, rows, runs, table.start_ns[rows])
    inputs = [events.inputs.setdefault(each, len(events.inputs)) for each in executions.described]
    columns: dict[str, Longs | Ids | int] = {
        "thread": np.full(len(rows), PROGRAM_THREAD),
        "end": table.end_ns[rows],
        **more,
    }
    events.add(
        "ops",
        process=0,
        name=operations.name_ids(events)[operations.which[rows]],
        start=table.start_ns[rows],
        inputs=np.array(inputs or [0], np.int32)[executions.which],
        **columns,
    )


def own_time(plane: Plane, control: Longs, leaves: Longs) -> tuple[Longs, Longs]:
    """Return starts and ends of the time of loops and calls beyond what runs in them, on whichever thread."""
    table = plane.events
    times = np.concatenate(
        [column[rows] for rows in (control, leaves) for column in (table.start_ns, table.end_ns)]
    )
    order = np.argsort(times, kind="stable")
    opens = np.repeat([1, -1, 0, 0], [len(control), len(control), len(leaves), len(leaves)])
    works = np.repeat([0, 0, 1, -1], [len(control), len(control), len(leaves), len(leaves)])
    times = times[order]
    only = (np.cumsum(opens[order]) > 0) & (np.cumsum(works[order]) == 0)
    gaps = np.flatnonzero(only[:-1] & (times[1:] > times[:-1]))
    return times[gaps], times[gaps + 1]


def _collectives(events: Events, operations: PlaneOperations) -> Ids:
    """Return the index of each operation's collective; NONE without one."""
    known = events.collectives
    sent = [
        NONE if op.collective is None else known.setdefault(op.collective, len(known))
        for op in operations.operations
    ]
    return np.array([*sent, NONE], np.int32)


def _kinds(plane: Plane, rows: Longs, correlation: Longs, host: list[Plane]) -> Kinds:
    """Return what each piece of work does: by its name, of a copy also by the call that asked for it."""
    by_name = np.array([*map(_kind, plane.names), DeviceEvent.KERNEL], np.int8)
    kinds = by_name[plane.events.name[rows]]
    copies = np.flatnonzero((kinds != DeviceEvent.KERNEL) & (kinds != DeviceEvent.MEMSET))
    asked: dict[int, int] = {}
    for other in host if len(copies) else ():
        calls = [*(copy_direction(name)[0] if _COPY.search(name) else NONE for name in other.names), NONE]
        number = other.events.numbers["correlation_id"]
        known = np.flatnonzero(number != MISSING)
        direction = np.array(calls, np.int8)[other.events.name[known]]
        is_known = (direction >= 0) & (direction != DeviceEvent.COPY_OTHER)
        asked |= zip(number[known[is_known]].tolist(), direction[is_known].tolist(), strict=True)
    pairs = zip(correlation[copies].tolist(), kinds[copies].tolist(), strict=True)
    kinds[copies] = [asked.get(number, kind) for number, kind in pairs]
    return kinds


def _kind(name: str) -> DeviceEvent:
    if _COPY.match(name):
        return DeviceEvent.MEMSET if name.lower().startswith("memset") else copy_direction(name)[0]
    return kind_of_kernel(name)


def _copy_kind(text: str) -> DeviceEvent:
    """Return what an operation of a TPU does: those that wait for a copy from or to the host are copies."""
    name, _, rest = text.partition(" = ")
    if not _ASYNC_COPY.match(name) or not touches_host(text):
        return DeviceEvent.KERNEL
    # The first tensor in the text is where the copy goes to.
    return DeviceEvent.COPY_D2H if touches_host(rest.partition("}")[0]) else DeviceEvent.COPY_H2D

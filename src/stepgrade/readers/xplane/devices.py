"""The work of devices and its operations; the steps as the program marks them, or by its executions."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
from msgspec import Struct

from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import NONE, DeviceEvent, Ids, Kinds, Longs
from stepgrade.naming.torch_names import Mask
from stepgrade.readers.processes import Events, copy_direction, kind_of_kernel
from stepgrade.readers.xplane.operations import PlaneOperations, describe
from stepgrade.readers.xplane.planes import MISSING, Plane

_COPY: Final = re.compile(r"mem(cpy|set)", re.IGNORECASE)
_ASYNC_COPY: Final = re.compile(r"%?copy-(start|done)")
_HOST_MEMORY: Final = "S(5)"
_SIZE: Final = re.compile(r"\bsize:(\d{1,15})")
# A thread for device programs: on the device's clock, outside any host call.
PROGRAM_THREAD: Final = 1 << 40
STEP_THREAD: Final = (1 << 40) + 1
_LATE_SHARE: Final = 0.05


def is_streams(plane: Plane) -> bool:
    """Tell whether a device has streams, as a GPU has; its other lines are then redundant."""
    return any(line.name.startswith("Stream #") for line in plane.lines)


def _rows_of_lines(plane: Plane, name: str, *, exact: bool = False) -> Longs:
    """Return the events of the lines with this name, or whose name begins with it."""
    matches = [line.name == name if exact else line.name.startswith(name) for line in plane.lines]
    return np.flatnonzero(np.array(matches or [False], np.bool_)[plane.events.line]).astype(np.int64)


def work_rows(plane: Plane) -> Longs:
    """Return the events that are work of the device: of its streams, else of its line of operations."""
    return _rows_of_lines(plane, "Stream #" if is_streams(plane) else "XLA Ops")


def add_tpu(events: Events, number: int, plane: Plane, operations: PlaneOperations) -> ProgramRuns:
    """Add the operations of a TPU, each of which is work as well; return the runs of its main program."""
    table, rows = plane.events, work_rows(plane)
    leaves, control = operations.parted(rows[operations.which[rows] >= 0])
    identity = np.arange(len(leaves), dtype=np.int64)
    kinds = np.full(len(plane.names) + 1, DeviceEvent.KERNEL, np.int8)
    for index in distinct(table.name[leaves]).tolist():
        name, _, rest = plane.names[index].partition(" = ")
        if (
            _ASYNC_COPY.match(name) and _HOST_MEMORY in plane.names[index]
        ):  # waits for a copy from or to the host
            # The first tensor in the text is where the copy goes to.
            to_host = _HOST_MEMORY in rest.partition("}")[0]
            kinds[index] = DeviceEvent.COPY_D2H if to_host else DeviceEvent.COPY_H2D
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
    # Each operation is in the execution that began last.
    runs = np.searchsorted(executions.start_ns, table.start_ns[leaves], side="right").astype(np.int64)
    add_operations(events, plane, operations, leaves, {"external_id": identity}, runs)
    start, end = own_time(plane, control, leaves)
    around = events.name_id("control flow")
    events.add("work", process=0, name=around, device=number, stream=0, start=start, end=end)
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

    Kernels of an operation follow each other, and each execution repeats them; it may have several alike.
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
    """Add executions of operations with their descriptions; `runs` are those of the program."""
    table = plane.events
    described, which = describe(operations, rows, runs, table.start_ns[rows])
    inputs = [events.inputs.setdefault(each, len(events.inputs)) for each in described]
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
        inputs=np.array(inputs or [0], np.int32)[which],
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
    """Return the kind of each piece of work by its name, and for copies by the call that launched them."""
    by_name = np.full(len(plane.names) + 1, DeviceEvent.KERNEL, np.int8)
    for index, name in enumerate(plane.names):
        if not _COPY.match(name):
            by_name[index] = kind_of_kernel(name)
        else:
            is_set = name.lower().startswith("memset")
            by_name[index] = DeviceEvent.MEMSET if is_set else copy_direction(name)[0]
    kinds = by_name[plane.events.name[rows]]
    copies = np.flatnonzero((kinds != DeviceEvent.KERNEL) & (kinds != DeviceEvent.MEMSET))
    by_call: dict[int, int] = {}
    for other in host if len(copies) else ():
        calls = [*(copy_direction(name)[0] if _COPY.search(name) else NONE for name in other.names), NONE]
        number = other.events.numbers["correlation_id"]
        known = np.flatnonzero(number != MISSING)
        direction = np.array(calls, np.int8)[other.events.name[known]]
        is_known = (direction >= 0) & (direction != DeviceEvent.COPY_OTHER)
        by_call |= zip(number[known[is_known]].tolist(), direction[is_known].tolist(), strict=True)
    pairs = zip(correlation[copies].tolist(), kinds[copies].tolist(), strict=True)
    kinds[copies] = [by_call.get(number, kind) for number, kind in pairs]
    return kinds


class ProgramRuns(Struct, kw_only=True):
    """The executions of the program that takes the most time, in order."""

    start_ns: Longs
    end_ns: Longs

    @classmethod
    def of_runs(cls, plane: Plane, rows: Longs) -> ProgramRuns:
        """Return the executions by the run ids of operations."""
        table = plane.events
        rows = _longest(plane, rows[table.numbers["run_id"][rows] != MISSING], table.texts["hlo_module"])
        runs = groups(table.numbers["run_id"][rows])
        start = np.full(len(runs.values), np.iinfo(np.int64).max)
        end = np.zeros(len(runs.values), np.int64)
        np.minimum.at(start, runs.which, table.start_ns[rows])
        np.maximum.at(end, runs.which, table.end_ns[rows])
        order = np.argsort(start, kind="stable")
        return cls(start_ns=start[order], end_ns=end[order])

    @classmethod
    def of_modules(cls, plane: Plane) -> ProgramRuns:
        """Return the executions by the line that has an event for each."""
        table, rows = plane.events, _rows_of_lines(plane, "XLA Modules", exact=True)
        rows = _longest(plane, rows[: 0 if is_streams(plane) else None], table.name)
        rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
        return cls(start_ns=table.start_ns[rows], end_ns=table.end_ns[rows])


def _longest(plane: Plane, rows: Longs, programs: Ids) -> Longs:
    """Return the rows of the program that takes the most time."""
    if not len(rows):
        return rows
    found, table = groups(programs[rows]), plane.events
    spent = np.bincount(found.which, (table.end_ns - table.start_ns)[rows].astype(np.float64))
    longest: Longs = rows[found.which == spent.argmax()]
    return longest


def add_steps(events: Events, host: list[Plane], executions: ProgramRuns, *, own_clock: bool) -> None:
    """Add the steps as ranges.

    The marks of a loop that does not wait only show when it launched a step: then a step lasts from one
    execution of the program to the next, and the marks number them. The same holds for a device with its own
    clock.
    """
    number = start = end = np.empty(0, np.int64)
    line = 0
    for table in (plane.events for plane in host):
        rows = np.flatnonzero(table.numbers["step_num"] != MISSING)
        busiest = int(np.bincount(table.line[rows], minlength=1).argmax())
        rows = rows[table.line[rows] == busiest]
        rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
        # Annotations may be nested: the outer one is the step.
        outer = np.append(True, table.start_ns[rows][1:] >= np.maximum.accumulate(table.end_ns[rows])[:-1])
        rows = rows[outer[: len(rows)]]
        if len(rows) > len(number):
            number, line = table.numbers["step_num"][rows], busiest
            start, end = table.start_ns[rows], table.end_ns[rows]
    count = len(executions.start_ns)
    per_step, rest = divmod(count, len(number)) if len(number) else (0, 0)
    follows_device = False
    if per_step and not rest:
        mark = np.arange(count) // per_step
        late = np.maximum(executions.end_ns - end[mark], 0) + np.maximum(start[mark] - executions.start_ns, 0)
        spent = (executions.end_ns - executions.start_ns).sum()
        follows_device = own_clock or late.sum() > _LATE_SHARE * spent
    word = "XlaStep"
    if len(number) and not own_clock and not follows_device:
        word = "ProfilerStep"
    elif follows_device or count > 1:
        if not follows_device:
            number, per_step = np.arange(count), 1
        start, line = executions.start_ns[::per_step], STEP_THREAD
        end = np.append(start[1:], executions.end_ns[-1])  # at the next step's start
    else:
        return
    names = np.array([events.name_id(f"{word}#{max(step, 0)}") for step in number.tolist()], np.int32)
    threads = np.full(len(names), line)
    events.add("ranges", process=0, thread=threads, name=names, start=start, end=end)

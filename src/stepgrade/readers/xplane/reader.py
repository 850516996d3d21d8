"""A profile of XLA to the traces of its devices.

Operations run on the streams of a GPU, on the line of a TPU, or, where there is no device, on threads of the
host. Lines that a viewer derived from others say the same again and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from stepgrade.errors import BadInput
from stepgrade.memory import check
from stepgrade.model.columns import distinct, groups
from stepgrade.model.events import NONE, DeviceEvent, Longs, Trace, TraceDevice
from stepgrade.readers.processes import CaptureFacts, Events, RankFacts
from stepgrade.readers.rocprof.facts import direction_of as copy_direction
from stepgrade.readers.rocprof.facts import kind_of_kernel
from stepgrade.readers.source import ByteSource
from stepgrade.readers.xplane.facts import PROFILER, device_of, epoch_of, versions_of
from stepgrade.readers.xplane.operations import (
    Operation,
    PlaneOperations,
    Programs,
    describe,
    operations_of,
    touches_host,
)
from stepgrade.readers.xplane.planes import MISSING, Plane, Space, read_space
from stepgrade.readers.xplane.steps import Executions, add_steps
from stepgrade.trace import intervals as iv

# What is decoded takes several times the bytes of its file.
_MEMORY_PER_BYTE: Final = 6
_DEVICE: Final = re.compile(r"/device:(GPU|TPU|[A-Z]\w{1,20}):(\d{1,6})")
_COPY: Final = re.compile(r"mem(cpy|set)|copy-(start|done)", re.IGNORECASE)
_SIZE: Final = re.compile(r"\bsize:(\d{1,15})")
_OF_RUNTIME: Final = re.compile(r"(cu|cuda|hip)[A-Z]\w*")
# What programs annotate, and calls of compiled functions; the rest of the runtime's names have colons.
_ANNOTATION: Final = re.compile(r"(?!\$|.*::|end: |Rendezvous|ParseArguments|Handle inputs).+", re.DOTALL)
_XLA_THREAD: Final = 1 << 40


def read_traces(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each device that worked, in the order of their numbers."""
    pieces, size = [], 0
    for chunk in source.chunks():
        size += len(chunk)
        check(size * _MEMORY_PER_BYTE, source.memory_bytes, source.name)
        pieces.append(chunk)
    data = b"".join(pieces)
    del pieces
    space = read_space(data)
    profile = _Profile(data, space, source.name)
    found = False
    for trace in profile.traces():
        found = True
        yield trace
    if not found:
        problem, hint = _why_empty(space)
        raise BadInput(problem, where=source.name, hint=hint)


def _why_empty(space: Space) -> tuple[str, str]:
    if space.is_cut or not any(plane.lines for plane in space.planes):
        return "is a damaged XPlane: its planes cannot be read", "was it copied as text, or cut off?"
    return (
        "an XPlane without any operations of a device",
        "trace some steps that run inside jax.profiler.trace(directory), and wait for their results in it",
    )


class _Profile:
    """A file on the way to the traces of its devices."""

    def __init__(self, data: bytes, space: Space, name: str) -> None:
        self.space = space
        self.programs = Programs(data, space)
        self.host = [plane for plane in space.planes if plane.name.startswith("/host:CPU")]
        self.devices = [
            (int(found[2]), plane)
            for plane in space.planes
            if (found := _DEVICE.fullmatch(plane.name)) and found[1] != "CUSTOM" and len(plane.events.line)
        ]
        self.devices.sort(key=lambda device: device[0])
        damaged = sum(plane.damaged for plane in space.planes)
        doubts = [f"{damaged:,} events of the profile are damaged and left out."] if damaged else []
        if space.is_cut:
            doubts.append("The profile is cut off: what stood after its end is missing.")
        self.facts = CaptureFacts(
            name=name,
            profiler=PROFILER,
            era="XPlane",
            versions=versions_of(space),
            epoch_ns=epoch_of(space),
            doubts=tuple(doubts),
        )
        starts = [int(plane.events.start_ns.min()) for plane in space.planes if len(plane.events.line)]
        self.zero_ns = min(starts, default=0)

    def traces(self) -> Iterator[Trace]:
        """Yield the traces of all devices, else of the host's own."""
        works = [(number, plane) for number, plane in self.devices if len(_work_rows(plane))]
        count = len(works)
        for number, plane in works:
            events = Events()
            if _is_tpu(plane):
                executions = self._add_tpu(events, number, plane)
            else:
                executions = self._add_gpu(events, number, plane)
                self._add_host(events)
            add_steps(events, self.host, executions, on_device=_is_tpu(plane))
            yield self._take(events, number, count, (device_of(plane, number),))
        if works:
            return
        for plane in self.host:
            operations = operations_of(plane, self.programs)
            ordinal = np.maximum(plane.events.numbers["device_ordinal"], 0)
            numbers = distinct(ordinal[operations.which >= 0]).tolist()
            for number in numbers[:4096]:
                events = Events()
                executions = self._add_cpu(events, plane, operations, (ordinal == number))
                self._add_host(events)
                add_steps(events, self.host, executions, on_device=False)
                yield self._take(events, number, len(numbers), ())

    def _take(self, events: Events, number: int, count: int, devices: tuple[TraceDevice, ...]) -> Trace:
        events.join()
        known = RankFacts(
            rank=number if count > 1 else None, world_size=count if count > 1 else None, devices=devices
        )
        return events.take(0, self.facts, known, zero_ns=self.zero_ns)

    def _add_host(self, events: Events) -> None:
        """Add the calls of the device's runtime and what programs annotate."""
        for plane in self.host:
            table, names = plane.events, plane.names
            used = distinct(table.name)
            calls, ranges = (np.zeros(len(names) + 1, np.bool_) for _ in range(2))
            calls[used] = [_OF_RUNTIME.match(names[index]) is not None for index in used.tolist()]
            ranges[used] = [_ANNOTATION.fullmatch(names[index]) is not None for index in used.tolist()]
            is_call = calls[table.name] & (table.numbers["correlation_id"] != MISSING)
            plain = (table.texts["hlo_op"] < 0) & (table.numbers["step_num"] == MISSING)
            for sort, chosen in (("calls", is_call), ("ranges", ranges[table.name] & plain & ~is_call)):
                rows = np.flatnonzero(chosen)
                more = {"correlation": table.numbers["correlation_id"][rows]} if sort == "calls" else {}
                events.add(
                    sort,
                    process=0,
                    thread=table.line[rows],
                    name=events.places(table.name[rows], dict(enumerate(names))),
                    start=table.start_ns[rows],
                    end=table.end_ns[rows],
                    **more,
                )

    def _add_cpu(
        self, events: Events, plane: Plane, operations: PlaneOperations, own: np.typing.NDArray[np.bool_]
    ) -> Executions:
        rows = np.flatnonzero(own & (operations.which >= 0))
        table = plane.events
        control = _table(operations.operations, lambda one: one.is_control_flow)[operations.which[rows]]
        leaves = rows[~control]
        run = table.numbers["run_id"][leaves]
        _add_operations(events, plane, operations, leaves, table.line[leaves], run, None)
        self._add_control_flow(events, plane, rows[control], leaves, on_device=None)
        return Executions.of_runs(plane, leaves)

    def _add_control_flow(
        self, events: Events, plane: Plane, control: Longs, leaves: Longs, on_device: int | None
    ) -> None:
        """Add the time that loops and calls take beyond what runs in them."""
        table = plane.events
        around = iv.union(table.start_ns[control], table.end_ns[control])
        own = iv.subtract(around, iv.union(table.start_ns[leaves], table.end_ns[leaves]))
        name = events.place("control flow")
        if on_device is None:
            thread = int(table.line[control[0]]) if len(control) else 0
            events.add("ops", process=0, thread=thread, name=name, start=own.starts, end=own.ends)
        else:
            events.add(
                "work", process=0, name=name, device=on_device, stream=0, start=own.starts, end=own.ends
            )

    def _add_tpu(self, events: Events, number: int, plane: Plane) -> Executions:
        operations = operations_of(plane, self.programs)
        table = plane.events
        rows = _work_rows(plane)
        rows = rows[operations.which[rows] >= 0]
        control = _table(operations.operations, lambda one: one.is_control_flow)[operations.which[rows]]
        leaves = rows[~control]
        identity = np.arange(len(leaves))
        which = operations.which[leaves]
        texts = [plane.names[int(index)] for index in distinct(table.name[leaves]).tolist()]
        of_text = {text: _copy_kind(text) for text in texts}
        kinds = np.array([of_text.get(text, DeviceEvent.KERNEL) for text in plane.names], np.int8)
        places = [events.place(one.name) for one in operations.operations]
        sent = [
            NONE
            if one.collective is None
            else events.collectives.setdefault(one.collective, len(events.collectives))
            for one in operations.operations
        ]
        events.add(
            "work",
            process=0,
            name=np.array(places, np.int32)[which],
            kind=kinds[table.name[leaves]],
            device=number,
            stream=table.line[leaves],
            start=table.start_ns[leaves],
            end=table.end_ns[leaves],
            external_id=identity,
            collective=np.array(sent, np.int32)[which],
        )
        executions = Executions.of_modules(plane)
        run = executions.at(table.start_ns[leaves])
        thread = np.full(len(leaves), _XLA_THREAD)
        _add_operations(events, plane, operations, leaves, thread, run, identity)
        self._add_control_flow(events, plane, rows[control], leaves, on_device=number)
        return executions

    def _add_gpu(self, events: Events, number: int, plane: Plane) -> Executions:
        operations = operations_of(plane, self.programs)
        table = plane.events
        rows = _work_rows(plane)
        rows = rows[np.lexsort((table.start_ns[rows], table.line[rows]))]
        correlation = np.where(
            table.numbers["correlation_id"] == MISSING, NONE, table.numbers["correlation_id"]
        )
        # Kernels of one operation follow each other; its first kernel begins the next execution.
        which, name = operations.which[rows], table.name[rows]
        begins = np.ones(len(rows), np.bool_)
        same = (which[1:] == which[:-1]) & (table.line[rows][1:] == table.line[rows][:-1])
        begins[1:] = ~same
        first = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
        begins |= name == name[first]
        identity = np.cumsum(begins) - 1
        kinds = self._kinds(plane, rows, correlation[rows])
        details = table.texts["memcpy_details"][rows]
        sizes = np.array(
            [int(found[1]) if (found := _SIZE.search(text)) else NONE for text in plane.texts] + [NONE],
            np.int64,
        )
        sent = [
            NONE
            if one.collective is None
            else events.collectives.setdefault(one.collective, len(events.collectives))
            for one in operations.operations
        ]
        texts = {index: text.removesuffix(".kd") for index, text in enumerate(plane.names)}
        events.add(
            "work",
            process=0,
            name=events.places(name, texts),
            kind=kinds,
            device=number,
            stream=np.array([line.number & 0xFFFFFFFF for line in plane.lines], np.int64)[table.line[rows]],
            start=table.start_ns[rows],
            end=table.end_ns[rows],
            correlation=correlation[rows],
            external_id=identity,
            bytes=np.where(sizes[details] > 0, sizes[details], NONE),
            collective=np.array([*sent, NONE], np.int32)[which],
        )
        starts = np.flatnonzero(begins)
        ends = np.append(starts[1:], len(rows)) - 1
        named = which[starts] >= 0
        leaves = rows[starts[named]]
        run = np.zeros(len(leaves), np.int64)
        thread = np.full(len(leaves), _XLA_THREAD)
        until = table.end_ns[rows[ends[named]]]
        _add_operations(events, plane, operations, leaves, thread, run, identity[starts[named]], until)
        return Executions.of_modules(plane)

    def _kinds(self, plane: Plane, rows: Longs, correlation: Longs) -> np.typing.NDArray[np.int8]:
        """Return what each piece of work does: by its name, of a copy also by the call that asked for it."""
        table = plane.events
        kinds = np.array([_kind(text) for text in plane.names] or [0], np.int8)[table.name[rows]]
        copies = np.flatnonzero((kinds != DeviceEvent.KERNEL) & (kinds != DeviceEvent.MEMSET))
        if not len(copies):
            return kinds
        asked: dict[int, DeviceEvent] = {}
        for host in self.host:
            calls = [copy_direction(name)[0] if _COPY.search(name) else None for name in host.names]
            known = host.events.numbers["correlation_id"]
            for row in np.flatnonzero(known != MISSING).tolist():
                call = calls[int(host.events.name[row])] if host.events.name[row] >= 0 else None
                if call is not None and call != DeviceEvent.COPY_OTHER:
                    asked[int(known[row])] = call
        kinds[copies] = [
            asked.get(number, kind)
            for number, kind in zip(correlation[copies].tolist(), kinds[copies].tolist(), strict=True)
        ]
        return kinds


def _is_tpu(plane: Plane) -> bool:
    return not any(line.name.startswith("Stream #") for line in plane.lines)


def _work_rows(plane: Plane) -> Longs:
    """Return the events that are work of the device: of its streams, else of its line of operations."""
    prefix = "XLA Ops" if _is_tpu(plane) else "Stream #"
    lines = np.array([line.name.startswith(prefix) for line in plane.lines] or [False], np.bool_)
    return np.flatnonzero(lines[plane.events.line])


def _kind(name: str) -> DeviceEvent:
    if _COPY.match(name):
        return DeviceEvent.MEMSET if name.lower().startswith("memset") else copy_direction(name)[0]
    return kind_of_kernel(name)


def _copy_kind(text: str) -> DeviceEvent:
    """Return what an operation of a TPU does: those that wait for a copy from or to the host are copies."""
    name, _, rest = text.partition(" = ")
    if not re.match(r"%?copy-(start|done)", name) or not touches_host(text):
        return DeviceEvent.KERNEL
    result = (
        rest.partition(" copy-")[0].partition(", ")[0] if " copy-done" in rest else rest.partition("}")[0]
    )
    return DeviceEvent.COPY_D2H if touches_host(result) else DeviceEvent.COPY_H2D


def _table(operations: list[Operation], of: object) -> np.typing.NDArray[np.bool_]:
    assert callable(of)
    return np.array([*map(of, operations), False], np.bool_)


def _add_operations(
    events: Events,
    plane: Plane,
    operations: PlaneOperations,
    rows: Longs,
    thread: Longs,
    run: Longs,
    identity: Longs | None,
    until: Longs | None = None,
) -> None:
    """Add executions of operations, with what their program says of each."""
    table = plane.events
    executions = describe(operations, rows, run, table.start_ns[rows])
    inputs = [events.inputs.setdefault(one, len(events.inputs)) for one in executions.described]
    places = [events.place(one.name) for one in operations.operations]
    events.add(
        "ops",
        process=0,
        thread=thread,
        name=np.array(places or [0], np.int32)[operations.which[rows]],
        start=table.start_ns[rows],
        end=table.end_ns[rows] if until is None else until,
        inputs=np.array(inputs or [0], np.int32)[executions.which],
        external_id=NONE if identity is None else identity,
    )

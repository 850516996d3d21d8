"""A profile of XLA to the traces of its devices.

Operations run on the streams of a GPU, on the line of a TPU, or, where there is no device, on threads of the
host. Lines that a viewer derived from others are redundant and not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import structs

from stepgrade.errors import BadInput
from stepgrade.memory import check
from stepgrade.model.columns import distinct
from stepgrade.model.events import Profiler, Trace
from stepgrade.naming.torch_names import Mask
from stepgrade.readers.processes import CaptureFacts, Events, RankFacts
from stepgrade.readers.source import ByteSource
from stepgrade.readers.xplane.allocations import memory_events
from stepgrade.readers.xplane.devices import (
    add_gpu,
    add_operations,
    add_tpu,
    is_streams,
    own_time,
    work_rows,
)
from stepgrade.readers.xplane.facts import PROFILER, device_of, epoch_of, versions_of
from stepgrade.readers.xplane.operations import PlaneOperations, Programs, operations_of
from stepgrade.readers.xplane.planes import MISSING, Plane, PlaneSpace, read_space
from stepgrade.readers.xplane.steps import ProgramRuns, add_steps

# What is decoded takes several times the bytes of its file.
_MEMORY_PER_BYTE: Final = 9
_DEVICE: Final = re.compile(r"/device:(?!CUSTOM)[A-Z]\w{1,20}:(\d{1,6})")
_OF_RUNTIME: Final = re.compile(r"(cu|cuda|hip)[A-Z]\w*")
# What programs annotate, and calls of compiled functions; of the runtime's own names most have colons. It
# runs every program by the same calls: they do not identify it, and are not steps.
_ANNOTATION: Final = re.compile(
    r"(?!\$|.*::|end: |Rendezvous|ParseArguments|Handle inputs|D2D Dispatch|PJRT_|ThenExecuteCallback"
    r"|ComputeSemaphore|Resolve constant globals|Build buffer allocations|MakeOutputBuffers).+",
    re.DOTALL,
)
_MOST_DEVICES: Final = 4096


def read_traces(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each device that worked, in the order of their numbers."""
    pieces, size = [], 0
    for chunk in source.chunks():
        size += len(chunk)
        check(size * _MEMORY_PER_BYTE, source.memory_bytes, source.name)
        pieces.append(chunk)
    data = b"".join(pieces)
    del pieces
    return traces_of(data, read_space(data), source.name, PROFILER)


def traces_of(data: bytes, space: PlaneSpace, name: str, profiler: Profiler) -> Iterator[Trace]:
    """Yield the traces of a profile's devices; raise BadInput where none worked."""
    found = False
    for trace in _Profile(data, space, name, profiler).traces():
        found = True
        yield trace
    if found:
        return
    if space.is_cut:
        problem = "is a damaged XPlane file: its planes cannot be read"
        raise BadInput(problem, where=name, hint="was it copied as text, or cut off?")
    raise BadInput(
        "is a profile of XLA without any operations of a device",
        where=name,
        hint="trace some steps inside jax.profiler.trace(directory), and wait for their results in it",
    )


class _Profile:
    """A file on the way to the traces of its devices."""

    def __init__(self, data: bytes, space: PlaneSpace, name: str, profiler: Profiler) -> None:
        self.programs = Programs(data, space)
        self.hosts: list[list[Plane]] = []
        self.devices: list[tuple[int, Plane, list[Plane]]] = []
        for planes in _by_machine(space.planes):
            host = [plane for plane in planes if plane.name.startswith("/host:CPU")]
            self.hosts.append(host)
            self.devices += [
                (int(found[1]), plane, host)
                for plane in planes
                if (found := _DEVICE.fullmatch(plane.name)) and len(work_rows(plane))
            ]
        self.devices.sort(key=lambda device: device[0])
        damaged = sum(plane.damaged for plane in space.planes)
        doubts = [f"{damaged:,} events of the profile are damaged and left out."] if damaged else []
        if space.is_cut:
            doubts.append("The profile is truncated: events at its end are missing.")
        self.facts = CaptureFacts(
            name=name,
            profiler=profiler,
            era=profiler.producer,
            versions=versions_of(space),
            epoch_ns=epoch_of(space),
            doubts=tuple(doubts),
        )
        starts = [int(plane.events.start_ns.min()) for plane in space.planes if len(plane.events.line)]
        self.zero_ns = min(starts, default=0)

    def traces(self) -> Iterator[Trace]:
        """Yield the traces of all devices, else of the host's own."""
        for number, plane, host in self.devices:
            events = Events()
            operations = operations_of(plane, self.programs)
            if is_streams(plane):
                executions = add_gpu(events, number, plane, operations, host)
                _add_host(events, host)
            else:
                executions = add_tpu(events, number, plane, operations)
            add_steps(events, host, executions, own_clock=not is_streams(plane))
            known = RankFacts(
                world_size=operations.world_size(len(self.devices)),
                devices=(device_of(plane, number),),
                tokens=operations.tokens(plane.events.end_ns - plane.events.start_ns),
            )
            memory = memory_events(host, number, self.zero_ns)
            yield structs.replace(self._take(events, known), memory=memory)
        if not self.devices:
            yield from self._traces_of_hosts()

    def _traces_of_hosts(self) -> Iterator[Trace]:
        for host in self.hosts:
            for plane in host:
                operations = operations_of(plane, self.programs)
                ordinal = np.maximum(plane.events.numbers["device_ordinal"], 0)
                numbers = distinct(ordinal[operations.which >= 0]).tolist()[:_MOST_DEVICES]
                for number in numbers:
                    events = Events()
                    executions = _add_cpu(events, plane, operations, ordinal == number)
                    _add_host(events, host)
                    add_steps(events, host, executions, own_clock=False)
                    known = RankFacts(
                        world_size=operations.world_size(len(numbers)),
                        tokens=operations.tokens(plane.events.end_ns - plane.events.start_ns),
                    )
                    yield self._take(events, known)

    def _take(self, events: Events, known: RankFacts) -> Trace:
        """Return the trace of one device. Its number is the host's; its rank is unknown."""
        events.join()
        return events.take(0, self.facts, known, zero_ns=self.zero_ns)


def _by_machine(planes: list[Plane]) -> list[list[Plane]]:
    """Return the planes of each machine: files that follow one another repeat the names of their planes."""
    found: list[list[Plane]] = []
    for plane in planes:
        if not found or any(plane.name == other.name for other in found[-1]):
            found.append([])
        found[-1].append(plane)
    return found


def _add_host(events: Events, host: list[Plane]) -> None:
    """Add the calls of the device's runtime and what programs annotate."""
    for plane in host:
        table, names = plane.events, plane.names
        calls, ranges = (np.zeros(len(names) + 1, np.bool_) for _ in range(2))
        for index in distinct(table.name).tolist():
            calls[index] = _OF_RUNTIME.match(names[index]) is not None
            ranges[index] = _ANNOTATION.fullmatch(names[index]) is not None
        is_call = calls[table.name] & (table.numbers["correlation_id"] != MISSING)
        plain = (table.texts["hlo_op"] < 0) & (table.numbers["step_num"] == MISSING)
        for sort, chosen in (("calls", is_call), ("ranges", ranges[table.name] & plain & ~is_call)):
            rows = np.flatnonzero(chosen)
            more = {"correlation": table.numbers["correlation_id"][rows]} if sort == "calls" else {}
            events.add(
                sort,
                process=0,
                thread=table.line[rows],
                name=events.name_ids(table.name[rows], dict(enumerate(names))),
                start=table.start_ns[rows],
                end=table.end_ns[rows],
                **more,
            )


def _add_cpu(events: Events, plane: Plane, operations: PlaneOperations, own: Mask) -> ProgramRuns:
    """Add the operations that the host itself runs for one of its devices."""
    table = plane.events
    leaves, control = operations.parted(np.flatnonzero(own & (operations.which >= 0)))
    threads = table.line[leaves].astype(np.int64)
    add_operations(events, plane, operations, leaves, {"thread": threads}, table.numbers["run_id"][leaves])
    start, end = own_time(plane, control, leaves)
    thread = int(table.line[control[0]]) if len(control) else 0
    name = events.name_id("control flow")
    events.add("ops", process=0, thread=thread, name=name, start=start, end=end)
    return ProgramRuns.of_runs(plane, leaves)

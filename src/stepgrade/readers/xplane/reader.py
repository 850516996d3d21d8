"""A profile of XLA to the traces of its devices.

Operations run on the streams of a GPU, on the line of a TPU, or, where there is no device, on threads of the
host. Lines that a viewer derived from others are redundant and not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from stepgrade.errors import BadInput
from stepgrade.model.columns import distinct
from stepgrade.model.events import NONE, MemoryEvents, Profiler, Trace, TraceDevice
from stepgrade.readers.processes import Events, Facts
from stepgrade.readers.source import ByteSource
from stepgrade.readers.xplane.devices import (
    ProgramRuns,
    add_gpu,
    add_operations,
    add_steps,
    add_tpu,
    is_streams,
    own_time,
    work_rows,
)
from stepgrade.readers.xplane.operations import PlaneOperations, Programs, operations_of
from stepgrade.readers.xplane.planes import MISSING, Plane, PlaneSpace, read_space

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
_ALLOCATOR: Final = re.compile(r"GPU_(\d{1,4})_bfc")
_ACCELERATOR: Final = 1  # a kind of device that is not the processor
_MOST_BYTES: Final = 1 << 50
PROFILER: Final = Profiler(
    format="xplane",
    producer="JAX (XPlane)",
    mark_steps="Put each iteration into `with jax.profiler.StepTraceAnnotation('train', step_num=n):`.",
    record_operations="Record with jax.profiler.trace(directory), and keep the .xplane.pb: trace.json.gz has "
    "no HLO.",
    record_device="Record with jax.profiler.trace(directory) in the process that holds the devices.",
    record_layers="Put each layer into `with jax.named_scope(f'layer_{n}'):`, or scan over the layers.",
)
# A GPU has no name in the profile: it follows from vendor, capability and cores, and from memory.
_GPUS: Final = {
    ("AMD", "9.4", 304): "AMD Instinct MI300X",
    ("AMD", "9.4", 228): "AMD Instinct MI300A",
    ("AMD", "9.5", 256): "AMD Instinct MI355X",
    ("AMD", "9.0", 104): "AMD Instinct MI250X",
    ("AMD", "9.0", 110): "AMD Instinct MI250X",
    ("NVIDIA", "7.0", 80): "Tesla V100-SXM2-16GB",
    ("NVIDIA", "7.5", 40): "Tesla T4",
    ("NVIDIA", "8.0", 108): "NVIDIA A100-SXM4-40GB",
    ("NVIDIA", "8.6", 72): "NVIDIA A10",
    ("NVIDIA", "8.6", 82): "NVIDIA GeForce RTX 3090",
    ("NVIDIA", "8.6", 84): "NVIDIA RTX A6000",
    ("NVIDIA", "8.9", 58): "NVIDIA L4",
    ("NVIDIA", "8.9", 128): "NVIDIA GeForce RTX 4090",
    ("NVIDIA", "8.9", 142): "NVIDIA L40S",
    ("NVIDIA", "9.0", 114): "NVIDIA H100 PCIe",
    ("NVIDIA", "9.0", 132): "NVIDIA H100 80GB HBM3",
    ("NVIDIA", "10.0", 148): "NVIDIA B200",
}
_LARGER: Final = {
    "Tesla V100-SXM2-16GB": (24e9, "Tesla V100-SXM2-32GB"),
    "NVIDIA A100-SXM4-40GB": (60e9, "NVIDIA A100-SXM4-80GB"),
    "NVIDIA H100 80GB HBM3": (120e9, "NVIDIA H200"),
}


def read_traces(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each device that worked, in the order of their numbers."""
    data = source.whole(_MEMORY_PER_BYTE)
    return traces_of(data, read_space(data), source.name, PROFILER)


def traces_of(data: bytes, space: PlaneSpace, name: str, profiler: Profiler) -> Iterator[Trace]:
    """Yield the traces of a profile's devices; raise BadInput where none worked."""
    trace = None
    for trace in _Profile(data, space, name, profiler).traces():
        yield trace
    if trace is None:
        problem = "is a profile of XLA without any operations of a device"
        hint = "trace some steps inside jax.profiler.trace(directory), and wait for their results in it"
        if space.is_cut:
            problem = "is a damaged XPlane file: its planes cannot be read"
            hint = "was it copied as text, or cut off?"
        raise BadInput(problem, where=name, hint=hint)


class _Profile:
    """A file on the way to the traces of its devices."""

    def __init__(self, data: bytes, space: PlaneSpace, name: str, profiler: Profiler) -> None:
        self.programs = Programs(data, space)
        self.hosts: list[list[Plane]] = []
        self.devices: list[tuple[int, Plane, list[Plane]]] = []
        machines: list[list[Plane]] = []
        for plane in space.planes:
            # Files that follow one another repeat the names of their planes.
            if not machines or any(plane.name == other.name for other in machines[-1]):
                machines.append([])
            machines[-1].append(plane)
        for planes in machines:
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
        stats = [plane.stats for plane in space.planes]
        times = (each.get("profile_start_time") for each in stats)
        self.facts: Facts = {
            "file": name,
            "profiler": profiler,
            "era": profiler.producer,
            "versions": {
                package: version[:40]
                for each in stats
                for package in ("jax", "jaxlib")
                if isinstance(version := each.get(f"{package}_version"), str) and version
            },
            "base_ns": next((time for time in times if isinstance(time, int) and 0 < time < 1 << 62), None),
            "doubts": tuple(doubts),
        }
        starts = [int(plane.events.start_ns.min()) for plane in space.planes if len(plane.events.line)]
        self.zero_ns = min(starts, default=0)

    def traces(self) -> Iterator[Trace]:
        """Yield the traces of all devices; without any, those of the operations that the hosts ran."""
        for number, plane, host in self.devices:
            events = Events()
            operations = operations_of(plane, self.programs)
            if is_streams(plane):
                executions = add_gpu(events, number, plane, operations, host)
                _add_host(events, host)
            else:
                executions = add_tpu(events, number, plane, operations)
            add_steps(events, host, executions, own_clock=not is_streams(plane))
            more = {
                "devices": (_device(plane, number),),
                "memory": _memory_events(host, number, self.zero_ns),
            }
            yield self._take(events, plane, operations, len(self.devices), **more)
        for host in () if self.devices else self.hosts:
            for plane in host:
                operations = operations_of(plane, self.programs)
                ordinal = np.maximum(plane.events.numbers["device_ordinal"], 0)
                numbers = distinct(ordinal[operations.which >= 0]).tolist()[:_MOST_DEVICES]
                for number in numbers:
                    events = Events()
                    own = np.flatnonzero((ordinal == number) & (operations.which >= 0))
                    leaves, control = operations.parted(own)
                    line, runs = plane.events.line, plane.events.numbers["run_id"][leaves]
                    threads = {"thread": line[leaves].astype(np.int64)}
                    add_operations(events, plane, operations, leaves, threads, runs)
                    start, end = own_time(plane, control, leaves)
                    thread, name = (
                        int(line[control[0]]) if len(control) else 0,
                        events.name_id("control flow"),
                    )
                    events.add("ops", process=0, thread=thread, name=name, start=start, end=end)
                    _add_host(events, host)
                    add_steps(events, host, ProgramRuns.of_runs(plane, leaves), own_clock=False)
                    yield self._take(events, plane, operations, len(numbers))

    def _take(
        self, events: Events, plane: Plane, operations: PlaneOperations, count: int, **facts: Any
    ) -> Trace:
        """Return the trace of one of `count` devices. Its number is the host's; its rank is unknown."""
        events.join()
        facts |= self.facts | {
            "world_size": operations.world_size(count),
            "tokens": operations.tokens(plane.events.end_ns - plane.events.start_ns),
        }
        return events.take(0, facts, zero_ns=self.zero_ns)


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


def _device(plane: Plane, index: int) -> TraceDevice:
    stats = plane.stats
    major, minor = stats.get("compute_cap_major"), stats.get("compute_cap_minor")
    capability = f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None
    sizes = (stats.get(key) for key in ("core_count", "memory_size"))
    cores, memory = (size if isinstance(size, int) and 0 < size < 1 << 62 else None for size in sizes)
    texts = (stats.get(key) for key in ("device_vendor", "device_type_string"))
    vendor, name = (text if isinstance(text, str) else "" for text in texts)
    is_nvidia = "nvidia" in vendor.lower()
    if not name:
        maker = "NVIDIA" if is_nvidia else vendor.upper()[:20]
        name = _GPUS.get((maker, capability or "", cores or 0), "")
        least_bytes, larger = _LARGER.get(name, (0, ""))
        if larger and memory and memory > least_bytes:
            name = larger
    return TraceDevice(
        index=index,
        name=name[:200] or None,
        memory_bytes=memory,
        sm_count=cores,
        capability=capability if is_nvidia else None,
    )


def _memory_events(host: list[Plane], device: int, zero_ns: int) -> MemoryEvents | None:
    """Return the allocations of one device in order of time; None without any.

    On a TPU the reserved memory is that of the running program, beside its arguments and results.
    """
    starts, totals = [], []
    for plane in host:
        table = plane.allocations
        if table is None:
            continue
        named = [_ALLOCATOR.fullmatch(text) for text in plane.texts]
        by_name = np.array([int(found[1]) if found else NONE for found in named] + [NONE], np.int64)
        index = table.numbers["index_on_host"]
        own = np.where(index != MISSING, index, by_name[table.texts["allocator_name"]]) == device
        allocated, reserved = table.numbers["bytes_allocated"], table.numbers["bytes_reserved"]
        own &= (allocated >= 0) & (allocated < _MOST_BYTES) & (reserved < _MOST_BYTES)
        starts.append(table.start_ns[own])
        totals.append(allocated[own] + np.maximum(reserved[own], 0))
    start, total = (np.concatenate([np.empty(0, np.int64), *parts]) for parts in (starts, totals))
    if len(start) < 2:
        return None
    order = np.argsort(start, kind="stable")
    start, total = start[order], total[order]
    nothing = np.full(len(start), NONE, np.int64)
    return MemoryEvents(
        start_ns=start - zero_ns,
        thread=np.zeros(len(start), np.int32),
        kind=np.full(len(start), _ACCELERATOR, np.int32),
        device=np.full(len(start), device, np.int32),
        bytes=np.diff(total, prepend=total[:1]),
        address=nothing,
        allocated=total,
        reserved=nothing,
        order=np.arange(len(start), dtype=np.int32),
    )

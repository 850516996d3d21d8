"""The timeline of one rank in columns: what the host called, what the device did.

Things counted in millions are numpy columns, one row an event. Times are integers of nanoseconds
from the trace's first event. Text is kept once, in `Trace.strings`; columns hold its index.
An integer column cannot hold None: `NONE` (-1) stands for "the trace does not say".
Rows are in order of start; of those that start together the longer one (the outer one) is first.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr
from numpy.typing import NDArray

from stepgrade.model.profile import DeviceSeen

NONE = -1
_LAST_DATE_NS = 1 << 62  # in the year 2116

Ids: TypeAlias = NDArray[np.int32]
Longs: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Wholes: TypeAlias = NDArray[np.signedinteger[Any]]  # of 32 bits where all of them fit, else of 64
Kinds: TypeAlias = NDArray[np.int8]


class DeviceEvent(IntEnum):
    """What the device did in one event."""

    KERNEL = 0
    COPY_H2D = 1
    COPY_D2H = 2
    COPY_D2D = 3
    COPY_OTHER = 4
    MEMSET = 5


class RangeKind(IntEnum):
    """Where a named range on a host thread comes from."""

    ANNOTATION = 0  # record_function, ProfilerStep#, nccl:...
    MODULE = 1  # python frame `nn.Module: Name_0`
    OVERHEAD = 2  # the profiler's own work (`overhead`): buffer requests and flushes


class TimedEvents(Struct, frozen=True, eq=False, kw_only=True):
    """Events of one kind, in columns."""

    name: Ids
    start_ns: Longs
    dur_ns: Wholes

    @property
    def end_ns(self) -> Longs:
        """Return when each event ends."""
        return self.start_ns + self.dur_ns


class HostEvents(TimedEvents, frozen=True, eq=False, kw_only=True):
    """Events on host threads."""

    thread: Ids  # index into Trace.threads


class HostOps(HostEvents, frozen=True, eq=False, kw_only=True):
    """Framework operations (`cpu_op`)."""

    external_id: Wholes
    sequence: Wholes
    forward_thread: Wholes  # as the profiler numbers it in "Fwd thread id"
    inputs: Ids  # index into Trace.inputs


class HostCalls(HostEvents, frozen=True, eq=False, kw_only=True):
    """Calls of the device runtime or driver: launches, copies, synchronisation."""

    correlation: Wholes
    external_id: Wholes


class DeviceWork(TimedEvents, frozen=True, eq=False, kw_only=True):
    """Kernels, copies and memsets on the device."""

    kind: Kinds  # DeviceEvent
    device: Ids
    stream: Wholes
    correlation: Wholes
    external_id: Wholes
    bytes: Wholes
    collective: Ids  # index into Trace.collectives
    launch: Ids | None = None  # index into Trace.launches, where the profiler says how kernels were launched


class HostRanges(HostEvents, frozen=True, eq=False, kw_only=True):
    """Named ranges: annotations and module frames."""

    kind: Kinds  # RangeKind
    external_id: Wholes
    python_id: Wholes  # "Python id" of a module frame
    python_parent: Wholes
    inputs: Ids | None = None  # index into Trace.inputs, where annotations have any


class HostFrames(HostEvents, frozen=True, eq=False, kw_only=True):
    """Python functions: all of the user's, of others those that take long.

    A function that ran when recording began starts before 0.
    """


class MemoryEvents(Struct, frozen=True, eq=False, kw_only=True):
    """Allocations and frees, at the host's call; numbers that the profiler did not write are NONE."""

    start_ns: Longs
    thread: Ids
    kind: Wholes  # of device, as c10::DeviceType numbers them: 0 is the processor
    device: Wholes
    bytes: Longs  # less than 0 for a free
    address: Longs
    allocated: Longs  # on the device after the event
    reserved: Longs
    order: Wholes  # the profiler's own number of the event


class DeviceCounters(Struct, frozen=True, eq=False, kw_only=True):
    """Samples of the device's own counters, each of the stretch of time that begins with it."""

    name: Ids
    start_ns: Longs
    device: Ids
    value: NDArray[np.float64]


class DeviceRanges(TimedEvents, frozen=True, eq=False, kw_only=True):
    """Annotations as the profiler projects them on streams (`gpu_user_annotation`): not busy time."""

    device: Ids
    stream: Wholes
    external_id: Wholes


class Compiled(Struct, frozen=True, kw_only=True):
    """What the compiler of a whole program says of one of its operations."""

    path: str = ""  # the scopes of the program that it comes from
    direction: str | None = None  # forward, backward, recompute, optimizer
    layer: str | None = None
    flops: int | None = None  # of one execution
    bytes: int | None = None


class Inputs(Struct, frozen=True, kw_only=True):
    """The recorded inputs of an operation, as raw JSON texts (kept once, decoded when asked for)."""

    dims: bytes
    types: bytes = b"[]"
    concrete: bytes = b"[]"
    strides: bytes = b"[]"
    is_triton: bool = False  # of a Triton kernel: the inputs are all its pointers, results included
    compiled: Compiled | None = None


class Collective(Struct, frozen=True, kw_only=True):
    """What a communication kernel says of itself."""

    name: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None
    group_size: int | None = None
    group: str | None = None
    group_ranks: str | None = None
    peer: int | None = None  # of a message: the rank that it goes to or comes from


class KernelLaunch(Struct, frozen=True, kw_only=True):
    """How a kernel was laid over the device; None where the profiler does not say."""

    occupancy: float | None = None  # share of the warps that a multiprocessor can hold, as estimated
    blocks_per_sm: float | None = None
    registers: int | None = None  # of a thread
    block_threads: int | None = None  # these two only where the occupancy is not known
    shared_bytes: int | None = None  # of a block


class SmLimits(Struct, frozen=True, kw_only=True):
    """What a multiprocessor of a device holds."""

    threads: int
    registers: int
    shared_bytes: int


class TraceThread(Struct, frozen=True, kw_only=True):
    """One host thread, by the ids and the name that the trace gives it."""

    process: str
    thread: str
    name: str | None = None


class TraceDevice(DeviceSeen, frozen=True, kw_only=True):
    """One device as the trace describes it, under the index that its events name."""

    index: int
    capability: str | None = None
    limits: SmLimits | None = None


class Profiler(Struct, frozen=True, kw_only=True):
    """What wrote a trace, and how it is told to record more: a sentence each."""

    format: str  # the reader's name
    producer: str
    mark_steps: str
    record_operations: str
    record_device: str
    record_layers: str


class Trace(Struct, frozen=True, eq=False, kw_only=True):
    """One rank's trace as columns of events, ready for analysis."""

    file: str
    profiler: Profiler
    rank: int | None
    world_size: int | None
    backend: str | None
    base_ns: int | None  # epoch nanoseconds of the time that `start_ns` counts from; None: the ranks of
    # one merged file still count from the same moment
    file_zero_ns: int = 0  # what `start_ns` counts from, by the clock of the file itself
    devices: tuple[TraceDevice, ...]
    versions: dict[str, str]
    strings: tuple[str, ...]
    inputs: tuple[Inputs, ...]
    collectives: tuple[Collective, ...]
    launches: tuple[KernelLaunch, ...] = ()
    ops: HostOps
    calls: HostCalls
    work: DeviceWork
    ranges: HostRanges
    recorded: frozenset[str]  # profiler settings that were on: shapes, stacks, memory, modules
    era: str
    lost: tuple[str, ...] = ()  # what the reader had to leave out, in words
    doubts: tuple[str, ...] = ()  # what the profiler itself said was not recorded, a sentence each
    threads: tuple[TraceThread, ...] = ()
    device_ranges: DeviceRanges | None = None
    process: str | None = None  # the process that recorded it, where other files are of the same one
    frames: HostFrames | None = None
    tokens: tuple[int, ...] | None = None  # the sizes of those that a compiled step takes
    memory: MemoryEvents | None = None
    counters: DeviceCounters | None = None
    categories: dict[str, int] = {}  # how many events of each category we know the file holds

    def __post_init__(self) -> None:
        """Leave out a date that no clock can show: times are added to it in 64 bits."""
        if self.base_ns is not None and not 0 <= self.base_ns <= _LAST_DATE_NS:
            force_setattr(self, "base_ns", None)

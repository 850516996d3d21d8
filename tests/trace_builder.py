"""Traces of a small transformer's training, made by playing a host and a device against each other.

The host walks through its loop and launches; a kernel starts when it was launched and its stream is free. So
the device lags when kernels are long, and waits when the host is slow, as real ones do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepgrade.model.events import (
    NONE,
    Collective,
    DeviceEvent,
    DeviceWork,
    HostCalls,
    HostOps,
    HostRanges,
    Inputs,
    RangeKind,
    Trace,
    TraceDevice,
)
from stepgrade.model.profile import Profile
from stepgrade.readers.kineto.reader import PROFILER
from stepgrade.trace.profile import analyse_rank

COMPUTE_STREAM, COMMUNICATION_STREAM = 7, 13
MAIN, AUTOGRAD = 0, 1
LATENCY_NS = 5_000
EPOCH_NS = 1_700_000_000_000_000_000


@dataclass
class TraceBuilder:
    """Collects events by hand; times are nanoseconds."""

    file: str = "made.json"
    rank: int | None = None
    world_size: int | None = None
    base_ns: int | None = EPOCH_NS
    recorded: frozenset[str] = frozenset()
    devices: tuple[TraceDevice, ...] = (TraceDevice(index=0, name="Made GPU"),)
    lost: tuple[str, ...] = ()
    strings: dict[str, int] = field(default_factory=dict)
    inputs: dict[Inputs, int] = field(default_factory=dict)
    collectives: dict[Collective, int] = field(default_factory=dict)
    ops: list[tuple[int, ...]] = field(default_factory=list)
    calls: list[tuple[int, ...]] = field(default_factory=list)
    work: list[tuple[int, ...]] = field(default_factory=list)
    ranges: list[tuple[int, ...]] = field(default_factory=list)
    numbers: int = 0

    def text(self, name: str) -> int:
        return self.strings.setdefault(name, len(self.strings))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def op(
        self,
        name: str,
        start: int,
        dur: int,
        *,
        thread: int = MAIN,
        sequence: int = NONE,
        forward_thread: int = NONE,
        dims: list[Any] | None = None,
        types: list[str] | None = None,
        concrete: list[str] | None = None,
    ) -> int:
        """Add an operation and return its External id."""
        external = self.number()
        row = NONE if dims is None else self.input(dims, types or [], concrete or [])
        self.ops.append((self.text(name), start, dur, thread, external, sequence, forward_thread, row))
        return external

    def input(self, dims: list[Any], types: list[str], concrete: list[str]) -> int:
        made = Inputs(
            dims=json.dumps(dims).encode(),
            types=json.dumps(types).encode(),
            concrete=json.dumps(concrete).encode(),
        )
        return self.inputs.setdefault(made, len(self.inputs))

    def call(
        self, name: str, start: int, dur: int, *, thread: int = MAIN, correlation: int | None = None
    ) -> int:
        """Add a runtime call and return its correlation."""
        known = self.number() if correlation is None else correlation
        self.calls.append((self.text(name), start, dur, thread, known, NONE))
        return known

    def kernel(
        self,
        name: str,
        start: int,
        dur: int,
        *,
        correlation: int = NONE,
        kind: DeviceEvent = DeviceEvent.KERNEL,
        device: int = 0,
        stream: int = COMPUTE_STREAM,
        collective: Collective | None = None,
        moved: int = NONE,
    ) -> None:
        said = NONE
        if collective is not None:
            said = self.collectives.setdefault(collective, len(self.collectives))
        self.work.append(
            (self.text(name), int(kind), start, dur, device, stream, correlation, NONE, moved, said)
        )

    def range(
        self,
        name: str,
        start: int,
        dur: int,
        *,
        thread: int = MAIN,
        kind: RangeKind = RangeKind.ANNOTATION,
    ) -> None:
        self.ranges.append((self.text(name), int(kind), start, dur, thread, self.number(), NONE, NONE))

    def trace(self) -> Trace:
        return Trace(
            file=self.file,
            profiler=PROFILER,
            rank=self.rank,
            world_size=self.world_size,
            backend=None,
            base_ns=self.base_ns,
            devices=self.devices,
            versions={},
            strings=tuple(self.strings),
            inputs=tuple(self.inputs),
            collectives=tuple(self.collectives),
            ops=_table(HostOps, self.ops),
            calls=_table(HostCalls, self.calls),
            work=_table(DeviceWork, self.work),
            ranges=_table(HostRanges, self.ranges),
            recorded=self.recorded,
            era="made",
            lost=self.lost,
        )


_TYPES: dict[str, Any] = {"name": np.int32, "thread": np.int32, "device": np.int32, "inputs": np.int32}
_TYPES |= {"collective": np.int32, "kind": np.int8}


# The columns of a row; what a table may go without is left out.
_COLUMNS = {
    HostOps: "name start_ns dur_ns thread external_id sequence forward_thread inputs",
    HostCalls: "name start_ns dur_ns thread correlation external_id",
    DeviceWork: "name kind start_ns dur_ns device stream correlation external_id bytes collective",
    HostRanges: "name kind start_ns dur_ns thread external_id python_id python_parent",
}


def _table(kind: Any, rows: list[tuple[int, ...]]) -> Any:
    fields = _COLUMNS[kind].split()
    columns: Any = zip(*rows, strict=True) if rows else [()] * len(fields)
    pairs = zip(fields, columns, strict=True)
    return kind(**{name: np.array(column, _TYPES.get(name, np.int64)) for name, column in pairs})


@dataclass(frozen=True)
class Run:
    """What a made run is like."""

    steps: int = 4
    layers: int = 3
    kernel_ns: int = 60_000
    host_op_ns: int = 20_000
    input_ns: int = 30_000
    copy_ns: int = 15_000
    reduce_ns: int = 0  # all-reduce of each layer's gradient
    reduce_stream: int = COMMUNICATION_STREAM
    sync: bool = False  # loss.item() at the end of each step
    marks: bool = True  # ProfilerStep#n
    optimizer: bool = True  # Optimizer.step# is recorded
    modules: bool = True
    ranges: bool = False  # record_function("block n")
    shapes: bool = True
    recompute: bool = False
    graph: bool = False  # forward replayed from a graph
    device: bool = True
    rank: int | None = None
    world_size: int | None = None
    delay_ns: int = 0  # host time that this rank loses in each step
    first_step: int = 5
    batch: int = 8
    sequence: int = 128
    width: int = 64


Nodes = list[tuple[str, int]]


class _Player:
    """Plays one run: a host clock, and for each stream the time at which it is free."""

    def __init__(self, run: Run, partner_ends: Sequence[int]) -> None:
        self.run, self.now, self.made, self.thread = run, 1_000, 0, MAIN
        self.partner_ends = list(partner_ends)
        self.free: dict[int, int] = {}
        recorded = frozenset({"shapes"} if run.shapes else ())
        self.out = TraceBuilder(rank=run.rank, world_size=run.world_size, recorded=recorded)

    @contextmanager
    def range(self, name: str, kind: RangeKind = RangeKind.ANNOTATION) -> Iterator[None]:
        start, self.now = self.now, self.now + 500
        yield
        self.now += 500
        self.out.range(name, start, self.now - start, thread=self.thread, kind=kind)

    def launch(
        self,
        kernel: str,
        dur: int,
        *,
        stream: int = COMPUTE_STREAM,
        kind: DeviceEvent = DeviceEvent.KERNEL,
        call: str = "cudaLaunchKernel",
        after: int = 0,
        collective: Collective | None = None,
    ) -> None:
        if not self.run.device:
            self.now += dur
            return
        correlation = self.out.call(call, self.now, 3_000, thread=self.thread)
        start = max(self.now + LATENCY_NS, self.free.get(stream, 0) + 1_000, after)
        self.out.kernel(
            kernel, start, dur, correlation=correlation, stream=stream, kind=kind, collective=collective
        )
        self.free[stream] = start + dur
        self.now += 3_000

    def op(self, name: str, kernels: Nodes, *, dims: list[Any] | None = None, **known: Any) -> None:
        start = self.now
        self.now += self.run.host_op_ns // 2
        for kernel, dur in kernels:
            self.launch(kernel, dur)
        self.now += self.run.host_op_ns // 2
        shape = dims if self.run.shapes else None
        self.out.op(name, start, self.now - start, thread=self.thread, dims=shape, **known)

    def forward_op(self, name: str, kernels: Nodes, **known: Any) -> int:
        self.made += 1
        made = self.made
        self.op(name, kernels, sequence=made, forward_thread=0, **known)
        return made

    def block(self) -> Nodes:
        """Play the forward pass of a layer and return its autograd nodes, first to last."""
        run, ns = self.run, self.run.kernel_ns
        norm = self.forward_op("aten::native_layer_norm", [("layer_norm_kernel", ns // 3)])
        nodes = [("NativeLayerNormBackward0", norm)]
        dims = [[run.width], [run.batch * run.sequence, run.width], [run.width, run.width]]
        for _ in range(2):
            made = self.forward_op("aten::addmm", [("sgemm_nn", ns)], dims=dims, types=["float"] * 3)
            nodes.append(("AddmmBackward0", made))
        gelu = self.forward_op("aten::gelu", [("vectorized_elementwise_kernel", ns // 4)])
        return [*nodes, ("GeluBackward0", gelu)]

    def framed_block(self, index: int) -> Nodes:
        if self.run.modules:
            with (
                self.range(f"nn.Module: Block_{index}", RangeKind.MODULE),
                self.range(f"nn.Module: Inner_{index}", RangeKind.MODULE),
            ):
                return self.block()
        if self.run.ranges:
            with self.range(f"block {index}"):
                return self.block()
        return self.block()

    def forward(self) -> list[tuple[int, Nodes]]:
        run = self.run
        lookup = [[1000, run.width], [run.batch, run.sequence]]
        kernels = [("embedding_kernel", run.kernel_ns // 5)]
        self.forward_op("aten::embedding", kernels, dims=lookup, types=["float", "long"])
        if run.graph:
            self.replay()
            return []
        return [(index, self.framed_block(index)) for index in range(run.layers)]

    def replay(self) -> None:
        correlation = self.out.call("cudaGraphLaunch", self.now, 8_000)
        start = max(self.now + LATENCY_NS, self.free.get(COMPUTE_STREAM, 0) + 1_000)
        for number in range(4 * self.run.layers):
            self.out.kernel(f"sgemm_{number % 4}", start, self.run.kernel_ns, correlation=correlation)
            start += self.run.kernel_ns + 500
        self.free[COMPUTE_STREAM] = start
        self.now += 8_000

    def backward(self, layers: list[tuple[int, Nodes]]) -> None:
        self.thread = AUTOGRAD
        for index, nodes in reversed(layers):
            for place, (node, sequence) in enumerate(reversed(nodes)):
                self.node(node, sequence, index if place == 0 and self.run.recompute else None)
            if self.run.reduce_ns:
                self.reduce()
        self.thread = MAIN

    def node(self, node: str, sequence: int, again: int | None) -> None:
        start = self.now
        self.now += 1_000
        inner, self.now = self.now, self.now + 200
        if again is not None:
            self.framed_block(again)
        if node.startswith("Addmm"):
            self.op("aten::mm", [("sgemm_tn", self.run.kernel_ns)] * 2)
        else:
            self.op("aten::mul", [("vectorized_elementwise_kernel", self.run.kernel_ns)])
        self.now += 200
        known: dict[str, Any] = {"thread": AUTOGRAD, "sequence": sequence, "forward_thread": 1}
        self.out.op(node, inner, self.now - inner, **known)
        self.now += 1_000
        self.out.op(f"autograd::engine::evaluate_function: {node}", start, self.now - start, **known)

    def reduce(self) -> None:
        run = self.run
        size: Any = {"in_elements": run.width**2, "out_elements": run.width**2, "dtype": "Float"}
        said = Collective(name="allreduce", group_size=run.world_size or 1, group="0", **size)
        start, after = self.now, self.free.get(COMPUTE_STREAM, 0)
        begin = max(self.now + 500 + LATENCY_NS, self.free.get(self.run.reduce_stream, 0) + 1_000, after)
        end = self.partner_ends.pop(0) if self.partner_ends else begin + run.reduce_ns
        with self.range("nccl:all_reduce"):
            self.launch(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                max(end - begin, run.reduce_ns),
                stream=self.run.reduce_stream,
                after=after,
                call="cudaLaunchKernelExC",
                collective=said,
            )
        self.out.op("c10d::allreduce_", start, self.now - start, thread=self.thread)

    def optimize(self) -> None:
        if self.run.device and self.run.reduce_ns:
            self.free[COMPUTE_STREAM] = max(self.free.values())
        if self.run.optimizer:
            with self.range("Optimizer.step#AdamW.step"):
                self.update()
        else:
            self.update()

    def update(self) -> None:
        for _ in range(2):
            self.op("aten::_foreach_add_", [("multi_tensor_apply_kernel", self.run.kernel_ns // 2)])

    def step(self, number: int) -> None:
        run, start = self.run, self.now
        self.now += 2_000
        with self.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
            self.now += run.input_ns
        if run.device:
            name = "Memcpy HtoD (Pinned -> Device)"
            self.launch(name, run.copy_ns, kind=DeviceEvent.COPY_H2D, call="cudaMemcpyAsync")
        self.now += run.delay_ns
        self.backward(self.forward())
        self.optimize()
        if run.sync and run.device:
            end = max([*self.free.values(), self.now]) + 4_000
            self.out.call("cudaStreamSynchronize", self.now, end - self.now)
            self.now = end
        self.now += 1_000
        if run.marks:
            self.out.range(f"ProfilerStep#{number}", start, self.now - start)
        self.now += 300


def play(run: Run | None = None, partner_ends: Sequence[int] = ()) -> TraceBuilder:
    """Return the builder after playing the run, so that a test can add to it.

    A reduction ends no sooner than the one of the partner at the same place.
    """
    player = _Player(run or Run(), partner_ends)
    for number in range(player.run.steps):
        player.step(player.run.first_step + number)
    return player.out


def make_trace(run: Run | None = None) -> Trace:
    """Return the trace of a made run."""
    return play(run).trace()


def analyse_trace(trace: Trace) -> Profile:
    """Return the profile of one rank's trace."""
    return analyse_rank(trace).profile

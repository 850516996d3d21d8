"""Training runs of many kinds with one fault or two in each: what the table of planted faults does not hold.

Other names (ROCm), sizes, streams, graph replays, accumulated gradients, a processor instead of a device,
times that vary; and faults that come now and then, in one place only, or by another call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from stepgrade.model import Profile
from stepgrade.model.events import Collective, DeviceEvent, RangeKind, Trace, TraceDevice
from stepgrade.trace.profile import profile_of_traces
from tests.trace_builder import AUTOGRAD, COMMUNICATION_STREAM, COMPUTE_STREAM, LATENCY_NS, MAIN, TraceBuilder
from tests.vendors import BF16, CUDA, FP32, ROCM

US, MS = 1_000, 1_000_000
COPY_STREAM, SLOW_LAYER, READS = 21, 2, 5


@dataclass(frozen=True)
class Wild:
    """What a run is like; `faults` hold how strong each is, mostly in milliseconds of a step."""

    faults: dict[str, float] = field(default_factory=dict)
    seed: int = 0
    rocm: bool = False
    layers: int = 6
    layer_us: int = 900
    steps: int = 8
    micro: int = 1  # passes for one update
    jitter: float = 0.03
    graph: bool = False
    copy_stream: bool = False
    modules: bool = True
    shapes: bool = True
    cpu: bool = False
    rank: int | None = None
    ranks: int | None = None
    waits: bool = (
        True  # False: what the faults make the host wait for is left out, what it does after it is not
    )

    def without_faults(self) -> Wild:
        return replace(self, faults={})


class Loop:
    """A host that walks through a training loop, and the streams that it feeds."""

    def __init__(self, run: Wild, partner_ends: list[int] | None = None) -> None:
        self.run, self.vendor, self.random = run, ROCM if run.rocm else CUDA, random.Random(run.seed)
        self.now, self.made, self.thread, self.graph_call = 1_000, 0, MAIN, 0
        self.free: dict[int, int] = {}
        self.ends: list[int] = []
        self.partner_ends = list(partner_ends or ())
        device = TraceDevice(index=0, name=self.vendor.device, capability="9.4" if run.rocm else "9.0")
        self.out = TraceBuilder(
            rank=run.rank,
            world_size=run.ranks,
            recorded=frozenset({"shapes"} if run.shapes else ()),
            devices=() if run.cpu else (device,),
        )

    def fault(self, name: str) -> float:
        return self.run.faults.get(name, 0.0)

    def about(self, dur: float) -> int:
        return max(500, int(dur * (1.0 + self.random.uniform(-1, 1) * self.run.jitter)))

    @contextmanager
    def range(self, name: str, kind: RangeKind = RangeKind.ANNOTATION) -> Iterator[None]:
        start, self.now = self.now, self.now + 300
        yield
        self.now += 300
        self.out.range(name, start, self.now - start, thread=self.thread, kind=kind)

    @contextmanager
    def operation(self, name: str, **known: Any) -> Iterator[None]:
        start, self.now = self.now, self.now + US
        yield
        self.now += US
        if not self.run.shapes:
            known = {key: value for key, value in known.items() if key not in ("dims", "types")}
        self.out.op(name, start, self.now - start, thread=self.thread, **known)

    def launch(self, kernel: str, dur: float, **known: Any) -> int:
        """Launch work and return when it ends."""
        stream, after = known.pop("stream", COMPUTE_STREAM), known.pop("after", 0)
        call = known.pop("call", self.vendor.launch)
        if self.graph_call and call == self.vendor.launch and stream == COMPUTE_STREAM:
            correlation = self.graph_call
        else:
            correlation = self.out.call(call, self.now, 3 * US, thread=self.thread)
            self.now += 3 * US
        start = max(self.now + LATENCY_NS, self.free.get(stream, 0) + 700, after)
        took = self.about(dur)
        self.out.kernel(kernel, start, took, correlation=correlation, stream=stream, **known)
        self.free[stream] = start + took
        return self.free[stream]

    def op(self, name: str, kernel: str, dur: float, **known: Any) -> None:
        """Run one operation: on the device, or here if there is none."""
        if self.run.cpu:
            with self.operation(name, **known):
                self.now += self.about(dur)
            return
        if self.graph_call:
            self.launch(kernel, dur)
            return
        with self.operation(name, **known):
            self.now += self.about(3 * US)
            self.launch(kernel, dur)

    def wait(self, call: str, until: int) -> None:
        end = max(until, self.now) + 3 * US
        self.out.call(call, self.now, end - self.now, thread=self.thread)
        self.now = end

    # --- what a transformer does

    def product(self, dur: float, sizes: tuple[int, int, int], layer: int) -> None:
        m, k, n = sizes
        wide = self.fault("fp32") or (self.fault("fp32_half") if layer % 2 else 0.0)
        dtype = FP32 if wide else BF16
        kernel = self.random.choice(self.vendor.products[dtype])
        odd = 3 if self.fault("odd_sizes") else 0
        times = max(wide, 1.0) * (1.6 if odd else 1.0)
        self.op("aten::mm", kernel, dur * times, dims=[[m, k - odd], [k - odd, n]], types=[dtype] * 2)

    def attention(self, dur: float, *, backward: bool) -> None:
        way, times = ("bwd" if backward else "fwd"), self.fault("attention")
        if not times:
            name = "backward" if backward else "forward"
            op = f"aten::_flash_attention_{name}"
            if self.run.cpu:  # a processor's has another name
                op = "aten::_scaled_dot_product_flash_attention_for_cpu" + ("_backward" if backward else "")
            self.op(op, self.vendor.flash.format(way=way), dur)
            return
        kernel = self.vendor.products[BF16][0]
        known: dict[str, Any] = {"dims": [[64, 512, 64], [64, 64, 512]], "types": [BF16] * 2}
        self.op("aten::bmm", kernel, dur * times * 0.3, **known)
        name = "aten::_softmax_backward_data" if backward else "aten::_softmax"
        self.op(name, "void (anonymous namespace)::cunn_SoftMaxForward<4, float>", dur * times * 0.4)
        self.op("aten::bmm", kernel, dur * times * 0.3, **known)

    def block(self, layer: int, *, backward: bool) -> None:
        whole = self.run.layer_us * US * (2.0 if backward else 1.0) * (self.fault("slow_clock") or 1.0)
        norm = "aten::native_layer_norm_backward" if backward else "aten::native_layer_norm"
        self.op(norm, "void at::native::vectorized_layer_norm_kernel<float>", 0.04 * whole)
        self.product(0.22 * whole, (8192, 1024, 3072), layer)
        self.attention(0.12 * whole, backward=backward)
        self.product(0.08 * whole, (8192, 1024, 1024), layer)
        self.product(0.25 * whole, (8192, 1024, 4096), layer)
        self.op("aten::gelu", "void at::native::vectorized_elementwise_kernel<4, GeluFunctor>", 0.04 * whole)
        self.product(0.25 * whole, (8192, 4096, 1024), layer)
        self.extras(layer, backward=backward)

    def extras(self, layer: int, *, backward: bool) -> None:
        """Play what faults add to a block."""
        each = MS / (2 * self.run.layers * self.run.micro)
        if spent := self.fault("chains"):
            for name in ("mul", "add", "tanh", "where"):
                kernel = f"void at::native::elementwise_kernel<128, 2, {name}_functor>"
                self.op(f"aten::{name}", kernel, spent * each / 4)
        if spent := self.fault("device_copies"):
            kernel = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>"
            self.op("aten::copy_", kernel, spent * each)
        for _ in range(int(self.fault("tiny") * each / (14 * US))):
            self.op("aten::add", "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", 2 * US)
            self.now += 0 if self.run.cpu else 6 * US
        slow = self.fault("slow_backward" if backward else "slow_forward")
        if slow and layer == SLOW_LAYER:
            with self.range("special"):
                self.product(slow * MS / self.run.micro, (8192, 1024, 3072), layer)

    def forward(self) -> None:
        known: dict[str, Any] = {"dims": [[32000, 1024], [8, 1024]], "types": [BF16, "long"]}
        kernel = "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16>"
        self.op("aten::embedding", kernel, 40 * US, **known, sequence=self.number())
        self.nodes: list[tuple[int, int]] = []
        for layer in range(self.run.layers):
            if spent := self.fault("gathers"):
                self.talk("all_gather", "_allgather_base", spent * MS / self.run.layers, wait=True)
            made = self.number()
            with self.module(layer), self.operation("Block", sequence=made, forward_thread=0):
                self.block(layer, backward=False)
            self.nodes.append((layer, made))
        self.loss()

    @contextmanager
    def module(self, layer: int) -> Iterator[None]:
        if not self.run.modules:
            yield
            return
        with self.range(f"nn.Module: Block_{layer}", RangeKind.MODULE):
            yield

    def loss(self) -> None:
        self.product(0.3 * self.run.layer_us * US, (8192, 1024, 32000), 0)
        kernel = "void at::native::(anonymous namespace)::cunn_SoftMaxForwardSmem<8, BFloat16>"
        self.op("aten::_log_softmax", kernel, 0.05 * self.run.layer_us * US + self.fault("loss") * MS)
        self.op("aten::nll_loss_forward", "void at::native::nll_loss_forward_reduce_cuda_kernel_2d", 10 * US)

    def number(self) -> int:
        self.made += 1
        return self.made

    def backward(self, *, last: bool) -> None:
        self.thread = MAIN if self.run.cpu else AUTOGRAD
        for layer, made in reversed(self.nodes):
            known: dict[str, Any] = {"sequence": made, "forward_thread": 1}
            node = "autograd::engine::evaluate_function: BlockBackward0"
            with self.operation(node, **known), self.operation("BlockBackward0", **known):
                self.block(layer, backward=True)
            self.bucket(layer, last=last)
        self.thread = MAIN

    # --- ranks

    def bucket(self, layer: int, *, last: bool) -> None:
        """Reduce the gradients of a layer, in the last pass of a step unless that is the fault."""
        if self.fault("reduce_each_pass"):
            self.talk(
                "all_reduce", "allreduce", self.fault("reduce_each_pass") * MS / self.run.layers, wait=True
            )
        elif last and self.fault("reduce_all"):
            self.talk("all_reduce", "allreduce", self.fault("reduce_all") * MS / self.run.layers, wait=True)
        elif last and (self.run.ranks or self.fault("reduce_last")):
            spent = self.fault("reduce_last") * MS if layer == 0 else 0.0
            self.talk("all_reduce", "allreduce", spent or 0.1 * self.run.layer_us * US, wait=False)

    def talk(self, name: str, kind: str, dur: float, *, wait: bool) -> None:
        count: Any = {"in_elements": 25_000_000, "out_elements": 25_000_000, "dtype": "BFloat16"}
        said = Collective(name=kind, group_size=self.run.ranks or 8, group="0", **count)
        after = self.free.get(COMPUTE_STREAM, 0)
        begin = max(self.now + LATENCY_NS, self.free.get(COMMUNICATION_STREAM, 0) + 700, after)
        meet = self.partner_ends.pop(0) if self.partner_ends else 0
        kernel = f"ncclDevKernel_{name.title().replace('_', '')}_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        with self.range(f"nccl:{name}"):
            known: Any = {"stream": COMMUNICATION_STREAM, "after": after, "collective": said}
            end = self.launch(kernel, max(dur, meet - begin), **known)
        self.ends.append(end)
        if wait:
            self.free[COMPUTE_STREAM] = max(self.free[COMPUTE_STREAM], end)

    # --- the loop around it

    def feed(self, place: int) -> None:
        kind = (
            "_SingleProcessDataLoaderIter" if self.fault("loader_main") else "_MultiProcessingDataLoaderIter"
        )
        rarely = 4 * self.fault("loader_4th") if place % 4 == 1 else 0.0
        with self.range(f"enumerate(DataLoader)#{kind}.__next__"):
            self.now += self.about(40 * US + (self.fault("loader") + self.fault("loader_main") + rarely) * MS)
        if self.run.cpu:
            return
        pieces = 60 if self.fault("pageable_pieces") else 1
        spent = self.fault("pageable_pieces") or self.fault("pageable")
        with self.operation("aten::copy_"):
            for _ in range(pieces):
                self.copy_in(spent * MS / pieces, moved=20_000 if pieces > 1 else 4_000_000)

    def copy_in(self, dur: float, moved: int) -> None:
        stream = COPY_STREAM if self.run.copy_stream else COMPUTE_STREAM
        known: Any = {"kind": DeviceEvent.COPY_H2D, "stream": stream, "moved": moved}
        name = self.vendor.host_to_device[not dur]
        if not dur:
            end = self.launch(name, 25 * US, call=self.vendor.copy, **known)
            self.free[COMPUTE_STREAM] = max(self.free.get(COMPUTE_STREAM, 0), end)
            return
        start = self.now
        end = self.launch(name, dur, call=self.vendor.blocking_copy, **known)
        if self.run.rocm:  # the call itself stays until the copy is done
            name_of_call, begin, _, *rest = self.out.calls[-1]
            self.out.calls[-1] = (name_of_call, begin, end + 2 * US - begin, *rest)
            self.now = max(self.now, end + 2 * US)
        else:
            self.wait(self.vendor.sync, end)
        self.now += (self.now - start) // 50

    def read(self, way: str, pause: float) -> None:
        """Make the host wait for all that was launched, and come back late."""
        inner = {"item": "aten::_local_scalar_dense", "cpu": "aten::copy_", "nonzero": "aten::nonzero"}
        outer = {"item": "aten::item", "cpu": "aten::to"}
        if not self.run.waits:
            self.now += self.about(pause)
            return
        if way in inner and not self.run.cpu:
            with (
                self.operation(outer[way]) if way in outer else self.range("reads"),
                self.operation(inner[way]),
            ):
                known: Any = {"kind": DeviceEvent.COPY_D2H, "moved": 4 if way == "item" else 4096}
                end = self.launch("Memcpy DtoH (Device -> Pageable)", 2 * US, call=self.vendor.copy, **known)
                self.wait(self.vendor.sync, end)
        elif way in ("stream_sync", "event_sync"):
            call = self.vendor.sync if way == "stream_sync" else self.vendor.sync.replace("Stream", "Event")
            self.wait(call, max(self.free.values()))
        elif way == "allocator":
            self.wait(self.vendor.free, max(*self.free.values(), self.now) + 100 * US)
        self.now += self.about(pause)

    def interrupt(self) -> None:
        for way in ("item", "cpu", "nonzero", "stream_sync", "event_sync", "allocator"):
            if spent := self.fault(way):
                for _ in range(READS):
                    self.op(
                        "aten::add", "void at::native::vectorized_elementwise_kernel<4, AddFunctor>", 20 * US
                    )
                    self.read(way, spent * MS / READS)

    def update(self, *, skip: bool) -> None:
        with self.range("Optimizer.step#AdamW.step"):
            if skip:
                return
            for _ in range(int(self.fault("offload") > 0)):
                for name, kind in (("DtoH", DeviceEvent.COPY_D2H), ("HtoD", DeviceEvent.COPY_H2D)):
                    known: Any = {"kind": kind, "moved": 100_000_000, "call": self.vendor.copy}
                    self.launch(f"Memcpy {name} (Pinned -> Device)", self.fault("offload") * MS / 2, **known)
            tensors = int(self.fault("single_tensor") * MS / (5 * 14 * US))
            if not tensors:
                kernel = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"
                self.op("aten::_fused_adamw_", kernel, 0.3 * self.run.layer_us * US)
            for _ in range(tensors):
                for name in ("lerp_", "mul_", "addcmul_", "sqrt", "addcdiv_"):
                    kernel = f"void at::native::vectorized_elementwise_kernel<4, {name}>"
                    self.op(f"aten::{name}", kernel, 3 * US)
                    self.now += 0 if self.run.cpu else 5 * US

    def step(self, place: int) -> None:
        start = self.now
        rare = place % 3 == 2
        for turn in range(self.run.micro):
            self.feed(place)
            self.one_pass(place, last=turn == self.run.micro - 1)
        if self.run.ranks or any("reduce" in name for name in self.run.faults):
            self.free[COMPUTE_STREAM] = max(self.free.values())
        self.update(skip=bool(self.fault("no_update")) and rare)
        self.now += self.about(self.fault("collector") * 3 * MS) if self.fault("collector") and rare else 0
        self.now += 1_000
        self.out.range(f"ProfilerStep#{5 + place}", start, self.now - start)
        self.now += 300

    def one_pass(self, place: int, *, last: bool) -> None:
        self.now += int(self.fault("late") * MS)
        if self.run.graph:
            self.graph_call = self.out.call("cudaGraphLaunch", self.now, 30 * US)
            self.now += 30 * US
        self.forward()
        if not self.run.graph:
            self.interrupt()
        self.now += int(self.fault("stall") * MS / self.run.micro)
        if not (self.fault("no_backward") and place % 3 == 2):
            self.backward(last=last)
        if self.run.graph:
            self.graph_call = 0
            self.interrupt()


def trace_of(run: Wild) -> Trace:
    """Return the trace of a run."""
    return play(run).out.trace()


def play(run: Wild, partner_ends: list[int] | None = None) -> Loop:
    """Return the loop after its last step."""
    loop = Loop(run, partner_ends)
    for place in range(run.steps):
        loop.step(place)
    return loop


def profile_of(run: Wild) -> Profile:
    """Return the profile of a run; of all of its ranks, the last with the faults, if it has several."""
    if not run.ranks or "reduce_all" in run.faults or "reduce_last" in run.faults:
        return profile_of_traces([trace_of(run)])
    late = play(replace(run, rank=run.ranks - 1))
    others = [play(replace(run, rank=rank, faults={}), late.ends) for rank in range(run.ranks - 1)]
    return profile_of_traces([*(one.out.trace() for one in others), late.out.trace()])

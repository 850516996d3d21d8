"""Traces of a small transformer's training with known faults: one run that is well, and what is changed in it.

As in `trace_builder` a host and a device are played against each other, so that a fault costs what it would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from stepgrade.model import Profile
from stepgrade.model.events import Collective, DeviceEvent, RangeKind, Trace, TraceDevice
from stepgrade.trace.profile import profile_of_traces
from tests.trace_builder import AUTOGRAD, COMMUNICATION_STREAM, COMPUTE_STREAM, LATENCY_NS, MAIN, TraceBuilder

US = 1_000
TOKENS, WIDTH, VOCABULARY = 8192, 1024, 32_000
PINNED, PAGEABLE = "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)"


@dataclass(frozen=True)
class Faults:
    """What is wrong with a run; the defaults are a run that is well."""

    steps: int = 6
    layers: int = 6
    loader_ns: int = 50 * US
    workers: bool = True
    pageable_ns: int = 0
    reads: int = 0  # .item() after so many operations of a step
    nonzeros: int = 0
    frees: int = 0
    synchronize: bool = False
    host_after_sync_ns: int = 150 * US
    tiny: int = 0  # tiny operations in each layer
    fp32: float = 0.0  # how many times longer products take in 32 bits
    attention: float = 0.0  # how many times longer attention takes written out
    single_tensor: int = 0  # tensors that the optimizer updates one by one
    reduce_ns: int = 0  # of each layer's gradient
    reduce_at_end: bool = False
    message: int = 4_000_000  # elements of a collective
    slow_layer: float = 1.0
    skip_backward: frozenset[int] = frozenset()
    backward_factor: float = 2.0
    warm_up: tuple[float, ...] = ()
    stall_ns: int = 0  # host work between forward and backward
    odd_width: int = 0  # makes products uneven, and slower by half
    layout: float = 0.0  # time of conversions, as a share of the products'
    copies: float = 0.0
    elementwise: float = 0.0
    rank: int | None = None
    world_size: int | None = None
    late_ns: int = 0
    lost: tuple[str, ...] = ()


class Playing:
    """A host clock, and for each stream the time at which it is free."""

    def __init__(self, faults: Faults, partner_ends: Sequence[int] = ()) -> None:
        self.faults, self.now, self.made, self.thread, self.factor = faults, 1_000, 0, MAIN, 1.0
        self.free: dict[int, int] = {}
        self.reads_left, self.partner_ends, self.reduced = 0, list(partner_ends), []
        device = TraceDevice(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, capability="9.0")
        self.out = TraceBuilder(
            rank=faults.rank,
            world_size=faults.world_size,
            recorded=frozenset({"shapes"}),
            devices=(device,),
            lost=faults.lost,
        )

    @contextmanager
    def range(self, name: str, kind: RangeKind = RangeKind.ANNOTATION) -> Iterator[None]:
        start, self.now = self.now, self.now + 200
        yield
        self.now += 200
        self.out.range(name, start, self.now - start, thread=self.thread, kind=kind)

    def launch(self, kernel: str, dur: float, **known: Any) -> int:
        """Launch work and return its end."""
        stream = known.pop("stream", COMPUTE_STREAM)
        after = known.pop("after", 0)
        call = known.pop("call", "cudaLaunchKernel")
        correlation = self.out.call(call, self.now, 2 * US, thread=self.thread)
        start = max(self.now + LATENCY_NS, self.free.get(stream, 0) + 500, after)
        self.out.kernel(
            kernel, start, int(dur * self.factor), correlation=correlation, stream=stream, **known
        )
        self.free[stream] = start + int(dur * self.factor)
        self.now += 2 * US
        return self.free[stream]

    def op(self, name: str, *kernels: tuple[str, float], host_ns: int = 8 * US, **known: Any) -> None:
        start, self.now = self.now, self.now + host_ns // 2
        for kernel, dur in kernels:
            self.launch(kernel, dur)
        self.now += host_ns // 2
        self.out.op(name, start, self.now - start, thread=self.thread, **known)
        if self.reads_left and self.thread == MAIN:
            self.reads_left -= 1
            self.read_back()

    def read_back(self, name: str = "aten::item", inner: str = "aten::_local_scalar_dense") -> None:
        """Read a value back: the host waits for all that was launched, and is slow to come back."""
        start = self.now
        self.now += 2 * US
        inside = self.now
        end = self.launch(
            "Memcpy DtoH (Device -> Pinned)", 2 * US, kind=DeviceEvent.COPY_D2H, call="cudaMemcpyAsync"
        )
        self.wait("cudaStreamSynchronize", end)
        self.out.op(inner, inside, self.now - inside, thread=self.thread)
        self.now += US
        if name != inner:
            self.out.op(name, start, self.now - start, thread=self.thread)
        self.now += self.faults.host_after_sync_ns

    def wait(self, call: str, until: int) -> None:
        end = max(until, self.now) + 2 * US
        self.out.call(call, self.now, end - self.now, thread=self.thread)
        self.now = end

    def product(self, name: str, dur: float, sizes: tuple[int, int, int]) -> None:
        faults = self.faults
        m, k, n = sizes[0], sizes[1] - faults.odd_width, sizes[2] - faults.odd_width
        kernel, dtype, times = "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "c10::BFloat16", 1.0
        if faults.fp32:
            kernel, dtype, times = "ampere_sgemm_128x64_tn", "float", faults.fp32
        if faults.odd_width:
            kernel, times = "cutlass_80_tensorop_bf16_s16816gemm_bf16_align1", 1.5
        self.op(name, (kernel, dur * times), dims=[[m, k], [k, n]], types=[dtype] * 2)
        if faults.layout:
            self.op("aten::cudnn_convolution", ("cudnn::engines::nchwToNhwcKernel", dur * faults.layout))
        if faults.copies:
            self.op("aten::copy_", ("vectorized_elementwise_kernel<copy>", dur * faults.copies))
        if faults.elementwise:
            self.op("aten::mul", ("vectorized_elementwise_kernel<MulFunctor>", dur * faults.elementwise / 2))
            self.op("aten::add", ("vectorized_elementwise_kernel<AddFunctor>", dur * faults.elementwise / 2))

    def attention(self, dur: float, *, backward: bool) -> None:
        if not self.faults.attention:
            way = "backward" if backward else "forward"
            self.op(f"aten::_flash_attention_{way}", (f"flash_{way[:3]}_kernel", dur))
            return
        total = dur * self.faults.attention
        dims = [[128, 1024, 64], [128, 64, 1024]]
        kernel = ("ampere_bf16_s16816gemm_bf16_128x128_tn", total * 0.25)
        self.op("aten::bmm", kernel, dims=dims, types=["c10::BFloat16"] * 2)
        softmax = "aten::_softmax_backward_data" if backward else "aten::_softmax"
        self.op(softmax, ("cunn_SoftMaxForward", total * 0.5))
        self.op("aten::bmm", kernel, dims=dims, types=["c10::BFloat16"] * 2)

    def work(self, dur: float, *, backward: bool) -> None:
        """Play what a layer does in one direction."""
        norm = "aten::native_layer_norm_backward" if backward else "aten::native_layer_norm"
        self.op(norm, ("vectorized_layer_norm_kernel", 0.03 * dur))
        self.product("aten::mm", 0.22 * dur, (TOKENS, WIDTH, 3 * WIDTH))
        self.attention(0.12 * dur, backward=backward)
        self.product("aten::mm", 0.08 * dur, (TOKENS, WIDTH, WIDTH))
        self.product("aten::mm", 0.26 * dur, (TOKENS, WIDTH, 4 * WIDTH))
        self.op("aten::gelu", ("vectorized_elementwise_kernel<GeluFunctor>", 0.03 * dur))
        self.product("aten::mm", 0.26 * dur, (TOKENS, 4 * WIDTH, WIDTH))
        for _ in range(self.faults.tiny):
            self.op("aten::add", ("vectorized_elementwise_kernel<AddFunctor>", 2 * US), host_ns=10 * US)

    def forward(self) -> None:
        embedding = ("indexSelectLargeIndex_embedding", 40 * US)
        dims = [[VOCABULARY, WIDTH], [8, TOKENS // 8]]
        self.op(
            "aten::embedding", embedding, dims=dims, types=["c10::BFloat16", "long"], sequence=self.number()
        )
        for index in range(self.faults.layers):
            with self.layer(index):
                self.work(900 * US, backward=False)

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        factor = self.factor
        self.factor *= self.faults.slow_layer if index == 3 else 1.0
        name, inner = f"nn.Module: Block_{index}", f"nn.Module: Inner_{index}"
        with self.range(name, RangeKind.MODULE), self.range(inner, RangeKind.MODULE):
            start, made = self.now, self.number()
            yield
            self.out.op("Block", start, self.now - start, thread=self.thread, sequence=made, forward_thread=0)
        self.nodes.append((index, made))
        self.factor = factor

    def number(self) -> int:
        self.made += 1
        return self.made

    def backward(self) -> None:
        self.thread = AUTOGRAD
        for index, made in reversed(self.nodes):
            start, self.now = self.now, self.now + US
            factor = self.factor
            self.factor *= (self.faults.slow_layer if index == 3 else 1.0) * self.faults.backward_factor
            self.work(900 * US, backward=True)
            self.factor = factor
            known: dict[str, Any] = {"thread": AUTOGRAD, "sequence": made, "forward_thread": 1}
            self.out.op("BlockBackward0", start + 200, self.now - start, **known)
            self.now += US
            self.out.op(
                "autograd::engine::evaluate_function: BlockBackward0", start, self.now - start, **known
            )
            if self.faults.reduce_ns:
                self.reduce()
        self.thread = MAIN

    def reduce(self) -> None:
        faults = self.faults
        count: Any = {"in_elements": faults.message, "out_elements": faults.message, "dtype": "BFloat16"}
        said = Collective(name="allreduce", group_size=faults.world_size or 2, group="0", **count)
        after = self.free.get(COMPUTE_STREAM, 0)
        begin = max(self.now + LATENCY_NS, self.free.get(COMMUNICATION_STREAM, 0) + 500, after)
        meet = self.partner_ends.pop(0) if self.partner_ends else 0
        with self.range("nccl:all_reduce"):
            dur = max(faults.reduce_ns, meet - begin)
            end = self.launch(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                dur,
                stream=COMMUNICATION_STREAM,
                after=after,
                collective=said,
            )
        self.reduced.append(end)
        if faults.reduce_at_end:
            self.free[COMPUTE_STREAM] = max(self.free[COMPUTE_STREAM], end)

    def update(self) -> None:
        if self.faults.reduce_ns:
            self.free[COMPUTE_STREAM] = max(self.free.values())
        with self.range("Optimizer.step#AdamW.step"):
            if not self.faults.single_tensor:
                self.op("aten::_fused_adamw_", ("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 300 * US))
            for _ in range(self.faults.single_tensor):
                for name in ("aten::lerp_", "aten::mul_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_"):
                    self.op(name, ("vectorized_elementwise_kernel", 3 * US), host_ns=10 * US)

    def feed(self) -> None:
        kind = "_MultiProcessingDataLoaderIter" if self.faults.workers else "_SingleProcessDataLoaderIter"
        with self.range(f"enumerate(DataLoader)#{kind}.__next__"):
            self.now += self.faults.loader_ns
        start = self.now
        if self.faults.pageable_ns:
            end = self.launch(
                PAGEABLE, self.faults.pageable_ns, kind=DeviceEvent.COPY_H2D, call="cudaMemcpyAsync"
            )
            self.wait("cudaStreamSynchronize", end)
            self.now += self.faults.host_after_sync_ns // 3
        else:
            self.launch(PINNED, 20 * US, kind=DeviceEvent.COPY_H2D, call="cudaMemcpyAsync")
        self.out.op("aten::copy_", start, self.now - start)

    def step(self, place: int, number: int) -> None:
        faults, start = self.faults, self.now
        self.nodes: list[tuple[int, int]] = []
        self.factor = faults.warm_up[place] if place < len(faults.warm_up) else 1.0
        self.reads_left = faults.reads
        self.feed()
        self.now += faults.late_ns
        self.forward()
        self.now += faults.stall_ns
        for _ in range(faults.nonzeros):
            self.read_back("aten::nonzero", "aten::nonzero")
        for _ in range(faults.frees):
            self.wait("cudaFree", max(*self.free.values(), self.now) + 150 * US)  # slow, even when idle
            self.op("aten::add", ("vectorized_elementwise_kernel", 20 * US))
        if place not in faults.skip_backward:
            self.backward()
        self.update()
        if faults.synchronize:
            self.wait("cudaDeviceSynchronize", max(self.free.values()))
            self.now += faults.host_after_sync_ns
        self.now += 1_000
        self.out.range(f"ProfilerStep#{number}", start, self.now - start)
        self.now += 300


def play(faults: Faults, partner_ends: Sequence[int] = ()) -> Playing:
    """Return the player after the run."""
    player = Playing(faults, partner_ends)
    for place in range(faults.steps):
        player.step(place, 5 + place)
    return player


def make_faulty_trace(faults: Faults) -> Trace:
    """Return the trace of a run with these faults."""
    return play(faults).out.trace()


def profile_of(faults: Faults) -> Profile:
    """Return the profile of a run with these faults."""
    return profile_of_traces([make_faulty_trace(faults)])


def profile_of_ranks(late_ns: int, world_size: int = 4, reduce_ns: int = 200 * US) -> Profile:
    """Return the profile of several ranks of which the last is late by so much in each step."""
    common: dict[str, Any] = {"world_size": world_size, "reduce_ns": reduce_ns}
    slow = play(Faults(rank=world_size - 1, late_ns=late_ns, **common))
    traces = [play(Faults(rank=rank, **common), slow.reduced).out.trace() for rank in range(world_size - 1)]
    return profile_of_traces([*traces, slow.out.trace()])


Maker = Callable[[], Profile]

"""What a run can be expected to reach: the time of a step by part, at rates fitted to published runs.

`benchmarks/throughput.py` fits `Rates` and `INTERVALS` to the runs of
`tests/hardware/published_throughput.csv`, each with its source, and says how far predictions lie from the
runs of sources that were left out.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from msgspec import Struct, structs

from stepgrade.hardware.catalogue import Device, all_devices
from stepgrade.hardware.ceilings import FLOPS_PER_TFLOP, Figures
from stepgrade.hardware.cluster import LinkRates
from stepgrade.hardware.cost.model_costs import UNFUSED_EXTRA_BYTES, attended_span, trained_parameters
from stepgrade.hardware.cost.plan import LOSSES, OPTIMIZERS, Plan
from stepgrade.hardware.models.shape import Layer, Linear, ModelShape
from stepgrade.statistics import median


class Rates(Struct, frozen=True, kw_only=True):
    """What training reaches of the hardware's rates, and what computing does not hide."""

    gemm: float = 0.89  # of the best matmul rate measured on the device
    gemm_fp8: float = 0.882  # of that, times what fp8 adds to the peak
    gemm_experts: float = 0.666  # more, of matrices in groups
    width: float = 126  # a matrix with a side this long reaches half
    attention: float = 0.346  # of the bf16 matmul rate, before Hopper
    attention_hopper: float = 0.231  # and since
    bandwidth: float = 1  # of the memory's
    eager: float = 1.62  # traffic between matrices, of each operation reading and writing once
    compiled: float = 1.03
    te: float = 0.54
    transformers: float = 2
    casts: float = 0.797  # traffic that fp8 adds, of reading, writing and transposing once
    permutes: float = 2.09  # traffic that experts add, of sorting tokens and sorting them back
    adapters: float = 1.69  # traffic that LoRA adds, of reading inputs and adding to outputs
    host_s: float = 0.000803  # to launch one layer, forward and backward
    host_experts_s: float = 0.00499
    link: float = 0.827  # of the nominal rates
    tensor_exposed: float = 0.99
    tensor_exposed_te: float = 0.828
    expert_exposed: float = 0.608
    data_exposed: float = 0.165
    straggler: float = 0.0143  # of the step, for each doubling of the nodes


RATES = Rates()
# The share of a matmul's best rate to its peak where no measurement is known.
_USUAL_SHARE = 0.8
# Rates per watt: from A100 SXM (271 TFLOP/s with 400 W) and PCIe (253 with 250 to 300).
_POWER_EXPONENT = 0.24
# Offloaded optimizer states cross PCIe and are updated by the processor.
_HOST_BYTES_PER_S = 25e9
# The largest exponent that keeps a sum of two times close to the longer one.
_LONGER = 3.0


class Achieved(Struct, frozen=True, kw_only=True):
    """The best rate of a bf16 matmul, in FLOP/s, and where it is from."""

    per_s: float
    source: str


def achieved_rate(figures: Figures) -> Achieved | None:
    """Return the best matmul rate of the device, measured or borrowed from its kind; None if unknown."""
    for dtype in ("bf16", "fp16"):
        measured = [rate for rate in figures.compute(dtype) if rate.basis == "measured"]
        if measured:
            return Achieved(per_s=measured[-1].per_s, source=measured[-1].source)
    device = figures.device
    if figures.peak_tflops is not None:
        rate = _USUAL_SHARE * figures.peak_tflops * FLOPS_PER_TFLOP
        return Achieved(per_s=rate, source="the usual share of the peak as given")
    peaks = device.peak_tflops if device else {}
    peak = peaks.get("bf16") or peaks.get("fp16") or peaks.get("fp32")
    if device is None or peak is None:
        return None
    if device.name.startswith("GeForce"):
        # With fp32 sums they run at half the rate of their matrix units, and power does not limit them.
        return Achieved(
            per_s=peak * FLOPS_PER_TFLOP, source="the peak, which GeForce cards reach with fp32 sums"
        )
    sisters = [other for other in _measured_devices() if other.arch == device.arch]
    if not sisters:
        shares = [_share(other) for other in _measured_devices()]
        source = "the median share of the peak that other devices reach"
        return Achieved(per_s=median(shares) * peak * FLOPS_PER_TFLOP, source=source)
    nearest = min(sisters, key=lambda other: abs(math.log(other.peak_tflops["bf16"] / peak)))
    share = _share(nearest)
    if device.tdp_w is not None and nearest.tdp_w is not None:
        watts = (device.tdp_w / peak) / (nearest.tdp_w / nearest.peak_tflops["bf16"])
        share *= min(1.0, watts) ** _POWER_EXPONENT
    source = f"the share of the peak measured on {nearest.name}"
    return Achieved(per_s=share * peak * FLOPS_PER_TFLOP, source=source)


@cache
def _measured_devices() -> tuple[Device, ...]:
    return tuple(device for device in all_devices().values() if "bf16" in device.achievable_tflops)


def _share(device: Device) -> float:
    return device.achievable_tflops["bf16"] / device.peak_tflops["bf16"]


class StepTime(Struct, frozen=True, kw_only=True):
    """Seconds of one step on the device that needs longest, by what they go to; they add up to the step."""

    matrices: float
    attention: float
    vector: float  # norms, activations, casts, loss: limited by memory bandwidth
    recompute: float
    host: float  # the device waits for launches
    tensor: float  # communication that computing does not hide
    expert: float
    context: float
    pipeline: float
    bubble: float
    optimizer: float
    data: float
    straggler: float

    @property
    def total(self) -> float:
        """Return the seconds of the step."""
        return math.fsum(structs.astuple(self))

    def parts(self) -> dict[str, float]:
        """Return the seconds by part."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class _Part(NamedTuple):
    """Seconds of a layer or of the head for one micro-batch, forward and backward."""

    matrices: float = 0.0
    attention: float = 0.0
    vector: float = 0.0
    recompute: float = 0.0
    host: float = 0.0
    tensor: float = 0.0
    expert: float = 0.0
    context: float = 0.0

    def times(self, count: float) -> _Part:
        return _Part(*(count * value for value in self))

    def plus(self, other: _Part) -> _Part:
        return _Part(*(one + two for one, two in zip(self, other, strict=True)))


class StepModel:
    """The times of steps of one model on one kind of device; layers are remembered between plans."""

    def __init__(self, shape: ModelShape, figures: Figures, links: LinkRates, rates: Rates = RATES) -> None:
        achieved, bandwidths = achieved_rate(figures), figures.bandwidth()
        self.is_known = achieved is not None and bool(bandwidths)
        self.links = links
        self._shape, self._links, self._rates = shape, links, rates
        self._depth, self._parameters = shape.depth, shape.parameters
        self._experts = sum(layer.count * layer.expert_weights for layer in shape.layers)
        self._device = figures.device
        self._best = achieved.per_s if achieved else math.nan
        self._bandwidth = bandwidths[0].per_s * rates.bandwidth if bandwidths else math.nan
        self._known: dict[tuple[object, ...], tuple[_Part, _Part]] = {}

    def seconds(self, plan: Plan) -> float:
        """Return the seconds of a step of the plan."""
        return self.step(plan).total

    def step(self, plan: Plan) -> StepTime:
        """Return the time of a step of the plan, by part."""
        parallel, rates = plan.parallel, self._rates
        key = (
            *(plan.tokens, plan.seq, plan.packed_seq, plan.checkpointing, plan.loss, plan.kernels),
            *(plan.dtype, plan.method, plan.attention, plan.dequantise, plan.quantisation, plan.rank),
            *(plan.lora_targets, parallel.tensor, parallel.context, parallel.expert, plan.expert_tensor),
        )
        if key not in self._known:
            layers = _Part()
            for layer in self._shape.layers:
                layers = layers.plus(self._layer(layer, plan).times(layer.count))
            # The head and the loss, which are not in fp8.
            tokens, part = plan.tokens / parallel.context, self._shape.vocab / parallel.tensor
            plain = plan if plan.dtype != "fp8" else structs.replace(plan, dtype="bf16")
            rate = self._matrix_rate(plain) * self._filled(tokens, self._shape.hidden, part)
            passes = 2 if plan.is_frozen else 3
            head = _Part(
                matrices=2 * passes * tokens * self._shape.hidden * part / rate,
                vector=tokens * part * LOSSES[plan.loss] / self._bandwidth,
            )
            self._known[key] = layers, head
        layers, head = self._known[key]
        stages = parallel.pipeline * parallel.virtual
        # Chunks of the first stages have the extra layers; the last stage also has the head.
        depth = self._depth
        most = least = parallel.virtual * -(-depth // stages)
        if depth % stages:  # embedding and loss take the place of a layer, or some stages have one fewer
            least -= 1 if (depth + 2) % stages == 0 else parallel.virtual
        stage = layers.times(least / depth).plus(head)
        if least < most and sum(layers) * (most - least) / depth > sum(head):
            stage = layers.times(most / depth)
        count = plan.micro_batches
        busy = sum(stage) * count
        bubble = sum(stage) * (parallel.pipeline - 1) / parallel.virtual
        moved = self._trained(plan) * OPTIMIZERS[plan.optimizer]
        moved /= parallel.shards if parallel.zero_stage else 1
        is_here = plan.offload in ("none", "activations")
        optimizer = moved / (self._bandwidth if is_here else _HOST_BYTES_PER_S)
        data = self._data(plan, sum(stage))
        nodes = max(1.0, parallel.devices / self._links.per_node)
        pipeline = 0.0
        if parallel.pipeline > 1:  # activations and gradients between stages, most of them hidden
            sent = 2 * plan.tokens / parallel.context * self._shape.hidden * plan.value_bytes
            rate = self._links.rate(2, parallel.devices // parallel.pipeline) * rates.link
            pipeline = rates.data_exposed * parallel.virtual * count * sent / parallel.tensor / rate
        wait = rates.straggler * math.log2(nodes) * (busy + bubble + pipeline + optimizer + data)
        return StepTime(
            **stage.times(count)._asdict(),
            pipeline=pipeline,
            bubble=bubble,
            optimizer=optimizer,
            data=data,
            straggler=wait,
        )

    def _matrix_rate(self, plan: Plan) -> float:
        """Return the rate of large matmuls in FLOP/s."""
        peaks = self._device.peak_tflops if self._device else {}
        if plan.dtype == "fp8" and "fp8" in peaks:
            return self._best * self._rates.gemm_fp8 * peaks["fp8"] / (peaks.get("bf16") or peaks["fp8"] / 2)
        slower = 1.0
        if plan.dtype in ("fp32", "tf32"):
            slower = peaks.get(plan.dtype, peaks.get("bf16", 1.0) / 4) / (peaks.get("bf16") or 1.0)
        return self._best * self._rates.gemm * min(1.0, slower)

    def _filled(self, *sides: float) -> float:
        """Return the share of the rate that a matmul with such sides reaches."""
        return 1 / math.prod(1 + self._rates.width / max(side, 1.0) for side in sides)

    def _linear(self, linear: Linear, plan: Plan) -> float:
        """Return the seconds of one matmul forward, at the rate of large ones."""
        parallel, inputs, outputs = plan.parallel, float(linear.inputs), float(linear.outputs)
        rows = plan.tokens / parallel.context
        if linear.copies > 1:  # tokens of all devices that share the experts meet those of this one
            shared = plan.expert_tensor
            rows = rows / (parallel.tensor if shared == 1 else 1) * linear.active
            each = rows * max(1, parallel.expert) / linear.copies
            flops = 2 * rows * inputs * outputs / shared
            return flops / (self._filled(each, inputs, outputs / shared) * self._rates.gemm_experts)
        if linear.name in ("o", "down"):
            inputs /= parallel.tensor
        else:
            outputs /= parallel.tensor
        return 2 * rows * inputs * outputs * linear.active / self._filled(rows, inputs, outputs)

    def _vector_bytes(self, layer: Layer, plan: Plan) -> float:
        """Return the bytes that one layer moves between its matrices, forward."""
        rates, hidden, value = self._rates, self._shape.hidden, plan.value_bytes
        own = plan.tokens / plan.parallel.context / plan.parallel.tensor
        kernels = "eager" if plan.kernels == "eager-unfused" else plan.kernels
        ffn = (6 if layer.gated else 4) * layer.ffn_width
        values = 14 * hidden + 6 * layer.query_width + 6 * layer.kv_width + ffn
        factor: float = getattr(rates, kernels)
        moved = own * value * values * factor
        if layer.expert_count:
            moved += own * value * 4 * hidden * layer.experts_met * rates.permutes
        if plan.dtype == "fp8":
            sides = sum((part.inputs + part.outputs) * part.active for part in layer.linears)
            moved += own * 3 * sides * rates.casts
        if plan.is_frozen:
            sides = sum(
                (part.inputs + 2 * part.outputs) * part.active for part in layer.adapted(plan.lora_targets)
            )
            moved += own * value * sides * rates.adapters
        if plan.method == "qlora":
            extra = 0.0 if plan.dequantise == "fused" else UNFUSED_EXTRA_BYTES
            moved += layer.weights / plan.parallel.tensor * (plan.weight_bytes + extra)
        if plan.attention == "written-out":
            moved += own * layer.heads * plan.seq * 8 * value
        return moved

    def _layer(self, layer: Layer, plan: Plan) -> _Part:
        """Return the times of one layer for one micro-batch."""
        rates, parallel, links = self._rates, plan.parallel, self._links
        tokens = plan.tokens / parallel.context
        forward = sum(self._linear(part, plan) for part in layer.linears) / self._matrix_rate(plan)
        span = attended_span(plan.packed_seq or plan.seq, causal=True, window=layer.window)
        is_new = self._device is not None and (self._device.arch or "") >= "sm_90"
        rate = self._best * (rates.attention_hopper if is_new else rates.attention)
        scores = 4 * layer.score_width * span * tokens / parallel.tensor / rate
        vector = self._vector_bytes(layer, plan) / self._bandwidth
        again = {"full": 1.0, "every-second": 0.5}.get(plan.checkpointing, 0.0)
        recompute = again * (forward + scores + vector)
        if plan.checkpointing in ("op", "op-all"):
            recompute = forward / (3 if plan.checkpointing == "op" else 6) + vector
        computing = forward * (2 if plan.is_frozen else 3) + 3 * (scores + vector) + recompute
        host = rates.host_experts_s if layer.expert_count else rates.host_s
        waits = (computing**_LONGER + host**_LONGER) ** (1 / _LONGER) - computing
        sent = plan.value_bytes * self._shape.hidden * tokens
        tensor = expert = 0.0
        if parallel.tensor > 1:
            ring = 2 * (parallel.tensor - 1) / parallel.tensor * sent * (4 + 2 * again)
            exposed = rates.tensor_exposed_te if plan.kernels == "te" else rates.tensor_exposed
            tensor = exposed * ring / (links.rate(parallel.tensor) * rates.link)
        if parallel.expert > 1 and layer.expert_count:
            own = sent / (parallel.tensor if plan.expert_tensor == 1 else 1)
            visits = own * layer.experts_met * (4 + 2 * again)
            expert = rates.expert_exposed * links.exchange_seconds(visits, parallel.expert) / rates.link
        context = 0.0
        if parallel.context > 1:
            # Keys and values go around while scores are computed: what takes longer decides.
            ring = 3 * (parallel.context - 1) * tokens * 2 * layer.kv_width * plan.value_bytes
            seconds = ring / parallel.tensor / links.rate(parallel.context, parallel.tensor) / rates.link
            context = rates.data_exposed * seconds + max(0.0, (1 - rates.data_exposed) * seconds - 3 * scores)
        matrices = forward * (2 if plan.is_frozen else 3)
        return _Part(matrices, 3 * scores, 3 * vector, recompute, waits, tensor, expert, context)

    def _local_parameters(self, plan: Plan) -> float:
        """Return the parameters of one device before data parallelism shards them."""
        parallel = plan.parallel
        held = (self._parameters - self._experts) / parallel.tensor
        return (held + self._experts / (parallel.expert * plan.expert_tensor)) / parallel.pipeline

    def _trained(self, plan: Plan) -> float:
        if plan.is_frozen:
            return trained_parameters(self._shape, plan) / plan.parallel.pipeline
        return self._local_parameters(plan)

    def _data(self, plan: Plan, stage: float) -> float:
        """Return the seconds that data parallelism adds, when a micro-batch takes `stage` seconds."""
        parallel, rates = plan.parallel, self._rates
        peers = parallel.replicas * parallel.context
        if peers == 1:
            return 0.0
        value, trained = plan.value_bytes, self._trained(plan)
        weight = 1.5 if plan.dtype == "fp8" else plan.weight_bytes
        window, count = stage * 2 / 3, plan.micro_batches
        if parallel.zero_stage == 3:
            times = 1 if parallel.pipeline > 1 else count
            gathers = 2 if parallel.data in ("fsdp", "zero3") else 1
            sent = times * (gathers * self._local_parameters(plan) * weight + trained * value)
            window = stage * (count if parallel.pipeline == 1 else 1)
        else:  # gradients are all-reduced, or scattered before the updated weights are gathered
            sent = trained * (value + (4.0 if plan.kernels == "te" else value))
        shards = parallel.shards if parallel.zero_stage else peers
        seconds = (shards - 1) / shards * sent / (self._links.rate(shards, parallel.tensor) * rates.link)
        if shards < peers:  # hybrid: gradients of each shard are summed over the groups
            groups, stride = peers // shards, parallel.tensor * shards
            far = 2 * (groups - 1) / groups * trained * value / shards
            seconds += far / (self._links.rate(groups, stride) * rates.link)
        hidden = min((1 - rates.data_exposed) * seconds, window)
        return seconds - hidden


class Expected(Struct, frozen=True, kw_only=True):
    """Tokens per second that a run can be expected to reach: nine runs in ten lie between low and high."""

    low: float
    mid: float
    high: float

    def scaled(self, factor: float) -> Expected:
        """Return the same in another unit."""
        return Expected(low=self.low * factor, mid=self.mid * factor, high=self.high * factor)


# By kind of run: the 5th and 95th percentile of measured over predicted, each source left out of the fit.
INTERVALS = {
    "dense": (0.82, 1.34),
    "experts": (0.5, 1.5),
    "adapters": (0.85, 1.45),
}


def kind_of(shape: ModelShape, plan: Plan) -> str:
    """Return the kind of run whose interval counts."""
    if plan.is_frozen:
        return "adapters"
    return "experts" if any(layer.expert_count for layer in shape.layers) else "dense"


def expected_rate(shape: ModelShape, plan: Plan, seconds: float, ceiling: float) -> Expected:
    """Return the tokens/s of all devices when a step takes `seconds`; nothing of it is above the ceiling."""
    low, high = INTERVALS[kind_of(shape, plan)]
    mid = plan.tokens * plan.micro_batches * plan.parallel.replicas / seconds
    return Expected(low=min(low * mid, ceiling), mid=min(mid, ceiling), high=min(high * mid, ceiling))

"""What to do about a bottleneck, by the runtime and the state of the run."""

from __future__ import annotations

from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.needs import fitting
from stepgrade.model import RECORDER
from stepgrade.model.profile import LOG
from stepgrade.scoring.causes import Bottleneck
from stepgrade.scoring.runtime import Runtime
from stepgrade.units import show_share

_GENERAL = {
    Bottleneck.TRANSFER: "Copy less between host and device: keep tensors there, pin memory, overlap copies.",
    Bottleneck.LAUNCH: "Launch fewer, larger kernels: fuse operations, or replay the step as a graph.",
    Bottleneck.COMPUTE: "The arithmetic units are the limit: lower precision or fewer operations remain.",
    Bottleneck.MEMORY_BW: "Move fewer bytes: fuse elementwise chains, lower precision, larger batches.",
    Bottleneck.INPUT: "Load batches ahead of the step: more loader workers, prefetching, cheaper decoding.",
    Bottleneck.COMMUNICATION: "Overlap communication with the backward pass, or send less of it.",
    Bottleneck.HOST: "Take host work out of the step: making batches, synchronisation, logging, allocations.",
    Bottleneck.UNKNOWN: "Record time per operation, with shapes: that shows what limits the kernels.",
}
_RECORD_PYTORCH = (
    "Record again with record_shapes=True and both CPU and CUDA activities: that shows what limits the "
    "kernels."
)
_RECORD_BESIDE_LOG = (
    "Profile a few steps of this run and score the trace together with the log: a log tells how fast it is, "
    "a trace why."
)


def advice_for(context: RuleContext) -> str:
    """Return one sentence on the bottleneck; the reference's own for the runtime it was written for."""
    bottleneck, profile = context.verdict.bottleneck, context.profile
    if context.runtime is Runtime.REFERENCE and bottleneck.value in {known.value for known in BottleneckV1}:
        return BottleneckV1(bottleneck.value).recommendation()
    advice = _GENERAL[bottleneck]
    if bottleneck is Bottleneck.UNKNOWN:
        if profile.source.format == LOG:
            advice = _RECORD_BESIDE_LOG
        elif profile.source.producer == RECORDER and not profile.operations:
            advice = "Record operations too (ops_every=50): they show what fills the step."
        elif context.runtime is Runtime.PYTORCH:
            advice = _RECORD_PYTORCH
            if context.has_recorded("shapes"):
                advice = "Look at the longest kernels one by one: nothing recorded tells what limits them."
    elif bottleneck is Bottleneck.LAUNCH:
        advice = fewer_launches(context)
    elif bottleneck is Bottleneck.COMPUTE:
        advice = _faster_arithmetic(context)
    elif bottleneck is Bottleneck.MEMORY_BW and is_full(context):
        advice = (
            "Move fewer bytes: fuse elementwise chains, lower precision. Memory is full: no larger batch."
        )
    return fitting(advice, context) or fitting(_GENERAL[bottleneck], context) or _GENERAL[bottleneck]


def _faster_arithmetic(context: RuleContext) -> str:
    """Return what is left to do about arithmetic, by how near it is to the device's peak."""
    known = [op for op in context.operations if op.roof == "compute" and op.roof_share and op.ms]
    total_ms = sum(op.ms or 0.0 for op in known)
    if not total_ms:
        return "Arithmetic takes the time: lower precision, fewer operations or larger products remain."
    reached = sum((op.roof_share or 0.0) * (op.ms or 0.0) for op in known) / total_ms
    if reached >= context.limits.slow_gemm_share:
        return _GENERAL[Bottleneck.COMPUTE]
    return (
        f"Arithmetic takes the time and reaches {show_share(reached, 0)} of the peak: better shapes or "
        "kernels first, then lower precision."
    )


def fewer_launches(context: RuleContext) -> str:
    """Return how to launch less, by what the run already does."""
    if context.runtime is Runtime.REFERENCE:
        return BottleneckV1.LAUNCH.recommendation()
    if context.runtime is not Runtime.PYTORCH:
        return _GENERAL[Bottleneck.LAUNCH]
    if context.is_compiled:
        advice = (
            'Kernels are already fused: replay them from a graph with torch.compile(mode="reduce-overhead").'
        )
    else:
        advice = 'Fuse and replay: torch.compile(mode="reduce-overhead"), or CUDA graphs by hand.'
    return f"{advice} {larger_batch(context)}"


def fused_operations(context: RuleContext) -> str:
    """Return how to do more in one kernel where launches keep ahead of the device."""
    if context.runtime is Runtime.PYTORCH and not context.is_compiled:
        return "Fuse them with torch.compile. The host keeps ahead of the device: graphs would not help."
    return "Fuse them. The host keeps ahead of the device: graphs would not help."


def larger_batch(context: RuleContext) -> str:
    """Return whether a larger batch would help, by how full the memory is."""
    share = context.memory_share
    if share is None:
        return "A larger batch gives each launch more to do, if memory allows."
    if is_full(context):
        return f"Memory is {show_share(share, 0)} full: there is no room for a larger batch."
    return f"Memory is {show_share(share, 0)} full: a larger batch gives each launch more to do."


def is_full(context: RuleContext) -> bool:
    """Return whether the device's memory has no room for a larger batch."""
    return (context.memory_share or 0.0) >= context.limits.memory_warning_share

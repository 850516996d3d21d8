"""What to do about a bottleneck, given the runtime and what the run already does."""

from __future__ import annotations

from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.diagnosis.context import RuleContext, Runtime
from stepgrade.diagnosis.rule import fitting
from stepgrade.model import RECORDER
from stepgrade.model.profile import LOG
from stepgrade.scoring.causes import Bottleneck
from stepgrade.units import show_share

_GENERAL = {
    Bottleneck.TRANSFER: "Copy less between host and device: keep tensors there, pin memory, overlap copies.",
    Bottleneck.LAUNCH: "Launch fewer, larger kernels: fuse operations, or replay the step as a graph.",
    Bottleneck.COMPUTE: "The arithmetic units are the limit: lower precision or fewer operations remain.",
    Bottleneck.MEMORY_BW: "Move fewer bytes: fuse elementwise chains, lower precision, larger batches.",
    Bottleneck.INPUT: "Load batches ahead of the step: more loader workers, prefetching, cheaper decoding.",
    Bottleneck.COMMUNICATION: "Overlap communication with the backward pass, or send less of it.",
    Bottleneck.STRAGGLER: "Balance the work of the ranks, and find what keeps the late ones.",
    Bottleneck.HOST: "Take host work out of the step: making batches, synchronisation, logging, allocations.",
    Bottleneck.UNKNOWN: "Record time per operation, with shapes: that shows what limits the kernels.",
}
_RECORD_PYTORCH = (
    "Record again with record_shapes=True and both CPU and CUDA activities: that shows what limits the "
    "kernels."
)
_RECORD_BESIDE_LOG = (
    "Profile a few steps of this run and score the trace together with the log: a log shows how fast it is, "
    "a trace why."
)


def advice_for(context: RuleContext) -> str:
    """Return what to do about the bottleneck, in the reference's words for its own runtime."""
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
                advice = (
                    "Look at the longest kernels one by one: the recording does not show what limits them."
                )
    elif bottleneck is Bottleneck.LAUNCH:
        advice = fewer_launches(context)
    elif bottleneck is Bottleneck.COMPUTE:
        advice = _faster_arithmetic(context)
    elif bottleneck is Bottleneck.MEMORY_BW and context.is_full:
        advice = (
            "Move fewer bytes: fuse elementwise chains, lower precision. Memory is full: no larger batch."
        )
    return fitting(advice, context) or fitting(_GENERAL[bottleneck], context) or _GENERAL[bottleneck]


def _faster_arithmetic(context: RuleContext) -> str:
    """Return what to do about arithmetic, by how close it is to the device's peak."""
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
    """Return how to launch fewer kernels."""
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
    """Return how to do more per kernel when launches already keep ahead of the device."""
    if context.runtime is Runtime.PYTORCH and not context.is_compiled:
        return "Fuse kernels with torch.compile. The host stays ahead of the device: graphs would not help."
    return "Fuse kernels. The host stays ahead of the device: graphs would not help."


def larger_batch(context: RuleContext) -> str:
    """Return whether a larger batch would help and fit."""
    share = context.memory_share
    if share is None:
        return "A larger batch gives each launch more to do, if memory allows."
    if context.is_full:
        return f"Memory is {show_share(share, 0)} full: there is no room for a larger batch."
    return f"Memory is {show_share(share, 0)} full: a larger batch gives each launch more to do."

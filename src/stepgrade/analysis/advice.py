"""What to do about a bottleneck, in words that fit the runtime."""

from __future__ import annotations

from stepgrade.analysis.bottleneck import Bottleneck
from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.contract.scorecard import FAST_BACKWARD_ADVICE, LAUNCH_ADVICE

# The producers whose runtime the reference's sentences (its NF4_* switches) were written for.
_REFERENCE_PRODUCERS = ("step_profiler_v2", "apr_training_profiler_v1")

_GENERAL = {
    Bottleneck.TRANSFER: "Copy less between host and device: keep tensors there, pin memory, overlap copies.",
    Bottleneck.LAUNCH: "Launch fewer, larger kernels: fuse operations, or replay the step as a graph.",
    Bottleneck.COMPUTE: "The arithmetic units are the limit: lower precision or fewer operations remain.",
    Bottleneck.MEMORY_BW: "Move fewer bytes: fuse elementwise chains, lower precision, larger batches.",
    Bottleneck.INPUT: "Load batches ahead of the step: more loader workers, prefetching, cheaper decoding.",
    Bottleneck.COMMUNICATION: "Overlap communication with the backward pass, or send less of it.",
    Bottleneck.HOST: "Take host work out of the step: allocations, synchronisation, logging.",
    Bottleneck.UNKNOWN: "Record time per operation, with shapes: that tells what limits the kernels.",
}
_FAST_BACKWARD = "Check that no layer's backward is skipped: NaN gradients, frozen parts."


def advice_for(bottleneck: Bottleneck, producer: str | None) -> str:
    """Return one sentence on what to do; the reference's own for the runtime it was written for."""
    if producer in _REFERENCE_PRODUCERS and bottleneck.value in {known.value for known in BottleneckV1}:
        return BottleneckV1(bottleneck.value).recommendation()
    return _GENERAL[bottleneck]


def launch_advice(producer: str | None) -> str:
    """Return what to do about launch overhead."""
    return LAUNCH_ADVICE if producer in _REFERENCE_PRODUCERS else _GENERAL[Bottleneck.LAUNCH]


def fast_backward_advice(producer: str | None) -> str:
    """Return what to check when backward takes less time than forward."""
    return FAST_BACKWARD_ADVICE if producer in _REFERENCE_PRODUCERS else _FAST_BACKWARD

"""Rules about the device's memory: full, or hardly used."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, Rule
from stepgrade.scoring.causes import Bottleneck
from stepgrade.units import show_share


def memory_nearly_full(context: RuleContext) -> Found | None:
    share, limits = context.memory_share, context.limits
    if share is None or share < limits.memory_warning_share:
        return None
    return Found(
        severity="critical" if share >= limits.memory_critical_share else "warning",
        claim=f"The step's peak is {show_share(share)} of the device's memory.",
        evidence={"memory_share": share},
    )


def memory_idle(context: RuleContext) -> Found | None:
    share, bottleneck = context.memory_share, context.verdict.bottleneck
    would_help = bottleneck in {Bottleneck.LAUNCH, Bottleneck.MEMORY_BW, Bottleneck.HOST}
    if share is None or share >= context.limits.memory_idle_share or not would_help:
        return None
    claim = (
        f"Only {show_share(share, 0)} of the device's memory is used, and the run is limited by "
        f"{bottleneck.value}."
    )
    return Found("info", claim, {"memory_share": share})


RULES = (
    Rule(
        name="memory-nearly-full",
        find=memory_nearly_full,
        sees="The step's peak comes near the size of the device's memory.",
        evidence="peak as a share of the device's memory",
        fix="Recompute activations, shard optimizer state, or make the micro-batch smaller.",
        fix_pytorch="Activation checkpointing, FSDP or an 8-bit optimizer; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        wrong_when="the figure is what the framework reserved, not what it used",
        check="The peak is below 90 %.",
        sources="TML-05, TBP-03, AL-09",
    ),
    Rule(
        name="memory-idle",
        find=memory_idle,
        sees="Less than half of the device's memory is used, and a larger batch would help.",
        evidence="peak as a share of the device's memory, the bottleneck",
        fix="A larger micro-batch: each launch and each read of a weight then serves more tokens.",
        wrong_when="the batch is fixed by the recipe",
        check="Throughput rises with the batch.",
        sources="AL-07, DL-06, SM-06, HF-01",
    ),
)

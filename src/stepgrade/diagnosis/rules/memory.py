"""Rules about the device's memory: full, or hardly used."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule
from stepgrade.model.finding import Severity
from stepgrade.scoring.causes import Bottleneck
from stepgrade.units import show_share

_AREA = "memory"


@rule(
    name="memory-nearly-full",
    area=_AREA,
    sees="The step's peak comes near the size of the device's memory.",
    evidence="peak as a share of the device's memory",
    fix={
        "general": "Recompute activations, shard optimizer state, or make the micro-batch smaller.",
        "pytorch": "Activation checkpointing, FSDP or an 8-bit optimizer; "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    },
    wrong_when="the figure is what the framework reserved, not what it used",
    check="The peak is below 90 %.",
    sources="TML-05, TBP-03, AL-09",
)
def memory_nearly_full(context: RuleContext, limits: Limits) -> Found | None:
    """Report memory without room."""
    share = context.memory_share
    if share is None or share < limits.memory_warning_share:
        return None
    severity: Severity = "critical" if share >= limits.memory_critical_share else "warning"
    claim = f"The step's peak is {show_share(share)} of the device's memory."
    return Found(severity=severity, claim=claim, evidence={"memory_share": share})


@rule(
    name="memory-idle",
    area=_AREA,
    sees="Less than half of the device's memory is used, and a larger batch would help.",
    evidence="peak as a share of the device's memory, the bottleneck",
    fix={"general": "A larger micro-batch: each launch and each read of a weight then serves more tokens."},
    wrong_when="the batch is fixed by the recipe",
    check="Throughput rises with the batch.",
    sources="AL-07, DL-06, SM-06, HF-01",
)
def memory_idle(context: RuleContext, limits: Limits) -> Found | None:
    """Report memory that a larger batch could use."""
    share = context.memory_share
    helped = context.verdict.bottleneck in {Bottleneck.LAUNCH, Bottleneck.MEMORY_BW, Bottleneck.HOST}
    if share is None or share >= limits.memory_idle_share or not helped:
        return None
    claim = (
        f"Only {show_share(share, 0)} of the device's memory is used, and the run is limited by "
        f"{context.verdict.bottleneck.value}."
    )
    return Found(severity="info", claim=claim, evidence={"memory_share": share})


RULES = (memory_nearly_full, memory_idle)

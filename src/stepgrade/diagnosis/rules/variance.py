"""Rules about the spread of steps: outliers and drift."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.units import show_count, show_ms, show_share

_AREA = "spread"
_ALL = "compute+exposed_communication+exposed_copy+idle_input+idle_host+idle_sync+unattributed"


def _median(samples: list[float]) -> float:
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@rule(
    name="unsteady-steps",
    area=_AREA,
    account=_ALL,
    sees="A few steps take far longer than the median and pull the mean up.",
    evidence="how many steps, the longest, the median, what the mean loses to the median",
    fix={
        "general": "Find what those steps do besides: logging, checkpoints, evaluation, garbage "
        "collection, recompiling."
    },
    wrong_when="steps are of several kinds by design",
    check="The mean of the steps comes down to their median.",
    realistic=0.7,
    because="what is rare can mostly be made asynchronous",
    sources="GPF-16, NAI-12, SM-09, ME-05",
)
def unsteady_steps(context: RuleContext, limits: Limits) -> Found | None:
    """Report steps that stand out."""
    samples = list(context.profile.samples_ms)
    if len(samples) < limits.spread_least_steps:
        return None
    median, mean = _median(samples), sum(samples) / len(samples)
    long = [ms for ms in samples if ms > limits.spread_ratio * median]
    share = max(0.0, 1.0 - median / mean) if mean else 0.0
    severity = severity_of(share, limits, "spread")
    if not long or severity is None:
        return None
    return Found(
        severity=severity,
        claim=f"{show_count(len(long))} of {len(samples)} steps {_last(long)}, the median one "
        f"{show_ms(median)}: {show_share(share)} of the time goes there.",
        evidence={
            "steps": float(len(long)),
            "longest_ms": max(long),
            "median_ms": median,
            "lost_share": share,
        },
        share=share,
    )


def _last(long: list[float]) -> str:
    return f"takes {show_ms(long[0])}" if len(long) == 1 else f"take up to {show_ms(max(long))}"


@rule(
    name="drifting-steps",
    area=_AREA,
    account=_ALL,
    sees="Later steps are slower than earlier ones.",
    evidence="medians of the earlier and the later half",
    fix={
        "general": "Look for what grows: memory fragmentation, lists of kept losses, longer "
        "sequences, heat and clocks."
    },
    wrong_when="the batches of the later half are larger",
    check="Both halves take the same time.",
    realistic=0.8,
    because="the earlier half shows what it could take",
    sources="GPF-18, TML-07, GPF-19",
)
def drifting_steps(context: RuleContext, limits: Limits) -> Found | None:
    """Report steps that get slower."""
    samples = list(context.profile.samples_ms)
    if len(samples) < limits.drift_least_steps:
        return None
    half = len(samples) // 2
    early, late = _median(samples[:half]), _median(samples[half:])
    rising = sum(one > early for one in samples[half:]) / (len(samples) - half)
    if late < limits.drift_ratio * early or rising < limits.drift_steps_share:
        return None
    claim = f"Later steps take {show_ms(late)}, earlier ones {show_ms(early)}."
    share = (1.0 - early / late) / 2
    return Found(severity="warning", claim=claim, evidence={"early_ms": early, "late_ms": late}, share=share)


RULES = (unsteady_steps, drifting_steps)

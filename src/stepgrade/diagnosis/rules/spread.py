"""Rules about the spread of steps: outliers and drift."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Rule, Worth
from stepgrade.model.ledger import ALL_ACCOUNTS
from stepgrade.model.notes import has_code
from stepgrade.statistics import median
from stepgrade.units import show_count, show_ms, show_share

_HELD_UP = "Other programs took the cores meanwhile."
_ON_A_QUIET_MACHINE = (
    "Record again on a quiet machine: what other programs cost is not told from what the training does."
)


def unsteady_steps(context: RuleContext) -> Found | None:
    samples, limits = context.profile.samples_ms, context.limits
    if len(samples) < limits.spread_least_steps or _is_uneven(context):
        return None
    usual_ms, mean_ms = median(samples), sum(samples) / len(samples)
    long = [ms for ms in samples if ms > limits.spread_ratio * usual_ms]
    if not long:
        return None
    share = max(0.0, 1.0 - usual_ms / mean_ms) if mean_ms else 0.0
    longest = f"takes {show_ms(long[0])}" if len(long) == 1 else f"take up to {show_ms(max(long))}"
    claim = (
        f"{show_count(len(long))} of {len(samples)} steps {longest}, the median step {show_ms(usual_ms)}: "
        f"{show_share(share)} of the time is lost to that."
    )
    evidence: Evidence = {
        "steps": float(len(long)),
        "longest_ms": max(long),
        "median_ms": usual_ms,
        "lost_share": share,
    }
    levels = Levels(limits.spread_info_share, limits.spread_warning_share, limits.spread_critical_share)
    if levels.severity(share) and _was_held_up(context):
        return Found("info", f"{claim} {_HELD_UP}", evidence, remedy=_ON_A_QUIET_MACHINE)
    if context.activity.driver == "host" and levels.severity(share) and not have_one_cause(context):
        return Found("info", claim, evidence, share)
    return levels.found(share, claim, evidence)


def _was_held_up(context: RuleContext) -> bool:
    """Return whether other programs held the training up, as our recorder knows."""
    return has_code(context.profile.notes, "busy_machine")


def _is_uneven(context: RuleContext) -> bool:
    """Return whether steps take longer because they hold more, as our recorder knows."""
    return has_code(context.profile.notes, "uneven_steps")


def have_one_cause(context: RuleContext) -> bool:
    """Return whether the same operation, or what is in none, makes the long steps long.

    On a processor other programs make steps longer too: all of a step, or now this operation, now that.
    """
    samples, limits = context.profile.samples_ms, context.limits
    usual_ms = median(samples)
    parts = {
        op.name: op.samples_ms for op in context.profile.operations if len(op.samples_ms) == len(samples)
    }
    if not parts:
        return True
    parts[""] = tuple(ms - sum(of_op[index] for of_op in parts.values()) for index, ms in enumerate(samples))
    usual = {name: median(times) for name, times in parts.items()}
    longest: dict[str, int] = {}
    long = [index for index, ms in enumerate(samples) if ms > limits.spread_ratio * usual_ms]
    for index in long:
        name = max(parts, key=lambda name: parts[name][index] - usual[name])
        if parts[name][index] - usual[name] >= limits.spread_same_cause * (samples[index] - usual_ms):
            longest[name] = longest.get(name, 0) + 1
    most = max(longest.values(), default=0)
    return most > 1 and most > limits.spread_same_cause * len(long)


def drifting_steps(context: RuleContext) -> Found | None:
    samples, limits = context.profile.samples_ms, context.limits
    if len(samples) < limits.drift_least_steps or _is_uneven(context):
        return None
    half = len(samples) // 2
    early_ms, late_ms = median(samples[:half]), median(samples[half:])
    slower = sum(ms > early_ms for ms in samples[half:]) / (len(samples) - half)
    if late_ms < limits.drift_ratio * early_ms or slower < limits.drift_steps_share:
        return None
    claim = f"Later steps take {show_ms(late_ms)}, earlier ones {show_ms(early_ms)}."
    evidence: Evidence = {"early_ms": early_ms, "late_ms": late_ms}
    if _was_held_up(context):
        return Found("info", f"{claim} {_HELD_UP}", evidence, remedy=_ON_A_QUIET_MACHINE)
    return Found("warning", claim, evidence, share=(1.0 - early_ms / late_ms) / 2)


RULES = (
    Rule(
        name="unsteady-steps",
        find=unsteady_steps,
        sees="A few steps take far longer than the median and raise the mean.",
        evidence="how many, the longest, the median, mean over median",
        fix="Find what else those steps do: logging, checkpoints, evaluation, garbage collection, "
        "recompiling.",
        wrong_when="steps are of several kinds by design, or the machine was busy unnoticed",
        check="The mean of the steps comes down to their median.",
        worth=Worth(ALL_ACCOUNTS, 0.7, "what is rare can mostly be made asynchronous"),
        sources="GPF, NAI, SM, ME",
    ),
    Rule(
        name="drifting-steps",
        find=drifting_steps,
        sees="Later steps are slower than earlier ones.",
        evidence="medians of both halves",
        fix="Look for what grows: memory fragmentation, lists of kept losses, longer sequences, heat and "
        "clocks.",
        wrong_when="later batches are larger",
        check="Both halves take the same time.",
        worth=Worth(ALL_ACCOUNTS, 0.8, "the earlier half shows what it could take"),
        sources="GPF, TML",
    ),
)

"""Add the sampled steps of our recorder to a profile, and the ledger that they allow."""

from __future__ import annotations

from math import isfinite
from typing import TypeVar

from msgspec import structs

from stepgrade.model import Ledger, Profile
from stepgrade.model.activity import Activity, Counted, HostLine
from stepgrade.model.operations import Operation, ShapeRow
from stepgrade.model.sampled import SampledSteps
from stepgrade.units import NS_PER_MS

# The phases that our recorder names: those in which a step computes, and those in which it waits. What the
# loop does besides is the host's; phases that users name may be anything.
_MODEL = ("forward", "loss", "backward", "gradients", "optimizer")
_WAITS = {
    "exposed_communication": ("communication",),
    "exposed_copy": ("h2d", "d2h"),
    "idle_input": ("input",),
}
_HOST = ("host", "environment")
_ROLLOUT = "rollout"
_Row = TypeVar("_Row", Operation, ShapeRow)


def with_sampled(profile: Profile, sampled: SampledSteps | None) -> Profile:
    """Return the profile of the timed steps with the operations of the sampled steps, scaled to them.

    FLOPs scale with the tokens or samples of a step; times with the phases, which profiling makes longer.
    """
    if sampled is None or not sampled.steps or not profile.steps:
        return profile
    work = _ratio(profile.tokens_per_step, sampled.tokens, sampled.steps)
    work = work or _ratio(profile.samples_per_step, sampled.samples, sampled.steps) or 1.0
    phases_ms = {phase.name: profile.total(phase.ms or 0.0) for phase in profile.phases}
    model_ms = sum(phases_ms.get(name, 0.0) for name in _MODEL)
    sampled_ms = sampled.model_ms / sampled.steps * profile.steps
    slower = min(1.0, model_ms / sampled_ms) if sampled_ms else 1.0
    return structs.replace(
        profile,
        operations=tuple(
            structs.replace(
                _scaled(op, slower, work),
                shapes=tuple(_scaled(row, slower, work) for row in op.shapes),
            )
            for op in (one.per_step(sampled.steps) for one in sampled.operations)
        )
        or profile.operations,
        matmul_flops=_times(sampled.matmul_flops, work / sampled.steps),
        matmul_known_share=sampled.matmul_known_share,
        matmul_dtype=sampled.matmul_dtype,
        activity=sampled.activity.scaled(slower) if sampled.activity else None,
        ledger=_ledger(profile, phases_ms, model_ms, sampled),
    )


def with_lines(profile: Profile, lines: dict[str, tuple[HostLine, ...]]) -> Profile:
    """Return the profile with the lines of the user's code that it waited in.

    The stalls of the sampled step are limited to those seen in all steps: it may have been interrupted.
    """
    activity = profile.activity
    if activity is None:
        unseen = Activity(driver="unknown", lines=lines)
        return structs.replace(profile, activity=unseen) if lines else profile
    gaps, seen_ms = activity.gaps, sum(line.ms for line in lines.get("stall", ()))
    if gaps is not None:
        stall_ms = min(gaps.stall_ms, seen_ms)
        longest_ms = min(gaps.longest_ms, seen_ms)
        gaps = structs.replace(gaps, stall_ms=stall_ms, longest_ms=longest_ms, steady_stall_ms=stall_ms)
    return structs.replace(profile, activity=structs.replace(activity, lines=lines, gaps=gaps))


def with_counted(profile: Profile, counted: Counted) -> Profile:
    """Return the profile with what was counted in its steps; a profiled step may not be like the others."""
    activity = profile.activity or Activity(driver="unknown")
    marks = {"synced_passes": counted.synced_passes, "unused_gradients": counted.unused_gradients_share}
    return structs.replace(
        profile,
        activity=structs.replace(
            activity,
            backward_passes=counted.backward_passes,
            collectives=counted.collectives,
            communication_ms=sum(each.ms for each in counted.collectives),
            marks=activity.marks | {name: count for name, count in marks.items() if count},
        ),
    )


def _ledger(
    profile: Profile, phases_ms: dict[str, float], model_ms: float, sampled: SampledSteps
) -> Ledger | None:
    """Return where a processor's time goes: waits by timed phases, operations by sampled steps."""
    total_ms = (profile.mean_step_ms or 0.0) * (profile.steps or 0)
    if sampled.busy_ms is None or not sampled.model_ms or not total_ms:
        return None
    parts = {name: sum(phases_ms.get(phase, 0.0) for phase in phases) for name, phases in _WAITS.items()}
    known = {*_HOST, _ROLLOUT, *_MODEL, *(phase for phases in _WAITS.values() for phase in phases)}
    parts["unattributed"] = sum(ms for name, ms in phases_ms.items() if name not in known)
    # An agent that acts computes as one that learns does; what it acts on is the host's.
    forward_ms = model_ms + phases_ms.get(_ROLLOUT, 0.0)
    parts["compute"] = forward_ms * min(1.0, sampled.busy_ms / sampled.model_ms)
    # Operations that ran in no phase, as those of a model that is not called as a module.
    unseen_ms = max(0.0, total_ms - sum(phases_ms.values()))
    more_ms = max(0.0, sampled.busy_ms - sampled.model_ms) / sampled.steps * (profile.steps or 0)
    parts["compute"] += min(unseen_ms, more_ms)
    if not isfinite(sum((total_ms, *parts.values())) * NS_PER_MS):
        return None
    total_ns = round(total_ms * NS_PER_MS)
    accounts = {name: round(spent_ms * NS_PER_MS) for name, spent_ms in parts.items()}
    idle_ns = total_ns - sum(accounts.values())
    if idle_ns < 0:  # phases that add up to more than the step are not a ledger
        return None
    return Ledger(idle_host=idle_ns, idle_sync=0, **accounts)


def _ratio(per_step: float | None, sampled: float | None, steps: int) -> float | None:
    return per_step * steps / sampled if per_step and sampled else None


def _scaled(row: _Row, slower: float, work: float) -> _Row:
    """Return an operation, or its calls of one shape, in a step of another length and size."""
    return structs.replace(
        row, ms=_times(row.ms, slower), flops=_times(row.flops, work), bytes=_times(row.bytes, work)
    )


def _times(figure: float | None, factor: float) -> float | None:
    return None if figure is None else figure * factor

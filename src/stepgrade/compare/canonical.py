"""Operations by what they are in a model (class, role, direction), whatever a runtime calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from stepgrade.model import Profile
from stepgrade.model.activity import PartTime
from stepgrade.naming.roles import class_of, direction_of, role_of
from stepgrade.scoring.operations import total_by_operation
from stepgrade.scoring.step_times import RunTimes

Key: TypeAlias = tuple[str | None, ...]
Level: TypeAlias = Callable[[PartTime], Key]

# From the finest to the coarsest; the first at which both sides find most of their time in the other is used.
LEVELS: dict[str, Level] = {
    "class, role and direction": lambda part: (part.work_class, part.role, part.direction),
    "class and direction": lambda part: (part.work_class, None, part.direction),
    "class and role": lambda part: (part.work_class, part.role, None),
    "class": lambda part: (part.work_class, None, None),
}
FINE_ENOUGH = 0.80
UNKNOWN = ("other", None)  # of such operations nothing says that they are the same
# What one precision takes against another at least, by the data sheets of devices with tensor cores.
_COST = {"fp8": 1.0, "bf16": 2.0, "fp16": 2.0, "tf32": 4.0, "fp32": 8.0}


class Side(Struct, frozen=True, kw_only=True):
    """One runtime's share in a canonical operation, per step."""

    ms: float
    calls: float | None = None
    kernels: float | None = None
    dtype: str | None = None


class CanonicalGap(Struct, frozen=True, kw_only=True):
    """One operation of both: `count_ms`, `per_call_ms` and `precision_ms` add up to `gap_ms`.

    More calls, longer calls, and of these what a wider precision explains; theirs is for as many tokens.
    """

    name: str
    work_class: str
    role: str | None
    direction: str | None
    ours: Side
    theirs: Side
    ratio: float
    gap_ms: float
    count_ms: float
    per_call_ms: float
    precision_ms: float
    extra_kernels: float | None


class Matched(Struct, frozen=True, kw_only=True):
    """What both sides have, at which level of detail, and what only one has."""

    level: str
    gaps: tuple[CanonicalGap, ...]
    only_ours: dict[str, float]
    only_theirs: dict[str, float]
    ours_share: float
    theirs_share: float


def parts_of(profile: Profile, times: RunTimes, scale: float = 1.0) -> tuple[PartTime, ...]:
    """Return the parts of the typical step, from the timeline or else from the names of operations."""
    known = profile.activity.parts if profile.activity else ()
    return tuple(_scaled(part, times.scale, scale) for part in known or _named_parts(profile))


def _named_parts(profile: Profile) -> list[PartTime]:
    """Return the operations by their names; where some say backward, the others run forward."""
    totals = total_by_operation(profile)
    steps = profile.steps or 1
    calls = {op.name: op.calls for op in profile.operations}
    tells = any(direction_of(name) == "backward" for name in totals)
    return [
        PartTime(
            work_class=class_of(name).label,
            role=role_of(name),
            direction=_direction(name, tells=tells),
            ms=total / steps,
            calls=(calls.get(name) or 0.0) / steps,
            kernels=0.0,
        )
        for name, total in totals.items()
        if total > 0.0
    ]


def _direction(name: str, *, tells: bool) -> str | None:
    if class_of(name).label == "optimizer":
        return "optimizer"
    return direction_of(name) or ("forward" if tells else None)


def _scaled(part: PartTime, step_scale: float, scale: float) -> PartTime:
    """Return the part of the typical step instead of the mean one, for `scale` times as many tokens."""
    return PartTime(
        work_class=part.work_class,
        role=part.role,
        direction=part.direction,
        ms=part.ms * step_scale * scale,
        calls=part.calls * scale,
        kernels=part.kernels * scale,
        dtype=part.dtype,
    )


def match(ours: tuple[PartTime, ...], theirs: tuple[PartTime, ...]) -> Matched:
    """Match two runtimes at the finest level that covers most of both, else at the one that covers most."""
    found = [_matched(ours, theirs, level) for level in LEVELS]
    enough = [one for one in found if min(one.ours_share, one.theirs_share) >= FINE_ENOUGH]
    if enough:
        return enough[0]
    # Rounded, so that of levels that cover as much the finest is taken.
    return max(found, key=lambda one: round(min(one.ours_share, one.theirs_share), 9))


def _matched(ours: tuple[PartTime, ...], theirs: tuple[PartTime, ...], level: str) -> Matched:
    left, right = _grouped(ours, LEVELS[level]), _grouped(theirs, LEVELS[level])
    both = [key for key in left if key in right and key[:2] != UNKNOWN]
    gaps = [_gap(key, left[key], right[key]) for key in both]
    return Matched(
        level=level,
        gaps=tuple(sorted(gaps, key=lambda gap: (-gap.gap_ms, gap.name))),
        only_ours={name_of(key): side.ms for key, side in left.items() if key not in both},
        only_theirs={name_of(key): side.ms for key, side in right.items() if key not in both},
        ours_share=_share(left, both),
        theirs_share=_share(right, both),
    )


def _grouped(parts: tuple[PartTime, ...], level: Level) -> dict[Key, Side]:
    groups: dict[Key, list[PartTime]] = {}
    for part in parts:
        groups.setdefault(level(part), []).append(part)
    return {key: _side(members) for key, members in groups.items()}


def _side(parts: list[PartTime]) -> Side:
    longest = max(parts, key=lambda part: part.ms if part.dtype else -1.0)
    return Side(
        ms=sum(part.ms for part in parts),
        calls=sum(part.calls for part in parts) or None,
        kernels=sum(part.kernels for part in parts) or None,
        dtype=longest.dtype,
    )


def _share(groups: dict[Key, Side], both: list[Key]) -> float:
    whole = sum(side.ms for side in groups.values())
    return sum(groups[key].ms for key in both) / whole if whole else 0.0


def name_of(key: Key) -> str:
    """Return how a canonical operation is called."""
    return " · ".join(dict.fromkeys(part for part in key if part))


def _gap(key: Key, ours: Side, theirs: Side) -> CanonicalGap:
    gap = ours.ms - theirs.ms
    count = _count_part(ours, theirs)
    precision = _precision_part(ours, theirs, gap - count)
    return CanonicalGap(
        name=name_of(key),
        work_class=key[0] or "",
        role=key[1],
        direction=key[2],
        ours=ours,
        theirs=theirs,
        ratio=ours.ms / theirs.ms if theirs.ms else 0.0,
        gap_ms=gap,
        count_ms=count,
        per_call_ms=gap - count - precision,
        precision_ms=precision,
        extra_kernels=ours.kernels - theirs.kernels if ours.kernels and theirs.kernels else None,
    )


def _count_part(ours: Side, theirs: Side) -> float:
    """Return what more calls cost, at the mean of both sides' time per call."""
    if not ours.calls or not theirs.calls:
        return 0.0
    per_call = (ours.ms / ours.calls + theirs.ms / theirs.calls) / 2.0
    return (ours.calls - theirs.calls) * per_call


def _precision_part(ours: Side, theirs: Side, per_call_gap: float) -> float:
    """Return how much of longer calls a wider precision explains: no more than the data sheets' ratio."""
    before, after = _COST.get(theirs.dtype or ""), _COST.get(ours.dtype or "")
    if before is None or after is None or before == after:
        return 0.0
    if after > before:
        return min(max(per_call_gap, 0.0), theirs.ms * (after / before - 1.0))
    return max(min(per_call_gap, 0.0), -ours.ms * (before / after - 1.0))

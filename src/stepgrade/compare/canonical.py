"""Match the operations of two runtimes by what they are in a model (class, role, direction), not by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, structs

from stepgrade.model import Profile
from stepgrade.model.activity import PartTime
from stepgrade.naming.roles import class_of, direction_of, role_of
from stepgrade.scoring.operations import ms_by_operation
from stepgrade.scoring.step_times import RunTimes

Key: TypeAlias = tuple[str | None, ...]
Level: TypeAlias = Callable[[PartTime], Key]

# From fine to coarse; the first level that matches most of the time of both sides is used.
LEVELS: dict[str, Level] = {
    "class, role and direction": lambda part: (part.work_class, part.role, part.direction),
    "class and direction": lambda part: (part.work_class, None, part.direction),
    "class and role": lambda part: (part.work_class, part.role, None),
    "class": lambda part: (part.work_class, None, None),
}
FINE_ENOUGH = 0.80
UNKNOWN = ("other", None)  # such operations cannot be matched
# Minimum cost of one precision relative to another, from data sheets of devices with tensor cores.
_COST = {"fp8": 1.0, "bf16": 2.0, "fp16": 2.0, "tf32": 4.0, "fp32": 8.0}


class OpTotals(Struct, frozen=True, kw_only=True):
    """What one runtime spends on a canonical operation, per step."""

    ms: float
    calls: float | None = None
    kernels: float | None = None
    dtype: str | None = None


class CanonicalGap(Struct, frozen=True, kw_only=True):
    """One operation of both: `count_ms`, `per_call_ms` and `precision_ms` add up to `gap_ms`.

    They are what more calls cost, what longer calls cost, and what a wider precision explains of longer
    calls. The times of theirs are scaled to as many tokens as ours.
    """

    name: str
    work_class: str
    role: str | None
    direction: str | None
    ours: OpTotals
    theirs: OpTotals
    ratio: float
    gap_ms: float
    count_ms: float
    per_call_ms: float
    precision_ms: float
    extra_kernels: float | None


class Matched(Struct, frozen=True, kw_only=True):
    """The operations of both sides, the level they were matched at, and those of one side only."""

    level: str
    gaps: tuple[CanonicalGap, ...]
    only_ours: dict[str, float]
    only_theirs: dict[str, float]
    ours_share: float
    theirs_share: float


def parts_of(profile: Profile, times: RunTimes, scale: float = 1.0) -> tuple[PartTime, ...]:
    """Return the parts of the typical step, for `scale` times as many tokens.

    They come from the timeline, or else from the names of operations; both have those of the mean step.
    """
    parts = list(profile.activity.parts) if profile.activity else []
    if not parts:
        ms_of = ms_by_operation(profile)
        calls = {op.name: op.calls for op in profile.operations}
        # If some names contain backward, the others are forward.
        default = "forward" if any(direction_of(name) == "backward" for name in ms_of) else None
        for name, ms in ms_of.items():
            if ms > 0.0:
                work_class = class_of(name).label
                is_optimizer = work_class == "optimizer"
                part = PartTime(
                    work_class=work_class,
                    role=role_of(name),
                    direction="optimizer" if is_optimizer else direction_of(name) or default,
                    ms=ms,
                    calls=calls.get(name) or 0.0,
                    kernels=0.0,
                )
                parts.append(part)
    return tuple(
        structs.replace(
            part,
            ms=part.ms * times.scale * scale,
            calls=part.calls * scale,
            kernels=part.kernels * scale,
        )
        for part in parts
    )


def match(ours: tuple[PartTime, ...], theirs: tuple[PartTime, ...]) -> Matched:
    """Match two runtimes at the finest level that covers most of both, else at the level that covers most."""
    found: list[tuple[float, Matched]] = []
    for name, level in LEVELS.items():
        left, right = _totals(ours, level), _totals(theirs, level)
        both = dict.fromkeys(key for key in left if key in right and key[:2] != UNKNOWN)
        gaps = [_gap(key, left[key], right[key]) for key in both]
        shares = []
        for totals in (left, right):
            whole = sum(total.ms for total in totals.values())
            shares.append(sum(totals[key].ms for key in both) / whole if whole else 0.0)
        matched = Matched(
            level=name,
            gaps=tuple(sorted(gaps, key=lambda gap: (-gap.gap_ms, gap.name))),
            only_ours={_name(key): total.ms for key, total in left.items() if key not in both},
            only_theirs={_name(key): total.ms for key, total in right.items() if key not in both},
            ours_share=shares[0],
            theirs_share=shares[1],
        )
        # Rounded, so that the finest of equally good levels wins.
        found.append((round(min(shares), 9), matched))
        if found[-1][0] >= FINE_ENOUGH:
            break
    return max(found, key=lambda pair: pair[0])[1]


def _totals(parts: tuple[PartTime, ...], level: Level) -> dict[Key, OpTotals]:
    groups: dict[Key, list[PartTime]] = {}
    for part in parts:
        groups.setdefault(level(part), []).append(part)
    return {
        key: OpTotals(
            ms=sum(part.ms for part in members),
            calls=sum(part.calls for part in members) or None,
            kernels=sum(part.kernels for part in members) or None,
            dtype=max(members, key=lambda part: part.ms if part.dtype else -1.0).dtype,
        )
        for key, members in groups.items()
    }


def _name(key: Key) -> str:
    return " · ".join(dict.fromkeys(part for part in key if part))


def _gap(key: Key, ours: OpTotals, theirs: OpTotals) -> CanonicalGap:
    gap = ours.ms - theirs.ms
    count = 0.0
    if ours.calls and theirs.calls:
        # Extra calls are charged at the mean time per call of both runtimes.
        per_call = (ours.ms / ours.calls + theirs.ms / theirs.calls) / 2.0
        count = (ours.calls - theirs.calls) * per_call
    # A wider precision explains longer calls only up to the data sheets' ratio.
    precision = 0.0
    narrow, wide = _COST.get(theirs.dtype or ""), _COST.get(ours.dtype or "")
    if narrow and wide and wide > narrow:
        precision = min(max(gap - count, 0.0), theirs.ms * (wide / narrow - 1.0))
    elif narrow and wide and wide < narrow:
        precision = max(min(gap - count, 0.0), -ours.ms * (narrow / wide - 1.0))
    return CanonicalGap(
        name=_name(key),
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

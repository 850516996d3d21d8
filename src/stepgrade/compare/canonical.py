"""Match the operations of two runtimes by class, role and direction, and split the gap of their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct, structs

from stepgrade.model import Profile
from stepgrade.model.activity import PartTime
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.naming.work_class import class_of, direction_of, role_of
from stepgrade.scoring.operations import ms_by_operation
from stepgrade.scoring.step_times import RunTimes
from stepgrade.units import NS_PER_MS

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
    count = by_amount((ours.calls, ours.ms), (theirs.calls, theirs.ms))
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


def by_amount(ours: tuple[float | None, float], theirs: tuple[float | None, float]) -> float:
    """Return the part of a difference in time that the amounts explain, at the mean time per unit."""
    if not ours[0] or not theirs[0]:
        return 0.0
    return (ours[0] - theirs[0]) * ((ours[1] / ours[0] + theirs[1] / theirs[0]) / 2.0)


class GapPart(Struct, frozen=True, kw_only=True):
    """A part of the gap; positive if it makes ours slower. `share` is of the whole gap."""

    name: str
    kind: str  # operation, one_sided, concurrency, communication, overlap, launches, wait, ranks, outside
    ms: float
    share: float | None


class Decomposition(Struct, frozen=True, kw_only=True):
    """Our step against theirs for the same number of tokens; the parts add up to `gap_ms`."""

    ours_ms: float
    theirs_ms: float
    gap_ms: float
    tokens_scale: float  # our tokens per step over theirs; their times are multiplied by it
    parts: tuple[GapPart, ...]


class _Times(Struct, frozen=True, kw_only=True):
    """Where the time of a run's step goes, in milliseconds, scaled to our tokens."""

    step: float
    mean_rank: float
    accounts: dict[str, float]
    work: float
    communication: float
    launches: float


Part = tuple[str, str, float]  # kind, name, milliseconds


def decompose(
    ours: tuple[Profile, RunTimes], theirs: tuple[Profile, RunTimes], matched: Matched, scale: float
) -> Decomposition | None:
    """Split the gap between the typical steps into parts; None if a run has no step time."""
    if not ours[1].typical_ms or not theirs[1].typical_ms:
        return None
    our_work = sum(gap.ours.ms for gap in matched.gaps) + sum(matched.only_ours.values())
    their_work = sum(gap.theirs.ms for gap in matched.gaps) + sum(matched.only_theirs.values())
    # Waiting for other ranks is separate only where both runs show it.
    is_split = all(run.ledger is not None and run.ledger.wait_ranks is not None for run, _ in (ours, theirs))
    left, right = (
        _times(*ours, our_work, 1.0, is_split=is_split),
        _times(*theirs, their_work, scale, is_split=is_split),
    )
    parts: list[Part] = []
    for gap in matched.gaps:
        has_calls = gap.ours.calls and gap.theirs.calls
        longer = ("longer calls", "shorter calls") if has_calls else ("slower", "faster")
        wider = ("wider precision", "narrower precision")
        parts += [
            _part("operation", gap.count_ms, ("more calls", "fewer calls"), gap.name),
            _part("operation", gap.per_call_ms, longer, gap.name),
            _part("operation", gap.precision_ms, wider, gap.name),
        ]
    our_ops, their_ops = matched.only_ours, matched.only_theirs
    for name in dict.fromkeys((*our_ops, *their_ops)):
        where = "in both, kind not known" if name in our_ops and name in their_ops else "only ours"
        words = where if name in our_ops else "only theirs"
        parts.append(("one_sided", f"{name}: {words}", our_ops.get(name, 0.0) - their_ops.get(name, 0.0)))
    if left.accounts and right.accounts:
        # What runs at once, and the accounts of the device's time. Exposed communication is split into its
        # amount and its overlap, waiting for the host into the number of launches and the wait for each.
        gaps = {name: ms - right.accounts.get(name, 0.0) for name, ms in left.accounts.items()}
        exposed, idle = "exposed_communication", "idle_host"
        more_sent, more_launches = (
            by_amount((amounts[0], left.accounts[name]), (amounts[1], right.accounts[name]))
            for name, amounts in (
                (exposed, (left.communication, right.communication)),
                (idle, (left.launches, right.launches)),
            )
        )
        hidden = (left.accounts["compute"] - left.work) - (right.accounts["compute"] - right.work)
        less_hidden = ("less communication hidden", "more communication hidden")
        longer = ("longer waits for the host", "shorter waits for the host")
        parts += [
            _part("concurrency", hidden, ("fewer operations at once", "more operations at once")),
            _part("communication", more_sent, ("more communication", "less communication")),
            _part("overlap", gaps[exposed] - more_sent, less_hidden),
            _part("launches", more_launches, ("more launches", "fewer launches")),
            _part("launches", gaps[idle] - more_launches, longer),
            *(
                ("wait", account.gap, gaps.get(name, 0.0))
                for name, account in ACCOUNTS.items()
                if account.gap
            ),
        ]
        apart = (left.step - left.mean_rank) - (right.step - right.mean_rank)
        parts.append(("ranks", "ranks that are apart", apart))
    else:
        outside = (left.step - left.work) - (right.step - right.work)
        parts.append(("outside", "outside of the operations", outside))
    gap_ms = left.step - right.step
    return Decomposition(
        ours_ms=left.step,
        theirs_ms=right.step,
        gap_ms=gap_ms,
        tokens_scale=scale,
        parts=tuple(
            GapPart(name=name, kind=kind, ms=ms, share=ms / gap_ms if gap_ms else None)
            for kind, name, ms in sorted(parts, key=lambda part: (-abs(part[2]), part[1]))
            if ms
        ),
    )


def _times(profile: Profile, times: RunTimes, work: float, scale: float, *, is_split: bool) -> _Times:
    ledger, step = profile.ledger, (times.typical_ms or 0.0) * scale
    # The profile's times per step are means; the gap is between typical steps.
    step_scale = times.scale * scale
    accounts: dict[str, float] = {}
    mean_rank = step
    if ledger is not None and ledger.total:
        ranks = max(1, len(profile.ranks))
        per_step = step_scale / NS_PER_MS / max(1, profile.steps or 1) / ranks
        known = (ledger if is_split else ledger.without_waiting()).known()
        accounts = {name: ns * per_step for name, ns in known.items()}
        mean_rank = ledger.total * per_step
    return _Times(
        step=step,
        mean_rank=mean_rank,
        accounts=accounts,
        work=work,
        communication=profile.activity.communication_ms * step_scale if profile.activity else 0.0,
        launches=(profile.launches_per_step or 0.0) * scale,
    )


def _part(kind: str, ms: float, words: tuple[str, str], name: str = "") -> Part:
    """Return a part, named by the first word if it makes ours slower, else by the second."""
    word = words[0] if ms >= 0.0 else words[1]
    return kind, f"{name}: {word}" if name else word, ms

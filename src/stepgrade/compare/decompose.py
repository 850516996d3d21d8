"""Split the gap between the steps of two runs into parts that add up to it."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.compare.canonical import Matched
from stepgrade.model import Profile
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.scoring.step_times import RunTimes
from stepgrade.units import NS_PER_MS


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
    left, right = _times(*ours, our_work, 1.0), _times(*theirs, their_work, scale)
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
        parts += _ledger_parts(left, right)
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


def _times(profile: Profile, times: RunTimes, work: float, scale: float) -> _Times:
    ledger, step = profile.ledger, (times.typical_ms or 0.0) * scale
    # The profile's times per step are means; the gap is between typical steps.
    step_scale = times.scale * scale
    accounts: dict[str, float] = {}
    mean_rank = step
    if ledger is not None and ledger.total:
        ranks = max(1, len(profile.ranks))
        per_step = step_scale / NS_PER_MS / max(1, profile.steps or 1) / ranks
        accounts = {name: ns * per_step for name, ns in ledger.known().items()}
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


def _ledger_parts(ours: _Times, theirs: _Times) -> list[Part]:
    """Return the parts that are not operations: concurrency, and the accounts of the device's time."""
    hidden = [run.accounts["compute"] - run.work for run in (ours, theirs)]
    at_once = ("fewer operations at once", "more operations at once")
    parts = [_part("concurrency", hidden[0] - hidden[1], at_once)]
    # Split exposed communication into amount and overlap, and waiting for the host into the number of
    # launches and the wait per launch.
    name = "exposed_communication"
    gap = ours.accounts[name] - theirs.accounts[name]
    more = _by_amount(
        (ours.communication, ours.accounts[name]), (theirs.communication, theirs.accounts[name])
    )
    parts.append(_part("communication", more, ("more communication", "less communication")))
    parts.append(_part("overlap", gap - more, ("less communication hidden", "more communication hidden")))
    name = "idle_host"
    gap = ours.accounts[name] - theirs.accounts[name]
    more = _by_amount((ours.launches, ours.accounts[name]), (theirs.launches, theirs.accounts[name]))
    parts.append(_part("launches", more, ("more launches", "fewer launches")))
    parts.append(_part("launches", gap - more, ("longer waits for the host", "shorter waits for the host")))
    parts += [
        ("wait", account.gap, ours.accounts[name] - theirs.accounts[name])
        for name, account in ACCOUNTS.items()
        if account.gap
    ]
    apart = [run.step - run.mean_rank for run in (ours, theirs)]
    return [*parts, ("ranks", "ranks that are apart", apart[0] - apart[1])]


def _by_amount(ours: tuple[float, float], theirs: tuple[float, float]) -> float:
    """Return the part of the difference in cost that the amounts explain, at the mean cost per unit."""
    if not ours[0] or not theirs[0]:
        return 0.0
    return (ours[0] - theirs[0]) * (ours[1] / ours[0] + theirs[1] / theirs[0]) / 2.0

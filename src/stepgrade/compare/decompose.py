"""The gap between two runs' steps, taken apart so that the parts add up to it."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.compare.canonical import Matched
from stepgrade.model import Profile
from stepgrade.units import NS_PER_MS

_WAITS = {
    "exposed_copy": "copies between host and device",
    "idle_input": "waiting for input",
    "idle_sync": "waiting in synchronisation",
    "unattributed": "idle for unknown reasons",
}


_PACE = ("slower", "faster")


class GapPart(Struct, frozen=True, kw_only=True):
    """One part of the gap: above 0 it makes ours slower. `share` is of the whole gap."""

    name: str
    kind: str  # operation, one_sided, concurrency, communication, overlap, launches, wait, ranks, outside
    ms: float
    share: float | None


class Decomposition(Struct, frozen=True, kw_only=True):
    """Our step against theirs for as many tokens; the parts add up to `gap_ms`."""

    ours_ms: float
    theirs_ms: float
    gap_ms: float
    tokens_scale: float  # what their times were multiplied by: our tokens per step over theirs
    parts: tuple[GapPart, ...]


class _Times(Struct, frozen=True, kw_only=True):
    """Where one run's step goes, in milliseconds for as many tokens as ours."""

    step: float
    mean_rank: float
    accounts: dict[str, float]
    work: float
    communication: float
    launches: float | None


def decompose(ours: Profile, theirs: Profile, matched: Matched, scale: float) -> Decomposition | None:
    """Take the gap apart; None when one side has no step time."""
    if not ours.mean_step_ms or not theirs.mean_step_ms:
        return None
    with_ledgers = ours.ledger is not None and theirs.ledger is not None
    left = _times(ours, _work(matched, mine=True), 1.0)
    right = _times(theirs, _work(matched, mine=False), scale)
    parts = _operation_parts(matched)
    parts += _ledger_parts(left, right) if with_ledgers else _outside_parts(left, right)
    gap = left.step - right.step
    named = [(kind, name, ms) for kind, name, ms in parts if ms]
    return Decomposition(
        ours_ms=left.step,
        theirs_ms=right.step,
        gap_ms=gap,
        tokens_scale=scale,
        parts=tuple(
            GapPart(name=name, kind=kind, ms=ms, share=ms / gap if gap else None)
            for kind, name, ms in sorted(named, key=lambda part: (-abs(part[2]), part[1]))
        ),
    )


Part = tuple[str, str, float]


def _work(matched: Matched, *, mine: bool) -> float:
    """Return the time of all operations of one side."""
    shared = sum((gap.ours if mine else gap.theirs).ms for gap in matched.gaps)
    return shared + sum((matched.only_ours if mine else matched.only_theirs).values())


def _times(profile: Profile, work: float, scale: float) -> _Times:
    ledger, step = profile.ledger, (profile.mean_step_ms or 0.0) * scale
    accounts: dict[str, float] = {}
    mean_rank = step
    if ledger is not None and ledger.total_ns:
        ranks = max(1, len(profile.ranks))
        per_step = scale / NS_PER_MS / max(1, profile.steps or 1) / ranks
        accounts = {
            name.removesuffix("_ns"): getattr(ledger, name) * per_step
            for name in ledger.__struct_fields__
            if name != "total_ns"
        }
        mean_rank = ledger.total_ns * per_step
    talk = profile.activity.communication_ms * scale if profile.activity else 0.0
    launches = profile.launches_per_step * scale if profile.launches_per_step else None
    return _Times(
        step=step, mean_rank=mean_rank, accounts=accounts, work=work, communication=talk, launches=launches
    )


def _operation_parts(matched: Matched) -> list[Part]:
    parts: list[Part] = []
    for gap in matched.gaps:
        longer = ("longer calls", "shorter calls") if gap.ours.calls and gap.theirs.calls else _PACE
        parts.append(_told("operation", gap.count_ms, ("more calls", "fewer calls"), gap.name))
        parts.append(_told("operation", gap.per_call_ms, longer, gap.name))
        parts.append(
            _told("operation", gap.precision_ms, ("wider precision", "narrower precision"), gap.name)
        )
    ours, theirs = matched.only_ours, matched.only_theirs
    for name in dict.fromkeys((*ours, *theirs)):
        where = "in both, kind not known" if name in ours and name in theirs else "only ours"
        words = where if name in ours else "only theirs"
        parts.append(("one_sided", f"{name}: {words}", ours.get(name, 0.0) - theirs.get(name, 0.0)))
    return parts


def _told(kind: str, ms: float, words: tuple[str, str], name: str = "") -> Part:
    """Return a part in the words for ours being slower, or faster, by it."""
    word = words[0] if ms >= 0.0 else words[1]
    return kind, f"{name}: {word}" if name else word, ms


def _ledger_parts(ours: _Times, theirs: _Times) -> list[Part]:
    """Return what is not operations: work done at once, and the accounts of the device's time."""
    hidden = [side.accounts["compute"] - side.work for side in (ours, theirs)]
    parts = [
        _told("concurrency", hidden[0] - hidden[1], ("fewer operations at once", "more operations at once"))
    ]
    parts += _communication_parts(ours, theirs)
    parts += _launch_parts(ours, theirs)
    parts += [("wait", words, ours.accounts[name] - theirs.accounts[name]) for name, words in _WAITS.items()]
    apart = [side.step - side.mean_rank for side in (ours, theirs)]
    return [*parts, ("ranks", "ranks that are apart", apart[0] - apart[1])]


def _communication_parts(ours: _Times, theirs: _Times) -> list[Part]:
    """Split exposed communication into how much there is and how little of it is hidden."""
    gap = ours.accounts["exposed_communication"] - theirs.accounts["exposed_communication"]
    more = _by_amount(
        (ours.communication, ours.accounts["exposed_communication"]),
        (theirs.communication, theirs.accounts["exposed_communication"]),
    )
    return [
        _told("communication", more, ("more communication", "less communication")),
        _told("overlap", gap - more, ("less communication hidden", "more communication hidden")),
    ]


def _launch_parts(ours: _Times, theirs: _Times) -> list[Part]:
    """Split waiting for the host into how many launches there are and what each waits."""
    gap = ours.accounts["idle_host"] - theirs.accounts["idle_host"]
    more = _by_amount(
        (ours.launches or 0.0, ours.accounts["idle_host"]),
        (theirs.launches or 0.0, theirs.accounts["idle_host"]),
    )
    return [
        _told("launches", more, ("more launches", "fewer launches")),
        _told("launches", gap - more, ("longer waits for the host", "shorter waits for the host")),
    ]


def _by_amount(ours: tuple[float, float], theirs: tuple[float, float]) -> float:
    """Return what the amount explains of a cost (amount, cost), at the mean of both sides' cost of one."""
    if not ours[0] or not theirs[0]:
        return 0.0
    return (ours[0] - theirs[0]) * (ours[1] / ours[0] + theirs[1] / theirs[0]) / 2.0


def _outside_parts(ours: _Times, theirs: _Times) -> list[Part]:
    outside = [side.step - side.work for side in (ours, theirs)]
    return [("outside", "outside of the operations", outside[0] - outside[1])]

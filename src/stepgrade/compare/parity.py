"""Two runtimes, operation by operation: what both do, how much of the time that is, and the gaps."""

from __future__ import annotations

import re

from msgspec import Struct

from stepgrade.compare.canonical import CanonicalGap, Matched, match, parts_of
from stepgrade.compare.decompose import Decomposition, decompose
from stepgrade.contract import ParityGap
from stepgrade.contract.parity import GAPS_SHOWN, PARITY_RATIO
from stepgrade.contract.scorecard import add_up
from stepgrade.errors import NotMeasured
from stepgrade.model import Note, Profile
from stepgrade.model.notes import Result
from stepgrade.scoring.operations import total_by_operation
from stepgrade.units import show_ratio, show_share

# An operation below this share of the matched time does not decide about parity.
LEAST_SHARE = 0.005
# Below this share of either side's time, the matched operations do not speak for the run.
LEAST_MATCHED_SHARE = 0.50


class OneSided(Struct, frozen=True, kw_only=True):
    """An operation that only one runtime has, in milliseconds per step."""

    op: str
    ms: float


class ParityReport(Result, frozen=True, kw_only=True):
    """Contract v1's comparison, and how much of each side's time it speaks for.

    Ratios are ours over theirs for times and launches, theirs over ours for throughput: above 1
    ours is behind. `parity_achieved` is None when too little was matched to tell.
    """

    NOTES = ("notes",)

    apr_runtime: str
    baseline_runtime: str
    throughput_ratio: float | None
    launch_ratio: float | None
    top_gaps: tuple[ParityGap, ...]
    parity_achieved: bool | None
    schema_version: int = 2
    step_time_ratio: float | None = None
    ours_matched_share: float | None = None
    theirs_matched_share: float | None = None
    gaps: tuple[ParityGap, ...] = ()
    only_ours: tuple[OneSided, ...] = ()
    only_theirs: tuple[OneSided, ...] = ()
    matched_by: str = "name"  # or the level of the canonical operations
    canonical: tuple[CanonicalGap, ...] = ()
    canonical_level: str | None = None
    canonical_ours_share: float | None = None
    canonical_theirs_share: float | None = None
    time_ratio: float | None = None  # our time for a token over theirs; for a step where tokens are not known
    behind: tuple[str, ...] = ()  # operations worth a look that are more than 10 % slower in ours
    gap: Decomposition | None = None
    notes: tuple[Note, ...] = ()

    def _repr_markdown_(self) -> str:
        from stepgrade.report import render  # noqa: PLC0415  only a notebook asks; report is above this room

        return render(self, to="markdown")

    def _repr_html_(self) -> str | None:
        from stepgrade.report.html import card_for_notebooks  # noqa: PLC0415  as above

        return card_for_notebooks(self)


def parity(ours: Profile, theirs: Profile) -> ParityReport:
    """Compare two profiles; raise NotMeasured when one has no operations."""
    scale = _tokens_scale(ours, theirs)
    our_ops, their_ops = _ops_of_step(ours), _ops_of_step(theirs, scale)
    gaps = _gaps(our_ops, their_ops)
    named = (_matched_share(our_ops, gaps), _matched_share(their_ops, gaps))
    matched = match(parts_of(ours), parts_of(theirs, scale))
    by_name = min(named) >= LEAST_MATCHED_SHARE
    names = names_of(ours, theirs)
    behind = _behind(gaps, matched, by_name=by_name)
    enough = by_name or min(matched.ours_share, matched.theirs_share) >= LEAST_MATCHED_SHARE
    return ParityReport(
        apr_runtime=names[0],
        baseline_runtime=names[1],
        throughput_ratio=_ratio(_throughput(theirs), _throughput(ours)),
        launch_ratio=_ratio(ours.launches_per_step, theirs.launches_per_step),
        top_gaps=gaps[:GAPS_SHOWN],
        parity_achieved=not behind if enough else None,
        step_time_ratio=_ratio(ours.mean_step_ms, theirs.mean_step_ms),
        ours_matched_share=named[0],
        theirs_matched_share=named[1],
        gaps=gaps,
        only_ours=_one_sided(our_ops, gaps),
        only_theirs=_one_sided(their_ops, gaps),
        matched_by="name" if by_name else matched.level,
        canonical=matched.gaps,
        canonical_level=matched.level,
        canonical_ours_share=matched.ours_share,
        canonical_theirs_share=matched.theirs_share,
        time_ratio=_time_ratio(ours, theirs, scale),
        behind=behind,
        gap=decompose(ours, theirs, matched, scale),
        notes=_notes(ours, theirs, named, matched, behind),
    )


def _tokens_scale(ours: Profile, theirs: Profile) -> float:
    """Return our tokens per step over theirs, 1 when either is not known."""
    mine, other = _tokens(ours), _tokens(theirs)
    return mine / other if mine and other else 1.0


def _tokens(profile: Profile) -> float | None:
    if profile.tokens_per_step:
        return profile.tokens_per_step
    rate, step_ms = profile.throughput_tok_s, profile.mean_step_ms
    return rate * step_ms / 1000.0 if rate and step_ms else None


def _throughput(profile: Profile) -> float | None:
    tokens, step_ms = _tokens(profile), profile.mean_step_ms
    return profile.throughput_tok_s or (tokens / step_ms * 1000.0 if tokens and step_ms else None)


def _time_ratio(ours: Profile, theirs: Profile, scale: float) -> float | None:
    both = _ratio(_throughput(theirs), _throughput(ours))
    step = _ratio(ours.mean_step_ms, theirs.mean_step_ms)
    return both if both is not None else (step / scale if step is not None else None)


def _behind(gaps: tuple[ParityGap, ...], matched: Matched, *, by_name: bool) -> tuple[str, ...]:
    """Return the operations of both that take time worth a look and are far behind, the longest first."""
    if by_name:
        pairs = [(gap.op, gap.apr_ms, gap.baseline_ms) for gap in gaps]
    else:
        pairs = [(gap.name, gap.ours.ms, gap.theirs.ms) for gap in matched.gaps]
    whole = max(add_up(ours for _, ours, _ in pairs), add_up(theirs for _, _, theirs in pairs))
    late = [(ours, name) for name, ours, theirs in pairs if ours / theirs > PARITY_RATIO]
    return tuple(name for ours, name in sorted(late, reverse=True) if ours >= LEAST_SHARE * whole)


def _ops_of_step(profile: Profile, scale: float = 1.0) -> dict[str, float]:
    totals = total_by_operation(profile)
    ops = {name: ms * scale for name, total in totals.items() if (ms := total / (profile.steps or 1)) > 0.0}
    if not ops or not profile.steps:
        missing = "no operations" if not ops else "no number of steps"
        raise NotMeasured(
            f"{missing} in this profile, so there is nothing to compare", where=profile.source.files[0]
        )
    return ops


def _gaps(ours: dict[str, float], theirs: dict[str, float]) -> tuple[ParityGap, ...]:
    gaps = [
        ParityGap(op=op, apr_ms=ours[op], baseline_ms=theirs[op], ratio=ours[op] / theirs[op])
        for op in sorted(ours.keys() & theirs.keys())
    ]
    return tuple(sorted(gaps, key=lambda gap: gap.ratio, reverse=True))


def _matched_share(ops: dict[str, float], gaps: tuple[ParityGap, ...]) -> float:
    return add_up(ops[gap.op] for gap in gaps) / add_up(ops.values())


def _one_sided(ops: dict[str, float], gaps: tuple[ParityGap, ...]) -> tuple[OneSided, ...]:
    matched = {gap.op for gap in gaps}
    alone = [OneSided(op=op, ms=ms) for op, ms in ops.items() if op not in matched]
    return tuple(sorted(alone, key=lambda one: (-one.ms, one.op)))


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top and bottom else None


def names_of(ours: Profile, theirs: Profile) -> tuple[str, str]:
    """Return what the two are called: by their runtime, else by where their files' names differ."""
    if ours.runtime or theirs.runtime:
        return runtime_of(ours), runtime_of(theirs)
    left, right = runtime_of(ours), runtime_of(theirs)
    words = [re.split(r"(?<=[_\-. ])", name) for name in (left, right)]
    same = 0
    while same < min(len(words[0]), len(words[1])) - 1 and words[0][same] == words[1][same]:
        same += 1
    short = ["".join(word[same:]) for word in words]
    return (short[0], short[1]) if short[0] != short[1] else (left, right)


def runtime_of(profile: Profile) -> str:
    """Return the name of the runtime, else that of the file."""
    return profile.runtime or profile.source.files[0].replace("\\", "/").rsplit("/", 1)[-1]


def _notes(
    ours: Profile, theirs: Profile, named: tuple[float, float], matched: Matched, behind: tuple[str, ...]
) -> tuple[Note, ...]:
    notes = []
    canonical = (matched.ours_share, matched.theirs_share)
    if min(named) < LEAST_MATCHED_SHARE and min(canonical) < LEAST_MATCHED_SHARE:
        text = (
            f"matched operations are {show_share(named[0])} of our time and {show_share(named[1])} of theirs "
            f"by name, {show_share(canonical[0])} and {show_share(canonical[1])} by {matched.level}: too "
            "little to speak of parity (contract v1 does not look at that)"
        )
        return (Note("little_matched", text),)
    if min(named) < LEAST_MATCHED_SHARE:
        notes.append(
            Note(
                "matched_by_kind", f"few names are shared: operations are matched by {matched.level} instead"
            )
        )
    ratio = _time_ratio(ours, theirs, _tokens_scale(ours, theirs))
    if not behind and ratio is not None and ratio > PARITY_RATIO:
        text = f"operations are on par, but ours takes {show_ratio(ratio)} the time: see the gap's parts"
        notes.append(Note("slower_outside_operations", text))
    mine, other = _tokens(ours), _tokens(theirs)
    if mine and other and abs(mine / other - 1.0) > 0.001:
        text = (
            f"a step takes {mine:,.0f} tokens in ours and {other:,.0f} in theirs: their times are for as many"
        )
        notes.append(Note("different_tokens", text))
    elif not (mine and other) and ours.mean_step_ms and theirs.mean_step_ms:
        text = "tokens per step are not known on both sides: steps are taken to do the same work"
        notes.append(Note("tokens_unknown", text))
    return tuple(notes)

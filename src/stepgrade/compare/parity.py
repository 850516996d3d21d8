"""Compare runtimes operation by operation: matches, their share of the time, and gaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct, structs

from stepgrade.compare.canonical import CanonicalGap, Decomposition, decompose, match, parts_of
from stepgrade.contract import ParityGap
from stepgrade.contract.parity import GAPS_SHOWN, PARITY_RATIO
from stepgrade.contract.scorecard import add_up
from stepgrade.errors import EXIT_GATE, EXIT_NOT_MEASURED, EXIT_OK, NotMeasured
from stepgrade.loading import profile_given
from stepgrade.model import Note, Profile
from stepgrade.model.notes import NotebookResult, Result
from stepgrade.readers.source import PathLike
from stepgrade.scoring.operations import ms_by_operation
from stepgrade.scoring.step_times import RunTimes, times_of
from stepgrade.units import show_ratio, show_share

# Operations below this share of the matched time are ignored in the verdict.
LEAST_SHARE = 0.005
# Uninformative suffixes of profile names.
_ENDING = r"(?:\.pt)?(?:\.trace)?\.(?:json|jsonl|log|txt)(?:\.gz)?$|\.gz$"
# Below this share of either side's time, the matched operations are not representative.
LEAST_MATCHED_SHARE = 0.50


class OneSided(Struct, frozen=True, kw_only=True):
    """An operation that only one runtime has, in milliseconds per step."""

    op: str
    ms: float


class ShapeGap(Struct, frozen=True, kw_only=True):
    """An operation of both with inputs of one shape, in milliseconds per step."""

    op: str
    shape: str
    ours_ms: float
    theirs_ms: float
    ratio: float


class ParityReport(NotebookResult, frozen=True, kw_only=True):
    """Contract v1's comparison, and how much of each side's time it covers.

    Ratios are ours over theirs for times and launches, theirs over ours for throughput: above 1
    ours is behind. `parity_achieved` is False when an operation of both is more than 10 % slower in ours,
    unless ours as a whole is faster; None when too little was matched to tell.
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
    shapes: tuple[ShapeGap, ...] = ()  # of matched operations, most time lost first
    only_ours: tuple[OneSided, ...] = ()
    only_theirs: tuple[OneSided, ...] = ()
    matched_by: str = "name"  # or the level of the canonical operations
    canonical: tuple[CanonicalGap, ...] = ()
    canonical_level: str | None = None
    canonical_ours_share: float | None = None
    canonical_theirs_share: float | None = None
    time_ratio: float | None = None  # our time per token over theirs; per step if tokens are unknown
    behind: tuple[str, ...] = ()  # relevant operations that are more than 10 % slower in ours
    gap: Decomposition | None = None
    notes: tuple[Note, ...] = ()

    @property
    def standing(self) -> Literal["ahead", "parity", "behind", "unknown"]:
        """Return the verdict: ahead at 1/1.1 of their time or less, unknown if too little matched."""
        if self.parity_achieved is None:
            return "unknown"
        if not self.parity_achieved:
            return "behind"
        is_ahead = self.time_ratio is not None and self.time_ratio < 1.0 / PARITY_RATIO
        return "ahead" if is_ahead else "parity"

    @property
    def compared(self) -> tuple[ParityGap, ...]:
        """Return the operations behind the verdict: matched by name, else by kind."""
        if self.matched_by == "name":
            return self.gaps
        return tuple(
            ParityGap(op=gap.name, apr_ms=gap.ours.ms, baseline_ms=gap.theirs.ms, ratio=gap.ratio)
            for gap in self.canonical
        )


def parity(ours: Profile | PathLike, theirs: Profile | PathLike) -> ParityReport:
    """Compare two profiles or files; raise NotMeasured if one has no operations."""
    ours, theirs = profile_given(ours), profile_given(theirs)
    our_tokens, their_tokens = _tokens(ours), _tokens(theirs)
    scale = our_tokens / their_tokens if our_tokens and their_tokens else 1.0
    our_times, their_times = times_of(ours), times_of(theirs)
    our_ops, their_ops = _ops_of_step(ours, our_times), _ops_of_step(theirs, their_times, scale)
    gaps = [
        ParityGap(op=op, apr_ms=our_ops[op], baseline_ms=their_ops[op], ratio=our_ops[op] / their_ops[op])
        for op in sorted(our_ops.keys() & their_ops.keys())
    ]
    gaps.sort(key=lambda gap: gap.ratio, reverse=True)
    shares = [add_up(ops[gap.op] for gap in gaps) / add_up(ops.values()) for ops in (our_ops, their_ops)]
    their_shapes = _ms_by_shape(theirs, their_times, scale)
    shapes = [
        ShapeGap(op=op, shape=shape, ours_ms=ms, theirs_ms=other, ratio=ms / other)
        for (op, shape), ms in _ms_by_shape(ours, our_times, 1.0).items()
        if (other := their_shapes.get((op, shape)))
    ]
    matched = match(parts_of(ours, our_times), parts_of(theirs, their_times, scale))
    by_name = min(shares) >= LEAST_MATCHED_SHARE
    is_enough = by_name or min(matched.ours_share, matched.theirs_share) >= LEAST_MATCHED_SHARE
    pairs = [(gap.op, gap.apr_ms, gap.baseline_ms) for gap in gaps]
    if not by_name:
        pairs = [(gap.name, gap.ours.ms, gap.theirs.ms) for gap in matched.gaps]
    # Relevant operations that are far behind, longest first.
    least = LEAST_SHARE * max(add_up(ms for _, ms, _ in pairs), add_up(ms for _, _, ms in pairs))
    late = sorted(((ms, name) for name, ms, other in pairs if ms > PARITY_RATIO * other), reverse=True)
    behind = tuple(name for ms, name in late if ms >= least)
    rates = _ratio(_throughput(theirs, their_times), _throughput(ours, our_times))
    steps = _ratio(our_times.typical_ms, their_times.typical_ms)
    names, ratio = names_of_runs((ours, theirs)), rates
    if ratio is None and steps is not None:
        ratio = steps / scale
    is_faster = ratio is not None and ratio < 1.0
    report = ParityReport(
        apr_runtime=names[0],
        baseline_runtime=names[1],
        throughput_ratio=rates,
        launch_ratio=_ratio(ours.launches_per_step, theirs.launches_per_step),
        top_gaps=tuple(gaps[:GAPS_SHOWN]),
        parity_achieved=(not behind or is_faster) if is_enough else None,
        step_time_ratio=steps,
        ours_matched_share=shares[0],
        theirs_matched_share=shares[1],
        gaps=tuple(gaps),
        shapes=tuple(sorted(shapes, key=lambda gap: (gap.theirs_ms - gap.ours_ms, gap.op, gap.shape))),
        only_ours=_one_sided(our_ops, their_ops),
        only_theirs=_one_sided(their_ops, our_ops),
        matched_by="name" if by_name else matched.level,
        canonical=matched.gaps,
        canonical_level=matched.level,
        canonical_ours_share=matched.ours_share,
        canonical_theirs_share=matched.theirs_share,
        time_ratio=ratio,
        behind=behind,
        gap=decompose((ours, our_times), (theirs, their_times), matched, scale),
    )
    return structs.replace(report, notes=_notes(report, our_tokens, their_tokens))


def _tokens(profile: Profile) -> float | None:
    if profile.tokens_per_step:
        return profile.tokens_per_step
    # A source's own rate is the mean over its steps.
    rate, step_ms = profile.throughput_tok_s, profile.mean_step_ms
    return rate * step_ms / 1000.0 if rate and step_ms else None


def _throughput(profile: Profile, times: RunTimes) -> float | None:
    tokens, step_ms = _tokens(profile), times.typical_ms
    return profile.throughput_tok_s or (tokens / step_ms * 1000.0 if tokens and step_ms else None)


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return top / bottom if top and bottom else None


def _ops_of_step(profile: Profile, times: RunTimes, scale: float = 1.0) -> dict[str, float]:
    mean_ms = ms_by_operation(profile)
    scaled = {name: (times.typical(ms) or 0.0) * scale for name, ms in mean_ms.items()}
    ops = {name: ms for name, ms in scaled.items() if ms > 0.0}  # tiny values may underflow to 0
    if not ops or not profile.steps:
        missing = "no number of steps" if any(mean_ms.values()) and not profile.steps else "no operations"
        raise NotMeasured(
            f"{missing} in this profile, so there is nothing to compare", where=profile.source.files[0]
        )
    return ops


def _ms_by_shape(profile: Profile, times: RunTimes, scale: float) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for op in profile.operations:
        for row in op.shapes:
            if row.shape and row.ms > 0.0:
                ms = (times.typical(row.ms) or 0.0) * scale
                found[op.name, row.shape] = found.get((op.name, row.shape), 0.0) + ms
    return found


def _one_sided(ops: dict[str, float], others: dict[str, float]) -> tuple[OneSided, ...]:
    alone = [OneSided(op=op, ms=ms) for op, ms in ops.items() if op not in others]
    return tuple(sorted(alone, key=lambda op: (-op.ms, op.op)))


def names_of_runs(profiles: Sequence[Profile]) -> tuple[str, ...]:
    """Return names for the runs: their runtimes, else their files, made unique."""
    paths = [profile.source.files[0].replace("\\", "/").split("/") for profile in profiles]
    for path in paths:
        path[-1] = re.sub(_ENDING, "", path[-1]) or path[-1]
    names = [profile.runtime or path[-1] for profile, path in zip(profiles, paths, strict=True)]
    for depth in range(1, 5):
        if len(set(names)) == len(names):
            return tuple(names)
        # Same runtime or file name: add as much of the path as is needed.
        names = ["/".join(path[-depth:]) for path in paths]
    return tuple(f"{path[-1]} ({number})" for number, path in enumerate(paths, start=1))


def _notes(report: ParityReport, our_tokens: float | None, their_tokens: float | None) -> tuple[Note, ...]:
    notes = []
    if report.parity_achieved is None:
        names, kinds = (
            [show_share(share) for share in shares]
            for shares in (
                (report.ours_matched_share, report.theirs_matched_share),
                (report.canonical_ours_share, report.canonical_theirs_share),
            )
        )
        text = (
            f"matched operations are {names[0]} of our time and {names[1]} of theirs by name, {kinds[0]} and "
            f"{kinds[1]} by {report.canonical_level}: too little to speak of parity (contract v1 does not "
            "look at that)"
        )
        return (Note("little_matched", text),)
    if report.matched_by != "name":
        text = f"few names are shared: operations are matched by {report.matched_by} instead"
        notes.append(Note("matched_by_kind", text))
    ratio = report.time_ratio
    if report.behind and report.parity_achieved:
        text = "contract v1 reports no parity, because it looks at single operations only"
        notes.append(Note("v1_parity", text))
    if not report.behind and ratio is not None and ratio > PARITY_RATIO:
        text = f"operations are on par, but ours takes {show_ratio(ratio)} the time: see the gap's parts"
        notes.append(Note("slower_outside_operations", text))
    if not (our_tokens and their_tokens):
        if report.step_time_ratio is not None:
            text = "tokens per step are not known on both sides: steps are taken to do the same work"
            notes.append(Note("tokens_unknown", text))
    elif abs(our_tokens / their_tokens - 1.0) > 0.001:
        text = (
            f"a step takes {our_tokens:,.0f} tokens in ours and {their_tokens:,.0f} in theirs: their times "
            "are for as many"
        )
        notes.append(Note("different_tokens", text))
    return tuple(notes)


class ParityMatrix(Result, frozen=True, kw_only=True):
    """Row over column: above 1 the row is slower. None if unknown."""

    runtimes: tuple[str, ...]
    time_ratios: tuple[tuple[float | None, ...], ...]
    parity: tuple[tuple[bool | None, ...], ...]
    matched_shares: tuple[tuple[float, ...], ...]
    first_against: tuple[ParityReport, ...]
    schema_version: int = 2

    def to_dict(self) -> dict[str, Any]:
        """Return the matrix as its JSON has it."""
        return super().to_dict() | {"first_against": [report.to_dict() for report in self.first_against]}


def compare_all(profiles: tuple[Profile, ...]) -> ParityMatrix:
    """Compare every profile with every other; raise NotMeasured when one has no operations."""
    reports = [[parity(row, column) for column in profiles] for row in profiles]
    return ParityMatrix(
        runtimes=names_of_runs(profiles),
        time_ratios=tuple(tuple(report.time_ratio for report in row) for row in reports),
        parity=tuple(tuple(report.parity_achieved for report in row) for row in reports),
        matched_shares=tuple(
            tuple(
                max(
                    min(report.ours_matched_share or 0.0, report.theirs_matched_share or 0.0),
                    min(report.canonical_ours_share or 0.0, report.canonical_theirs_share or 0.0),
                )
                for report in row
            )
            for row in reports
        ),
        first_against=tuple(reports[0][1:]),
    )


def judge(reports: tuple[ParityReport, ...], required: float | None) -> tuple[int, tuple[str, ...]]:
    """Return the exit code and its reasons: ours may take `required` times as long as each of the others."""
    if required is None:
        known = all(report.parity_achieved is not None for report in reports)
        return (EXIT_OK if known else EXIT_NOT_MEASURED), ()
    reasons = tuple(
        f"{report.apr_runtime} takes {show_ratio(report.time_ratio)} the time of {report.baseline_runtime}, "
        f"and {show_ratio(required)} is allowed"
        for report in reports
        if report.time_ratio is not None and report.time_ratio > required
    )
    if reasons:
        return EXIT_GATE, reasons
    if any(report.time_ratio is None for report in reports):
        return EXIT_NOT_MEASURED, ("neither throughput nor step time is known on both sides",)
    return EXIT_OK, ()

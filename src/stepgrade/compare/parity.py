"""Two runtimes, operation by operation: what both do, how much of the time that is, and the gaps."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from stepgrade.analysis.operations import total_by_operation
from stepgrade.contract import ParityGap
from stepgrade.contract.parity import GAPS_SHOWN, PARITY_RATIO
from stepgrade.contract.scorecard import add_up
from stepgrade.errors import NotMeasured
from stepgrade.model import Profile
from stepgrade.units import show_share

# Below this share of either side's time, the matched operations do not speak for the run.
LEAST_MATCHED_SHARE = 0.50


class OneSided(Struct, frozen=True, kw_only=True):
    """An operation that only one runtime has, in milliseconds per step."""

    op: str
    ms: float


class ParityReport(Struct, frozen=True, kw_only=True):
    """Contract v1's comparison, and how much of each side's time it speaks for.

    Ratios are ours over theirs for times and launches, theirs over ours for throughput: above 1
    ours is behind. `parity_achieved` is None when too little was matched to tell.
    """

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
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the comparison as JSON, a superset of contract v1's."""
        return msgspec.json.encode(self).decode()


def compare_profiles(ours: Profile, theirs: Profile) -> ParityReport:
    """Compare two profiles; raise NotMeasured when one has no operations."""
    our_ops, their_ops = _ops_of_step(ours), _ops_of_step(theirs)
    gaps = _gaps(our_ops, their_ops)
    ours_matched = _matched_share(our_ops, gaps)
    theirs_matched = _matched_share(their_ops, gaps)
    enough = min(ours_matched, theirs_matched) >= LEAST_MATCHED_SHARE
    return ParityReport(
        apr_runtime=_runtime(ours),
        baseline_runtime=_runtime(theirs),
        throughput_ratio=_ratio(theirs.throughput_tok_s, ours.throughput_tok_s),
        launch_ratio=_ratio(ours.launches_per_step, theirs.launches_per_step),
        top_gaps=gaps[:GAPS_SHOWN],
        parity_achieved=all(gap.ratio <= PARITY_RATIO for gap in gaps) if enough else None,
        step_time_ratio=_ratio(ours.step_ms, theirs.step_ms),
        ours_matched_share=ours_matched,
        theirs_matched_share=theirs_matched,
        gaps=gaps,
        only_ours=_one_sided(our_ops, gaps),
        only_theirs=_one_sided(their_ops, gaps),
        notes=_notes(ours_matched, theirs_matched, enough=enough),
    )


def _ops_of_step(profile: Profile) -> dict[str, float]:
    totals = total_by_operation(profile)
    ops = {name: ms for name, total in totals.items() if (ms := total / (profile.steps or 1)) > 0.0}
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


def _runtime(profile: Profile) -> str:
    return profile.runtime or profile.source.files[0]


def _notes(ours: float, theirs: float, *, enough: bool) -> tuple[str, ...]:
    if enough:
        return ()
    note = (
        f"matched operations are {show_share(ours)} of our time and {show_share(theirs)} of theirs: too "
        "little to speak of parity (contract v1 does not look at that)"
    )
    return (note,)

"""Compare several runtimes pairwise: how much longer each takes than each other one."""

from __future__ import annotations

from typing import Any

from stepgrade.compare.parity import ParityReport, names_of_runs, parity
from stepgrade.errors import EXIT_GATE, EXIT_NOT_MEASURED, EXIT_OK
from stepgrade.model import Profile
from stepgrade.model.notes import Result
from stepgrade.units import show_ratio


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
        matched_shares=tuple(tuple(_matched_share(report) for report in row) for row in reports),
        first_against=tuple(reports[0][1:]),
    )


def _matched_share(report: ParityReport) -> float:
    """Return the share that is matched of both runtimes' time, by names or by kinds."""
    named = min(report.ours_matched_share or 0.0, report.theirs_matched_share or 0.0)
    canonical = min(report.canonical_ours_share or 0.0, report.canonical_theirs_share or 0.0)
    return max(named, canonical)


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

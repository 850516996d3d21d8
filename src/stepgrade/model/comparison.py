"""What became of a metric between two runs: the shapes that a comparison fills in."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.model.notes import Note, Result

Outcome = Literal["regressed", "improved", "no change", "cannot tell"]
NoiseBasis = Literal["measured", "repeated", "given", "assumed"]


class Noise(Struct, frozen=True, kw_only=True):
    """How much identical runs differ: the standard deviation as a share, and how it is known.

    `freedom` says how well it is known (runs less one); None is a figure taken as it is.
    """

    share: float
    basis: NoiseBasis
    freedom: int | None = None


class MetricChange(Struct, frozen=True, kw_only=True):
    """One metric before and now; `change` is a share of what was before.

    From `low` to `high` it surely is (99.5 %), from `near_low` to `near_high` probably (90 %).
    """

    metric: str
    outcome: Outcome
    before: float | None = None
    now: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    near_low: float | None = None
    near_high: float | None = None
    p_value: float | None = None
    noise: Noise | None = None
    before_runs: int = 0
    now_runs: int = 0
    why: str = ""
    more: str = ""  # what would tell, when this does not


class Shift(Struct, frozen=True, kw_only=True):
    """One part of a step that explains a change: before and now, in milliseconds unless `unit` says else."""

    kind: Literal[
        "ledger", "phase", "operation", "new operation", "gone operation", "calls", "launches", "overlap"
    ]
    name: str
    before: float | None
    now: float | None
    unit: str = "ms"


class PartChange(Struct, frozen=True, kw_only=True):
    """One operation, layer or phase that changed beyond its own noise."""

    kind: str
    name: str
    change: MetricChange


class Change(Struct, frozen=True, kw_only=True):
    """One part of a step in the baseline and now; None where one of them does not have it."""

    name: str
    before_ms: float | None
    now_ms: float | None


class StepChange(Struct, frozen=True, kw_only=True):
    """How the step went from the baseline's length to this one, by ledger accounts or by phases."""

    basis: Literal["ledger", "phases"]
    before_ms: float
    now_ms: float
    parts: tuple[Change, ...]


Status = Literal["pass", "regressed", "improved", "cannot tell", "waived"]


class Check(Struct, frozen=True, kw_only=True):
    """One thing that the gate looked at."""

    metric: str
    status: Status
    text: str
    change: MetricChange | None = None
    waiver: str | None = None


class GateReport(Result, frozen=True, kw_only=True):
    """What the gate says, and everything that it rests on."""

    NOTES = ("differences", "reasons", "notes")

    verdict: Literal["pass", "regressed", "could not be measured"]
    exit_code: int
    source: str
    baseline: str | None
    grade: str
    efficiency: float | None
    checks: tuple[Check, ...] = ()
    changes: tuple[MetricChange, ...] = ()
    parts: tuple[PartChange, ...] = ()
    shifts: tuple[Shift, ...] = ()
    differences: tuple[Note, ...] = ()  # between the circumstances of the runs
    is_comparable: bool = True  # False: they differ, and that was not allowed
    step_change: StepChange | None = None
    reasons: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    schema_version: int = 1

    def __repr__(self) -> str:
        compared = f" compared with {self.baseline}" if self.baseline else ""
        return f"<GateReport {self.verdict}, grade {self.grade}, {self.source}{compared}>"

    @property
    def further_reasons(self) -> tuple[Note, ...]:
        """Return the reasons that neither a failed check nor the differences say already."""
        return tuple(note for note in self.reasons if note.code not in ("failed_check", "not_comparable"))


class Comparison(Struct, frozen=True, kw_only=True):
    """What a comparison found, before anybody judged it."""

    baseline: str | None = None
    changes: tuple[MetricChange, ...] = ()
    parts: tuple[PartChange, ...] = ()
    shifts: tuple[Shift, ...] = ()
    differences: tuple[Note, ...] = ()
    is_comparable: bool = True
    step_change: StepChange | None = None
    notes: tuple[Note, ...] = ()
    unmeasured: tuple[Note, ...] = ()  # why there is nothing to compare with

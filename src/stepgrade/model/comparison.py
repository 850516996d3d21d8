"""Metrics that runs are compared by, what a comparison and the gate find, and the trend of a history."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from stepgrade.errors import EXIT_GATE
from stepgrade.model.notes import Note, Result

# "Probably slower" is beyond the allowance with a probability of 95 %, but not sure at 99 %; of times only.
Outcome = Literal["regressed", "probably slower", "improved", "no change", "cannot tell"]
Status = Literal["pass", "regressed", "probably slower", "improved", "cannot tell", "waived"]
Verdict = Literal["pass", "probably slower", "regressed", "could not be measured"]
# How the noise between runs is known: by enough earlier or repeated runs, by pairs of runs in turns, by few
# beside the history's other runs (pooled) or beside what is usual, from the user, not at all; or there is
# none: one run, read twice.
NoiseBasis = Literal["measured", "repeated", "turns", "pooled", "usual", "given", "assumed", "same"]
Unit = Literal["ms", "tok/s", "samples/s", "share", "count", "bytes"]
# The largest run-to-run noise reported from the field; assumed where none is known.
ASSUMED_NOISE = 0.13


class Metric(Struct, frozen=True, kw_only=True):
    """A figure of a run; `name` is its field of the scorecard, `title` is for people."""

    name: str
    title: str
    unit: Unit
    worse: Literal["up", "down"] = "down"
    from_steps: bool = False  # its noise within a run is that of the step times
    assumed_noise: float = ASSUMED_NOISE  # between identical runs, until it is measured
    heavy_tails: bool = True  # False: of many tests at once, whose own correction makes them careful
    on_card: bool = True  # False: only known of runs that were recorded to be compared


METRICS = {
    metric.name: metric
    for metric in (
        Metric(name="step_time_ms", title="step time", unit="ms", worse="up", from_steps=True),
        Metric(
            name="processor_ms",
            title="processor time",
            unit="ms",
            worse="up",
            from_steps=True,
            on_card=False,
        ),
        Metric(name="throughput_tok_s", title="throughput", unit="tok/s", from_steps=True),
        Metric(name="samples_s", title="samples", unit="samples/s", from_steps=True),
        Metric(name="efficiency", title="efficiency", unit="share"),
        Metric(name="mfu", title="MFU", unit="share"),
        Metric(name="hfu", title="HFU", unit="share"),
        # Coverage and launches hardly vary from run to run; a process's memory on a CPU varies a little.
        Metric(name="wall_coverage", title="wall coverage", unit="share", assumed_noise=0.01),
        Metric(
            name="launches_per_step", title="launches per step", unit="count", worse="up", assumed_noise=0.01
        ),
        Metric(name="peak_memory_bytes", title="peak memory", unit="bytes", worse="up", assumed_noise=0.02),
    )
}

RATES = (
    "throughput_tok_s",
    "samples_s",
)  # a run has the first of them that is known


class Noise(Struct, frozen=True, kw_only=True):
    """How much identical runs differ: the standard deviation as a share, and how it is known.

    `freedom` says how well it is known (runs less one); None is a figure taken as it is.
    """

    share: float
    basis: NoiseBasis
    freedom: int | None = None

    def __post_init__(self) -> None:
        if self.freedom is not None and self.freedom < 1:
            raise ValueError(f"a noise that is {self.basis} needs a degree of freedom")


class MetricChange(Struct, frozen=True, kw_only=True):
    """One metric before and now; `change` is a share of what was before.

    It lies between `low` and `high` with 99 % confidence, between `near_low` and `near_high` with 90 %.
    """

    metric: str
    outcome: Outcome
    before: float
    now: float
    change: float
    low: float
    high: float
    near_low: float
    near_high: float
    p_value: float
    noise: Noise
    before_runs: int = 0
    now_runs: int = 0
    apart: float = 0.0  # how much runs of one side differ: no change up to this is large for them
    why: str = ""
    more: str = ""  # what would decide it, when the outcome is "cannot tell" or "probably slower"

    @property
    def supply(self) -> str:
        """Return what the user could give to decide it, as in a note; empty where nothing would."""
        metric = METRICS.get(self.metric)
        is_assumed = bool(self.more) and self.noise.basis == "assumed"
        # A noise that is given counts for times alone.
        return "{run_noise} if you know it" if is_assumed and metric and metric.from_steps else ""


class Shift(Struct, frozen=True, kw_only=True):
    """One part of a step that explains a change: before and now, in milliseconds unless `unit` says else."""

    kind: Literal[
        "ledger", "phase", "operation", "new operation", "gone operation", "calls", "launches", "overlap"
    ]
    name: str
    before: float | None
    now: float | None
    unit: str = "ms"

    @property
    def difference(self) -> float:
        """Return now minus before; a part that one run does not have counts as 0 there."""
        return (self.now or 0.0) - (self.before or 0.0)


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

    @property
    def difference_ms(self) -> float:
        """Return how much longer the part takes now; below 0 it takes less."""
        return (self.now_ms or 0.0) - (self.before_ms or 0.0)


class StepChange(Struct, frozen=True, kw_only=True):
    """How the step went from the baseline's length to this one, by ledger accounts or by phases."""

    basis: Literal["ledger", "phases"]
    before_ms: float
    now_ms: float
    parts: tuple[Change, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """What changed between some runs and their baseline, before budgets judge it."""

    baseline: str | None = None
    changes: tuple[MetricChange, ...] = ()
    parts: tuple[PartChange, ...] = ()
    shifts: tuple[Shift, ...] = ()
    differences: tuple[Note, ...] = ()  # between the fingerprints of the runs
    is_comparable: bool = True  # False: they differ, and that was not allowed
    step_change: StepChange | None = None
    reasons: tuple[Note, ...] = ()  # why nothing could be compared; of a report: why it does not pass
    notes: tuple[Note, ...] = ()


class Check(Struct, frozen=True, kw_only=True):
    """One metric, part or grade that the gate checked."""

    metric: str
    status: Status
    text: str
    change: MetricChange | None = None
    waiver: str | None = None

    @property
    def note(self) -> Note:
        """Return the text with what the user could give where the check cannot be decided."""
        is_open = self.status in ("cannot tell", "probably slower")
        supply = self.change.supply if self.change and is_open else ""
        return Note("failed_check", self.text, supply=supply)


class GateReport(Result, Comparison, frozen=True, kw_only=True):
    """The gate's verdict, and everything it is based on."""

    NOTES = ("differences", "reasons", "notes")

    verdict: Verdict
    exit_code: int
    source: str
    grade: str
    efficiency: float | None
    checks: tuple[Check, ...] = ()
    schema_version: int = 1
    grade_at_most: str | None = None

    def __repr__(self) -> str:
        compared = f" compared with {self.baseline}" if self.baseline else ""
        return f"<GateReport {self.verdict}, grade {self.grade}, {self.source}{compared}>"

    def is_failed_by(self, check: Check) -> bool:
        """Return whether the check is a reason why the build fails."""
        return self.exit_code == EXIT_GATE and check.note in self.reasons

    @property
    def further_reasons(self) -> tuple[Note, ...]:
        """Return the reasons not covered by a failed check or the differences."""
        return tuple(note for note in self.reasons if note.code not in ("failed_check", "not_comparable"))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as in its JSON, verdict first."""
        verdict: dict[str, Any] = {
            "verdict": self.verdict,
            "exit_code": self.exit_code,
            "source": self.source,
        }
        return verdict | super().to_dict()


class RunRow(Struct, frozen=True, kw_only=True):
    """A run in the history, without its scorecard."""

    id: int
    added_at: str  # when it was made, by default when it was added
    digest: str
    commit: str | None
    branch: str | None
    labels: dict[str, str]
    source: str
    grade: str
    metrics: dict[str, float]


class Point(Struct, frozen=True, kw_only=True, gc=False):
    """The metric of one run."""

    id: int
    value: float


class ChangePoint(Struct, frozen=True, kw_only=True):
    """A new level from `index` on; `change` is a share of the level before."""

    index: int
    before: float
    after: float
    change: float


class LevelChange(ChangePoint, frozen=True, kw_only=True):
    """A new level in a history: between which runs and commits."""

    outcome: Outcome  # as the gate would judge the runs after it against those before
    last: Point
    first: Point
    last_commit: str | None = None
    first_commit: str | None = None


class Trend(Struct, frozen=True, kw_only=True):
    """A metric over the runs of a branch, oldest first, and where its level changed."""

    metric: str
    branch: str | None
    digest: str
    history: str
    points: tuple[Point, ...]
    changes: tuple[LevelChange, ...]

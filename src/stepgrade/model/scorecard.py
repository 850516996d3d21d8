"""The scorecard of contract v2: v1's eleven fields with their names and meanings, and what is new."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
from msgspec import Struct, field

from stepgrade.contract import LayerSummary, Regression
from stepgrade.model import Fingerprint, Ledger, Note, Source, Span
from stepgrade.model.ceiling import Ceiling, Roof
from stepgrade.model.comparison import MetricChange, Shift, StepChange
from stepgrade.model.finding import Finding
from stepgrade.model.notes import Result, texts_to_notes

UNGRADED = "ungraded"
UNKNOWN = "unknown"


class LayerStep(Struct, frozen=True, kw_only=True):
    """One layer in one step."""

    layer: int
    name: str | None = None
    fwd_ms: float | None = None
    bwd_ms: float | None = None
    recompute_ms: float | None = None
    ops: dict[str, float] = {}
    ratio: float | None = None
    top_op: str | None = None
    top_op_share: float | None = None
    slow: tuple[str, ...] = ()  # forward, backward: where it takes clearly longer than the other layers


class Operation(Struct, frozen=True, kw_only=True):
    """One operation in one step; `share` is its share of the step."""

    name: str
    kind: str | None = field(name="class", default=None)
    ms: float | None = None
    share: float | None = None
    calls: float | None = None
    flops: float | None = None
    bytes: float | None = None
    roof_share: float | None = None  # of what the device allows for its FLOPs and bytes
    roof: str | None = None  # compute or memory, whichever is lower
    mean_ms: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    longest: Span | None = None
    samples_ms: tuple[float, ...] = ()


class Cause(Struct, frozen=True, kw_only=True):
    """One thing that takes time: its share of the step, and the step without it."""

    bottleneck: str
    share: float
    remaining_ms: float | None
    evidence: str


class PhaseShare(Struct, frozen=True, kw_only=True):
    """One phase in one step, and in each steady step where the source tells them apart."""

    ms: float | None = None
    share: float | None = None
    samples_ms: tuple[float, ...] = ()


class RankRow(Struct, frozen=True, kw_only=True):
    """One rank: its ledger, its mean step, and how long it waits in collectives for later ranks."""

    rank: int
    ledger: Ledger | None
    step_ms: float
    wait_ms: float | None


class Arithmetic(Struct, frozen=True, kw_only=True):
    """FLOP/s of the matrix products, convolutions and attention whose shapes were recorded, per device."""

    achieved_flops_s: float
    peak_flops_s: float | None
    share: float | None
    dtype: str | None
    known_share: float | None  # of those operations' time, how much has its FLOPs known


class DeviceUse(Struct, frozen=True, kw_only=True):
    """The device a run is graded on, and how it is known."""

    key: str | None
    name: str | None
    count: int | None
    basis: str


class StepStats(Struct, frozen=True, kw_only=True):
    """How long steps took: the median of the steady ones and, from low to high, its 95 % interval.

    A source with only an average has neither.
    """

    count: int | None
    steady: int | None = None
    warm_up: int | None = None
    outliers: int | None = None
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    p95_ms: float | None = None
    least_ms: float | None = None
    most_ms: float | None = None
    samples_ms: tuple[float, ...] = ()


class Throughput(Struct, frozen=True, kw_only=True):
    """Tokens per second, and what the figure rests on."""

    tok_s: float
    low: float | None = None
    high: float | None = None
    tokens_per_step: float | None = None
    basis: str


class Scorecard(Result, frozen=True, kw_only=True):
    """What a run reached, against what it could reach, and why."""

    VERSION: ClassVar[int] = 2
    NOTES = ("notes", "fitness", "ungraded_because", "differences")

    grade: str
    efficiency: float | None
    bottleneck: str
    throughput_tok_s: float | None
    step_time_ms: float | None
    forward_backward_ratio: float | None
    wall_coverage: float | None
    per_layer_summary: tuple[LayerSummary, ...]
    hotspot_ops: tuple[tuple[str, float, float], ...]
    regressions: tuple[Regression, ...] = ()
    recommendations: tuple[str, ...] = ()

    schema_version: int = VERSION
    bottleneck_evidence: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
    notes: tuple[Note, ...] = ()
    fitness: tuple[Note, ...] = ()
    ungraded_because: tuple[Note, ...] = ()
    source: Source
    device: DeviceUse | None = None
    steps: StepStats | None = None
    throughput: Throughput | None = None
    ledger: Ledger | None = None
    phases: dict[str, PhaseShare] = {}
    launches_per_step: float | None = None
    ceilings: tuple[Ceiling, ...] = ()
    mfu: float | None = None
    hfu: float | None = None
    flops_per_token: float | None = None
    flops_convention: str | None = None
    bytes_per_token: float | None = None
    operations: tuple[Operation, ...] = ()
    layers: tuple[LayerStep, ...] = ()
    ranks: tuple[RankRow, ...] = ()
    arithmetic: Arithmetic | None = None
    findings: tuple[Finding, ...] = ()
    baseline: str | None = None
    differences: tuple[Note, ...] = ()  # from the baseline; unless allowed, nothing is compared
    compared: tuple[str, ...] = ()
    peak_memory_bytes: float | None = None
    fingerprint: Fingerprint | None = None
    changes: tuple[MetricChange, ...] = ()
    changed: tuple[Shift, ...] = ()  # what the change is made of, when something changed
    roofs: tuple[Roof, ...] = ()
    step_change: StepChange | None = None
    typical_step: Span | None = None

    @classmethod
    def from_json(cls, text: bytes | str) -> Scorecard:
        """Return the card of a JSON that `to_json` wrote; raise msgspec.DecodeError for anything else."""
        document = msgspec.json.decode(text, type=dict[str, Any])
        return msgspec.convert(texts_to_notes(document, cls.NOTES), cls)

    @property
    def unreported_warnings(self) -> tuple[Note, ...]:
        """Return the warnings about the source that no finding reports."""
        reported = {finding.warning for finding in self.findings}
        return tuple(note for note in self.fitness if note.code not in reported)

    def _repr_markdown_(self) -> str:
        from stepgrade.report import render  # noqa: PLC0415  only a notebook asks; report is above this room

        return render(self, to="markdown")

    def _repr_html_(self) -> str | None:
        from stepgrade.report.html import card_for_notebooks  # noqa: PLC0415  as above

        return card_for_notebooks(self)

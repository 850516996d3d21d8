"""The scorecard of contract v2: v1's eleven fields and what is new; and the baseline that it leaves."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from stepgrade.contract import LayerSummary, Regression
from stepgrade.decoding import from_builtins, from_json
from stepgrade.errors import MissingExtra
from stepgrade.model.activity import CopyRow, KernelUse
from stepgrade.model.ceiling import Ceiling, Roof
from stepgrade.model.comparison import METRICS, MetricChange, Shift, StepChange
from stepgrade.model.compilation import Compilation
from stepgrade.model.ledger import ACCOUNTS, Ledger
from stepgrade.model.memory import Memory
from stepgrade.model.notes import Note, NotebookResult, texts_to_notes
from stepgrade.model.operations import LayerStep, ModuleStep, Operation, Span
from stepgrade.model.profile import Machine, PhaseShare, RankRow, Source, WorkKind, check_figure
from stepgrade.model.ranks import CollectiveFit, CollectiveRow, ExpertUse, Hang, ManyRanks, PipelineUse
from stepgrade.model.step_log import Goodput, Printed
from stepgrade.model.step_view import StepView
from stepgrade.units import show_share

Severity = Literal["info", "warning", "critical"]
# By the replay of steps with the change, by what the ledger holds, or as the run itself lost it.
GainBasis = Literal["replay", "ledger", "measured"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing worth knowing about a run; gains are shares of the step (0 to 1).

    `gain_low` is what a realistic fix brings and `gain_basis` says why, `gain_high` what an ideal one does:
    by `gain_by`, the replay of the step with `change`, or what the ledger holds. `next_limit` is what holds
    the step then.
    `consequences` are claims of rules that saw the same cause from another side. `where` is the line of the
    user's Python code ("file.py:12") that the time goes to, where the source recorded stacks.
    """

    rule: str
    severity: Severity
    claim: str
    evidence: dict[str, float | str]
    remedy: str
    gain_low: float
    gain_high: float
    check: str
    area: str = ""
    gain_basis: str = ""
    account: str | None = None  # the account of the ledger that the gain comes out of
    consequences: tuple[str, ...] = ()
    warning: str | None = None  # the code of the warning about the source that it repeats
    where: str | None = None
    change: tuple[str, ...] = ()  # the ideal fix, as questions to the replay
    gain_by: GainBasis | None = None
    next_limit: str | None = None


class JointGain(Struct, frozen=True, kw_only=True):
    """What the first fixes bring together; findings that fix the same time are not added up."""

    rules: tuple[str, ...]
    gain_low: float
    gain_high: float
    gain_by: GainBasis
    step_ms: float | None  # then, at best
    next_limit: str | None = None


class Fingerprint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The circumstances of a run; None and empty are what nobody said."""

    device: str | None = None
    devices: int | None = None
    model: str | None = None
    batch: int | None = None
    seq: int | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None  # where there are no tokens
    precision: str | None = None
    world_size: int | None = None
    versions: dict[str, str] = {}
    profiler: str | None = None


UNGRADED = "ungraded"
UNKNOWN = "unknown"
AT_MOST = "at_most"  # the note that bounds the grade of an ungraded run
# What the rows of a profile have for scoring; a card has none of it, and its JSON no such fields.
NOT_IN_JSON = {
    "phases": ("name", "average_ms"),
    "operations": ("dtype",),
    "layers": ("fwd_samples_ms", "bwd_samples_ms"),
    "collectives": ("ranks", "moving_ms"),
    "copies": ("during",),
}


class Cause(Struct, frozen=True, kw_only=True):
    """One thing that takes time: its share of the step, and the step without it."""

    bottleneck: str
    share: float
    remaining_ms: float | None
    evidence: str
    gain_by: GainBasis | None = None  # what `remaining_ms` is known by


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


class Scorecard(NotebookResult, frozen=True, kw_only=True):
    """A run's grade, bottleneck and findings, with their evidence."""

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
    samples_s: float | None = None
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
    modules: tuple[ModuleStep, ...] = ()  # of all depths, a parent before what is in it
    ranks: tuple[RankRow, ...] = ()
    many_ranks: ManyRanks | None = None  # what they tell together, also where not all of them have a row
    arithmetic: Arithmetic | None = None
    compile: Compilation | None = None
    kernel_use: KernelUse | None = None
    copies: tuple[CopyRow, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    collective_fits: tuple[CollectiveFit, ...] = ()
    pipeline: PipelineUse | None = None
    experts: tuple[ExpertUse, ...] = ()
    findings: tuple[Finding, ...] = ()
    together: JointGain | None = None  # of the first fixes, where there are several
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
    work: WorkKind = "unknown"
    cost_known_share: float | None = None  # of the time in operations that do arithmetic
    counted_share: float | None = None  # of the operations' time without communication: FLOPs or bytes known
    grade_at_most: str | None = None  # of an ungraded run: no better than this, whatever is not known
    goodput: Goodput | None = None  # of the wall time of a logged run
    printed: Printed | None = None  # by the author of a log
    memory: Memory | None = None
    machine: Machine | None = None  # of a recording: how busy the machine was
    hang: Hang | None = None  # of dumps of the Flight Recorder
    views: tuple[StepView, ...] = ()  # up to three steps of each rank, to be drawn; not in the JSON

    def to_dict(self) -> dict[str, Any]:
        """Return the card as in its JSON, without what is only drawn."""
        document = super().to_dict()
        del document["views"]
        for table, names in NOT_IN_JSON.items():
            rows = document[table]
            for row in rows.values() if isinstance(rows, dict) else rows:
                for name in names:
                    del row[name]
        ledgers = (ledger for row in (document, *document["ranks"]) if (ledger := row["ledger"]))
        for ledger in ledgers:  # nulls are what a source does not tell; these one rank never does
            for name, account in ACCOUNTS.items():
                if account.takes_all_ranks and ledger[name] is None:
                    del ledger[name]
        return document

    @classmethod
    def from_json(cls, text: bytes | str) -> Scorecard:
        """Return the card that `to_json` wrote; raise msgspec.DecodeError for anything else."""
        document = from_json(text, dict[str, Any])
        return from_builtins(texts_to_notes(document, cls.NOTES), cls)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Return the figures that runs are compared by."""
        return {name: getattr(self, name) for name, metric in METRICS.items() if metric.on_card}

    def part_ms(self, share: float) -> float:
        """Return how long a share of the step takes; 0 without a step time."""
        return share * (self.step_time_ms or 0.0)

    @property
    def unreported_warnings(self) -> tuple[Note, ...]:
        """Return the warnings about the source that no finding reports."""
        reported = {finding.warning for finding in self.findings}
        return tuple(note for note in self.fitness if note.code not in reported)

    def __repr__(self) -> str:
        reached = "" if self.efficiency is None else f" {show_share(self.efficiency)}"
        bound = f", {self.grade_at_most} at best" if self.grade_at_most else ""
        return f"<Scorecard {self.grade}{reached}{bound}, bottleneck {self.bottleneck}, {self.source.shown}>"

    def operations_frame(self, library: Literal["pandas", "polars"] | None = None) -> Any:
        """Return the operations as a DataFrame of pandas, else of polars, whichever is installed.

        One row each, longest first. `library` asks for one of them; raise MissingExtra without it.
        """
        numbers = "ms share calls flops bytes roof_share mean_ms flops_per_s bytes_per_s"
        return _frame(msgspec.to_builtins(self.operations), "name class roof", numbers, library)

    def layers_frame(self, library: Literal["pandas", "polars"] | None = None) -> Any:
        """Return the layers as a DataFrame, one row each; as `operations_frame`."""
        numbers = "fwd_ms bwd_ms recompute_ms ratio top_op_share"
        return _frame(msgspec.to_builtins(self.layers), "layer name top_op", numbers, library)


def _frame(rows: list[dict[str, Any]], texts: str, numbers: str, library: str | None) -> Any:
    """Return a DataFrame in which a figure that is not known is missing, not an object."""
    names = ("pandas", "polars") if library is None else (library,)
    columns = {column: [row[column] for row in rows] for column in f"{texts} {numbers}".split()}
    for name in names:
        try:
            module: Any = import_module(name)  # Any: nothing else needs it, and its types are not installed
        except ImportError:
            continue
        if name == "polars":
            return module.DataFrame(columns, schema_overrides=dict.fromkeys(numbers.split(), module.Float64))
        return module.DataFrame(columns).astype(dict.fromkeys(numbers.split(), "float64"))
    raise MissingExtra(f"a frame needs {' or '.join(names)}", hint=f"pip install {names[0]}")


class Baseline(Struct, frozen=True, kw_only=True):
    """What a run reached, per step; None or empty where its scorecard has no value."""

    name: str
    throughput_tok_s: float | None = None
    samples_s: float | None = None
    step_ms: float | None = None
    wall_coverage: float | None = None
    device: str | None = None
    ledger: Ledger | None = None
    phases_ms: dict[str, float] = {}
    samples_ms: tuple[float, ...] = ()
    operations_ms: dict[str, float] = {}
    operation_calls: dict[str, float] = {}
    operation_samples_ms: dict[str, tuple[float, ...]] = {}  # one for each steady step
    phase_samples_ms: dict[str, tuple[float, ...]] = {}
    layers_ms: dict[str, float] = {}
    launches_per_step: float | None = None
    peak_memory_bytes: float | None = None
    tokens_per_step: float | None = None
    processor_samples_ms: tuple[float, ...] = ()
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        figures = {
            "throughput": self.throughput_tok_s,
            "samples per second": self.samples_s,
            "step time": self.step_ms,
            "coverage": self.wall_coverage,
            "launches": self.launches_per_step,
            "peak memory": self.peak_memory_bytes,
        }
        for place, value in (*figures.items(), *self.operations_ms.items(), *self.layers_ms.items()):
            check_figure(place, value)
        for value in self.samples_ms:
            check_figure("a step's sample", value)

    @classmethod
    def of(cls, card: Scorecard, name: str | None = None) -> Baseline:
        """Return a card as a baseline; `name` defaults to the names of its files."""
        operations_ms = {
            # Cards of before 0.2 hold the mean of all steps in `ms`; the share of the step was the same.
            op.name: op.share * card.step_time_ms if op.share and card.step_time_ms else op.ms
            for op in card.operations
            if op.ms
        }
        return cls(
            name=", ".join(card.source.files) if name is None else name,
            # Contract v1 writes 0 for what was not measured.
            throughput_tok_s=card.throughput_tok_s or None,
            samples_s=card.samples_s or None,
            step_ms=card.step_time_ms or None,
            wall_coverage=card.wall_coverage or None,
            device=card.device.key if card.device else None,
            ledger=card.ledger,
            phases_ms={name: phase.ms for name, phase in card.phases.items() if phase.ms},
            samples_ms=card.steps.samples_ms if card.steps else (),
            operations_ms=operations_ms,
            operation_calls={op.name: op.calls for op in card.operations if op.calls},
            operation_samples_ms={op.name: op.samples_ms for op in card.operations if op.samples_ms},
            phase_samples_ms={
                name: phase.samples_ms for name, phase in card.phases.items() if phase.samples_ms
            },
            layers_ms={
                layer.name or f"layer {layer.layer}": ms
                for layer in card.layers
                if (ms := (layer.fwd_ms or 0.0) + (layer.bwd_ms or 0.0) + (layer.recompute_ms or 0.0))
            },
            launches_per_step=card.launches_per_step,
            peak_memory_bytes=card.peak_memory_bytes,
            tokens_per_step=card.throughput.tokens_per_step if card.throughput else None,
            fingerprint=card.fingerprint,
        )

"""What a training run is, once a reader has understood its file.

Figures are means over the profiled steps: who builds a profile divides, nobody later. Durations are
milliseconds in floats, the contract's unit. A ledger's times are sums, for their shares are what counts.
Where the number of steps is not known, all of them count as one. What the source did not say is None.
"""

from __future__ import annotations

import sys
from typing import Literal

from msgspec import Struct

from stepgrade.errors import BadInput
from stepgrade.model.activity import Activity, KernelUse
from stepgrade.model.compilation import Compilation
from stepgrade.model.ledger import Ledger
from stepgrade.model.memory import Memory
from stepgrade.model.notes import Note
from stepgrade.model.operations import LayerStep, ModuleStep, Operation, Span
from stepgrade.model.ranks import Communication, Hang, ManyRanks
from stepgrade.model.step_log import RunFacts, StepLog
from stepgrade.model.step_view import StepView
from stepgrade.units import show_ms

RECORDER = "stepgrade recorder, PyTorch"  # the producer of what our own recorder writes
STEP_PROFILER_V2 = "step_profiler_v2"  # the formats that contract v1 reads, each also called as its producer
APR_PROFILER_V1 = "apr_training_profiler_v1"
LOG = "log"
WorkKind = Literal["training", "inference", "unknown"]  # what the steps hold
WORK_UNKNOWN = "work_unknown"  # the code of the note that says what would show the work
LARGEST_COUNT = 2**64 - 1  # contract v1's counts are unsigned, of 64 bits


class Source(Struct, frozen=True, kw_only=True):
    """Where a profile came from."""

    format: str
    files: tuple[str, ...]
    producer: str | None = None

    @property
    def shown(self) -> str:
        """Return the name of the file, of several that of the first and how many more there are."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0] if self.files else 'no file'}{more}"


class PhaseShare(Struct, frozen=True, kw_only=True):
    """One named part of a step; `share` is what the producer wrote until the step is scored."""

    name: str = ""  # in a card, its key
    ms: float | None = None
    share: float | None = None
    samples_ms: tuple[float, ...] = ()  # one for each steady step, where the source has them
    average_ms: float | None = None  # as the producer wrote it, where it also wrote a total


class RankRow(Struct, frozen=True, kw_only=True):
    """One rank: its ledger, its mean step, and how long it waits in collectives for later ranks."""

    rank: int
    ledger: Ledger | None = None
    step_ms: float
    wait_ms: float | None = None


class DeviceSeen(Struct, frozen=True, kw_only=True):
    """The device as the source itself describes it."""

    name: str | None = None
    memory_bytes: int | None = None
    sm_count: int | None = None

    def alone(self) -> DeviceSeen:
        """Return the device without what a source adds: all that the catalogue is asked with."""
        return DeviceSeen(name=self.name, memory_bytes=self.memory_bytes, sm_count=self.sm_count)


class Machine(Struct, frozen=True, kw_only=True):
    """What the machine kept from the run while its steady steps were recorded; shares from 0 to 1."""

    busy_share: float | None = None  # of the cores that the run may use: what other programs took
    waited_for_core_share: float | None = None  # of the time, that a computing thread waited for a core
    throttled: bool | None = None  # whether the run's control group used up its processor time

    def __post_init__(self) -> None:
        for name in ("busy_share", "waited_for_core_share"):
            check_figure(name, getattr(self, name))


class Recorded(Struct, frozen=True, kw_only=True):
    """What the source says of the run besides its times, as far as it makes runs comparable."""

    versions: dict[str, str] = {}
    settings: tuple[str, ...] = ()  # what the profiler was told to record
    processor: str | None = None  # where it ran, if that is no accelerator
    processor_cores: int | None = None
    processor_ranks: int = 1  # that ran on it
    model: str | None = None
    batch: int | None = None
    seq: int | None = None
    precision: str | None = None


class RecordedStep(Struct, frozen=True, kw_only=True):
    """One step of one rank as a graph of what waited for what, packed, to be replayed with changes."""

    number: int
    edges: int
    packed: bytes


class Profile(Struct, frozen=True, kw_only=True):
    """One run: its steps, and where their time went. `operations` are those outside any layer."""

    source: Source
    work: WorkKind = "unknown"
    steps: int | None = None
    mean_step_ms: float | None = None
    samples_ms: tuple[float, ...] = ()
    processor_samples_ms: tuple[float, ...] = ()  # processor time of each steady step, on all threads
    wall_coverage: float | None = None
    phases: tuple[PhaseShare, ...] = ()
    layers: tuple[LayerStep, ...] = ()
    modules: tuple[ModuleStep, ...] = ()  # of all depths, a parent before what is in it
    operations: tuple[Operation, ...] = ()
    runtime: str | None = None
    throughput_tok_s: float | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None  # images, rows, …: what a batch is made of
    rank: int | None = None  # of a run of several, where this is one of them
    counted_ranks: int = 1  # whose tokens and samples are in those of a step
    launches_per_step: float | None = None
    claimed_bottleneck: str | None = None
    recorded_steps: int | None = None
    ledger: Ledger | None = None  # in ns over all steps and ranks
    ranks: tuple[RankRow, ...] = ()
    world_size: int | None = None
    device: DeviceSeen | None = None
    machine: Machine | None = None
    matmul_flops: float | None = None  # of matrix products, convolutions and attention
    matmul_known_share: float | None = None  # of their time, how much has its FLOPs known
    matmul_dtype: str | None = None
    facts: RunFacts | None = None  # of the model, where the source is a log
    log: StepLog | None = None  # the wall time of the whole run, where the source is a log
    activity: Activity | None = None
    links: Communication | None = None  # what ranks tell each other
    many_ranks: ManyRanks | None = None  # what they tell together
    compilation: Compilation | None = None  # of torch.compile
    kernel_use: KernelUse | None = None
    peak_memory_bytes: float | None = None
    memory: Memory | None = None
    hang: Hang | None = None  # of a run that stands still
    recorded: Recorded | None = None
    views: tuple[StepView, ...] = ()  # up to three steps of each rank, to be drawn; of many ranks the first
    steps_to_replay: tuple[
        RecordedStep, ...
    ] = ()  # of each rank, those that all have; the first choice first
    typical_step: Span | None = None  # where the steady step of middle length is
    contents: dict[str, str] = {}  # what else the source holds, in words, for people
    notes: tuple[Note, ...] = ()
    warnings: tuple[Note, ...] = ()  # what limits what the source can tell; a fatal one forbids a grade

    def __post_init__(self) -> None:
        for name, count in (("steps", self.steps), *(("layer", layer.layer) for layer in self.layers)):
            if count is not None and not 0 <= count <= LARGEST_COUNT:
                raise BadInput(f"must be a whole number from 0 to {LARGEST_COUNT}", where=name)
        figures: list[tuple[str, float | None]] = [
            ("step time", self.mean_step_ms),
            ("wall coverage", self.wall_coverage),
            ("throughput", self.throughput_tok_s),
            ("tokens per step", self.tokens_per_step),
            ("samples per step", self.samples_per_step),
            ("peak memory", self.peak_memory_bytes),
            *(("a step's sample", ms) for ms in (*self.samples_ms, *self.processor_samples_ms)),
            *((f"phase {p.name!r}", figure) for p in self.phases for figure in (p.ms, p.average_ms, p.share)),
        ]
        for layer in self.layers:
            name = f"layer {layer.layer}"
            figures += [(name, layer.fwd_ms), (name, layer.bwd_ms)]
            figures += [(f"{name}, op {op!r}", ms) for op, ms in layer.ops.items()]
        figures += [(f"op {op.name!r}", op.ms) for op in self.operations]
        for name, value in figures:
            check_figure(name, value)

    def __repr__(self) -> str:
        steps = "steps not counted" if self.steps is None else f"{self.steps} steps"
        mean = "" if self.mean_step_ms is None else f" of {show_ms(self.mean_step_ms)}"
        return f"<Profile {self.source.format}, {steps}{mean}, {self.source.shown}>"

    def total(self, ms: float) -> float:
        """Return what a figure per step is over all steps, without the last bits that dividing it lost."""
        return float(f"{ms * self.steps:.15g}") if self.steps and self.steps > 1 else ms

    @property
    def unfit(self) -> tuple[Note, ...]:
        """Return why the run cannot be graded at all."""
        return tuple(note for note in self.warnings if note.fatal)

    @property
    def is_empty(self) -> bool:
        """Tell whether the source measured nothing."""
        measured = (self.mean_step_ms, self.throughput_tok_s)
        parts = (self.phases, self.layers, self.operations)
        known = (self.memory, self.hang, self.compilation)
        if self.unfit and (self.source.format == LOG or any(part is not None for part in known)):
            return False  # its steps, its memory or the like are known, and why there is no time
        return all(figure is None for figure in measured) and not any(parts)


def check_figure(name: str, value: float | None) -> None:
    """Raise BadInput unless the figure is a finite number of 0 or more, or None."""
    # Whole numbers of JSON may be larger than any float.
    if value is not None and not 0.0 <= value <= sys.float_info.max:
        shown = "one beyond all measure" if abs(value) > sys.float_info.max else f"{value:g}"
        raise BadInput(f"must be a finite number of 0 or more, not {shown}", where=name)

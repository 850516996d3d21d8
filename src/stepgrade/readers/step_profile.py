"""Step profiles: step_profiler_v2 and apr_training_profiler_v1 JSON."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct, ValidationError, field

from stepgrade import model
from stepgrade.contract.decode import decode_json
from stepgrade.contract.types import USIZE_MAX
from stepgrade.errors import BadInput, BadJson
from stepgrade.model import RECORDER, DeviceSeen, LayerStep, Operation, PhaseShare, Profile, Source
from stepgrade.model.activity import Counted, HostLine
from stepgrade.model.notes import Note
from stepgrade.model.profile import APR_PROFILER_V1, STEP_PROFILER_V2, WorkKind, check_figure
from stepgrade.model.sampled import SampledSteps
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_MOST_NOTES = 100  # our recorder writes a handful
_KEYS = {"_profiler", "avg_step_ms", "phases", "per_layer", "steps", "steps_profiled"}
_MOST_KEYS = 1000  # a tokenizer's vocabulary holds the word "steps" too, among its thousands


class StepPhase(Struct, frozen=True):
    """One phase of a step, in either emitter's fields."""

    total_ms: float | None = None
    pct: float | None = None
    avg_ms: float | None = None


class StepLayer(Struct, frozen=True):
    """One layer, summed over all steps."""

    layer: int
    name: str | None = None
    recompute_ms: float | None = None
    fwd_ms: float | None = None
    bwd_ms: float | None = None
    ops: dict[str, float] = {}


class RecordedDevice(DeviceSeen, frozen=True, kw_only=True):
    """The device as our recorder writes it; only an accelerator can be looked up in the catalogue."""

    kind: str | None = None
    cores: int | None = None
    ranks: int | None = None  # that share it


class RecorderHead(Struct, frozen=True):
    """What our recorder adds: the run's own description, and what to know about the recording."""

    recorded_steps: int | None = None
    world_size: int | None = None
    device: RecordedDevice | None = None
    versions: dict[str, str] = {}
    config: dict[str, Any] = {}
    loss: dict[str, float] | None = None
    sampled: dict[str, Any] | None = None
    lines: dict[str, tuple[HostLine, ...]] = {}
    counted: Counted | None = None
    rank: int | None = None
    machine: model.Machine | None = None
    processor_ms: list[float] = []  # of each steady step
    notes: list[str] = []
    notes_coded: list[Note] = []

    def circumstances(self) -> model.Recorded | None:
        """Return what makes the run comparable with others: versions, processor, model, batch, precision."""
        device, config = self.device or RecordedDevice(), self.config
        texts = {key: value for key, value in config.items() if isinstance(value, str)}
        batch = config.get("batch_size")
        found = model.Recorded(
            # Which stepgrade recorded it does not change the run.
            versions={name: version for name, version in self.versions.items() if name != "stepgrade"},
            processor=device.name if device.kind == "cpu" else None,
            processor_cores=device.cores,
            processor_ranks=max(1, device.ranks or 1),
            model=texts.get("model"),
            batch=batch if type(batch) is int else None,
            precision=texts.get("autocast") or texts.get("parameter_dtype"),
        )
        return found if found != model.Recorded() else None

    def contents(self) -> dict[str, str]:
        """Return a description of the recording in words."""
        loss = self.loss or {}
        parts = {
            "configuration": ", ".join(f"{name} {value}" for name, value in self.config.items()),
            "versions": ", ".join(f"{name} {version}" for name, version in self.versions.items()),
            "loss": f"{loss['first']:.4g} to {loss['last']:.4g}" if {"first", "last"} <= set(loss) else "",
        }
        return {name: words for name, words in parts.items() if words}


class StepDocument(Struct, frozen=True):
    """The fields of both emitters; each writes its own subset."""

    profiler: str | None = field(name="_profiler", default=None)
    steps: int | None = None
    steps_profiled: int | None = None
    avg_step_ms: float | None = None
    wall_time_ms: float | None = None
    wall_coverage: float | None = None
    phases: dict[str, StepPhase] = {}
    per_layer: list[StepLayer] = []
    ops: dict[str, float] = {}
    bottleneck: str | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    samples_ms: list[float] = []
    peak_memory_bytes: float | None = None
    work: WorkKind = "training"  # what these profilers were made for
    stepgrade: RecorderHead | None = None


def recognises(source: ByteSource) -> bool:
    """Tell whether the source is one JSON object with a step profile's keys."""
    keys = source.json_keys or frozenset()
    return len(keys) <= _MOST_KEYS and bool(keys & _KEYS)


def read(source: ByteSource) -> Part:
    """Return the profile in a file that is nothing but its JSON."""
    return Part(profile=profile_from_json(source.document(), source.name))


def profile_from_json(text: bytes, name: str) -> Profile:
    """Return the profile in a JSON text from `name`; raise BadInput with the location of the problem."""
    return profile_of(decode_json(text, StepDocument), name)


def profile_of(document: StepDocument, file: str) -> Profile:
    """Return the profile in a decoded document; raise BadInput where a figure is invalid."""
    recorded = document.stepgrade or RecorderHead()
    steps = document.steps if document.steps is not None else document.steps_profiled
    if steps is not None and not 0 <= steps <= USIZE_MAX:
        where = "$.steps" if document.steps is not None else "$.steps_profiled"
        raise BadInput(f"must be a whole number from 0 to {USIZE_MAX}", where=where)
    step_ms = document.avg_step_ms
    if step_ms is None and document.wall_time_ms is not None and steps:
        step_ms = document.wall_time_ms / steps
    written_as = APR_PROFILER_V1 if document.steps_profiled is not None else STEP_PROFILER_V2
    if document.profiler in (STEP_PROFILER_V2, APR_PROFILER_V1):
        written_as = document.profiler
    # Our recorder borrows the format, not the runtime that it was made for.
    producer = RECORDER if document.stepgrade is not None else document.profiler
    profile = Profile(
        source=Source(format=written_as, files=(file,), producer=producer),
        work=document.work,
        steps=steps or None,
        mean_step_ms=step_ms or None,
        samples_ms=tuple(document.samples_ms),
        processor_samples_ms=tuple(recorded.processor_ms),
        wall_coverage=document.wall_coverage,
        phases=tuple(
            PhaseShare(
                name=name,
                ms=phase.avg_ms
                if phase.total_ms is None
                else per_step(f"phase {name!r}", phase.total_ms, steps),
                share=phase.pct / 100.0 if phase.pct is not None else None,
                average_ms=phase.avg_ms,
            )
            for name, phase in sorted(document.phases.items())
        ),
        layers=tuple(
            LayerStep(
                layer=layer.layer,
                name=layer.name,
                fwd_ms=per_step(f"layer {layer.layer}", layer.fwd_ms, steps),
                bwd_ms=per_step(f"layer {layer.layer}", layer.bwd_ms, steps),
                recompute_ms=per_step(f"layer {layer.layer}", layer.recompute_ms, steps),
                ops={
                    op: per_step(f"layer {layer.layer}, op {op!r}", ms, steps) for op, ms in layer.ops.items()
                },
            )
            for layer in document.per_layer
        ),
        operations=tuple(
            Operation(name=op, ms=per_step(f"op {op!r}", ms, steps))
            for op, ms in sorted(document.ops.items())
        ),
        tokens_per_step=document.tokens_per_step,
        samples_per_step=document.samples_per_step,
        claimed_bottleneck=document.bottleneck,
        peak_memory_bytes=document.peak_memory_bytes,
        recorded_steps=recorded.recorded_steps,
        world_size=recorded.world_size,
        rank=recorded.rank,
        # A CPU is not in the catalogue of devices.
        device=recorded.device.alone() if recorded.device and recorded.device.kind != "cpu" else None,
        machine=recorded.machine,
        recorded=recorded.circumstances(),
        contents=recorded.contents(),
        notes=(
            *(
                recorded.notes_coded[:_MOST_NOTES]
                or (Note("recorder", text) for text in recorded.notes[:_MOST_NOTES])
            ),
            *((Note("no_steps", "the profile has 0 steps"),) if steps == 0 else ()),
        ),
    )
    if recorded.sampled is None and not recorded.lines and recorded.counted is None:
        return profile
    from stepgrade.readers.recording import with_counted, with_lines, with_sampled  # only our recordings

    try:
        sampled = SampledSteps.from_stored(recorded.sampled) if recorded.sampled else None
    except ValidationError as error:
        raise BadJson(str(error), where="$.stepgrade.sampled") from error
    profile = with_lines(with_sampled(profile, sampled), recorded.lines)
    return profile if recorded.counted is None else with_counted(profile, recorded.counted)


_Total = TypeVar("_Total", float, float | None)


def per_step(where: str, total: _Total, steps: int | None) -> _Total:
    """Return a total per step, None if missing; raise BadInput if it is invalid. No steps count as one."""
    check_figure(where, total)
    return None if total is None else total / (steps or 1)


READER = Reader(
    name="step_profile",
    summary="step_profiler_v2 or apr_training_profiler_v1 JSON",
    recognises=recognises,
    read=read,
    rank_files=(".json",),
)

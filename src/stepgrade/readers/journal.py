"""Journals of our recorder, which survive a killed run: one JSON object per line."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field, structs

from stepgrade.decoding import from_json
from stepgrade.errors import BadInput
from stepgrade.memory import check, check_json
from stepgrade.model.activity import HostLine
from stepgrade.model.notes import Note
from stepgrade.model.profile import Machine
from stepgrade.model.sampled import SampledSteps
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.recording import with_lines, with_sampled
from stepgrade.readers.source import ByteSource
from stepgrade.readers.step_profile import RecorderHead, StepDocument, StepLayer, StepPhase, profile_of
from stepgrade.units import show_ms

_FIRST_KEY = b'{"_recording":'
_KNOWN_VERSION = 1
# What decoding a broken line raises.
_NO_LINE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
# Memory for each byte of a line while it is decoded, and for each sample, layer and phase that is kept.
_LINE_BYTES, _SAMPLE_BYTES, _PART_BYTES = 50, 100, 2000


class _Head(Struct, frozen=True):
    version: int = field(name="_recording")
    layers: list[str] = []
    flush_seconds: float | None = None
    tokens_per_step: float | None = None
    stepgrade: RecorderHead = RecorderHead()


class _Sums(Struct, frozen=True):
    steps: Annotated[int, Meta(ge=0, lt=2**53)]
    wall_ms: float
    tokens: float = 0
    rows: float = 0
    phases_ms: dict[str, float] = {}
    layers_ms: list[tuple[int, float, float, float]] = []
    samples_ms: list[float] = []
    every: int = 1  # one step in so many has a sample


class _Line(Struct, frozen=True):
    warmup: _Sums | None = None
    steady: _Sums | None = None
    recorded_steps: int | None = None
    loss: dict[str, float] | None = None
    sampled: dict[str, Any] | None = None
    lines: dict[str, tuple[HostLine, ...]] | None = None  # of all steps until then
    machine: Machine | None = None


def recognises(source: ByteSource) -> bool:
    """Tell whether the source starts with a journal's first line."""
    return source.head.startswith(_FIRST_KEY)


def read(source: ByteSource) -> Part:
    """Return the sum of all complete lines; a truncated line is left out with a note."""
    lines = source.lines()
    first = next(lines, b"")
    try:
        check_json(first, source.memory_bytes)
        head = from_json(first, _Head)
    except _NO_LINE as error:
        raise BadInput(f"the recording's first line is broken: {error}", where="line 1") from error
    if head.version != _KNOWN_VERSION:
        hint = "update stepgrade"
        raise BadInput(f"the recording has version {head.version}, which is newer", where="line 1", hint=hint)
    found = _Contents()
    for text in lines:
        found.add(text, source.memory_bytes)
    total = found.steady if found.steady.parts else found.warmup
    if not total.parts:
        raise BadInput("the recording contains no complete step", where=source.name)
    covered = sum(total.phases_ms.values()) / total.wall_ms if total.wall_ms else None
    document = StepDocument(
        steps=total.steps,
        avg_step_ms=total.per_step(total.wall_ms),
        samples_ms=total.samples_ms,
        wall_coverage=None if covered is None else min(1.0, covered),
        phases={phase: StepPhase(total_ms=ms) for phase, ms in total.phases_ms.items()},
        per_layer=[
            StepLayer(
                layer=layer,
                name=head.layers[layer] if 0 <= layer < len(head.layers) else None,
                fwd_ms=forward_ms,
                bwd_ms=backward_ms,
                recompute_ms=recompute_ms or None,
            )
            for layer, (forward_ms, backward_ms, recompute_ms) in sorted(total.layers_ms.items())
        ],
        tokens_per_step=head.tokens_per_step or total.per_step(total.tokens) or None,
        samples_per_step=total.per_step(total.rows) or None,
        stepgrade=structs.replace(
            head.stepgrade,
            recorded_steps=found.last.recorded_steps,
            loss=found.last.loss,
            sampled=None,
            lines={},
            machine=found.machine,
            notes_coded=found.notes(head.flush_seconds),
        ),
    )
    profile = with_sampled(profile_of(document, source.name), found.sampled)
    return Part(profile=profile if found.lines is None else with_lines(profile, found.lines))


class _Contents:
    """What the lines of a journal hold together."""

    def __init__(self) -> None:
        self.steady, self.warmup = _Total(), _Total()
        self.last = _Line()
        self.sampled: SampledSteps | None = None
        self.lines: dict[str, tuple[HostLine, ...]] | None = None
        self.machine: Machine | None = None
        self._torn = 0

    def add(self, text: bytes, memory_bytes: int) -> None:
        """Add a line; count it when it cannot be read."""
        check(len(text) * _LINE_BYTES, memory_bytes)
        try:
            line = from_json(text, _Line)
            sampled = SampledSteps.from_stored(line.sampled) if line.sampled else None
        except _NO_LINE:
            self._torn += 1
            return
        self.last = line
        self.sampled = sampled or self.sampled
        self.machine = line.machine or self.machine
        self.lines = self.lines if self.last.lines is None else self.last.lines
        for total, sums in ((self.steady, self.last.steady), (self.warmup, self.last.warmup)):
            if sums is not None:
                total.add(sums)
                check(total.memory_bytes, memory_bytes)

    def notes(self, flush_seconds: float | None) -> list[Note]:
        """Return notes on a run that did not finish."""
        lost = "" if flush_seconds is None else f", at most {show_ms(flush_seconds * 1e3)} before it ended"
        unended = f"the recording was not finished: this is its last written state{lost}"
        slower = "only warm-up steps were recorded: they may be slower than the run"
        torn = f"unreadable lines of the recording, left out: {self._torn}"
        possible = (
            (True, Note("not_ended", unended)),
            (not self.steady.parts, Note("warm_up_only", slower)),
            (self._torn, Note("torn", torn)),
        )
        return [note for applies, note in possible if applies]


class _Total:
    """The sum of the lines so far."""

    def __init__(self) -> None:
        self.parts = self.steps = 0
        self.wall_ms = self.tokens = self.rows = 0.0
        self.phases_ms: dict[str, float] = {}
        self.layers_ms: dict[int, tuple[float, float, float]] = {}
        self._samples: list[tuple[int, list[float]]] = []
        self._sample_count = 0

    @property
    def samples_ms(self) -> list[float]:
        """Return the samples of all lines, as many steps apart as in the line with the fewest."""
        most = max((every for every, _ in self._samples), default=1)
        kept, due, step = [], 0, 0
        for every, samples in self._samples:
            for sample in samples:
                if step >= due:
                    kept.append(sample)
                    due += most
                step += every
        return kept

    @property
    def memory_bytes(self) -> int:
        """Return an upper bound of the memory used until the result is written."""
        parts = len(self.phases_ms) + len(self.layers_ms)
        return self._sample_count * _SAMPLE_BYTES + parts * _PART_BYTES

    def per_step(self, total: float) -> float | None:
        """Return a sum as the mean of a step; None without a step."""
        return total / self.steps if self.steps else None

    def add(self, part: _Sums) -> None:
        """Add the sums of one line."""
        self.parts += 1
        self.steps += part.steps
        self.wall_ms += part.wall_ms
        self.tokens += part.tokens
        self.rows += part.rows
        self._samples.append((max(1, part.every), part.samples_ms))
        self._sample_count += len(part.samples_ms)
        for name, spent_ms in part.phases_ms.items():
            self.phases_ms[name] = self.phases_ms.get(name, 0.0) + spent_ms
        for layer, forward_ms, backward_ms, recompute_ms in part.layers_ms:
            before = self.layers_ms.get(layer, (0.0, 0.0, 0.0))
            own = forward_ms, backward_ms, recompute_ms
            self.layers_ms[layer] = before[0] + own[0], before[1] + own[1], before[2] + own[2]


READER = Reader(
    name="journal",
    summary="the journal of stepgrade's recorder, of a run that was killed or still runs",
    recognises=recognises,
    read=read,
    rank_files=(".json",),
)

"""Journals of our recorder: what is left of a run that was killed, one JSON object per line."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from stepgrade.errors import BadInput
from stepgrade.model import RECORDER, LayerTime, PhaseTime, Profile, Source
from stepgrade.model.notes import Note
from stepgrade.model.profile import STEP_PROFILER_V2
from stepgrade.readers.base import Reader
from stepgrade.readers.source import ByteSource
from stepgrade.readers.step_profile import RecorderHead, circumstances_of, contents_of, device_of
from stepgrade.units import show_ms

_FIRST_KEY = b'{"_recording":'
_KNOWN_VERSION = 1


class _Head(Struct, frozen=True):
    version: int = field(name="_recording")
    layers: list[str] = []
    flush_seconds: float | None = None
    tokens_per_step: float | None = None
    stepgrade: RecorderHead = RecorderHead()


class _Sums(Struct, frozen=True):
    steps: int
    wall_ms: float
    tokens: float = 0
    phases_ms: dict[str, float] = {}
    layers_ms: list[tuple[int, float, float, float]] = []
    samples_ms: list[float] = []
    every: int = 1  # step in so many has a sample


class _Line(Struct, frozen=True):
    warmup: _Sums | None = None
    steady: _Sums | None = None
    recorded_steps: int | None = None
    loss: dict[str, float] | None = None


def recognises(source: ByteSource) -> bool:
    """Tell whether the source starts with a journal's first line."""
    return source.head.startswith(_FIRST_KEY)


def read(source: ByteSource) -> Profile:
    """Return the sum of all whole lines; a line that was cut off is left out with a note."""
    first, *rest = source.document().splitlines()
    try:
        head = msgspec.json.decode(first, type=_Head)
    except msgspec.DecodeError as error:
        raise BadInput(f"the recording's first line is broken: {error}", where="line 1") from error
    if head.version != _KNOWN_VERSION:
        hint = "update stepgrade"
        raise BadInput(f"the recording has version {head.version}, which is newer", where="line 1", hint=hint)
    lines, torn = [], 0
    for text in rest:
        try:
            lines.append(msgspec.json.decode(text, type=_Line))
        except msgspec.DecodeError:
            torn += 1
    steady = [line.steady for line in lines if line.steady is not None]
    sums = steady or [line.warmup for line in lines if line.warmup is not None]
    if not sums:
        raise BadInput("the recording holds no whole step", where=source.name)
    lost = (
        "" if head.flush_seconds is None else f", at most {show_ms(head.flush_seconds * 1e3)} before it ended"
    )
    text = f"the recording was not ended: this is what it held when it was last written{lost}"
    notes = [Note("not_ended", text)]
    if not steady:
        slower = "only warm-up steps were recorded: they may be slower than the run is"
        notes.append(Note("warm_up_only", slower))
    if torn:
        notes.append(Note("torn", f"lines of the recording that cannot be read and are left out: {torn}"))
    total, last = _sum(sums), lines[-1]
    covered = sum(total.phases_ms.values()) / total.wall_ms if total.wall_ms else None
    return Profile(
        source=Source(format=STEP_PROFILER_V2, files=(source.name,), producer=RECORDER),
        work="training",  # it records optimizer steps
        steps=total.steps,
        mean_step_ms=total.wall_ms / total.steps if total.steps else None,
        samples_ms=tuple(total.samples_ms),
        wall_coverage=None if covered is None else min(1.0, covered),
        phases=tuple(PhaseTime(name=phase, total_ms=ms) for phase, ms in sorted(total.phases_ms.items())),
        layers=tuple(
            LayerTime(
                layer=layer,
                name=head.layers[layer] if 0 <= layer < len(head.layers) else None,
                fwd_total_ms=forward_ms,
                bwd_total_ms=backward_ms,
                recompute_total_ms=recompute_ms or None,
            )
            for layer, forward_ms, backward_ms, recompute_ms in total.layers_ms
        ),
        tokens_per_step=head.tokens_per_step or (total.tokens / total.steps if total.tokens else None),
        recorded_steps=last.recorded_steps,
        world_size=head.stepgrade.world_size,
        device=device_of(head.stepgrade.device),
        recorded=circumstances_of(head.stepgrade),
        contents=contents_of(msgspec.structs.replace(head.stepgrade, loss=last.loss)),
        notes=tuple(notes),
    )


def _sum(parts: list[_Sums]) -> _Sums:
    phases: dict[str, float] = {}
    layers: dict[int, tuple[float, float, float]] = {}
    for part in parts:
        for name, spent_ms in part.phases_ms.items():
            phases[name] = phases.get(name, 0.0) + spent_ms
        for layer, forward_ms, backward_ms, recompute_ms in part.layers_ms:
            before = layers.get(layer, (0.0, 0.0, 0.0))
            layers[layer] = (before[0] + forward_ms, before[1] + backward_ms, before[2] + recompute_ms)
    every = max(1, *(part.every for part in parts))
    return _Sums(
        steps=sum(part.steps for part in parts),
        wall_ms=sum(part.wall_ms for part in parts),
        tokens=sum(part.tokens for part in parts),
        phases_ms=phases,
        layers_ms=[(layer, *times) for layer, times in sorted(layers.items())],
        samples_ms=[sample for part in parts for sample in part.samples_ms[:: every // max(1, part.every)]],
    )


READER = Reader(
    name="journal",
    summary="the journal of stepgrade's recorder, of a run that was killed or still runs",
    recognises=recognises,
    read=read,
)

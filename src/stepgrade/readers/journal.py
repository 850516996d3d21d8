"""Journals of our recorder: what is left of a run that was killed, one JSON object per line."""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from stepgrade.errors import BadInput
from stepgrade.model import RECORDER, LayerTime, PhaseTime, Profile, Source
from stepgrade.model.notes import Note
from stepgrade.readers.content import Content
from stepgrade.readers.step_profile import Recorded, circumstances_of, contents_of, device_of

NAME = "journal"
SUMMARY = "the journal of stepgrade's recorder, of a run that was killed or still runs"

_FIRST_KEY = b'{"_recording":'
_KNOWN_VERSION = 1


class _Head(Struct, frozen=True):
    version: int = field(name="_recording")
    layers: list[str] = []
    tokens_per_step: float | None = None
    stepgrade: Recorded = Recorded()


class _Sums(Struct, frozen=True):
    steps: int
    wall_ms: float
    tokens: float = 0
    phases_ms: dict[str, float] = {}
    layers_ms: list[tuple[int, float, float, float]] = []
    samples_ms: list[float] = []


class _Line(Struct, frozen=True):
    warmup: _Sums | None = None
    steady: _Sums | None = None
    recorded_steps: int | None = None
    loss: dict[str, float] | None = None


def recognises(content: Content) -> bool:
    """Tell whether the source starts with a journal's first line."""
    return content.head.startswith(_FIRST_KEY)


def read(content: Content) -> Profile:
    """Return the sum of all whole lines; a line that was cut off is left out with a note."""
    first, *rest = content.document().splitlines()
    head = _decoded_head(first)
    lines, torn = _decoded_lines(rest)
    steady = [line.steady for line in lines if line.steady is not None]
    sums = steady or [line.warmup for line in lines if line.warmup is not None]
    if not sums:
        raise BadInput("the recording holds no whole step", where=content.name)
    notes = [Note("not_ended", "the recording was not ended: this is what it held when it was last written")]
    if not steady:
        text = "only warm-up steps were recorded: they may be slower than the run is"
        notes.append(Note("warm_up_only", text))
    if torn:
        notes.append(Note("torn", f"{torn} lines of the recording can not be read and are left out"))
    return _profile(content.name, head, lines, _added(sums), tuple(notes))


def _decoded_head(text: bytes) -> _Head:
    try:
        head = msgspec.json.decode(text, type=_Head)
    except msgspec.DecodeError as error:
        raise BadInput(f"the recording's first line is broken: {error}", where="line 1") from error
    if head.version != _KNOWN_VERSION:
        hint = "update stepgrade"
        raise BadInput(f"the recording has version {head.version}, which is newer", where="line 1", hint=hint)
    return head


def _decoded_lines(texts: list[bytes]) -> tuple[list[_Line], int]:
    lines, torn = [], 0
    for text in texts:
        try:
            lines.append(msgspec.json.decode(text, type=_Line))
        except msgspec.DecodeError:
            torn += 1
    return lines, torn


def _added(parts: list[_Sums]) -> _Sums:
    phases: dict[str, float] = {}
    layers: dict[int, tuple[float, float, float]] = {}
    for part in parts:
        for name, spent_ms in part.phases_ms.items():
            phases[name] = phases.get(name, 0.0) + spent_ms
        for layer, forward, backward, again in part.layers_ms:
            before = layers.get(layer, (0.0, 0.0, 0.0))
            layers[layer] = (before[0] + forward, before[1] + backward, before[2] + again)
    return _Sums(
        steps=sum(part.steps for part in parts),
        wall_ms=sum(part.wall_ms for part in parts),
        tokens=sum(part.tokens for part in parts),
        phases_ms=phases,
        layers_ms=[(layer, *times) for layer, times in sorted(layers.items())],
        samples_ms=[sample for part in parts for sample in part.samples_ms],
    )


def _profile(name: str, head: _Head, lines: list[_Line], sums: _Sums, notes: tuple[Note, ...]) -> Profile:
    covered = sum(sums.phases_ms.values()) / sums.wall_ms if sums.wall_ms else None
    return Profile(
        source=Source(format="step_profiler_v2", files=(name,), producer=RECORDER),
        steps=sums.steps,
        mean_step_ms=sums.wall_ms / sums.steps if sums.steps else None,
        samples_ms=tuple(sums.samples_ms),
        wall_coverage=None if covered is None else min(1.0, covered),
        phases=tuple(PhaseTime(name=phase, total_ms=ms) for phase, ms in sorted(sums.phases_ms.items())),
        layers=tuple(_layer(row, head.layers) for row in sums.layers_ms),
        tokens_per_step=head.tokens_per_step or (sums.tokens / sums.steps if sums.tokens else None),
        recorded_steps=lines[-1].recorded_steps,
        world_size=head.stepgrade.world_size,
        device=device_of(head.stepgrade.device),
        recorded=circumstances_of(head.stepgrade),
        contents=contents_of(msgspec.structs.replace(head.stepgrade, loss=lines[-1].loss)),
        notes=notes,
    )


def _layer(row: tuple[int, float, float, float], names: list[str]) -> LayerTime:
    layer, forward, backward, again = row
    return LayerTime(
        layer=layer,
        name=names[layer] if 0 <= layer < len(names) else None,
        fwd_total_ms=forward,
        bwd_total_ms=backward,
        recompute_total_ms=again or None,
    )

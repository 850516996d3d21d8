"""Scorecards written by stepgrade or by the reference, read back as a baseline."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.contract.decode import decode_json
from stepgrade.model import Baseline, Fingerprint, Ledger
from stepgrade.readers.content import Content

_KEYS = {"grade", "efficiency", "bottleneck"}


class _Device(Struct, frozen=True):
    key: str | None = None


class _Phase(Struct, frozen=True):
    ms: float | None = None
    samples_ms: tuple[float, ...] = ()


class _Steps(Struct, frozen=True):
    samples_ms: tuple[float, ...] = ()


class _Operation(Struct, frozen=True):
    name: str
    ms: float | None = None
    calls: float | None = None
    samples_ms: tuple[float, ...] = ()


class _Layer(Struct, frozen=True):
    layer: int
    name: str | None = None
    fwd_ms: float | None = None
    bwd_ms: float | None = None
    recompute_ms: float | None = None

    @property
    def title(self) -> str:
        return self.name or f"layer {self.layer}"

    @property
    def ms(self) -> float:
        return (self.fwd_ms or 0.0) + (self.bwd_ms or 0.0) + (self.recompute_ms or 0.0)


class _Throughput(Struct, frozen=True):
    tokens_per_step: float | None = None


class _Card(Struct, frozen=True):
    throughput_tok_s: float | None = None
    step_time_ms: float | None = None
    wall_coverage: float | None = None
    device: _Device | None = None
    ledger: Ledger | None = None
    phases: dict[str, _Phase] = {}
    steps: _Steps | None = None
    throughput: _Throughput | None = None
    operations: tuple[_Operation, ...] = ()
    layers: tuple[_Layer, ...] = ()
    launches_per_step: float | None = None
    peak_memory_bytes: float | None = None
    fingerprint: Fingerprint | None = None


def recognises(content: Content) -> bool:
    """Tell whether the source is one JSON object with a scorecard's keys."""
    return (content.json_keys or frozenset()) >= _KEYS


def read_baseline(content: Content) -> Baseline:
    """Return what the scorecard's run reached."""
    card = decode_json(content.document(), _Card)
    return Baseline(
        name=content.name,
        throughput_tok_s=card.throughput_tok_s or None,
        step_ms=card.step_time_ms or None,
        wall_coverage=card.wall_coverage or None,
        device=card.device.key if card.device else None,
        ledger=card.ledger,
        phases_ms={name: phase.ms for name, phase in card.phases.items() if phase.ms},
        samples_ms=card.steps.samples_ms if card.steps else (),
        operations_ms={op.name: op.ms for op in card.operations if op.ms},
        operation_calls={op.name: op.calls for op in card.operations if op.calls},
        operation_samples_ms={op.name: op.samples_ms for op in card.operations if op.samples_ms},
        phase_samples_ms={name: phase.samples_ms for name, phase in card.phases.items() if phase.samples_ms},
        layers_ms={layer.title: layer.ms for layer in card.layers if layer.ms},
        launches_per_step=card.launches_per_step,
        peak_memory_bytes=card.peak_memory_bytes,
        tokens_per_step=card.throughput.tokens_per_step if card.throughput else None,
        fingerprint=card.fingerprint,
    )

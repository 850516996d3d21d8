"""Scorecards written by stepgrade or by the reference, read back as a baseline."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.contract.decode import decode_json
from stepgrade.model import Baseline
from stepgrade.readers.content import Content

_KEYS = {"grade", "efficiency", "bottleneck"}


class _Device(Struct, frozen=True):
    key: str | None = None


class _Phase(Struct, frozen=True):
    ms: float | None = None


class _Card(Struct, frozen=True):
    throughput_tok_s: float | None = None
    step_time_ms: float | None = None
    wall_coverage: float | None = None
    device: _Device | None = None
    ledger: dict[str, float | None] | None = None
    phases: dict[str, _Phase] = {}


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
        ledger=card.ledger or {},
        phases_ms={name: phase.ms for name, phase in card.phases.items() if phase.ms},
    )

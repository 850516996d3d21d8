"""What a training run is, once a reader has understood its file.

Durations that were added up or averaged are milliseconds in floats, the contract's unit; they are
*totals over the profiled steps* where the name says so. What the source did not say is None.
"""

from __future__ import annotations

import math

from msgspec import Struct

from stepgrade.errors import BadInput


class Source(Struct, frozen=True, kw_only=True):
    """Where a profile came from."""

    format: str
    files: tuple[str, ...]
    producer: str | None = None


class PhaseTime(Struct, frozen=True, kw_only=True):
    """One named part of a step; `per_step_ms` is what the producer itself averaged."""

    name: str
    total_ms: float
    per_step_ms: float | None = None


class LayerTime(Struct, frozen=True, kw_only=True):
    """One layer of the model, in totals over the profiled steps."""

    layer: int
    fwd_total_ms: float
    bwd_total_ms: float
    ops_total_ms: dict[str, float] = {}


class OpTime(Struct, frozen=True, kw_only=True):
    """One operation, in totals over the profiled steps."""

    name: str
    total_ms: float
    calls: int | None = None


class Profile(Struct, frozen=True, kw_only=True):
    """One run: its steps, and where their time went."""

    source: Source
    steps: int | None = None
    step_ms: float | None = None
    wall_coverage: float | None = None
    phases: tuple[PhaseTime, ...] = ()
    layers: tuple[LayerTime, ...] = ()
    operations: tuple[OpTime, ...] = ()
    runtime: str | None = None
    throughput_tok_s: float | None = None
    tokens_per_step: int | None = None
    launches_per_step: float | None = None
    claimed_bottleneck: str | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for place, value in self._durations():
            if not (math.isfinite(value) and value >= 0.0):
                raise BadInput(f"a time must be a finite number, 0 or more, not {value:g}", where=place)

    def _durations(self) -> list[tuple[str, float]]:
        """Return every time in the profile with the name it has for people."""
        known = [("step time", self.step_ms), ("wall coverage", self.wall_coverage)]
        known += [(f"phase {phase.name}", phase.total_ms) for phase in self.phases]
        known += [(f"phase {phase.name}", phase.per_step_ms) for phase in self.phases]
        for layer in self.layers:
            place = f"layer {layer.layer}"
            known += [(f"{place} forward", layer.fwd_total_ms), (f"{place} backward", layer.bwd_total_ms)]
            known += [(f"{place} op {name}", ms) for name, ms in layer.ops_total_ms.items()]
        known += [(f"op {op.name}", op.total_ms) for op in self.operations]
        return [(place, value) for place, value in known if value is not None]

    @property
    def is_empty(self) -> bool:
        """Tell whether the source measured nothing that could be shown."""
        return self.step_ms is None and not (self.phases or self.layers or self.operations)

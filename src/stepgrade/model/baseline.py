"""What a later run is compared with, out of a scorecard."""

from __future__ import annotations

from msgspec.structs import asdict

from stepgrade.model import Baseline
from stepgrade.model.scorecard import Scorecard


def baseline_of(card: Scorecard) -> Baseline:
    """Return what a later run is compared with."""
    return Baseline(
        name=", ".join(card.source.files),
        throughput_tok_s=card.throughput_tok_s,
        step_ms=card.step_time_ms,
        wall_coverage=card.wall_coverage,
        device=card.device.key if card.device else None,
        ledger=asdict(card.ledger) if card.ledger else {},
        phases_ms={name: phase.ms for name, phase in card.phases.items() if phase.ms},
        samples_ms=card.steps.samples_ms if card.steps else (),
        operations_ms={op.name: op.ms for op in card.operations if op.ms},
        operation_calls={op.name: op.calls for op in card.operations if op.calls},
        operation_samples_ms={op.name: op.samples_ms for op in card.operations if op.samples_ms},
        phase_samples_ms={name: phase.samples_ms for name, phase in card.phases.items() if phase.samples_ms},
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

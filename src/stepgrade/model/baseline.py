"""An earlier run, as far as a later one is compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from stepgrade.model.fingerprint import Fingerprint
from stepgrade.model.ledger import Ledger
from stepgrade.model.profile import check_figure

if TYPE_CHECKING:
    from stepgrade.model.scorecard import Scorecard


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
        """Return what later runs are compared with; `name` is by default the names of the card's files."""
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

"""Small step profiles and Profiles; a test says only what it is about."""

from __future__ import annotations

import json
from typing import Any

from stepgrade.model import LayerStep, Operation, PhaseShare, Profile, Source

SOURCE = Source(format="step_profiler_v2", files=("run.json",), producer="step_profiler_v2")


def make_phase(per_step_ms: float, *, step_ms: float = 100.0, steps: int = 10) -> dict[str, float]:
    """Return a phase as the emitters write it."""
    return {"total_ms": per_step_ms * steps, "pct": per_step_ms / step_ms * 100.0, "avg_ms": per_step_ms}


def make_step_profile(*, steps: int = 10, step_ms: float = 100.0, **fields: Any) -> str:
    """Return step_profiler_v2 JSON: ten steps of 100 ms, well covered, with two layers and two ops."""
    phases = {"forward": make_phase(35.0, steps=steps), "blk_bwd": make_phase(60.0, steps=steps)}
    document = {
        "_profiler": "step_profiler_v2",
        "steps": steps,
        "avg_step_ms": step_ms,
        "wall_coverage": 0.95,
        "phases": phases,
        "per_layer": [{"layer": n, "fwd_ms": 170.0, "bwd_ms": 300.0} for n in range(2)],
        "ops": {"gemm": 300.0, "attention": 100.0},
    }
    return json.dumps({key: value for key, value in (document | fields).items() if value is not ...})


def make_profile(**fields: Any) -> Profile:
    """Return a Profile of ten steps of 100 ms in which forward and backward fill 95 %."""
    phases = (
        PhaseShare(name="forward", ms=35.0),
        PhaseShare(name="blk_bwd", ms=60.0),
    )
    defaults: dict[str, Any] = {"source": SOURCE, "steps": 10, "mean_step_ms": 100.0, "phases": phases}
    return Profile(**(defaults | fields))


def make_phases(**per_step_ms: float) -> tuple[PhaseShare, ...]:
    """Return phases by name and milliseconds per step."""
    return tuple(PhaseShare(name=name, ms=ms) for name, ms in per_step_ms.items())


def make_layers(*forward_backward_ms: tuple[float, float]) -> tuple[LayerStep, ...]:
    """Return layers by their forward and backward milliseconds over ten steps."""
    return tuple(
        LayerStep(layer=n, fwd_ms=forward / 10, bwd_ms=backward / 10)
        for n, (forward, backward) in enumerate(forward_backward_ms)
    )


def make_ops(**total_ms: float) -> tuple[Operation, ...]:
    """Return operations by name and milliseconds over ten steps."""
    return tuple(Operation(name=name, ms=ms / 10) for name, ms in total_ms.items())

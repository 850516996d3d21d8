"""A profile as step_profiler_v2 JSON, which contract v1 and the emitters' own tools read."""

from __future__ import annotations

import msgspec

from stepgrade.loading import profile_given
from stepgrade.model import Profile
from stepgrade.readers.source import PathLike
from stepgrade.report.names import json_text

PROFILER = "step_profiler_v2"


def convert(profile: Profile | PathLike) -> str:
    """Return a profile or its file as JSON; unknown values are omitted, never 0."""
    profile = profile_given(profile)
    layers: list[dict[str, object]] = [
        {
            "layer": layer.layer,
            "fwd_ms": profile.total(layer.fwd_ms or 0.0),
            "bwd_ms": profile.total(layer.bwd_ms or 0.0),
        }
        | ({"ops": {name: profile.total(ms) for name, ms in layer.ops.items()}} if layer.ops else {})
        for layer in profile.layers
    ]
    phases = {}
    for phase in profile.phases:  # the three figures of contract v1, worked out from one another
        ms, step_ms = phase.ms or 0.0, profile.mean_step_ms
        average_ms = ms if phase.average_ms is None else phase.average_ms
        share = phase.share if phase.share is not None else average_ms / step_ms if step_ms else 0.0
        phases[phase.name] = {"total_ms": profile.total(ms), "pct": share * 100.0, "avg_ms": average_ms}
    document = {
        "_profiler": PROFILER,
        "work": profile.work,
        "steps": profile.steps,
        "avg_step_ms": profile.mean_step_ms,
        "wall_coverage": profile.wall_coverage,
        "bottleneck": profile.claimed_bottleneck,
        "tokens_per_step": profile.tokens_per_step,
        "phases": phases,
        "per_layer": layers,
        # Those that the layers do not list already.
        "ops": {op.name: profile.total(op.ms or 0.0) for op in profile.operations},
        "samples_ms": list(profile.samples_ms),
        "peak_memory_bytes": profile.peak_memory_bytes,
    }
    known = {key: value for key, value in document.items() if value not in (None, [])}
    return json_text(msgspec.json.encode(known).decode()) + "\n"

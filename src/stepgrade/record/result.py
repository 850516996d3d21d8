"""What a recording says at the end: the step profile as JSON, and the same as a Profile."""

from __future__ import annotations

from typing import Any

from stepgrade import grading
from stepgrade.hardware.setup import Setup
from stepgrade.model import RECORDER, DeviceSeen, LayerTime, Note, OpTime, PhaseTime, Profile, Source
from stepgrade.model.circumstances import circumstances
from stepgrade.model.scorecard import Scorecard
from stepgrade.record.about import peak_memory_bytes
from stepgrade.record.codes import GAPS
from stepgrade.record.journal import JOURNAL_VERSION
from stepgrade.record.recording import Recording
from stepgrade.record.totals import Totals
from stepgrade.scoring.efficiency import ScoreOptions
from stepgrade.scoring.target import target_for

PROFILER = "step_profiler_v2"
_LEAST_GAP_SHARE = 0.005


def totals_line(totals: Totals, recording: Recording) -> dict[str, Any]:
    """Return sums over steps in milliseconds: a line of the journal, and part of the final JSON."""
    names = recording.phase_names()
    return {
        "steps": totals.steps,
        "wall_ms": totals.wall_ns / 1e6,
        "tokens": totals.tokens,
        "phases_ms": {names[code]: spent_ns / 1e6 for code, spent_ns in sorted(totals.phases_ns.items())},
        "layers_ms": [
            [layer, *(part.get(layer, 0) / 1e6 for part in _layer_parts(totals))] for layer in _layers(totals)
        ],
        "samples_ms": [round(wall_ns / 1e6, 4) for wall_ns in totals.samples.kept_ns],
    }


def journal_head(recording: Recording, head: dict[str, Any], tokens_per_step: float | None) -> dict[str, Any]:
    """Return the first line of a journal: what the run is, so that the lines after it can be read alone."""
    about = {
        "_recording": JOURNAL_VERSION,
        "layers": recording.layer_names,
        "tokens_per_step": tokens_per_step,
    }
    return about | {"stepgrade": with_autocast(head, recording)}


def with_autocast(head: dict[str, Any], recording: Recording) -> dict[str, Any]:
    """Add the precision of autocast, which is known only once the model was called."""
    if recording.autocast is None:
        return head
    return head | {"config": head["config"] | {"autocast": recording.autocast}}


def document_of(
    totals: Totals, recording: Recording, head: dict[str, Any], tokens_per_step: float | None
) -> dict[str, Any]:
    """Return the step profile: step_profiler_v2's fields, then ours; all times but averages are totals."""
    steps, wall_ms = totals.steps, totals.wall_ns / 1e6
    line = totals_line(totals, recording)
    phases_ms = _worth_a_line(line["phases_ms"], wall_ms)
    tokens = tokens_per_step or (totals.tokens / steps if totals.tokens else None)
    document = {
        "_profiler": PROFILER,
        "steps": steps,
        "avg_step_ms": wall_ms / steps,
        "wall_coverage": min(1.0, sum(phases_ms.values()) / wall_ms),
        "bottleneck": None,
        "phases": {name: _phase(ms, steps, wall_ms) for name, ms in phases_ms.items()},
        "per_layer": [_layer(row, recording.layer_names) for row in line["layers_ms"]],
        "ops": {name: ms * steps for name, ms in _operations(recording).items()},
        "tokens_per_step": tokens,
        "samples_ms": line["samples_ms"],
        "peak_memory_bytes": peak_memory_bytes(head["device"]["kind"]),
        "stepgrade": with_autocast(head, recording)
        | {
            "recorded_steps": recording.ended,
            "clock": recording.clock.name,
            "loss": recording.loss.summary() or None,
            "sensors": recording.sensors.summary() if recording.sensors else None,
        },
    }
    return document if tokens is not None else {k: v for k, v in document.items() if k != "tokens_per_step"}


def notes_of(recording: Recording, totals: Totals, *, is_warm: bool) -> list[str]:
    """Return what a reader of the profile should know about how it was recorded."""
    told = {
        "only warm-up steps were recorded: they may be slower than the run is": is_warm,
        f"every {totals.samples.every}th step's time is kept": totals.samples.every > 1,
        f"{recording.interrupted} steps with an evaluation in them are left out": recording.interrupted,
        f"{recording.profiled} steps under torch.profiler are left out of the times": recording.profiled,
        f"{recording.lost} steps were lost: the device was too far behind": recording.lost,
        "times are those of the device's stream, taken with events": recording.clock.name != "host",
        "the model's forward was never seen: pass the module that the loop calls": not recording.saw_forward
        and recording.layer_names,
        "the blocks' forward was not seen, perhaps inside one torch.compile graph: compile the blocks one by "
        "one to have their times": recording.saw_forward and recording.layer_names and not totals.forward_ns,
    }
    return [note for note, applies in told.items() if applies]


def score_profile(profile: Profile, setup: dict[str, Any]) -> Scorecard:
    """Return the scorecard against the hardware in `setup`, or what the profile itself names."""
    target = target_for(profile, Setup(**setup))
    return grading.score_profile(profile, ScoreOptions(target=target))


def profile_of(document: dict[str, Any], name: str) -> Profile:
    """Return the document as a profile, as the reader would."""
    recorded = document["stepgrade"]
    device = recorded["device"]
    known = {key: device[key] for key in ("name", "memory_bytes", "sm_count") if key in device}
    return Profile(
        source=Source(format=PROFILER, files=(name,), producer=RECORDER),
        steps=document["steps"],
        mean_step_ms=document["avg_step_ms"],
        samples_ms=tuple(document["samples_ms"]),
        wall_coverage=document["wall_coverage"],
        phases=tuple(_phase_time(name, row) for name, row in sorted(document["phases"].items())),
        layers=tuple(_layer_time(row) for row in document["per_layer"]),
        operations=tuple(OpTime(name=op, total_ms=ms) for op, ms in sorted(document["ops"].items())),
        tokens_per_step=document.get("tokens_per_step"),
        recorded_steps=recorded["recorded_steps"],
        world_size=recorded["world_size"],
        device=DeviceSeen(**known) if device["kind"] != "cpu" else None,
        peak_memory_bytes=document.get("peak_memory_bytes"),
        recorded=circumstances(recorded["versions"], device, recorded["config"]),
        notes=tuple(Note("recorder", text) for text in recorded["notes"]),
    )


def _worth_a_line(phases_ms: dict[str, float], wall_ms: float) -> dict[str, float]:
    """Leave out gaps between phases that are next to nothing."""
    return {
        name: ms for name, ms in phases_ms.items() if name not in GAPS or ms >= _LEAST_GAP_SHARE * wall_ms
    }


def _phase(total_ms: float, steps: int, wall_ms: float) -> dict[str, float]:
    return {"total_ms": total_ms, "pct": 100.0 * total_ms / wall_ms, "avg_ms": total_ms / steps}


def _phase_time(name: str, row: dict[str, float]) -> PhaseTime:
    return PhaseTime(
        name=name, total_ms=row["total_ms"], per_step_ms=row["avg_ms"], step_share=row["pct"] / 100.0
    )


def _layers(totals: Totals) -> list[int]:
    return sorted(set().union(*_layer_parts(totals)))


def _layer_parts(totals: Totals) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    return totals.forward_ns, totals.backward_ns, totals.again_ns


def _layer(row: list[Any], names: list[str]) -> dict[str, Any]:
    layer, forward, backward, again = row
    known = {"layer": layer, "name": names[layer], "fwd_ms": forward, "bwd_ms": backward}
    return known | ({"recompute_ms": again} if again else {})


def _layer_time(row: dict[str, Any]) -> LayerTime:
    return LayerTime(
        layer=row["layer"],
        name=row["name"],
        fwd_total_ms=row["fwd_ms"],
        bwd_total_ms=row["bwd_ms"],
        recompute_total_ms=row.get("recompute_ms"),
    )


def _operations(recording: Recording) -> dict[str, float]:
    return recording.window.per_step_ms() if recording.window is not None else {}

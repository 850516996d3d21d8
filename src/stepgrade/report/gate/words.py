"""Figures of the gate as text, the same in every format."""

from __future__ import annotations

from stepgrade.analysis.change import MetricChange, Noise, Shift
from stepgrade.units import MISSING, show_bytes, show_count, show_delta, show_ms, show_rate, show_share

_NOISE = {
    "measured": "measured from history",
    "repeated": "measured from the repeated runs",
    "given": "as given",
    "assumed": "assumed: nobody measured it",
}


def show_metric(metric: str, value: float | None) -> str:
    """Return a metric's figure with its unit."""
    if value is None:
        return MISSING
    if metric == "throughput_tok_s":
        return show_rate(value)
    if metric == "peak_memory_bytes":
        return show_bytes(value)
    if metric in ("wall_coverage", "efficiency", "mfu"):
        return show_share(value)
    return show_count(round(value)) if metric == "launches_per_step" else show_ms(value)


def show_change(change: MetricChange) -> str:
    """Return the change with its interval."""
    if change.change is None or change.low is None or change.high is None:
        return MISSING
    return f"{show_delta(change.change)} ({show_delta(change.low)} to {show_delta(change.high)})"


def show_noise(noise: Noise | None) -> str:
    """Return how much identical runs differ, and how that is known."""
    return MISSING if noise is None else f"{show_share(noise.share)}, {_NOISE[noise.basis]}"


def show_shift(shift: Shift) -> str:
    """Return one shift as a line."""
    show = show_ms if shift.unit == "ms" else show_count
    if shift.before is None:
        return f"{shift.kind} {shift.name}: {show(shift.now)}"
    if shift.now is None:
        return f"{shift.kind} {shift.name}: was {show(shift.before)}"
    moved = shift.now - shift.before
    sign = "+" if moved >= 0 else "-"
    return f"{shift.kind} {shift.name}: {show(shift.before)} to {show(shift.now)} ({sign}{show(abs(moved))})"

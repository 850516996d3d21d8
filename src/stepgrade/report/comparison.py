"""Figures of a comparison as text, the same in every format."""

from __future__ import annotations

from stepgrade.model.comparison import MetricChange, Noise, Shift
from stepgrade.report.accounts import ACCOUNTS
from stepgrade.units import MISSING, show_bytes, show_count, show_delta, show_ms, show_rate, show_share

METRICS = {
    "step_time_ms": "step time",
    "throughput_tok_s": "throughput",
    "wall_coverage": "wall coverage",
    "launches_per_step": "launches per step",
    "peak_memory_bytes": "peak memory",
}
_NOISE = {
    "measured": "measured from history",
    "repeated": "measured from the repeated runs",
    "given": "as given",
    "assumed": "assumed: nobody measured it",
}
_KINDS = {"ledger": "device", "new operation": "operation", "gone operation": "operation"}


def show_metric(metric: str, value: float | None) -> str:
    """Return a metric's figure with its unit."""
    if value is None:
        return MISSING
    if metric == "throughput_tok_s":
        return show_rate(value)
    if metric == "peak_memory_bytes":
        return show_bytes(value)
    if metric in ("wall_coverage", "efficiency", "mfu", "hfu"):
        return show_share(value)
    return show_count(round(value)) if metric == "launches_per_step" else show_ms(value)


def show_change(change: MetricChange) -> str:
    """Return the change with its interval."""
    return f"{show_delta(change.change)} ({show_delta(change.low)} to {show_delta(change.high)})"


def show_noise(noise: Noise | None) -> str:
    """Return how much identical runs differ, and how that is known."""
    return MISSING if noise is None else f"{show_share(noise.share)}, {_NOISE[noise.basis]}"


def name_shift(shift: Shift) -> tuple[str, str]:
    """Return what kind of part changed, and its name."""
    name = ACCOUNTS.get(shift.name, shift.name) if shift.kind == "ledger" else shift.name
    return _KINDS.get(shift.kind, shift.kind), "per step" if shift.kind == "launches" else name


def name_part(kind: str, name: str) -> str:
    """Return a part with its kind, unless its name says that already."""
    return name if name.startswith(f"{kind} ") else f"{kind} {name}"


def shift_figures(shift: Shift) -> tuple[str, str, str]:
    """Return before, now and the change; what was not there before is new."""
    show = show_ms if shift.unit == "ms" else show_count
    if shift.before is None or shift.now is None:
        return show(shift.before), show(shift.now), "new" if shift.before is None else "gone"
    moved = shift.now - shift.before
    return show(shift.before), show(shift.now), f"{'+' if moved >= 0 else '-'}{show(abs(moved))}"


def show_shift(shift: Shift) -> str:
    """Return one shift as a sentence."""
    kind, name = name_shift(shift)
    before, now, moved = shift_figures(shift)
    if shift.before is None:
        return f"new {kind} {name}: {now}"
    if shift.now is None:
        return f"gone {kind} {name}: was {before}"
    return f"{kind} {name}: {before} to {now} ({moved})"

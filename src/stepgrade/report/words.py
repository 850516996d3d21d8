"""The words of the reports: what bottlenecks, roofs and grades are called for people."""

from __future__ import annotations

from stepgrade.units import MISSING

BOTTLENECKS = {
    "transfer": "Copies between host and device",
    "launch": "Launching work from the host",
    "compute": "Arithmetic",
    "memory_bw": "Memory bandwidth",
    "input": "Waiting for input",
    "communication": "Communication",
    "host": "Host work",
    "unknown": "Not known",
}
ROOFS = {"memory": "memory bandwidth", "compute": "arithmetic", "link": "the link"}
BASES = {"data_sheet": "data sheet", "measured": "measured", "given": "given"}
GRADE_MEANINGS = {
    "A": "close to what the hardware allows",
    "B": "good, with room left",
    "C": "well below what the hardware allows",
    "D": "far below what the hardware allows",
    "F": "most of the hardware is not used",
}


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def joined(*parts: str | None) -> str:
    """Return the known parts, with dots between."""
    return " · ".join(part for part in parts if part and part != MISSING)

"""What a run could reach: ceilings in tok/s, each with its basis and source."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.hardware.catalogue import Device
from stepgrade.units import BYTES_PER_GB

# Back-solved in the reference from one QLoRA run of a 1.5B model; not a constant of any device.
REFERENCE_BYTES_PER_TOKEN = 158_000_000.0
REFERENCE_DEVICES = ("rtx-4060-laptop", "gb10")


class Ceiling(Struct, frozen=True, kw_only=True):
    """One limit on throughput; the lowest of a run's ceilings counts."""

    kind: Literal["compute", "memory", "link"]
    tok_s: float
    basis: Literal["data_sheet", "measured", "given"]
    source: str
    convention: str


class MemoryFigures(Struct, frozen=True, kw_only=True):
    """What a memory ceiling is made of, from the catalogue or from the user."""

    device: Device | None = None
    peak_bw_gb_s: float | None = None
    bytes_per_token: float | None = None

    @property
    def bandwidth_gb_s(self) -> float | None:
        """Return the user's bandwidth, else the data sheet's."""
        if self.peak_bw_gb_s is not None:
            return self.peak_bw_gb_s
        return self.device.peak_bw_gb_s if self.device else None

    @property
    def traffic_bytes(self) -> float | None:
        """Return the user's bytes per token, else the reference's for its own two devices."""
        if self.bytes_per_token is not None:
            return self.bytes_per_token
        return REFERENCE_BYTES_PER_TOKEN if self.uses_reference_traffic else None

    @property
    def uses_reference_traffic(self) -> bool:
        """Tell whether the bytes per token are the reference's constant."""
        return (
            self.bytes_per_token is None and self.device is not None and self.device.key in REFERENCE_DEVICES
        )


def memory_ceiling(figures: MemoryFigures) -> Ceiling | None:
    """Return bandwidth over bytes per token, or None when either is not known."""
    bandwidth, traffic = figures.bandwidth_gb_s, figures.traffic_bytes
    if bandwidth is None or traffic is None:
        return None
    return Ceiling(
        kind="memory",
        tok_s=bandwidth * BYTES_PER_GB / traffic,
        basis="given" if figures.peak_bw_gb_s is not None else "data_sheet",
        source=_bandwidth_source(figures),
        convention=f"{bandwidth:g} GB/s over {_traffic(figures, traffic)}",
    )


def _bandwidth_source(figures: MemoryFigures) -> str:
    if figures.peak_bw_gb_s is not None or figures.device is None:
        return "given with --peak-bw"
    return f"{figures.device.name} data sheet: {figures.device.source}"


def _traffic(figures: MemoryFigures, traffic_bytes: float) -> str:
    origin = "the reference's constant" if figures.uses_reference_traffic else "given"
    return f"{traffic_bytes / 1e6:g} MB per token ({origin})"

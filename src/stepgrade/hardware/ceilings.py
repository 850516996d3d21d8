"""What a run could reach: ceilings in tok/s per device, each with its basis and source."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.measured import Measurement
from stepgrade.units import BYTES_PER_GB

# Back-solved in the reference from one QLoRA run of a 1.5B model; not a constant of any device.
REFERENCE_BYTES_PER_TOKEN = 158_000_000.0
REFERENCE_DEVICES = ("rtx-4060-laptop", "gb10")
FLOPS_PER_TFLOP = 1e12

Kind = Literal["compute", "memory", "link"]
Basis = Literal["data_sheet", "measured", "given"]


class Ceiling(Struct, frozen=True, kw_only=True):
    """One limit on throughput in tok/s per device; the lowest that is not `measured` counts."""

    kind: Kind
    tok_s: float
    basis: Basis
    source: str
    convention: str


class Rate(Struct, frozen=True, kw_only=True):
    """What the hardware does per second (bytes or FLOPs), and who says so."""

    per_s: float
    basis: Basis
    source: str


class Figures(Struct, frozen=True, kw_only=True):
    """What is known of the hardware: a device, what the user said of it, what was measured on it."""

    device: Device | None = None
    peak_bw_gb_s: float | None = None
    peak_tflops: float | None = None
    link_gb_s: float | None = None
    measured: Measurement | None = None

    def bandwidth(self) -> tuple[Rate, ...]:
        """Return the memory's rates in bytes/s: the data sheet's or the user's, then the measured."""
        sheet = self.device.peak_bw_gb_s if self.device else None
        rates = [self._stated(self.peak_bw_gb_s, sheet, BYTES_PER_GB, "GB/s", "--peak-bw")]
        if self.measured is not None and self.measured.bandwidth_gb_s is not None:
            best = self.measured.bandwidth_gb_s.best
            rates.append(_measured_rate(best * BYTES_PER_GB, f"{best:g} GB/s", self.measured))
        return tuple(rate for rate in rates if rate is not None)

    def compute(self, dtype: str) -> tuple[Rate, ...]:
        """Return the arithmetic rates in FLOP/s for one precision: stated, then achievable, measured."""
        sheet = self.device.peak_tflops.get(dtype) if self.device else None
        rates = [self._stated(self.peak_tflops, sheet, FLOPS_PER_TFLOP, f"TFLOP/s {dtype}", "--peak-tflops")]
        achievable = self.device.achievable_tflops.get(dtype) if self.device else None
        if achievable is not None and self.peak_tflops is None:
            rates.append(_achievable_rate(achievable, dtype))
        if self.measured is not None and dtype in self.measured.tflops:
            best = self.measured.tflops[dtype].best
            rates.append(_measured_rate(best * FLOPS_PER_TFLOP, f"{best:g} TFLOP/s {dtype}", self.measured))
        return tuple(rate for rate in rates if rate is not None)

    def link(self) -> tuple[Rate, ...]:
        """Return the link's rate in bytes/s, one direction."""
        sheet = self.device.link_gb_s if self.device else None
        rate = self._stated(self.link_gb_s, sheet, BYTES_PER_GB, "GB/s", "--link")
        return () if rate is None else (rate,)

    def _stated(
        self, given: float | None, sheet: float | None, unit: float, name: str, flag: str
    ) -> Rate | None:
        if given is not None:
            return Rate(per_s=given * unit, basis="given", source=f"{given:g} {name} given with {flag}")
        if sheet is None or self.device is None:
            return None
        source = f"{sheet:g} {name}, {self.device.name} ({self.device.source})"
        basis: Basis = "given" if self.device.is_by_hand else "data_sheet"
        return Rate(per_s=sheet * unit, basis=basis, source=source)


class Costs(Struct, frozen=True, kw_only=True):
    """What one token costs the device; None where it is not known. Texts say by which count."""

    flops: float | None = None
    flops_convention: str = ""
    bytes: float | None = None
    bytes_convention: str = ""
    link_bytes: float | None = None
    link_convention: str = ""


def ceilings(figures: Figures, costs: Costs, dtype: str) -> tuple[Ceiling, ...]:
    """Return every ceiling that figures and costs allow, in tok/s per device."""
    return (
        *_ceilings_of("compute", figures.compute(dtype), costs.flops, costs.flops_convention),
        *_ceilings_of("memory", figures.bandwidth(), costs.bytes, costs.bytes_convention),
        *_ceilings_of("link", figures.link(), costs.link_bytes, costs.link_convention),
    )


def lowest(limits: tuple[Ceiling, ...]) -> Ceiling | None:
    """Return the ceiling that a run is graded against: the lowest that is stated, not measured."""
    stated = [limit for limit in limits if limit.basis != "measured"]
    return min(stated or limits, key=lambda limit: limit.tok_s, default=None)


def lowest_achievable(limits: tuple[Ceiling, ...]) -> Ceiling | None:
    """Return the lowest ceiling when measured rates replace the data sheet's; None without any."""
    measured = {limit.kind: limit for limit in limits if limit.basis == "measured"}
    if not measured:
        return None
    kinds = {limit.kind: measured.get(limit.kind, limit) for limit in limits}
    return min(kinds.values(), key=lambda limit: limit.tok_s)


def reference_bytes_per_token(device: Device | None) -> float | None:
    """Return the reference's constant for its own two devices, None for all others."""
    return REFERENCE_BYTES_PER_TOKEN if device is not None and device.key in REFERENCE_DEVICES else None


def _ceilings_of(kind: Kind, rates: tuple[Rate, ...], cost: float | None, convention: str) -> list[Ceiling]:
    if cost is None or cost <= 0:
        return []
    return [
        Ceiling(
            kind=kind, tok_s=rate.per_s / cost, basis=rate.basis, source=rate.source, convention=convention
        )
        for rate in rates
    ]


def _achievable_rate(tflops: float, dtype: str) -> Rate:
    source = f"{tflops:g} TFLOP/s {dtype}, the best matmul that was measured on this kind of device"
    return Rate(per_s=tflops * FLOPS_PER_TFLOP, basis="measured", source=source)


def _measured_rate(per_s: float, shown: str, measured: Measurement) -> Rate:
    source = f"{shown}, measured here on {measured.date[:10]} ({measured.method})"
    return Rate(per_s=per_s, basis="measured", source=source)


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
        return reference_bytes_per_token(self.device)

    @property
    def uses_reference_traffic(self) -> bool:
        """Tell whether the bytes per token are the reference's constant."""
        return self.bytes_per_token is None and self.traffic_bytes is not None


def memory_ceiling(figures: MemoryFigures) -> Ceiling | None:
    """Return bandwidth over bytes per token, or None when either is not known."""
    traffic = figures.traffic_bytes
    if traffic is None:
        return None
    origin = "the reference's constant" if figures.uses_reference_traffic else "given"
    costs = Costs(bytes=traffic, bytes_convention=f"{traffic / 1e6:g} MB per token, {origin}")
    known = Figures(device=figures.device, peak_bw_gb_s=figures.peak_bw_gb_s)
    return next(iter(ceilings(known, costs, "")), None)

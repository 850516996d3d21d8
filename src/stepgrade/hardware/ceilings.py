"""What a run could reach: ceilings in tok/s per device, each with its basis and source."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.measured import Measurement
from stepgrade.model.ceiling import Basis, Ceiling, Kind
from stepgrade.units import BYTES_PER_GB

# Back-solved in the reference from one QLoRA run of a 1.5B model; not a constant of any device.
REFERENCE_BYTES_PER_TOKEN = 158_000_000.0
REFERENCE_DEVICES = ("rtx-4060-laptop", "gb10")
FLOPS_PER_TFLOP = 1e12

_SMALLER = {"T": "G", "G": "M"}


class Unit(NamedTuple):
    """A unit of rate: its name, how many base units it is, and the flag that gives it."""

    name: str
    size: float
    flag: str = ""


class Rate(Struct, frozen=True, kw_only=True):
    """What the hardware does per second (bytes or FLOPs), and who says so."""

    per_s: float
    shown: str
    basis: Basis
    source: str


class Figures(Struct, frozen=True, kw_only=True):
    """What is known of the hardware: a device, what the user said of it, what was measured on it."""

    device: Device | None = None
    peak_bw_gb_s: float | None = None
    peak_tflops: float | None = None
    link_gb_s: float | None = None
    measured: Measurement | None = None

    @property
    def bandwidth_gb_s(self) -> float | None:
        """Return the user's bandwidth, else the data sheet's."""
        if self.peak_bw_gb_s is not None:
            return self.peak_bw_gb_s
        return self.device.peak_bw_gb_s if self.device else None

    def bandwidth(self) -> tuple[Rate, ...]:
        """Return the memory's rates in bytes/s: the data sheet's or the user's, then the measured."""
        unit = Unit("GB/s", BYTES_PER_GB, "--peak-bw")
        rates = [self._stated(self.bandwidth_gb_s, self.peak_bw_gb_s, unit)]
        if self.measured is not None and self.measured.bandwidth_gb_s is not None:
            best = self.measured.bandwidth_gb_s.best
            rates.append(_measured_rate(best, unit, self.measured))
        return tuple(rate for rate in rates if rate is not None)

    def compute(self, dtype: str) -> tuple[Rate, ...]:
        """Return the arithmetic rates in FLOP/s for one precision: stated, then achievable, measured."""
        unit = Unit(f"TFLOP/s {dtype}", FLOPS_PER_TFLOP, "--peak-tflops")
        sheet = self.device.peak_tflops.get(dtype) if self.device else None
        rates = [self._stated(self.peak_tflops or sheet, self.peak_tflops, unit)]
        achievable = self.device.achievable_tflops.get(dtype) if self.device else None
        if achievable is not None and self.peak_tflops is None:
            rates.append(_achievable_rate(achievable, unit))
        if self.measured is not None and dtype in self.measured.tflops:
            rates.append(_measured_rate(self.measured.tflops[dtype].best, unit, self.measured))
        return tuple(rate for rate in rates if rate is not None)

    def link(self) -> tuple[Rate, ...]:
        """Return the link's rate in bytes/s, one direction."""
        sheet = self.device.link_gb_s if self.device else None
        rate = self._stated(self.link_gb_s or sheet, self.link_gb_s, Unit("GB/s", BYTES_PER_GB, "--link"))
        return () if rate is None else (rate,)

    def _stated(self, figure: float | None, given: float | None, unit: Unit) -> Rate | None:
        if figure is None:
            return None
        if given is not None or self.device is None:
            return _rate(figure, unit, "given", f"given with {unit.flag}")
        if self.device.is_by_hand:
            return _rate(figure, unit, "given", f"{self.device.name}: {self.device.source}")
        return _rate(figure, unit, "data_sheet", f"{self.device.name} data sheet: {self.device.source}")


class Costs(Struct, frozen=True, kw_only=True):
    """What one token costs the device; None where it is not known. Texts say by which count."""

    flops: float | None = None
    flops_count: str = ""
    bytes: float | None = None
    bytes_count: str = ""
    link_bytes: float | None = None
    link_count: str = ""


def ceilings(figures: Figures, costs: Costs, dtype: str) -> tuple[Ceiling, ...]:
    """Return every ceiling in tok/s per device: stated ones first, each group from the lowest up."""
    limits = (
        *_ceilings_of("compute", figures.compute(dtype), costs.flops, costs.flops_count),
        *_ceilings_of("memory", figures.bandwidth(), costs.bytes, costs.bytes_count),
        *_ceilings_of("link", figures.link(), costs.link_bytes, costs.link_count),
    )
    return tuple(sorted(limits, key=lambda limit: (limit.basis == "measured", limit.tok_s)))


def lowest(limits: tuple[Ceiling, ...]) -> Ceiling | None:
    """Return the ceiling that a run is graded against: the lowest that is stated, not measured."""
    stated = [limit for limit in limits if limit.basis != "measured"]
    return min(stated or limits, key=lambda limit: limit.tok_s, default=None)


def lowest_achievable(limits: tuple[Ceiling, ...]) -> Ceiling | None:
    """Return the lowest ceiling when measured rates replace the data sheet's; None without any."""
    measured = [limit for limit in limits if limit.basis == "measured"]
    if not measured:
        return None
    kinds = {limit.kind for limit in measured}
    rest = [limit for limit in limits if limit.kind not in kinds]
    return min(measured + rest, key=lambda limit: limit.tok_s)


def reference_bytes_per_token(device: Device | None) -> float | None:
    """Return the reference's constant for its own two devices, None for all others."""
    return REFERENCE_BYTES_PER_TOKEN if device is not None and device.key in REFERENCE_DEVICES else None


def _ceilings_of(kind: Kind, rates: tuple[Rate, ...], cost: float | None, count: str) -> list[Ceiling]:
    if cost is None or cost <= 0:
        return []
    return [
        Ceiling(
            kind=kind,
            tok_s=rate.per_s / cost,
            basis=rate.basis,
            source=rate.source,
            convention=f"{rate.shown} over {count}",
        )
        for rate in rates
    ]


def _rate(figure: float, unit: Unit, basis: Basis, source: str) -> Rate:
    shown = (
        f"{figure:g} {unit.name}"
        if figure >= 1
        else f"{figure * 1000:g} {_SMALLER[unit.name[0]]}{unit.name[1:]}"
    )
    return Rate(per_s=figure * unit.size, shown=shown, basis=basis, source=source)


def _achievable_rate(tflops: float, unit: Unit) -> Rate:
    return _rate(tflops, unit, "measured", "the best matmul rate that was measured on such a device")


def _measured_rate(figure: float, unit: Unit, measured: Measurement) -> Rate:
    return _rate(figure, unit, "measured", f"measured here on {measured.date[:10]} ({measured.method})")

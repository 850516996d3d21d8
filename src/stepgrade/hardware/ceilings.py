"""What a run could reach (ceilings in tok/s per device, each with its basis and source) and what it used."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct, structs

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.measured import Measurement
from stepgrade.model.ceiling import Basis, Ceiling, Kind, Roof
from stepgrade.units import BYTES_PER_GB

# Back-solved in the reference from one QLoRA run of a 1.5B model; not a device constant, and used
# only for the reference's own two devices.
REFERENCE_BYTES_PER_TOKEN = 158_000_000.0
REFERENCE_DEVICES = ("rtx-4060-laptop", "gb10")
FLOPS_PER_TFLOP = 1e12
# Data sheets that count sparsity print twice the dense peak.
SPARSE_FACTOR = 2.0

_SMALLER = {"T": "G", "G": "M"}


class _Unit(NamedTuple):
    """A kind of rate: its name, its unit, and how many base units that is."""

    kind: Kind
    what: str
    name: str
    size: float


class Figures(Struct, frozen=True, kw_only=True):
    """What is known about the hardware: the device, the user's figures, measurements."""

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

    def bandwidth(self) -> tuple[Roof, ...]:
        """Return the memory's rates in bytes/s: the data sheet's or the user's, then the measured."""
        unit = _Unit("memory", "bandwidth", "GB/s", BYTES_PER_GB)
        rates = self._stated(self.bandwidth_gb_s, self.peak_bw_gb_s, unit)
        if self.measured is not None and self.measured.bandwidth_gb_s is not None:
            rates += (_measured_rate(self.measured.bandwidth_gb_s.best, unit, self.measured),)
        return rates

    def compute(self, dtype: str) -> tuple[Roof, ...]:
        """Return the arithmetic rates in FLOP/s for one precision: stated, then achievable, measured."""
        unit = _Unit("compute", "peak", f"TFLOP/s {dtype}", FLOPS_PER_TFLOP)
        sheet = self.device.peak_tflops.get(dtype) if self.device else None
        rates = self._stated(self.peak_tflops or sheet, self.peak_tflops, unit)
        achievable = self.device.achievable_tflops.get(dtype) if self.device else None
        if achievable is not None and self.peak_tflops is None:
            source = "the best matmul rate measured on this kind of device"
            rates += (_rate(achievable, unit, "measured", source),)
        if self.measured is not None and dtype in self.measured.tflops:
            rates += (_measured_rate(self.measured.tflops[dtype].best, unit, self.measured),)
        return rates

    def peak(self, dtype: str) -> Roof | None:
        """Return the arithmetic rate that runs are compared with: the stated one, else what was measured."""
        rates = self.compute(dtype)
        stated = [rate for rate in rates if rate.basis != "measured"]
        return stated[0] if stated else max(rates, key=lambda rate: rate.per_s, default=None)

    def shared_by(self, ranks: int) -> Figures:
        """Return the figures for one of several processes that share the measured device."""
        measured = self.measured
        if measured is None or ranks == 1:
            return self
        bandwidth = measured.bandwidth_gb_s
        part = structs.replace(
            measured,
            method=f"{measured.method}; shared by {ranks} ranks",
            bandwidth_gb_s=bandwidth and structs.replace(bandwidth, best=bandwidth.best / ranks),
            tflops={
                dtype: structs.replace(rate, best=rate.best / ranks)
                for dtype, rate in measured.tflops.items()
            },
        )
        return structs.replace(self, measured=part)

    def link(self) -> tuple[Roof, ...]:
        """Return the link's rate in bytes/s, one direction."""
        sheet = self.device.link_gb_s if self.device else None
        unit = _Unit("link", "link rate", "GB/s", BYTES_PER_GB)
        return self._stated(self.link_gb_s or sheet, self.link_gb_s, unit)

    def ridge_point(self, dtype: str) -> float | None:
        """Return the FLOPs per byte above which a run is limited by compute; None if unknown."""
        peaks, bandwidths = self.compute(dtype), self.bandwidth()
        return peaks[0].per_s / bandwidths[0].per_s if peaks and bandwidths else None

    def _stated(self, figure: float | None, given: float | None, unit: _Unit) -> tuple[Roof, ...]:
        if figure is None:
            return ()
        if given is not None or self.device is None:
            return (_rate(figure, unit, "given", f"{unit.what} as given"),)
        if self.device.is_by_hand:
            return (_rate(figure, unit, "given", f"{self.device.name}: {self.device.source}"),)
        return (_rate(figure, unit, "data_sheet", f"{self.device.name} data sheet: {self.device.source}"),)


class Costs(Struct, frozen=True, kw_only=True):
    """What one token costs the device; None if unknown. Texts say which convention was used."""

    flops: float | None = None
    flops_count: str = ""
    bytes: float | None = None
    bytes_count: str = ""
    link_bytes: float | None = None
    link_count: str = ""


def ceilings(figures: Figures, costs: Costs, dtype: str) -> tuple[Ceiling, ...]:
    """Return every ceiling in tok/s per device: stated ones first, each group from the lowest up."""
    kinds = (
        (figures.compute(dtype), costs.flops, costs.flops_count),
        (figures.bandwidth(), costs.bytes, costs.bytes_count),
        (figures.link(), costs.link_bytes, costs.link_count),
    )
    limits = [
        Ceiling(
            kind=rate.kind,
            tok_s=rate.per_s / cost,
            basis=rate.basis,
            source=rate.source,
            convention=f"{rate.shown} over {count}",
        )
        for rates, cost, count in kinds
        if cost is not None and cost > 0
        for rate in rates
    ]
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


def utilisation(tok_s: float, flops_per_token: float, peak_tflops: float, devices: int = 1) -> float:
    """Return tok/s of the whole run x FLOPs per token over the peak of all its devices, 0 to 1.

    With the model's FLOPs it is the MFU, with the hardware's the HFU.
    """
    return tok_s * flops_per_token / (devices * peak_tflops * FLOPS_PER_TFLOP)


def why_above_one(share: float, kind: str, *, seq: int | None = None, devices: int = 1) -> tuple[str, ...]:
    """Return the likely causes of a share above 1 of a ceiling of `kind`, likeliest first."""
    if share <= 1.0:
        return ()
    length = f" of {seq:,}" if seq else ""
    causes = [
        f"padding was counted: give the real tokens per step, not batch x the sequence length{length}",
        "the wrong device was given (a laptop part, another memory size)",
    ]
    if kind == "compute":
        causes.append("the wrong precision was given (fp8 has twice the peak of bf16, fp32 far less)")
        causes.append("the wrong model or method: LoRA needs fewer FLOPs than full training")
        if share <= SPARSE_FACTOR:
            causes.append("a sparse peak: the catalogue's are dense, half of what some data sheets print")
    if devices == 1:
        causes.append("several devices: the throughput is the whole run's, give the number that shared it")
    return tuple(causes)


def _rate(figure: float, unit: _Unit, basis: Basis, source: str) -> Roof:
    shown = (
        f"{figure:g} {unit.name}"
        if figure >= 1
        else f"{figure * 1000:g} {_SMALLER[unit.name[0]]}{unit.name[1:]}"
    )
    return Roof(kind=unit.kind, per_s=figure * unit.size, shown=shown, basis=basis, source=source)


def _measured_rate(figure: float, unit: _Unit, measured: Measurement) -> Roof:
    return _rate(figure, unit, "measured", f"measured here on {measured.date[:10]} ({measured.method})")

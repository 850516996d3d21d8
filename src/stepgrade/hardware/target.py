"""What a run is compared with: hardware figures and what one token costs, from whatever is known."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.ceilings import (
    FLOPS_PER_TFLOP,
    Costs,
    Figures,
    ceilings,
    lowest,
    reference_bytes_per_token,
)
from stepgrade.hardware.efficiency import utilisation
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.notes import Note

DEFAULT_DTYPE = "bf16"


class Target(Struct, frozen=True, kw_only=True):
    """Hardware and costs; `devices` share the throughput, `palm_flops` is PaLM's count beside ours."""

    figures: Figures = Figures()
    costs: Costs = Costs()
    dtype: str = DEFAULT_DTYPE
    devices: int = 1
    seq: int | None = None
    batch: int | None = None
    model: str | None = None  # what it is, in a few words
    model_flops: float | None = None
    palm_flops: float | None = None
    convention: str | None = None
    notes: tuple[Note, ...] = ()
    device_basis: str | None = None  # how the device is known, when the user did not name it

    @property
    def device(self) -> Device | None:
        """Return the device of the catalogue, or None when it is only described."""
        return self.figures.device

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """Return every ceiling, in tok/s per device, the one that counts first."""
        return ceilings(self.figures, self._all_costs, self.dtype)

    @property
    def roof(self) -> Ceiling | None:
        """Return the ceiling that counts."""
        return lowest(self.ceilings)

    @property
    def traffic_bytes(self) -> float | None:
        """Return the bytes per token; the reference's constant for its own two devices if nothing else."""
        return self._all_costs.bytes

    @property
    def uses_reference_traffic(self) -> bool:
        """Tell whether the bytes per token are the reference's constant."""
        return self.costs.bytes is None and self.traffic_bytes is not None

    def mfu(self, tok_s_per_device: float) -> float | None:
        """Return the share of the stated peak that the model's FLOPs make up."""
        return self._share(tok_s_per_device, self.model_flops)

    def hfu(self, tok_s_per_device: float) -> float | None:
        """Return the same with what is computed twice."""
        return self._share(tok_s_per_device, self.costs.flops)

    def mfu_palm(self, tok_s_per_device: float) -> float | None:
        """Return the MFU by PaLM's count."""
        return self._share(tok_s_per_device, self.palm_flops)

    def _share(self, tok_s: float, flops: float | None) -> float | None:
        stated = [rate for rate in self.figures.compute(self.dtype) if rate.basis != "measured"]
        if flops is None or not stated:
            return None
        return utilisation(tok_s, flops, stated[0].per_s / FLOPS_PER_TFLOP)

    @property
    def _all_costs(self) -> Costs:
        constant = reference_bytes_per_token(self.device)
        # A model's own costs make the constant needless, even where only its FLOPs are known.
        if self.costs.bytes is not None or self.costs.flops is not None or constant is None:
            return self.costs
        return Costs(
            bytes=constant, bytes_count=f"{constant / 1e6:g} MB per token (the reference's constant)"
        )

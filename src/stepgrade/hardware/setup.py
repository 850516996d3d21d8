"""What the user says about hardware and model, put together once for `score` and `estimate`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

from stepgrade.errors import BadInput, BadOption
from stepgrade.hardware.catalogue import Device, find_device
from stepgrade.hardware.ceilings import Costs, Figures
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.measured import Measurement, measured_for
from stepgrade.hardware.target import DEFAULT_DTYPE, Target
from stepgrade.model.notes import Note
from stepgrade.units import show_si

if TYPE_CHECKING:
    from stepgrade.hardware.estimate import ModelCosts

CPU_KEY = "cpu"


class Setup(Struct, frozen=True, kw_only=True):
    """The device by name, by file or by figures; the model and how it is trained, or its costs given."""

    device: str | None = None
    device_file: str | None = None
    peak_bw_gb_s: float | None = None
    peak_tflops: float | None = None
    link_gb_s: float | None = None
    bytes_per_token: float | None = None
    flops_per_token: float | None = None
    model: str | None = None
    plan: Plan | None = None
    convention: str | None = None
    dtype: str = DEFAULT_DTYPE
    devices: int = 1
    state: str | None = None

    def __post_init__(self) -> None:
        for option, value in self._given().items():
            if value is not None and not (math.isfinite(value) and value > 0.0):
                raise BadOption(f"must be a finite number above 0, not {value:g}", where=option)
        if self.device is not None and self.device_file is not None:
            raise BadOption("--device and --device-file both name the device", hint="give one of them")
        if self.model is not None and self.plan is None:
            raise BadOption("--model needs the run's shape", hint="give --batch N and --seq N")

    def _given(self) -> dict[str, float | None]:
        return {
            "--peak-bw": self.peak_bw_gb_s,
            "--peak-tflops": self.peak_tflops,
            "--link": self.link_gb_s,
            "--bytes-per-token": self.bytes_per_token,
            "--flops-per-token": self.flops_per_token,
        }


def figures_of(setup: Setup) -> Figures:
    """Return what is known of the hardware; raise UnknownDevice with the nearest names."""
    device = chosen_device(setup)
    return Figures(
        device=device,
        peak_bw_gb_s=setup.peak_bw_gb_s,
        peak_tflops=setup.peak_tflops,
        link_gb_s=setup.link_gb_s,
        measured=_measured_beside(device, setup.state) if device is not None else None,
    )


def chosen_device(setup: Setup) -> Device | None:
    """Return the device of the catalogue, of the user's file, or this machine's processor as measured."""
    if setup.device_file is not None:
        from stepgrade.hardware.device_file import read_device  # noqa: PLC0415  rarely needed

        return read_device(setup.device_file)
    if setup.device == CPU_KEY:
        return _measured_cpu(measured_for(CPU_KEY, setup.state))
    return find_device(setup.device) if setup.device is not None else None


def target_of(setup: Setup) -> Target:
    """Return what the run is compared with, from all that the user said."""
    figures = figures_of(setup)
    if setup.model is None or setup.plan is None:
        return _given_expectation(setup, figures)
    costs = costs_of(setup)
    return Target(
        figures=figures,
        costs=_overridden(setup, costs.per_token),
        dtype=setup.plan.dtype,
        devices=setup.plan.parallel.devices,
        seq=setup.plan.seq,
        batch=setup.plan.batch,
        model=f"{costs.architecture}, {costs.parameters:,} parameters",
        model_flops=setup.flops_per_token or costs.flops.model,
        palm_flops=costs.flops_palm.model,
        convention="given" if setup.flops_per_token else costs.flops.convention,
        notes=tuple(Note("model_costs", text) for text in costs.notes),
    )


def costs_of(setup: Setup) -> ModelCosts:
    """Return what one token of the run costs; raise BadInput at the config's field."""
    from stepgrade.hardware.cost.conventions import find_convention  # noqa: PLC0415  only with --model
    from stepgrade.hardware.estimate import model_costs  # noqa: PLC0415  as above
    from stepgrade.hardware.models.config import read_model  # noqa: PLC0415  as above

    if setup.model is None or setup.plan is None:
        raise BadOption("the costs of a run come from its model", hint="give --model CONFIG_JSON")
    convention = find_convention(setup.convention) if setup.convention is not None else None
    return model_costs(read_model(setup.model), setup.plan, convention)


def _measured_beside(device: Device, state: str | None) -> Measurement | None:
    """Return what was measured on the device; a broken file is no reason not to grade, it never counts."""
    try:
        return measured_for(device.key, state)
    except BadInput:
        return None


def _given_expectation(setup: Setup, figures: Figures) -> Target:
    return Target(
        figures=figures,
        costs=_overridden(setup, Costs()),
        dtype=setup.dtype,
        devices=setup.devices,
        model_flops=setup.flops_per_token,
        convention="given" if setup.flops_per_token else None,
    )


def _overridden(setup: Setup, costs: Costs) -> Costs:
    """Return the costs with what the user gave in place of what the model says."""
    flops, count = costs.flops, costs.flops_count
    if setup.flops_per_token is not None:
        flops, count = setup.flops_per_token, f"{show_si(setup.flops_per_token, 'FLOP')} per token (given)"
    moved, moved_count = costs.bytes, costs.bytes_count
    if setup.bytes_per_token is not None:
        moved, moved_count = setup.bytes_per_token, f"{show_si(setup.bytes_per_token, 'B')} per token (given)"
    return Costs(
        flops=flops,
        flops_count=count,
        bytes=moved,
        bytes_count=moved_count,
        link_bytes=costs.link_bytes,
        link_count=costs.link_count,
    )


def _measured_cpu(measured: Measurement | None) -> Device:
    if measured is None:
        raise BadOption(
            "this machine's processor has not been measured",
            where="--device cpu",
            hint="run stepgrade devices --measure",
        )
    return Device(key=CPU_KEY, name=measured.name, source=f"measured here on {measured.date[:10]}")

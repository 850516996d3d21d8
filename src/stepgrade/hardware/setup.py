"""The user's hardware and model options, and the target that a run is compared with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from stepgrade.errors import BadInput, BadOption, UnknownDevice
from stepgrade.hardware.catalogue import Device, meant_device, part_of
from stepgrade.hardware.ceilings import (
    FLOPS_PER_TFLOP,
    REFERENCE_BYTES_PER_TOKEN,
    REFERENCE_DEVICES,
    Costs,
    Figures,
    ceilings,
    lowest,
    utilisation,
)
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.measured import Measurement, measured_for
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.notes import Note, Result
from stepgrade.units import show_si

if TYPE_CHECKING:
    from stepgrade.hardware.cost.model_costs import ModelCosts
    from stepgrade.hardware.models.shape import ModelShape

CPU_KEY = "cpu"
DEFAULT_DTYPE = "bf16"


def check_above_zero(**figures: float | None) -> None:
    """Raise BadOption at the first figure that is given and is not a finite number above 0."""
    for field, value in figures.items():
        if value is not None and not (math.isfinite(value) and value > 0.0):
            raise BadOption(f"must be a finite number above 0, not {value:g}", field=field)


class Setup(Struct, frozen=True, kw_only=True):
    """The device by name, file or figures; the model and how it is trained, or its costs."""

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
        check_above_zero(
            peak_bw_gb_s=self.peak_bw_gb_s,
            peak_tflops=self.peak_tflops,
            link_gb_s=self.link_gb_s,
            bytes_per_token=self.bytes_per_token,
            flops_per_token=self.flops_per_token,
        )
        if self.device is not None and self.device_file is not None:
            raise BadOption("the device is named twice", supply="{device} or {device_file}, not both")
        if self.model is not None and self.plan is None:
            raise BadOption(
                "needs the batch size and sequence length", field="model", supply="{batch} and {seq}"
            )


class Target(Struct, frozen=True, kw_only=True):
    """Hardware and costs; `devices` share the throughput, `palm_flops` is PaLM's count beside ours."""

    figures: Figures = Figures()
    costs: Costs = Costs()
    dtype: str = DEFAULT_DTYPE
    devices: int = 1
    seq: int | None = None
    batch: int | None = None
    tokens_per_step: int | None = None  # of all replicas, as the plan has them
    model: str | None = None  # a short description
    model_flops: float | None = None
    palm_flops: float | None = None
    convention: str | None = None
    notes: tuple[Note, ...] = ()
    device_basis: str | None = None  # how the device was identified, if the user did not name it

    @property
    def device(self) -> Device | None:
        """Return the device of the catalogue, or None if it is only described."""
        return self.figures.device

    @property
    def ceilings(self) -> tuple[Ceiling, ...]:
        """Return every ceiling, in tok/s per device, the one that applies first."""
        return ceilings(self.figures, self.all_costs, self.dtype)

    @property
    def roof(self) -> Ceiling | None:
        """Return the ceiling that applies."""
        return lowest(self.ceilings)

    @property
    def all_costs(self) -> Costs:
        """Return the costs; if none are known, the reference's bytes per token for its own two devices."""
        is_of_reference = self.device is not None and self.device.key in REFERENCE_DEVICES
        # A model's own costs make the constant needless, even where only its FLOPs are known.
        if self.costs.bytes is not None or self.costs.flops is not None or not is_of_reference:
            return self.costs
        count = f"{REFERENCE_BYTES_PER_TOKEN / 1e6:g} MB per token (the reference's constant)"
        return Costs(bytes=REFERENCE_BYTES_PER_TOKEN, bytes_count=count)

    def share_of_peak(self, tok_s: float | None, flops: float | None) -> float | None:
        """Return the share of the peak that so many FLOPs per token take at one device's rate.

        The model's FLOPs make it the MFU, with what is computed twice (`costs.flops`) it is the HFU.
        """
        peak = self.figures.peak(self.dtype)
        if tok_s is None or flops is None or peak is None:
            return None
        return utilisation(tok_s, flops, peak.per_s / FLOPS_PER_TFLOP)


class DeviceFacts(Result, frozen=True, kw_only=True):
    """Everything known about one device; ridge points are FLOPs per byte by precision."""

    device: Device
    ridge_flops_per_byte: dict[str, float]
    part_key: str | None = None
    part_count: int | None = None
    measured: Measurement | None = None


def target_of(setup: Setup) -> Target:
    """Return the target of a run from the user's options."""
    figures = figures_of(setup)
    if setup.model is not None and setup.plan is not None:
        target = planned_target(figures, costs_of(setup), setup.plan)
    else:
        target = Target(figures=figures, dtype=setup.dtype, devices=setup.devices)
    costs = target.costs
    if setup.bytes_per_token is not None:
        count = f"{show_si(setup.bytes_per_token, 'B')} per token (given)"
        costs = structs.replace(costs, bytes=setup.bytes_per_token, bytes_count=count)
    if setup.flops_per_token is None:
        return structs.replace(target, costs=costs)
    count = f"{show_si(setup.flops_per_token, 'FLOP')} per token (given)"
    costs = structs.replace(costs, flops=setup.flops_per_token, flops_count=count)
    return structs.replace(target, costs=costs, model_flops=setup.flops_per_token, convention="given")


def planned_target(figures: Figures, costs: ModelCosts, plan: Plan) -> Target:
    """Return the target of a model trained by `plan`."""
    return Target(
        figures=figures,
        costs=costs.per_token,
        dtype=plan.dtype,
        devices=plan.parallel.devices,
        seq=plan.seq,
        batch=plan.batch,
        tokens_per_step=plan.tokens * plan.micro_batches * plan.parallel.replicas,
        model=f"{costs.architecture}, {costs.parameters:,} parameters",
        model_flops=costs.flops.model,
        palm_flops=costs.flops_palm.model,
        convention=costs.flops.convention,
        notes=tuple(Note("model_costs", text) for text in costs.notes),
    )


def figures_of(setup: Setup) -> Figures:
    """Return what is known about the hardware; raise UnknownDevice with the nearest names."""
    device, measured = chosen_device(setup), None
    if device is not None:
        try:
            measured = measured_for(device.key, setup.state)
        except BadInput:
            measured = None  # measurements never decide a grade, so a broken file is ignored
    return Figures(
        device=device,
        peak_bw_gb_s=setup.peak_bw_gb_s,
        peak_tflops=setup.peak_tflops,
        link_gb_s=setup.link_gb_s,
        measured=measured,
    )


def chosen_device(setup: Setup) -> Device | None:
    """Return the device of the catalogue, of the user's file, or this machine's processor as measured."""
    if setup.device_file is not None:
        from stepgrade.hardware.catalogue import read_device  # rarely needed

        return read_device(setup.device_file)
    if setup.device != CPU_KEY:
        return meant_device(setup.device) if setup.device is not None else None
    measured = measured_for(CPU_KEY, setup.state)
    if measured is None:
        problem = "this machine's processor has not been measured"
        raise BadOption(problem, field="device", supply="the result of {measure_here}")
    return Device(key=CPU_KEY, name=measured.name, source=f"measured here on {measured.date[:10]}")


def costs_of(setup: Setup, shape: ModelShape | None = None) -> ModelCosts:
    """Return what one token of the run costs; raise BadInput at the config's field, unless it was read."""
    from stepgrade.hardware.cost.conventions import find_convention  # only with a model
    from stepgrade.hardware.cost.model_costs import model_costs
    from stepgrade.hardware.models.hf_config import read_model

    if setup.model is None or setup.plan is None:
        raise BadOption("a run's costs come from its model", supply="{model} with {batch} and {seq}")
    convention = find_convention(setup.convention) if setup.convention is not None else None
    return model_costs(shape or read_model(setup.model), setup.plan, convention)


def device_facts(name: str, state: str | None = None) -> DeviceFacts:
    """Return what is known of the device with that name; raise UnknownDevice with the nearest."""
    device = chosen_device(Setup(device=name, state=state))
    if device is None:
        raise UnknownDevice("a device needs a name")
    figures, split = Figures(device=device), part_of(device.key)
    ridges = {dtype: figures.ridge_point(dtype) for dtype in device.peak_tflops}
    return DeviceFacts(
        device=device,
        ridge_flops_per_byte={dtype: ridge for dtype, ridge in ridges.items() if ridge is not None},
        part_key=split[0].key if split else None,
        part_count=split[1] if split else None,
        measured=measured_for(device.key, state),
    )

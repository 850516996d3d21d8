"""What `stepgrade devices` and `stepgrade estimate` answer with; plain values, ready to be shown."""

from __future__ import annotations

from math import isfinite

from stepgrade.errors import BadOption, UnknownDevice
from stepgrade.hardware.catalogue import Device, all_devices, fold, nearest_keys, part_of
from stepgrade.hardware.ceilings import Figures
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.estimate import Estimate, estimate_plan, ridge_point
from stepgrade.hardware.measured import Measurement, measured_for
from stepgrade.hardware.setup import Setup, chosen_device, costs_of, figures_of
from stepgrade.model.notes import Result


class DeviceTable(Result, frozen=True, kw_only=True):
    """Devices of the catalogue that a filter let through."""

    devices: tuple[Device, ...]
    total: int
    filter: str | None = None


class DeviceFacts(Result, frozen=True, kw_only=True):
    """Everything known of one device; ridge points are FLOPs per byte by precision."""

    device: Device
    ridge_flops_per_byte: dict[str, float]
    part_key: str | None = None
    part_count: int | None = None
    measured: Measurement | None = None


def devices(text: str | None = None) -> DeviceTable:
    """Return the devices whose key, name, alias, vendor or architecture holds every word of `text`."""
    known = tuple(all_devices().values())
    words = [fold(word) for word in (text or "").split()]
    chosen = tuple(device for device in known if all(_holds(device, word) for word in words))
    if not chosen:
        near = f"nearest: {', '.join(nearest_keys(text or ''))}"
        raise BadOption(f"no device holds {text!r}", where="--filter", hint=near)
    return DeviceTable(devices=chosen, total=len(known), filter=text)


def device_facts(name: str, state: str | None = None) -> DeviceFacts:
    """Return what is known of the device with that name; raise UnknownDevice with the nearest."""
    device = chosen_device(Setup(device=name, state=state))
    if device is None:
        raise UnknownDevice("a device needs a name")
    split = part_of(device.key)
    ridges = {dtype: ridge_point(Figures(device=device), dtype) for dtype in device.peak_tflops}
    return DeviceFacts(
        device=device,
        ridge_flops_per_byte={dtype: ridge for dtype, ridge in ridges.items() if ridge is not None},
        part_key=split[0].key if split else None,
        part_count=split[1] if split else None,
        measured=measured_for(device.key, state),
    )


def estimate(setup: Setup, *, throughput_tok_s: float | None = None) -> Estimate:
    """Return what a run could reach on its device, and with its throughput what it made of it."""
    if throughput_tok_s is not None and not (isfinite(throughput_tok_s) and throughput_tok_s > 0.0):
        raise BadOption(f"must be a finite number above 0, not {throughput_tok_s:g}", where="--throughput")
    plan = _plan_of(setup)
    figures = figures_of(setup)
    if not figures.bandwidth() and not figures.compute(plan.dtype):
        raise BadOption("an estimate needs the hardware", hint="give --device KEY, or --peak-bw")
    return estimate_plan(figures, costs_of(setup), plan, throughput_tok_s)


def _plan_of(setup: Setup) -> Plan:
    if setup.model is None or setup.plan is None:
        raise BadOption("an estimate needs the model", hint="give --model CONFIG_JSON with --batch and --seq")
    return setup.plan


def _holds(device: Device, word: str) -> bool:
    names = (device.key, device.name, device.vendor or "", device.arch or "", *device.aliases)
    return any(word in fold(name) for name in names)

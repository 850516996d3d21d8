"""Which catalogue row is the device that a driver or a trace saw; names alone are not enough."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.errors import UnknownDevice
from stepgrade.hardware.catalogue import (
    DESCRIBE_BY_HAND,
    SHARED_NAMES,
    Device,
    all_devices,
    find_device,
    fold,
    keys_called,
    nearest_keys,
    part_of,
    parts,
)
from stepgrade.hardware.compute_units import COMPUTE_UNITS, MEMORY_VARIANTS_GB, PART_COMPUTE_UNITS

BYTES_PER_GIB = 2**30
# Drivers report up to 7 % less than the nominal size (firmware, ECC), never noticeably more.
LEAST_MEMORY, MOST_MEMORY = 0.92, 1.01
# What drivers say when they do not know; everything else is a name, if sometimes of several devices.
NAMELESS = frozenset({"", "amdradeongraphics"})
NAMELESS_VENDOR = "AMD"
# Two candidates whose figures differ by less give the same grade: no reason to refuse.
SAME_FIGURES = 0.02


class Sighting(Struct, frozen=True, kw_only=True):
    """A device as a driver or a trace describes it; `compute_units` are SMs on NVIDIA, CUs on AMD."""

    name: str
    memory_bytes: int | None = None
    compute_units: int | None = None
    arch: str | None = None


def identify(seen: Sighting) -> Device:
    """Return the catalogue's device for a sighting; raise UnknownDevice when none or several fit."""
    if fold(seen.name) in NAMELESS:
        return _by_shape(seen)
    keys = keys_called(seen.name)
    if not keys or (fold(seen.name) in SHARED_NAMES and seen.memory_bytes is None):
        return find_device(seen.name)
    # Without its memory a part cannot be told from the whole, whose name it has.
    known = _with_parts(keys) if seen.memory_bytes is not None else [all_devices()[key] for key in keys]
    fitting = [device for device in known if _fits(device, seen)]
    return _only(fitting or _raise_misfit(seen, keys), seen)


def _by_shape(seen: Sighting) -> Device:
    """Find a device whose name says nothing by memory and compute units, or by its architecture."""
    makes = [device for device in all_devices().values() if device.vendor == NAMELESS_VENDOR]
    by_arch = [device for device in makes if seen.arch and device.arch == seen.arch.split(":")[0]]
    known = [device for device in (*makes, *parts().values()) if _is_shaped_like(device, seen)]
    fitting = [device for device in known if not by_arch or device.arch == by_arch[0].arch]
    if not fitting and len(by_arch) == 1:
        fitting = by_arch
    if not fitting:
        raise UnknownDevice(f"{_described(seen)} fits no device of the catalogue", hint=_advice(seen))
    return _only(fitting, seen)


def _is_shaped_like(device: Device, seen: Sighting) -> bool:
    """Tell whether memory and units both are known and fit; a shared name is no evidence of its own."""
    if seen.memory_bytes is None or not _fits_memory(device, seen.memory_bytes):
        return False
    return seen.compute_units is not None and _units(device) == seen.compute_units


def _with_parts(keys: tuple[str, ...]) -> list[Device]:
    found = [part_of(key) for key in keys]
    return [all_devices()[key] for key in keys] + [split[0] for split in found if split is not None]


def _fits(device: Device, seen: Sighting) -> bool:
    memory_fits = seen.memory_bytes is None or _fits_memory(device, seen.memory_bytes)
    units = _units(device)
    return memory_fits and (seen.compute_units is None or units is None or units == seen.compute_units)


def _fits_memory(device: Device, memory_bytes: int) -> bool:
    if device.memory_gb is None or (device.key in MEMORY_VARIANTS_GB and not MEMORY_VARIANTS_GB[device.key]):
        return True
    sizes = MEMORY_VARIANTS_GB.get(device.key, (device.memory_gb,))
    shares = (memory_bytes / BYTES_PER_GIB / size for size in sizes)
    return any(LEAST_MEMORY < share < MOST_MEMORY for share in shares)


def _units(device: Device) -> int | None:
    return COMPUTE_UNITS.get(device.key) or PART_COMPUTE_UNITS.get(device.key)


def _only(fitting: list[Device], seen: Sighting) -> Device:
    """Return the first of devices that give the same ceilings; refuse when they would not."""
    first = fitting[0]
    if any(not _same_figures(first, other) for other in fitting[1:]):
        keys = ", ".join(device.key for device in fitting)
        raise UnknownDevice(f"{_described(seen)} could be any of {keys}", hint="name one with --device KEY")
    return first


def _same_figures(one: Device, other: Device) -> bool:
    pairs = [(one.peak_bw_gb_s, other.peak_bw_gb_s)]
    pairs += [(one.peak_tflops.get(dtype), other.peak_tflops.get(dtype)) for dtype in ("bf16", "fp16")]
    return all(_close(left, right) for left, right in pairs)


def _close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) <= SAME_FIGURES * max(left, right)


def _raise_misfit(seen: Sighting, keys: tuple[str, ...]) -> list[Device]:
    sizes = ", ".join(f"{key} has {_shape(all_devices()[key])}" for key in keys)
    raise UnknownDevice(f"{_described(seen)} is not the one of the catalogue: {sizes}", hint=DESCRIBE_BY_HAND)


def _shape(device: Device) -> str:
    units = _units(device)
    return f"{device.memory_gb:g} GB" + (f" and {units} compute units" if units else "")


def _described(seen: Sighting) -> str:
    parts_known = []
    if seen.memory_bytes is not None:
        parts_known.append(f"{seen.memory_bytes / BYTES_PER_GIB:.1f} GB")
    if seen.compute_units is not None:
        parts_known.append(f"{seen.compute_units} compute units")
    name = repr(seen.name) if seen.name else "a device without a name"
    return name + (f" with {' and '.join(parts_known)}" if parts_known else "")


def _advice(seen: Sighting) -> str:
    keys = nearest_keys(seen.name) if seen.name else []
    nearest = f"nearest: {', '.join(keys)}; " if keys else ""
    return f"{nearest}name it with --device KEY, or {DESCRIBE_BY_HAND}"

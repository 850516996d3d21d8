"""Find the catalogue row for a device reported by a driver or a trace; names alone are ambiguous."""

from __future__ import annotations

from stepgrade.errors import UnknownDevice
from stepgrade.hardware.catalogue import (
    DESCRIBE_BY_HAND,
    SHARED_NAMES,
    Device,
    all_devices,
    compute_units,
    find_device,
    fold,
    keys_called,
    memory_sizes_gb,
    nearest_hint,
    part_of,
    parts,
)
from stepgrade.model import DeviceSeen

BYTES_PER_GIB = 2**30
# Drivers report up to 8 % less than the nominal size (firmware), with ECC in the same memory up to 15 %, and
# never noticeably more.
LEAST_MEMORY, LEAST_WITH_ECC, MOST_MEMORY = 0.92, 0.85, 1.01
# What drivers report for unknown devices; anything else is a name, possibly shared by several devices.
NAMELESS = frozenset({"", "amdradeongraphics"})
NAMELESS_VENDOR = "AMD"
# Candidates whose figures differ by less give the same grade, so either may be taken.
SAME_FIGURES = 0.02


def identify(seen: DeviceSeen, arch: str | None = None) -> Device:
    """Return the catalogue's device for what a driver saw; raise UnknownDevice when none or several fit.

    `arch` is the architecture as the driver names it; it only helps where the name says nothing.
    """
    name = seen.name or ""
    if fold(name) in NAMELESS:
        return _only(_by_shape(seen, arch), seen)
    keys = keys_called(name)
    if not keys or (fold(name) in SHARED_NAMES and seen.memory_bytes is None):
        return find_device(name)
    known = [all_devices()[key] for key in keys]
    if seen.memory_bytes is not None:
        # Without the memory size a part cannot be distinguished from the whole product of the same name.
        known += [split[0] for split in map(part_of, keys) if split is not None]
    like = [
        device
        for device in known
        if seen.sm_count is None or compute_units(device.key) in (None, seen.sm_count)
    ]
    fitting = [device for device in like if _fits_memory(device, seen.memory_bytes)]
    if not fitting and fold(name) not in SHARED_NAMES:
        # The name decides; memory only distinguishes variants and parts.
        fitting = [device for device in like if _fits_memory(device, seen.memory_bytes, LEAST_WITH_ECC)]
    if not fitting:
        units = {key: compute_units(key) for key in keys}
        sizes = ", ".join(
            f"{key} has {all_devices()[key].memory_gb:g} GB"
            + (f" and {units[key]} compute units" if units[key] else "")
            for key in keys
        )
        problem = f"{_described(seen)} does not match the catalogue: {sizes}"
        raise UnknownDevice(problem, supply=DESCRIBE_BY_HAND)
    return _only(fitting, seen)


def _by_shape(seen: DeviceSeen, arch: str | None) -> list[Device]:
    """Find a device with an unspecific name by memory and compute units, or by its architecture."""
    makes = [device for device in all_devices().values() if device.vendor == NAMELESS_VENDOR]
    by_arch = [device for device in makes if arch and device.arch == arch.split(":")[0]]
    fitting = [
        device
        for device in (*makes, *parts().values())
        if (not by_arch or device.arch == by_arch[0].arch)
        # Both must be known: a shared name is not evidence by itself.
        and seen.memory_bytes is not None
        and seen.sm_count is not None
        and _fits_memory(device, seen.memory_bytes)
        and compute_units(device.key) == seen.sm_count
    ]
    if not fitting and len(by_arch) == 1:
        fitting = by_arch
    if not fitting:
        hint = nearest_hint(seen.name) if seen.name else None
        problem = f"{_described(seen)} matches no device in the catalogue"
        raise UnknownDevice(problem, hint=hint, supply=f"{{device}}, or {DESCRIBE_BY_HAND}")
    return fitting


def _fits_memory(device: Device, memory_bytes: int | None, least: float = LEAST_MEMORY) -> bool:
    sizes = memory_sizes_gb(device)
    if memory_bytes is None or not sizes:
        return True
    return any(least < memory_bytes / BYTES_PER_GIB / size < MOST_MEMORY for size in sizes)


def _only(fitting: list[Device], seen: DeviceSeen) -> Device:
    """Return the first device if all give the same ceilings; else raise UnknownDevice."""
    first = fitting[0]
    for other in fitting[1:]:
        pairs = [(first.peak_bw_gb_s, other.peak_bw_gb_s)]
        pairs += [(first.peak_tflops.get(dtype), other.peak_tflops.get(dtype)) for dtype in ("bf16", "fp16")]
        if not all(_close(left, right) for left, right in pairs):
            keys = ", ".join(device.key for device in fitting)
            raise UnknownDevice(f"{_described(seen)} could be any of {keys}", supply="{device}")
    return first


def _close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) <= SAME_FIGURES * max(left, right)


def _described(seen: DeviceSeen) -> str:
    shape = []
    if seen.memory_bytes is not None:
        shape.append(f"{seen.memory_bytes / BYTES_PER_GIB:.1f} GB")
    if seen.sm_count is not None:
        shape.append(f"{seen.sm_count} compute units")
    name = repr(seen.name) if seen.name else "a device without a name"
    return name + (f" with {' and '.join(shape)}" if shape else "")

"""What the device's memory held, with what the device has: from whatever the source tells of it."""

from __future__ import annotations

from msgspec import structs

from stepgrade.hardware.memory.allocator import capacity_bytes
from stepgrade.hardware.setup import Target
from stepgrade.model import Profile
from stepgrade.model.memory import Memory


def capacity_of(profile: Profile, target: Target) -> float | None:
    """Return the memory of the device as its driver reports it: what the source says, else the catalogue."""
    seen, failed = profile.device, profile.memory.out_of_memory if profile.memory else None
    if failed is not None and failed.capacity_bytes:
        return failed.capacity_bytes
    if seen is not None and seen.memory_bytes:
        return float(seen.memory_bytes)
    return capacity_bytes(target.device)


def memory_of_run(profile: Profile, target: Target) -> Memory | None:
    """Return the memory with capacity and headroom; of a source with only a peak, that one."""
    memory = profile.memory
    if memory is None:
        if not profile.peak_memory_bytes:
            return None
        memory = Memory(peak_bytes=profile.peak_memory_bytes)
    capacity, peak = capacity_of(profile, target), memory.peak_bytes
    headroom = capacity - peak if capacity is not None and peak is not None else None
    return structs.replace(memory, capacity_bytes=capacity, headroom_bytes=headroom)

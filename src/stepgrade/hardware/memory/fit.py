"""Whether a run fits a device: the answer that `estimate` shows."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, structs

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.memory.allocator import capacity_bytes
from stepgrade.hardware.memory.changes import MemoryChange, adapters_instead, cheapest_changes
from stepgrade.hardware.memory.device import Phase
from stepgrade.hardware.memory.need import Verdict, memory_need, verdict_of
from stepgrade.hardware.models.shape import ModelShape

_MOST_SEQUENCES = 2**20
_MOST_DEVICES = 2**14


class Anchor(Struct, frozen=True, kw_only=True):
    """Measured peak memory of a run with the same setup; its micro-batch may differ."""

    peak_bytes: float
    kind: Literal["allocated", "reserved"]
    batch: int | None = None
    seq: int | None = None


class MemoryFit(Struct, frozen=True, kw_only=True):
    """What one device must hold at its peak, and whether it fits; None if its memory is unknown.

    `low_bytes` and `high_bytes` are the band around `need_bytes`; `parts` add up to it. `changes` are the
    cheapest that make a run fit that does not; `least_devices` is how many could hold it with FSDP where
    they are not enough. `another_training` is one with adapters that fits where this one does not.
    """

    verdict: Verdict | None
    need_bytes: float
    low_bytes: float
    high_bytes: float
    capacity_bytes: float | None
    allocated_bytes: float
    reserved_bytes: float
    parts: dict[str, float]
    phase: Phase
    stage: int
    largest_micro_batch: int | None
    changes: tuple[MemoryChange, ...] = ()
    least_devices: int | None = None
    another_training: MemoryChange | None = None
    is_anchored: bool = False


def memory_fit(
    shape: ModelShape, plan: Plan, device: Device | None, anchor: Anchor | None = None
) -> MemoryFit:
    """Return what a device holds in the run, corrected by a measured run if there is one."""
    offset = None if anchor is None else anchor_offset(shape, plan, anchor)
    need, capacity = memory_need(shape, plan, offset), capacity_bytes(device)
    verdict: Verdict | None = None
    most: int | None = None
    changes: tuple[MemoryChange, ...] = ()
    devices: int | None = None
    adapters: MemoryChange | None = None
    if capacity is not None:
        verdict, most = verdict_of(need, capacity), largest_micro_batch(shape, plan, capacity, offset)
        changes = cheapest_changes(shape, plan, capacity, offset)
        adapters = adapters_instead(shape, plan, capacity) if verdict != "fits" else None
        if verdict != "fits" and (not changes or changes[-1].verdict != "fits"):
            devices = least_devices(shape, plan, capacity)
    return MemoryFit(
        verdict=verdict,
        need_bytes=need.need_bytes,
        low_bytes=need.low_bytes,
        high_bytes=need.high_bytes,
        capacity_bytes=capacity,
        allocated_bytes=need.allocated_bytes,
        reserved_bytes=need.reserved_bytes,
        parts=need.parts,
        phase=need.phase,
        stage=need.stage,
        largest_micro_batch=most,
        changes=changes,
        least_devices=devices,
        another_training=adapters,
        is_anchored=anchor is not None,
    )


def least_devices(shape: ModelShape, plan: Plan, capacity: float) -> int | None:
    """Return how many devices (2, 4, 8, …) hold the run with FSDP and everything recomputed, or None."""
    lean = structs.replace(plan, batch=1, checkpointing="full", allocator="expandable", loss="chunked")
    devices = 2
    while devices <= _MOST_DEVICES:
        need = memory_need(shape, structs.replace(lean, parallel=Parallelism(devices=devices, data="fsdp")))
        if verdict_of(need, capacity) == "fits":
            return devices
        devices *= 2
    return None


def anchor_offset(shape: ModelShape, plan: Plan, anchor: Anchor) -> float:
    """Return how many bytes more than predicted the measured run took."""
    same = structs.replace(plan, batch=anchor.batch or plan.batch, seq=anchor.seq or plan.seq)
    predicted = memory_need(shape, same)
    peak_bytes = predicted.allocated_bytes if anchor.kind == "allocated" else predicted.reserved_bytes
    return anchor.peak_bytes - peak_bytes


def largest_micro_batch(shape: ModelShape, plan: Plan, capacity: float, offset: float | None = None) -> int:
    """Return the largest micro-batch that still fits; 0 if one sequence does not."""

    def fits(batch: int) -> bool:
        need = memory_need(shape, structs.replace(plan, batch=batch), offset)
        return verdict_of(need, capacity) == "fits"

    # The need only grows with the batch, so doubling and halving find the last that fits.
    if not fits(1):
        return 0
    most = 1
    while most < _MOST_SEQUENCES and fits(2 * most):
        most *= 2
    step = most // 2
    while step:
        if most + step <= _MOST_SEQUENCES and fits(most + step):
            most += step
        step //= 2
    return most

"""From tensor bytes to device memory: fragmentation, pools, the driver's context, capacity."""

from __future__ import annotations

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.cost.plan import Plan

GIB = 2**30
# Reserved over allocated, less 1: with expandable segments, and with constant shapes.
_FRAGMENTS = {"expandable": 0.03, "default": 0.06}
# With varying lengths, blocks of one length do not fit the next: this share of a step's allocations more.
_VARYING = 1.5
_MOST_VARYING = 1.5  # on top of that
# The part that stays when memory runs short: cached blocks are released then, parts of blocks are not.
# The most that 40 out-of-memory errors with expandable segments left unused; for constant shapes without them
# all is taken to stay. Of varying lengths, runs that filled their device bound it to 0.6 of a step's bytes.
_FRAGMENTS_AT_LIMIT = {"expandable": 0.007, "default": _FRAGMENTS["default"]}
_VARYING_AT_LIMIT = 0.5
# The driver's context, alone and with NCCL's buffers: what OOM messages leave unexplained.
_CONTEXT = 0.5 * GIB
_CONTEXT_WITH_PEERS = 1.6 * GIB
# Total memory as drivers report it, in GiB, by device key.
_REPORTED_GIB = {
    "a100-sxm4-40gb": 39.4,
    "a100-pcie-40gb": 39.4,
    "a100-sxm4-80gb": 79.2,
    "a100-pcie-80gb": 79.2,
    "h100-sxm5-80gb": 79.19,
    "h100-pcie": 79.19,
    "h100-sxm5-96gb-hbm2e": 95.0,
    "b200": 178.35,
    "gb200": 184.0,
    "mi300x": 191.98,
    "mi210": 63.98,
    "v100-sxm2-32gb": 31.74,
    "v100-pcie-32gb": 31.74,
    "v100-sxm2-16gb": 15.77,
    "v100-pcie-16gb": 15.77,
    "h200-sxm": 139.8,
    # Cards with ECC on GDDR memory reserve a part of it.
    "t4": 14.56,
    "a10": 22.06,
    "a10g": 22.06,
    "l4": 22.03,
    "l40": 44.4,
    "l40s": 44.4,
}
# For other GPUs: the GiB in the name, less what the firmware reserves.
_REPORTED_SHARE = 0.985


def fragment_bytes(plan: Plan, lasting: float, passing: float) -> float:
    """Return how much more the allocator reserves than tensors take: those that last, those of one step."""
    share = _FRAGMENTS[plan.allocator]
    return share * lasting + (_VARYING if blocks_vary(plan) else share) * passing


def fragment_bytes_at_limit(plan: Plan, lasting: float, passing: float) -> float:
    """Return how much of that is left when the device is full and the allocator has released what it can."""
    share = _FRAGMENTS_AT_LIMIT[plan.allocator]
    return share * (lasting + passing) + (_VARYING_AT_LIMIT * passing if blocks_vary(plan) else 0.0)


def blocks_vary(plan: Plan) -> bool:
    """Tell whether blocks of one step do not fit the next."""
    return plan.lengths == "variable" and plan.allocator == "default"


def varying_bytes(plan: Plan, passing: float) -> float:
    """Return how much more than usual blocks of many lengths may take."""
    return _MOST_VARYING * passing if blocks_vary(plan) else 0.0


def context_bytes(plan: Plan) -> float:
    """Return the memory of the driver and the collectives library, outside PyTorch."""
    return _CONTEXT_WITH_PEERS if plan.parallel.devices > 1 else _CONTEXT


def capacity_bytes(device: Device | None) -> float | None:
    """Return the memory as the driver reports it; None if unknown."""
    if device is None or device.memory_gb is None:
        return None
    return _REPORTED_GIB.get(device.key, device.memory_gb * _REPORTED_SHARE) * GIB

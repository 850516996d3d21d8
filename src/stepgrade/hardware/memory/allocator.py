"""From what tensors take to what the device must have: fragments, pools, the driver's context, capacity."""

from __future__ import annotations

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.cost.plan import Plan

GIB = 2**30
# Reserved over allocated, less 1: with expandable segments, and with constant shapes.
_FRAGMENTS = {"expandable": 0.03, "default": 0.06}
# Where lengths vary, blocks of one length do not fit the next: of what a step allocates, so much more.
_VARYING = 1.5
_MOST_VARYING = 1.5  # on top of that
# What of it stays when memory runs short: cached blocks go back to the driver then, parts of blocks do not.
# The most that 40 out-of-memory errors with expandable segments left unused; for constant shapes without them
# all is taken to stay. Of varying lengths, runs that filled their device bound it to 0.6 of a step's bytes.
_FRAGMENTS_AT_LIMIT = {"expandable": 0.007, "default": _FRAGMENTS["default"]}
_VARYING_AT_LIMIT = 0.5
# The driver's context, alone and with NCCL's buffers: what OOM messages leave unexplained.
_CONTEXT = 0.5 * GIB
_CONTEXT_WITH_PEERS = 1.6 * GIB
# What drivers report as the total memory, in GiB, by the key of the device.
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
    # Cards that check GDDR memory for errors keep a part of it for that.
    "t4": 14.56,
    "a10": 22.06,
    "a10g": 22.06,
    "l4": 22.03,
    "l40": 44.4,
    "l40s": 44.4,
}
# Of a GPU that is not among them: the binary gigabytes of its name, less what the firmware keeps.
_REPORTED_SHARE = 0.985


def fragment_bytes(plan: Plan, lasting: float, passing: float) -> float:
    """Return how much more the allocator reserves than tensors take: those that last, those of one step."""
    share = _FRAGMENTS[plan.allocator]
    return share * lasting + (_VARYING if blocks_vary(plan) else share) * passing


def fragment_bytes_at_limit(plan: Plan, lasting: float, passing: float) -> float:
    """Return how much of that is left when the device is full and the allocator gives back what it can."""
    share = _FRAGMENTS_AT_LIMIT[plan.allocator]
    return share * (lasting + passing) + (_VARYING_AT_LIMIT * passing if blocks_vary(plan) else 0.0)


def blocks_vary(plan: Plan) -> bool:
    """Tell whether blocks of one step do not fit the next."""
    return plan.lengths == "variable" and plan.allocator == "default"


def varying_bytes(plan: Plan, passing: float) -> float:
    """Return how much more than usual blocks of many lengths may take."""
    return _MOST_VARYING * passing if blocks_vary(plan) else 0.0


def context_bytes(plan: Plan) -> float:
    """Return what the driver and the collectives' library take besides PyTorch."""
    return _CONTEXT_WITH_PEERS if plan.parallel.devices > 1 else _CONTEXT


def capacity_bytes(device: Device | None) -> float | None:
    """Return the memory as the driver reports it; None where the device does not say."""
    if device is None or device.memory_gb is None:
        return None
    return _REPORTED_GIB.get(device.key, device.memory_gb * _REPORTED_SHARE) * GIB

"""Occupancy of a kernel: how many warps a multiprocessor holds of those that it can.

As NVIDIA's occupancy calculator has it: blocks of a kernel share a multiprocessor until its warps, registers,
shared memory or slots for blocks are used up. Registers are given to warps in units of 256, a quarter of them
to each of four partitions; shared memory in units of 128 bytes (256 before Ampere), from Ampere on with 1 KiB
for the system in each block. Kineto works it out without the shared memory above 48 KiB that a kernel can ask
for, and then writes 0, as it does for less than half a percent.
"""

from __future__ import annotations

from stepgrade.model.events import KernelLaunch, SmLimits

_WARP = 32
_REGISTER_UNIT = 256  # given to a warp
_PARTITIONS = 4  # of a multiprocessor, with a quarter of its registers each
_SYSTEM_SHARED = 1024  # bytes of each block, from Ampere on
# Blocks that a multiprocessor can hold, by compute capability; of others the warps decide.
_MOST_BLOCKS = {
    "7.0": 32,
    "7.2": 32,
    "7.5": 16,
    "8.0": 32,
    "8.6": 16,
    "8.7": 16,
    "8.9": 24,
    "9.0": 32,
    "10.0": 32,
    "10.3": 32,
    "12.0": 24,
    "12.1": 24,
}


def occupancy_of(launch: KernelLaunch, limits: SmLimits | None, capability: str | None) -> float | None:
    """Return what was recorded, else what registers, shared memory and blocks allow; None if not known."""
    if launch.occupancy is not None:
        return launch.occupancy
    most_blocks = _MOST_BLOCKS.get(capability or "")
    known = (launch.block_threads, launch.shared_bytes, launch.registers, launch.blocks_per_sm)
    if limits is None or most_blocks is None or None in known:
        return None
    threads, shared = launch.block_threads or 0, launch.shared_bytes or 0
    warps = -(-threads // _WARP)
    per_warp = -(-(launch.registers or 1) * _WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    of_registers = limits.registers // _PARTITIONS // per_warp * _PARTITIONS // warps
    unit, system = (128, _SYSTEM_SHARED) if int((capability or "0").split(".")[0]) >= 8 else (256, 0)
    of_block = -(-(shared + system) // unit) * unit
    of_shared = limits.shared_bytes // of_block if of_block else most_blocks
    blocks = min(limits.threads // _WARP // warps, of_registers, of_shared, most_blocks)
    if blocks < 1:  # it ran, so something is not as it is taken to be
        return None
    held = min(float(blocks), launch.blocks_per_sm or 0.0) * threads / limits.threads
    return round(min(1.0, held), 4)  # finer than the profiler's own whole percents

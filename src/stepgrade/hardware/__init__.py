"""What the hardware allows: the catalogue of accelerators, the cost model, and the ceilings they set."""

from stepgrade.hardware.catalogue import Device, devices, find_device
from stepgrade.hardware.ceilings import (
    Ceiling,
    Costs,
    Figures,
    MemoryFigures,
    ceilings,
    lowest,
    memory_ceiling,
)

__all__ = [
    "Ceiling",
    "Costs",
    "Device",
    "Figures",
    "MemoryFigures",
    "ceilings",
    "devices",
    "find_device",
    "lowest",
    "memory_ceiling",
]

"""What the hardware allows: the catalogue of accelerators and the ceilings they set."""

from stepgrade.hardware.catalogue import Device, devices, find_device
from stepgrade.hardware.ceilings import Ceiling, MemoryFigures, memory_ceiling

__all__ = ["Ceiling", "Device", "MemoryFigures", "devices", "find_device", "memory_ceiling"]

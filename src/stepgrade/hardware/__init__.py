"""What the hardware allows: the catalogue of accelerators, the cost model, and the ceilings they set."""

from stepgrade.hardware.catalogue import Device, all_devices, find_device
from stepgrade.hardware.ceilings import Costs, Figures, ceilings, lowest
from stepgrade.hardware.setup import Target
from stepgrade.model.ceiling import Ceiling

__all__ = [
    "Ceiling",
    "Costs",
    "Device",
    "Figures",
    "Target",
    "all_devices",
    "ceilings",
    "find_device",
    "lowest",
]

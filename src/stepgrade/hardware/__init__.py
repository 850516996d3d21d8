"""What the hardware allows: the catalogue of accelerators, the cost model, and the ceilings they set."""

from stepgrade.hardware.catalogue import Device, devices, find_device
from stepgrade.hardware.ceilings import Ceiling, Costs, Figures, ceilings, lowest
from stepgrade.hardware.expectation import Expectation

__all__ = [
    "Ceiling",
    "Costs",
    "Device",
    "Expectation",
    "Figures",
    "ceilings",
    "devices",
    "find_device",
    "lowest",
]

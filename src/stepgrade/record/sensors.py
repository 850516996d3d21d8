"""Clocks, power and temperature of the GPU, when nvidia-ml-py is installed and a driver answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepgrade.record.totals import Series

_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU


class Sensors:
    """Readings of one GPU, taken when the journal is written and never in the step's own time."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._series = {name: Series() for name in ("sm_mhz", "memory_mhz", "power_w", "temperature_c")}

    def read(self) -> None:
        """Take one reading of each; what the GPU does not tell is left out."""
        nvml, handle = self._nvml, self._handle
        asked: dict[str, Callable[[], Any]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_MEMORY),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU),
        }
        for name, ask in asked.items():
            try:
                self._series[name].add(float(ask()))
            except nvml.NVMLError:
                continue

    def summary(self) -> dict[str, dict[str, float]]:
        """Return first, last, low, high and mean of what was read."""
        return {name: series.summary() for name, series in self._series.items() if series.count}


def sensors_for(device: Any) -> Sensors | None:
    """Return the sensors of a CUDA device; None without nvidia-ml-py, a driver or such a device."""
    if device is None or device.type != "cuda":
        return None
    try:
        import pynvml  # noqa: PLC0415  optional
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return Sensors(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(_bus_id(device)))
    except (pynvml.NVMLError, AttributeError):
        return None


def _bus_id(device: Any) -> str:
    """Return the PCI address: NVML and CUDA number devices differently."""
    import torch  # noqa: PLC0415  an extra

    found = torch.cuda.get_device_properties(device)
    return f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"

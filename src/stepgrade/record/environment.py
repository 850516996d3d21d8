"""Describe a run: versions, device and its sensors, model, precision, rank."""

from __future__ import annotations

import os
import platform
import time
from _thread import get_native_id
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from stepgrade._version import __version__
from stepgrade.hardware.detect import OtherLoad, processor
from stepgrade.model.notes import Note
from stepgrade.record.blocks import unwrap
from stepgrade.record.totals import Series
from stepgrade.units import show_share

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_PACKAGES = ("torch", "transformers", "accelerate", "lightning", "deepspeed", "flash-attn", "triton", "numpy")
# Shares of the time spent waiting for a core, and of cores used by other programs, above which both are
# reported; smaller ones are within the usual noise between runs.
_NOTABLE_WAIT, _NOTABLE_LOAD = 0.05, 0.1
_CLOCK_SM, _CLOCK_MEMORY, _TEMPERATURE_GPU = 1, 2, 0  # NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU


@cache
def versions() -> dict[str, str]:
    """Return the versions of stepgrade, Python and installed training packages."""
    import torch  # an extra

    found = {"stepgrade": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    toolkits = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    return found | {name: value for name, value in toolkits.items() if value is not None}


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the world size, from torch.distributed or the launcher."""
    import torch.distributed as dist  # an extra

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)


def describe_loop(optimizer: object, loader: object) -> dict[str, object]:
    """Return optimizer, batch size, loader workers and threads, as far as known."""
    import torch  # an extra

    found = {
        "optimizer": None if optimizer is None else type(optimizer).__name__,
        "batch_size": getattr(loader, "batch_size", None),
        "loader_workers": getattr(loader, "num_workers", None),
        "threads": torch.get_num_threads(),
    }
    return {name: value for name, value in found.items() if value is not None}


def describe_model(model: Module) -> dict[str, object]:
    """Return class, size, precision and wrappers of the model; a lazy one has no size at first."""
    from torch.nn.parameter import is_lazy  # an extra

    parameters = list(model.parameters())
    has_size = not any(is_lazy(parameter) for parameter in parameters)
    bare = unwrap(model)
    found = {
        "model": type(bare).__name__,
        "wrapper": type(model).__name__ if bare is not model else None,
        "parameters": sum(p.numel() for p in parameters) if has_size else None,
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad) if has_size else None,
        "parameter_dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def autocast_dtype(device: torch.device | None) -> str | None:
    """Return autocast's current precision; None if it is off or torch is too old."""
    import torch  # an extra

    kind = "cpu" if device is None else device.type
    if not hasattr(torch, "get_autocast_dtype") or not torch.is_autocast_enabled(kind):
        return None
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")


def device_of(model: Module) -> torch.device | None:
    """Return the device of the model's first parameter; None without parameters."""
    parameter = next(iter(model.parameters()), None)
    return None if parameter is None else parameter.device


def describe_device(device: torch.device | None) -> dict[str, object]:
    """Return kind and name of the device; for CUDA also its memory and multiprocessors."""
    if device is None or device.type in ("cpu", "meta"):
        here = processor()
        ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
        return {
            "name": here.name,
            "kind": "cpu",
            "cores": here.cores,
            "ranks": int(ranks) if ranks.isdecimal() and int(ranks) else 1,
        }
    if device.type != "cuda":
        return {"kind": device.type}
    import torch  # an extra

    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "kind": "cuda",
        "memory_bytes": found.total_memory,
        "sm_count": found.multi_processor_count,
    }


def peak_memory_bytes(kind: object) -> float | None:
    """Return the peak memory so far: PyTorch's on a CUDA device, the process's on a CPU."""
    if kind == "cuda":
        import torch  # an extra

        return float(torch.cuda.max_memory_allocated())
    if kind != "cpu":
        return None
    try:
        import resource  # not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if platform.system() == "Darwin" else peak * 1024)


class Contention:
    """How long the calling thread waits for a core from now on, and how busy other programs keep the cores.

    Linux counts both. Loader workers and other ranks, which have the same parent, belong to the training.
    """

    def __init__(self) -> None:
        self._load = OtherLoad(os.getppid() if rank_and_world()[1] > 1 else os.getpid())
        self._path = f"/proc/self/task/{get_native_id()}/schedstat"
        self._began, self._waited_before = time.monotonic(), self._waited_s()

    def note(self) -> Note | None:
        """Return a remark if other programs slowed the training down, as far as known."""
        waited_s, others = self._waited_s(), self._load.share()
        passed_s = time.monotonic() - self._began
        if waited_s is None or self._waited_before is None or others is None or passed_s <= 0:
            return None
        waiting = (waited_s - self._waited_before) / passed_s
        if waiting < _NOTABLE_WAIT or others < _NOTABLE_LOAD:
            return None
        text = (
            f"the machine was busy: other programs took {show_share(others)} of its cores, and the training "
            f"waited for one {show_share(waiting)} of the time; on a quiet machine it is faster"
        )
        return Note("busy_machine", text)

    def _waited_s(self) -> float | None:
        try:
            with open(self._path, "rb") as figures:
                return int(figures.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return None


class Sensors:
    """Clocks, power and temperature of a GPU, read between steps when the journal is written."""

    def __init__(self, nvml: Any, handle: object) -> None:  # nvidia-ml-py has no types
        self._error = nvml.NVMLError
        self._readers: dict[str, Callable[[], float]] = {
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_MEMORY),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, _TEMPERATURE_GPU),
        }
        self._series = {name: Series() for name in self._readers}

    def read(self) -> None:
        """Take a reading of each sensor that the GPU has."""
        for name, read in self._readers.items():
            try:
                self._series[name].add(float(read()))
            except self._error:
                continue

    def summary(self) -> dict[str, dict[str, float]]:
        """Return first, last, lowest, highest and mean of the readings."""
        found = {name: series.summary() for name, series in self._series.items()}
        return {name: summary for name, summary in found.items() if summary is not None}


def sensors_for(device: torch.device | None) -> Sensors | None:
    """Return the sensors of a CUDA device; None if it, its driver or nvidia-ml-py is missing."""
    if device is None or device.type != "cuda":
        return None
    try:
        import pynvml  # optional
    except ImportError:
        return None
    import torch  # an extra

    try:
        pynvml.nvmlInit()
        found = torch.cuda.get_device_properties(device)
        # By PCI address: NVML and CUDA number devices differently.
        address = f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
        return Sensors(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(address))
    except (pynvml.NVMLError, AttributeError):
        return None

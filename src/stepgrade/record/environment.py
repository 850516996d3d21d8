"""Describe a run: versions, device and its sensors, model, precision, rank."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from stepgrade._version import __version__
from stepgrade.hardware.detect import OtherLoad, processor
from stepgrade.model.profile import Machine
from stepgrade.record.blocks import unwrap
from stepgrade.record.totals import Series

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_PACKAGES = ("torch", "transformers", "accelerate", "lightning", "deepspeed", "flash-attn", "triton", "numpy")
# Of the time that the busiest thread ran or wanted to: other threads compute nothing that it waits for.
_COMPUTING_SHARE = 0.5
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


class Waits:
    """How long the threads of this process that compute wait for a core from now on, as Linux counts it."""

    def __init__(self) -> None:
        self._began, self._before = time.monotonic_ns(), self._counts()

    def share(self) -> float | None:
        """Return the share of the time in which the thread that waits most does so; None if unknown.

        Threads that want little of a core do not count: nothing waits for them.
        """
        passed_ns = time.monotonic_ns() - self._began
        spent = [
            (ran - before[0] + waited - before[1], waited - before[1])
            for thread, (ran, waited) in self._counts().items()
            if (before := self._before.get(thread)) is not None
        ]
        most_ns = max((wanted for wanted, _ in spent), default=0)
        longest_ns = max(
            (waited for wanted, waited in spent if wanted >= _COMPUTING_SHARE * most_ns), default=None
        )
        return None if longest_ns is None or passed_ns <= 0 else min(1.0, longest_ns / passed_ns)

    @staticmethod
    def _counts() -> dict[str, tuple[int, int]]:
        """Return the nanoseconds that each thread ran and waited for a core so far."""
        found = {}
        with suppress(OSError):
            for thread in os.listdir("/proc/self/task"):
                with suppress(OSError, ValueError, IndexError):  # it has just ended
                    with open(f"/proc/self/task/{thread}/schedstat", "rb") as figures:
                        ran, waited, *_ = figures.read().split()
                    found[thread] = int(ran), int(waited)
        return found


class Contention:
    """How long the training waits for a core from now on, and how busy other programs keep the cores.

    Linux counts both. Loader workers and other ranks, which have the same parent, belong to the training.
    """

    def __init__(self) -> None:
        self._load = OtherLoad(os.getppid() if rank_and_world()[1] > 1 else os.getpid())
        self._waits, self._throttled = Waits(), _times_throttled()

    def machine(self) -> Machine | None:
        """Return what the machine kept from the training so far; None if nothing is known of it."""
        throttled = _times_throttled()
        found = Machine(
            busy_share=self._load.share(),
            waited_for_core_share=self._waits.share(),
            throttled=None if None in (throttled, self._throttled) else throttled != self._throttled,
        )
        return found if found != Machine() else None


def _times_throttled() -> int | None:
    """Return how often the control group of this process has used up its processor time; None if unknown."""
    with suppress(OSError, ValueError):
        with open("/sys/fs/cgroup/cpu.stat", "rb") as lines:
            counts = dict(line.split() for line in lines)
        return int(counts[b"nr_throttled"]) if b"nr_throttled" in counts else None
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

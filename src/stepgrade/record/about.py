"""What a run is, for its fingerprint: versions, device, model, precision, how it is spread out."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stepgrade._version import __version__
from stepgrade.record.blocks import bare

_PACKAGES = ("torch", "transformers", "accelerate", "lightning", "deepspeed", "flash-attn", "triton", "numpy")


def versions() -> dict[str, str]:
    """Return the versions of what the run is made of, as far as it is installed."""
    import torch  # noqa: PLC0415  an extra

    found = {"stepgrade": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    toolkits = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    return found | {name: value for name, value in toolkits.items() if value is not None}


def device_of(model: Any) -> Any:
    """Return where the model's first parameter is; None without a model or parameters."""
    parameter = next(iter(model.parameters()), None) if model is not None else None
    return None if parameter is None else parameter.device


def autocast_dtype(device: Any) -> str | None:
    """Return the precision that autocast computes in right now; None when it is off or torch is too old."""
    import torch  # noqa: PLC0415  an extra

    kind = "cpu" if device is None else device.type
    if not hasattr(torch, "get_autocast_dtype") or not torch.is_autocast_enabled(kind):
        return None
    return str(torch.get_autocast_dtype(kind)).removeprefix("torch.")


def describe_device(device: Any) -> dict[str, Any]:
    """Return the name of the device; of a CUDA device also its memory and its multiprocessors."""
    if device is None or device.type in ("cpu", "meta"):
        return {"name": _processor(), "kind": "cpu"}
    if device.type != "cuda":
        return {"kind": device.type}
    import torch  # noqa: PLC0415  an extra

    found = torch.cuda.get_device_properties(device)
    return {
        "name": found.name,
        "kind": "cuda",
        "memory_bytes": found.total_memory,
        "sm_count": found.multi_processor_count,
    }


def peak_memory_bytes(kind: str) -> float | None:
    """Return the most memory held so far: PyTorch's on a CUDA device, the process's own on a CPU."""
    if kind == "cuda":
        import torch  # noqa: PLC0415  an extra

        return float(torch.cuda.max_memory_allocated())
    return _resident_bytes() if kind == "cpu" else None


def _resident_bytes() -> float | None:
    try:
        import resource  # noqa: PLC0415  not on Windows
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if platform.system() == "Darwin" else peak * 1024)


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and how many there are, from torch.distributed or the launcher."""
    import torch.distributed as dist  # noqa: PLC0415  an extra

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)


def describe_model(model: Any) -> dict[str, Any]:
    """Return class, size and precision of the model, and how it is wrapped."""
    parameters = list(model.parameters())
    found = {
        "model": type(bare(model)).__name__,
        "wrapper": type(model).__name__ if bare(model) is not model else None,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        "parameter_dtype": str(parameters[0].dtype).removeprefix("torch.") if parameters else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def describe_run(optimizer: Any, loader: Any) -> dict[str, Any]:
    """Return what makes two runs comparable, as far as the parts tell it."""
    import torch  # noqa: PLC0415  an extra

    found = {
        "optimizer": None if optimizer is None else type(optimizer).__name__,
        "batch_size": getattr(loader, "batch_size", None),
        "loader_workers": getattr(loader, "num_workers", None),
        "threads": torch.get_num_threads(),
    }
    return {name: value for name, value in found.items() if value is not None}


def _processor() -> str | None:
    """Return the processor's name, where the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:  # noqa: PTH123
            names = (line.partition(":")[2].strip() for line in stream if line.startswith("model name"))
            return next(names, None)
    except OSError:
        return platform.processor() or None

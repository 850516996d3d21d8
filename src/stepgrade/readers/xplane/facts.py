"""What a profile says of its devices and versions, and how to record a better one."""

from __future__ import annotations

from typing import Final

from stepgrade.model.events import Profiler, TraceDevice
from stepgrade.readers.xplane.planes import Plane, PlaneSpace, Stat

PROFILER: Final = Profiler(
    format="xplane",
    producer="JAX (XPlane)",
    mark_steps="Put each iteration into `with jax.profiler.StepTraceAnnotation('train', step_num=n):`.",
    record_operations="Record with jax.profiler.trace(directory), and keep the .xplane.pb: trace.json.gz has "
    "no HLO.",
    record_device="Record with jax.profiler.trace(directory) in the process that holds the devices.",
    record_layers="Put each layer into `with jax.named_scope(f'layer_{n}'):`, or scan over the layers.",
)
# A GPU does not say its name: vendor, capability and cores do; memory where there are several sizes.
_GPUS: Final = {
    ("AMD", "9.4", 304): "AMD Instinct MI300X",
    ("AMD", "9.4", 228): "AMD Instinct MI300A",
    ("AMD", "9.5", 256): "AMD Instinct MI355X",
    ("AMD", "9.0", 104): "AMD Instinct MI250X",
    ("AMD", "9.0", 110): "AMD Instinct MI250X",
    ("NVIDIA", "7.0", 80): "Tesla V100-SXM2-16GB",
    ("NVIDIA", "7.5", 40): "Tesla T4",
    ("NVIDIA", "8.0", 108): "NVIDIA A100-SXM4-40GB",
    ("NVIDIA", "8.6", 72): "NVIDIA A10",
    ("NVIDIA", "8.6", 82): "NVIDIA GeForce RTX 3090",
    ("NVIDIA", "8.6", 84): "NVIDIA RTX A6000",
    ("NVIDIA", "8.9", 58): "NVIDIA L4",
    ("NVIDIA", "8.9", 128): "NVIDIA GeForce RTX 4090",
    ("NVIDIA", "8.9", 142): "NVIDIA L40S",
    ("NVIDIA", "9.0", 114): "NVIDIA H100 PCIe",
    ("NVIDIA", "9.0", 132): "NVIDIA H100 80GB HBM3",
    ("NVIDIA", "10.0", 148): "NVIDIA B200",
}
_LARGER: Final = {
    "Tesla V100-SXM2-16GB": (24e9, "Tesla V100-SXM2-32GB"),
    "NVIDIA A100-SXM4-40GB": (60e9, "NVIDIA A100-SXM4-80GB"),
    "NVIDIA H100 80GB HBM3": (120e9, "NVIDIA H200"),
}


def device_of(plane: Plane, index: int) -> TraceDevice:
    """Return the device of a plane."""
    stats = plane.stats
    major, minor = stats.get("compute_cap_major"), stats.get("compute_cap_minor")
    capability = f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None
    vendor, named = stats.get("device_vendor"), stats.get("device_type_string")
    cores, memory = _positive(stats.get("core_count")), _positive(stats.get("memory_size"))
    name = named[:200] if isinstance(named, str) and named else None
    if name is None and isinstance(vendor, str):
        maker = "NVIDIA" if "nvidia" in vendor.lower() else vendor.upper()[:20]
        name = _GPUS.get((maker, capability or "", cores or 0))
        larger = _LARGER.get(name or "")
        if larger and memory and memory > larger[0]:
            name = larger[1]
    is_nvidia = isinstance(vendor, str) and "nvidia" in vendor.lower()
    return TraceDevice(
        index=index,
        name=name,
        memory_bytes=memory,
        sm_count=cores,
        capability=capability if is_nvidia else None,
    )


def _positive(value: Stat | None) -> int | None:
    return value if isinstance(value, int) and 0 < value < 1 << 62 else None


def versions_of(space: PlaneSpace) -> dict[str, str]:
    """Return the versions that were recorded."""
    found = {}
    for plane in space.planes:
        for name in ("jax_version", "jaxlib_version"):
            value = plane.stats.get(name)
            if isinstance(value, str) and value:
                found[name.removesuffix("_version")] = value[:40]
    return found


def epoch_of(space: PlaneSpace) -> int | None:
    """Return the epoch nanoseconds of the profile's start."""
    times = (plane.stats.get("profile_start_time") for plane in space.planes)
    return next((time for time in times if isinstance(time, int) and 0 < time < 1 << 62), None)

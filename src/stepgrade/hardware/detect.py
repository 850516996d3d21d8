"""Which devices this machine has: every driver that answers is asked, none has to be there."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

from msgspec import Struct

from stepgrade.errors import UnknownDevice
from stepgrade.hardware.catalogue import part_of
from stepgrade.hardware.identify import Sighting, identify
from stepgrade.model.notes import Result

# The driver counts one edge of a clock whose memory moves data on both.
EDGES_PER_CLOCK = 2
# A driver that differs by more from the catalogue is worth a look (laptops, cut-down boards).
NOTABLE_GAP = 0.05


class FoundDevice(Struct, frozen=True, kw_only=True):
    """One device as its driver sees it, with its catalogue key or why it has none."""

    index: int
    name: str
    memory_bytes: int | None = None
    compute_units: int | None = None
    arch: str | None = None
    key: str | None = None
    problem: str | None = None
    driver_bw_gb_s: float | None = None
    power_limit_w: float | None = None
    notes: tuple[str, ...] = ()


class Answer(Struct, frozen=True, kw_only=True):
    """What one driver said; `absent` is a fact, not an error."""

    driver: str
    state: Literal["found", "none", "absent"]
    detail: str
    devices: tuple[FoundDevice, ...] = ()


class Processor(Struct, frozen=True, kw_only=True):
    """This machine's processor; its ceilings have to be measured."""

    name: str
    cores: int
    memory_bytes: int | None


class Detection(Result, frozen=True, kw_only=True):
    """Everything that was found, driver by driver, and the processor."""

    answers: tuple[Answer, ...]
    processor: Processor


def detect() -> Detection:
    """Ask every driver that can be imported; never raises for one that is absent or broken."""
    asked = (("nvidia-ml-py", "pynvml", _ask_nvml), ("amdsmi", "amdsmi", _ask_amdsmi))
    frameworks = (("torch", "torch", _ask_torch), ("jax", "jax", _ask_jax))
    answers = [_answer(driver, module, ask) for driver, module, ask in (*asked, *frameworks)]
    return Detection(answers=tuple(answers), processor=processor())


def processor() -> Processor:
    """Return this machine's processor as the operating system describes it."""
    return Processor(name=_processor_name(), cores=usable_cores(), memory_bytes=_memory_bytes())


def usable_cores() -> int:
    """Return the cores that this process may use."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _answer(driver: str, module: str, ask: Callable[[Any], list[FoundDevice]]) -> Answer:
    try:
        library = import_module(module)
    except ImportError:
        return Answer(driver=driver, state="absent", detail=f"the Python package {driver} is not installed")
    except (OSError, KeyError, AttributeError) as error:
        # amdsmi looks for ROCm's own library while it is imported.
        return Answer(driver=driver, state="absent", detail=_first_line(error))
    failures = _failures(library)
    try:
        devices = ask(library)
    except failures as error:
        return Answer(driver=driver, state="none", detail=f"no device: {_first_line(error)}")
    count = len(devices)
    detail = f"{count} device{'s' if count != 1 else ''}"
    return Answer(driver=driver, state="found" if devices else "none", detail=detail, devices=tuple(devices))


def _failures(library: Any) -> tuple[type[BaseException], ...]:
    own = (getattr(library, name, None) for name in ("NVMLError", "AmdSmiException"))
    return (RuntimeError, OSError, *(kind for kind in own if kind is not None))


def _ask_nvml(nvml: Any) -> list[FoundDevice]:
    nvml.nvmlInit()
    try:
        return [_nvml_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _nvml_device(nvml: Any, index: int) -> FoundDevice:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *arguments: Any) -> Any:
        # Boards with unified memory answer "not supported" to much of this.
        with suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, name)(handle, *arguments)
        return None

    name = ask("nvmlDeviceGetName") or ""
    memory = ask("nvmlDeviceGetMemoryInfo")
    clock = ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM)
    width = ask("nvmlDeviceGetMemoryBusWidth")
    limit = ask("nvmlDeviceGetEnforcedPowerLimit")
    mode = ask("nvmlDeviceGetMigMode")
    seen = Sighting(name=_text(name), memory_bytes=getattr(memory, "total", None))
    bandwidth = EDGES_PER_CLOCK * clock * 1e6 * width / 8 / 1e9 if clock and width else None
    notes = ("MIG is on: a slice has its share of every figure",) if mode and mode[0] else ()
    return _identified(index, seen, bandwidth, limit / 1000 if limit else None, notes)


def _ask_amdsmi(smi: Any) -> list[FoundDevice]:
    smi.amdsmi_init()
    try:
        return [_amdsmi_device(smi, *pair) for pair in enumerate(smi.amdsmi_get_processor_handles())]
    finally:
        smi.amdsmi_shut_down()


def _amdsmi_device(smi: Any, index: int, handle: Any) -> FoundDevice:
    asic, vram = smi.amdsmi_get_gpu_asic_info(handle), smi.amdsmi_get_gpu_vram_info(handle)
    megabytes = vram.get("vram_size")
    seen = Sighting(
        name=_text(asic.get("market_name") or ""),
        memory_bytes=int(megabytes) * 2**20 if isinstance(megabytes, int) else None,
        compute_units=_whole(asic.get("num_compute_units")),
        arch=_text(asic.get("target_graphics_version") or "") or None,
    )
    bandwidth = vram.get("vram_max_bandwidth")
    return _identified(index, seen, float(bandwidth) if isinstance(bandwidth, (int, float)) else None)


def _ask_torch(torch: Any) -> list[FoundDevice]:
    found = []
    if torch.cuda.is_available():
        found = [_torch_device(torch, index) for index in range(torch.cuda.device_count())]
    return found


def _torch_device(torch: Any, index: int) -> FoundDevice:
    known = torch.cuda.get_device_properties(index)
    clock_khz, width = getattr(known, "memory_clock_rate", None), getattr(known, "memory_bus_width", None)
    seen = Sighting(
        name=known.name,
        memory_bytes=known.total_memory,
        compute_units=known.multi_processor_count,
        arch=getattr(known, "gcnArchName", None) or f"sm_{known.major}{known.minor}",
    )
    bandwidth = EDGES_PER_CLOCK * clock_khz * 1e3 * width / 8 / 1e9 if clock_khz and width else None
    return _identified(index, seen, bandwidth)


def _ask_jax(jax: Any) -> list[FoundDevice]:
    devices = [device for device in jax.devices() if device.platform != "cpu"]
    return [_jax_device(index, device.device_kind) for index, device in enumerate(devices)]


def _jax_device(index: int, kind: str) -> FoundDevice:
    found = _identified(index, Sighting(name=kind))
    split = part_of(found.key) if found.key else None
    if split is None:
        return found
    part, count = split
    return FoundDevice(index=index, name=kind, key=part.key, notes=(f"one of {count} in a chip",))


def _identified(
    index: int,
    seen: Sighting,
    bandwidth: float | None = None,
    power_w: float | None = None,
    notes: tuple[str, ...] = (),
) -> FoundDevice:
    key, problem = None, None
    try:
        device = identify(seen)
    except UnknownDevice as error:
        problem = str(error)
    else:
        key = device.key
        notes += _gap(bandwidth, device.peak_bw_gb_s)
    return FoundDevice(
        index=index,
        name=seen.name,
        memory_bytes=seen.memory_bytes,
        compute_units=seen.compute_units,
        arch=seen.arch,
        key=key,
        problem=problem,
        driver_bw_gb_s=bandwidth,
        power_limit_w=power_w,
        notes=notes,
    )


def _gap(driver: float | None, sheet: float | None) -> tuple[str, ...]:
    if driver is None or sheet is None or abs(driver / sheet - 1) <= NOTABLE_GAP:
        return ()
    return (f"the driver's clock and bus make {driver:,.0f} GB/s, the catalogue says {sheet:,.0f} GB/s",)


def _processor_name() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123  no path to join
        for line in lines:
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]

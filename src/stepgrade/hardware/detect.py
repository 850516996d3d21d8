"""Detect this machine's devices by asking every driver; none is required."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal

from msgspec import Struct, structs

from stepgrade.errors import UnknownDevice
from stepgrade.hardware.catalogue import identify, part_of
from stepgrade.model import DeviceSeen
from stepgrade.model.notes import NO_FLAGS, Result

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
    """The result of asking one driver; `absent` is not an error."""

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


def detect(flags: Mapping[str, str] = NO_FLAGS) -> Detection:
    """Ask every driver that can be imported; never raises for one that is absent or broken.

    `flags` names the parameters in problems.
    """
    drivers = (
        ("nvidia-ml-py", "pynvml", _ask_nvml),
        ("amdsmi", "amdsmi", _ask_amdsmi),
        ("torch", "torch", _ask_torch),
        ("jax", "jax", _ask_jax),
    )
    answers = [_answer(driver, module, ask, flags) for driver, module, ask in drivers]
    return Detection(answers=tuple(answers), processor=processor())


def processor() -> Processor:
    """Return this machine's processor as the operating system describes it."""
    name, memory = platform.processor() or platform.machine(), None
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        models = (line for line in lines if line.startswith(("model name", "Model")))
        name = next((line.partition(":")[2].strip() for line in models), name)
    with suppress(AttributeError, ValueError, OSError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Processor(name=name, cores=usable_cores(), memory_bytes=memory)


def usable_cores() -> int:
    """Return the cores that this process may use."""
    return len(_cores_here())


class OtherLoad:
    """The processor share of other programs from now on, as Linux counts it.

    With a `root`, that process and its children are not counted, else only this process is not.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = root
        self._cores = _cores_here()
        self._before = self._spent()

    def share(self) -> float | None:
        """Return the share of this process's cores that others used; None if unknown."""
        after = self._spent()
        if self._before is None or after is None:
            return None
        busy_s, own_s, whole_s = (now - then for now, then in zip(after, self._before, strict=True))
        return min(1.0, max(0.0, busy_s - own_s) / whole_s) if whole_s > 0 else None

    def _spent(self) -> tuple[float, float, float] | None:
        """Return the seconds that the cores were busy, that our processes used, and that have passed."""
        busy = whole = 0.0
        try:
            ticks = os.sysconf("SC_CLK_TCK")
            # Bytes: a process that has given up its rights may not be able to load a codec any more.
            with open("/proc/stat", "rb") as lines:
                for line in lines:
                    name, *figures = line.split()
                    if name in self._cores:
                        counts = [int(figure) / ticks for figure in figures[:8]]
                        whole += sum(counts)
                        busy += sum(counts) - counts[3] - counts[4]  # idle, and waiting for a disk
        except (OSError, ValueError, AttributeError, IndexError):
            return None
        if self._root is None:
            used = os.times()
            return (busy, used.user + used.system, whole) if whole else None
        # The times of children that have ended are in their parent's.
        own, waiting = 0, [self._root]
        while waiting:
            folder = f"/proc/{waiting.pop()}"
            with suppress(OSError, ValueError):  # it has just exited
                with open(f"{folder}/stat", "rb") as stat:
                    own += sum(int(figure) for figure in stat.read().rpartition(b")")[2].split()[11:15])
                for thread in os.listdir(f"{folder}/task"):
                    with open(f"{folder}/task/{thread}/children", "rb") as children:
                        waiting += map(int, children.read().split())
        return (busy, own / ticks, whole) if whole else None


def _cores_here() -> frozenset[bytes]:
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    numbers = affinity(0) if affinity is not None else set(range(os.cpu_count() or 1))
    return frozenset(b"cpu%d" % number for number in numbers)


def _answer(
    driver: str, module: str, ask: Callable[[Any], Iterator[FoundDevice]], flags: Mapping[str, str]
) -> Answer:
    try:
        library = import_module(module)
    except ImportError:
        return Answer(driver=driver, state="absent", detail=f"the Python package {driver} is not installed")
    except (OSError, KeyError, AttributeError) as error:
        # amdsmi looks for ROCm's own library while it is imported.
        return Answer(driver=driver, state="absent", detail=_first_line(error))
    own = (getattr(library, name, None) for name in ("NVMLError", "AmdSmiException"))
    failures = (RuntimeError, OSError, *(kind for kind in own if kind is not None))
    try:
        reported = list(ask(library))
    except failures as error:
        return Answer(driver=driver, state="none", detail=f"no device: {_first_line(error)}")
    devices = []
    for found in reported:
        seen = DeviceSeen(name=found.name, memory_bytes=found.memory_bytes, sm_count=found.compute_units)
        try:
            device = identify(seen, found.arch)
        except UnknownDevice as error:
            devices.append(structs.replace(found, problem=error.text(flags)))
            continue
        key, notes, bandwidth, sheet = device.key, found.notes, found.driver_bw_gb_s, device.peak_bw_gb_s
        if bandwidth is not None and sheet is not None and abs(bandwidth / sheet - 1) > NOTABLE_GAP:
            clock = f"the driver's clock and bus make {bandwidth:,.0f} GB/s"
            notes += (f"{clock}, the catalogue says {sheet:,.0f} GB/s",)
        split = part_of(key) if driver == "jax" else None  # JAX shows the parts of a chip
        if split is not None:
            key, notes = split[0].key, (f"one of {split[1]} in a chip",)
        devices.append(structs.replace(found, key=key, notes=notes))
    count = len(devices)
    detail = f"{count} device{'s' if count != 1 else ''}"
    return Answer(driver=driver, state="found" if devices else "none", detail=detail, devices=tuple(devices))


def _ask_nvml(nvml: Any) -> Iterator[FoundDevice]:
    def ask(name: str, *arguments: Any) -> Any:
        # Boards with unified memory answer "not supported" to much of this.
        with suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, name)(*arguments)
        return None

    nvml.nvmlInit()
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = ask("nvmlDeviceGetMemoryInfo", handle)
            clock = ask("nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM)
            limit = ask("nvmlDeviceGetEnforcedPowerLimit", handle)
            mode = ask("nvmlDeviceGetMigMode", handle)
            yield FoundDevice(
                index=index,
                name=_text(ask("nvmlDeviceGetName", handle) or ""),
                memory_bytes=getattr(memory, "total", None),
                driver_bw_gb_s=_bandwidth(clock, 1e6, ask("nvmlDeviceGetMemoryBusWidth", handle)),
                power_limit_w=limit / 1000 if limit else None,
                notes=("MIG is on: a slice has its share of every figure",) if mode and mode[0] else (),
            )
    finally:
        nvml.nvmlShutdown()


def _ask_amdsmi(smi: Any) -> Iterator[FoundDevice]:
    smi.amdsmi_init()
    try:
        for index, handle in enumerate(smi.amdsmi_get_processor_handles()):
            asic, vram = smi.amdsmi_get_gpu_asic_info(handle), smi.amdsmi_get_gpu_vram_info(handle)
            megabytes, units = vram.get("vram_size"), asic.get("num_compute_units")
            bandwidth = vram.get("vram_max_bandwidth")
            yield FoundDevice(
                index=index,
                name=_text(asic.get("market_name") or ""),
                memory_bytes=int(megabytes) * 2**20 if isinstance(megabytes, int) else None,
                compute_units=units if isinstance(units, int) and not isinstance(units, bool) else None,
                arch=_text(asic.get("target_graphics_version") or "") or None,
                driver_bw_gb_s=float(bandwidth) if isinstance(bandwidth, (int, float)) else None,
            )
    finally:
        smi.amdsmi_shut_down()


def _ask_torch(torch: Any) -> Iterator[FoundDevice]:
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        known = torch.cuda.get_device_properties(index)
        clock_khz, width = getattr(known, "memory_clock_rate", None), getattr(known, "memory_bus_width", None)
        yield FoundDevice(
            index=index,
            name=known.name,
            memory_bytes=known.total_memory,
            compute_units=known.multi_processor_count,
            arch=getattr(known, "gcnArchName", None) or f"sm_{known.major}{known.minor}",
            driver_bw_gb_s=_bandwidth(clock_khz, 1e3, width),
        )


def _ask_jax(jax: Any) -> Iterator[FoundDevice]:
    kinds = [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    return (FoundDevice(index=index, name=kind) for index, kind in enumerate(kinds))


def _bandwidth(clock: float | None, hertz: float, width_bits: int | None) -> float | None:
    return EDGES_PER_CLOCK * clock * hertz * width_bits / 8 / 1e9 if clock and width_bits else None


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]

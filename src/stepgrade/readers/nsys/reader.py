"""Convert an export of Nsight Systems to the traces of its processes.

Tables and columns depend on the version. Correlation ids are unique within a process only, and a kernel's
device is numbered as its process sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from stepgrade.errors import BadInput
from stepgrade.model.events import Profiler, Trace, TraceDevice
from stepgrade.readers.nsys.collectives import Communicators, add_ranges, describe_kernels
from stepgrade.readers.nsys.device import (
    CALLS,
    COPIES,
    GRAPHS,
    KERNELS,
    MEMSETS,
    add_device_work,
    settle_process,
)
from stepgrade.readers.processes import Events, Facts
from stepgrade.readers.source import ByteSource
from stepgrade.readers.sqlite import SqliteFile

_RECORD: Final = "nsys profile --trace=cuda,nvtx python train.py"
_EXPORT: Final = "nsys export --type sqlite --include-json=true"
PROFILER: Final = Profiler(
    format="nsys",
    producer="Nsight Systems",
    mark_steps="Put each iteration into an NVTX range, such as nvtx.range_push('step').",
    record_operations="NVTX ranges around them would name them.",
    record_device=f"Record with {_RECORD}.",
    record_layers="Put each layer into an NVTX range with its number.",
)
PROFILER_OF_TORCH: Final = replace(
    PROFILER,
    producer="Nsight Systems, of PyTorch",
    mark_steps="Put each iteration between torch.cuda.nvtx.range_push('step') and range_pop().",
    record_operations="Train inside torch.autograd.profiler.emit_nvtx(record_shapes=True).",
    record_layers="Put each layer into an NVTX range with its number, and train inside "
    "torch.autograd.profiler.emit_nvtx().",
)
_VERSION: Final = re.compile(r"\d+(\.\d+){1,5}")
_COLLECTED: Final = re.compile(r"Number of CUDA events collected:\s{0,9}(\d{1,15})")
_INCOMPLETE: Final = re.compile(
    r"not all cuda events|cuda\b.{0,80}\b(dropped|lost)|\b(dropped|lost)\b.{0,80}cuda", re.I
)
_MISSING_SHARE: Final = 0.01


def read_traces(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each process that used a device, in the order of their ranks."""
    with SqliteFile.opened(source) as file:
        events = Events()
        add_device_work(file, events)
        calls = add_ranges(file, events)
        events.join()
        settle_process(events)
        facts = _facts(file, source.name)
        if any(text.startswith(("aten::", "void at::native")) for text in events.strings):
            facts["profiler"] = PROFILER_OF_TORCH
        work, found = events.table("work"), []
        for process in events.processes():
            communicators = Communicators(calls, process)
            describe_kernels(events, process, communicators)
            own = work["process"] == process
            count = int(own.sum()) + int((events.table("calls")["process"] == process).sum())
            known = facts | {
                "doubts": tuple(_doubts(file, process, count)),
                "rank": communicators.rank,
                "world_size": communicators.world_size,
                "backend": "nccl" if communicators.calls else None,
                "devices": _devices(file, process),
            }
            found.append((process, known, int(np.min(work["device"][own]))))
        if not found:
            problem, hint = _why_empty(file)
            raise BadInput(problem, where=source.name, hint=hint)
    del work, own
    yield from events.traces(found)


def _facts(file: SqliteFile, name: str) -> Facts:
    """Return the version of the exporter and the time that events count from."""
    exported: dict[str, str] = {}
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        for key, value in file.rows(table, ("name", "value"), "where name like 'EXPORT_%'"):
            if re.fullmatch(r"EXPORT_(PRODUCT|SCHEMA)_VERSION|EXPORT_\w+_TIME_(SHIFT|NORMALIZE)", str(key)):
                exported[str(key)] = str(value)[:40]
    version, schema = (
        value if _VERSION.fullmatch(value := exported.get(f"EXPORT_{what}_VERSION", "")) else None
        for what in ("PRODUCT", "SCHEMA")
    )
    # Shifted times do not count from the session's start.
    is_shifted = any(
        re.fullmatch(r"true|[-+]?0*[1-9]\d*.*", value, re.IGNORECASE)
        for key, value in exported.items()
        if "_TIME_" in key
    )
    epochs = [row[0] for row in file.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))]
    is_known = not is_shifted and len(epochs) == 1 and isinstance(epochs[0], int)
    return {
        "file": name,
        "profiler": PROFILER,
        "era": f"Nsight Systems {version or 'of an unknown version'}"
        + (f", schema {schema}" if schema else ""),
        "versions": {"nsys": version} if version else {},
        "base_ns": epochs[0] if is_known and abs(epochs[0]) < 1 << 62 else None,
    }


def _devices(file: SqliteFile, process: int) -> tuple[TraceDevice, ...]:
    """Return the devices by the number that this process has for them."""
    columns = ("id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor", "cuDevice")
    gpus = {row[0]: row for row in file.rows("TARGET_INFO_GPU", columns)}
    rows = file.rows("TARGET_INFO_CUDA_DEVICE", ("cudaId", "gpuId", "pid"))
    numbers = {cuda: gpu for cuda, gpu, of in rows if of == process}
    if not numbers:
        numbers = {row[6] if isinstance(row[6], int) else 0: gpu for gpu, row in gpus.items()}
    if len(gpus) == 1:
        numbers = dict.fromkeys(numbers or (0,), next(iter(gpus)))

    def number(value: object) -> int | None:
        return value if isinstance(value, int) and value > 0 else None

    found = []
    for index, gpu in sorted(numbers.items(), key=str):
        if gpu not in gpus or not isinstance(index, int):
            continue
        _, name, memory, processors, major, minor, _ = gpus[gpu]
        is_capability = isinstance(major, int) and isinstance(minor, int)
        found.append(
            TraceDevice(
                index=index,
                name=name[:200] if isinstance(name, str) else None,
                memory_bytes=number(memory),
                sm_count=number(processors),
                capability=f"{major}.{minor}" if is_capability else None,
            )
        )
    return tuple(found)


def _doubts(file: SqliteFile, process: int, events: int) -> Iterator[str]:
    """Yield the profiler's own warnings about events missing from a process that used a device.

    Its warnings about other processes and about complete ranges are ignored.
    """
    where = f"where globalPid >> 24 & 16777215 = {int(process)}"
    if not file.has("DIAGNOSTIC_EVENT", "text", "globalPid"):
        return
    texts = [text for (text,) in file.rows("DIAGNOSTIC_EVENT", ("text",), where) if isinstance(text, str)]
    if any(_INCOMPLETE.search(text, 0, 500) for text in texts):
        yield "Nsight Systems says that not all CUDA events may have been collected."
    collected = sum(int(found[1]) for text in texts if (found := _COLLECTED.match(text)))
    if collected - events > _MISSING_SHARE * collected:
        yield (
            f"The export has {events:,} of the {collected:,} CUDA events that were recorded: it was cut "
            "to some tables or to a part of the time."
        )


def _why_empty(file: SqliteFile) -> tuple[str, str]:
    """Return why an export has no work of a device, and what to do."""

    def holds(table: str) -> bool:
        rows: Iterator[Any] = file.rows(table, ("start",), "limit 1")
        return next(rows, None) is not None

    if any(holds(table) for table in (CALLS, MEMSETS, COPIES, GRAPHS, KERNELS)):
        return (
            "an Nsight Systems export with CUDA calls but no kernels: the device was not traced",
            "record with an nsys as new as the driver, and end the capture before the program ends",
        )
    if holds("NVTX_EVENTS"):
        return "an Nsight Systems export with NVTX ranges only: CUDA was not traced", f"record with {_RECORD}"
    return (
        "an Nsight Systems export without any events: aborted, or of a program that used no device",
        f"export again with {_EXPORT}, or record with {_RECORD}",
    )

"""Shared by all ROCm formats: recording advice, kinds of work by name, and building the traces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np
from msgspec.structs import replace

from stepgrade.errors import BadInput
from stepgrade.model.events import DeviceEvent, Ids, Kinds, Profiler, Trace, TraceDevice
from stepgrade.readers.processes import CaptureFacts, Events, RankFacts, in_order

_RECORD: Final = "rocprofv3 --kernel-trace --hip-trace --memory-copy-trace --marker-trace -- python train.py"
PROFILER: Final = Profiler(
    format="rocprof",
    producer="ROCm",
    mark_steps="Put each iteration into a roctx range (torch.cuda.nvtx.range_push('step') is one on ROCm), "
    f"and record with {_RECORD}.",
    record_operations="Train inside torch.autograd.profiler.emit_nvtx(record_shapes=True), which writes "
    f"roctx ranges on ROCm, and record with {_RECORD}.",
    record_device=f"Record with {_RECORD}.",
    record_layers="Put each layer into a roctx range with its number.",
)
_DIRECTIONS: Final = (
    (DeviceEvent.COPY_H2D, re.compile(r"HOST_?TO_?DEVICE|HtoD", re.IGNORECASE), "HtoD"),
    (DeviceEvent.COPY_D2H, re.compile(r"DEVICE_?TO_?HOST|DtoH", re.IGNORECASE), "DtoH"),
    (DeviceEvent.COPY_D2D, re.compile(r"DEVICE_?TO_?DEVICE|DtoD|copyBuffer", re.IGNORECASE), "DtoD"),
)
_FILL: Final = re.compile(r"^(__amd_rocclr_)?fillBuffer", re.IGNORECASE)
_COPY_KERNEL: Final = re.compile(r"^__amd_rocclr_copy")


def kind_of_kernel(name: str) -> DeviceEvent:
    """Return what a kernel does: ROCm copies and sets memory on the device by kernels of its own."""
    if _FILL.search(name):
        return DeviceEvent.MEMSET
    return DeviceEvent.COPY_D2D if _COPY_KERNEL.search(name) else DeviceEvent.KERNEL


def direction_of(text: str) -> tuple[DeviceEvent, str]:
    """Return the direction of a copy, and the name that copies have in all traces."""
    for kind, pattern, word in _DIRECTIONS:
        if pattern.search(text):
            return kind, f"Memcpy {word}"
    return DeviceEvent.COPY_OTHER, "Memcpy other"


def kinds_of(events: Events, names: Ids) -> Kinds:
    """Return what each kernel does, given the column of its name."""
    table = np.array([kind_of_kernel(text) for text in events.strings], np.int8)
    return table[names] if len(table) else np.empty(0, np.int8)


def traces_of(
    events: Events, name: str, era: str, devices: Callable[[int], tuple[TraceDevice, ...]]
) -> Iterator[Trace]:
    """Yield the traces of all processes that used a device; raise BadInput if there is none."""
    events.join()
    is_torch = any(text.startswith(("aten::", "void at::native")) for text in events.strings)
    profiler = replace(PROFILER, producer="ROCm, of PyTorch") if is_torch else PROFILER
    facts = CaptureFacts(name=name, profiler=profiler, era=era, versions={}, epoch_ns=None)
    work = events.table("work")
    is_nccl = any(text.startswith("nccl") for text in events.strings)
    found = [
        (
            process,
            RankFacts(backend="nccl" if is_nccl else None, devices=devices(process)),
            int(work["device"][work["process"] == process].min()),
        )
        for process in events.processes()
    ]
    if not found:
        hint = f"record with {_RECORD}"
        raise BadInput("a ROCm profile without any kernels", where=name, hint=hint)
    del work
    for process, known in in_order(found):
        yield events.take(process, facts, known)

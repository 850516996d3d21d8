"""Memory in use on a device after each allocation, as XLA's allocator reports it."""

from __future__ import annotations

import re

import numpy as np

from stepgrade.model.events import NONE, Longs, MemoryEvents
from stepgrade.readers.xplane.planes import MISSING, Plane

_OF_DEVICE = re.compile(r"GPU_(\d{1,4})_bfc")
_ACCELERATOR = 1  # a kind of device that is not the processor
_MOST = 1 << 50


def memory_events(host: list[Plane], device: int, zero_ns: int) -> MemoryEvents | None:
    """Return the allocations of one device in order of time; None without any.

    What is reserved is the memory of a program that runs on a TPU, beside that of its arguments and results.
    """
    starts, totals = [], []
    for plane in host:
        table = plane.allocations
        if table is None:
            continue
        named = [_OF_DEVICE.fullmatch(text) for text in plane.texts]
        by_name = np.array([int(found[1]) if found else NONE for found in named] + [NONE], np.int64)
        index = table.numbers["index_on_host"]
        own = np.where(index != MISSING, index, by_name[table.texts["allocator_name"]]) == device
        allocated, reserved = table.numbers["bytes_allocated"], table.numbers["bytes_reserved"]
        own &= (allocated >= 0) & (allocated < _MOST) & (reserved < _MOST)
        starts.append(table.start_ns[own])
        totals.append(allocated[own] + np.maximum(reserved[own], 0))
    start, total = np.concatenate([*starts, _NONE]), np.concatenate([*totals, _NONE])
    if len(start) < 2:
        return None
    order = np.argsort(start, kind="stable")
    start, total = start[order], total[order]
    rows = np.arange(len(start), dtype=np.int32)
    nothing = np.full(len(start), NONE, np.int64)
    return MemoryEvents(
        start_ns=start - zero_ns,
        thread=np.zeros(len(start), np.int32),
        kind=np.full(len(start), _ACCELERATOR, np.int32),
        device=np.full(len(start), device, np.int32),
        bytes=np.diff(total, prepend=total[:1]),
        address=nothing,
        allocated=total,
        reserved=nothing,
        order=rows,
    )


_NONE: Longs = np.empty(0, np.int64)

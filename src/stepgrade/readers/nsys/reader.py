"""An export of Nsight Systems to the traces of its processes.

Tables and columns come and go with the version: each is asked for by name. Correlation numbers are unique
within a process only, and a kernel's device is numbered as its process sees it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepgrade.errors import BadInput
from stepgrade.model.events import Trace
from stepgrade.readers.nsys.collectives import Communicators, describe_kernels
from stepgrade.readers.nsys.device import add_device_work, add_overhead, settle_process
from stepgrade.readers.nsys.facts import PROFILER_OF_TORCH, devices_of, doubts_of, facts_of, why_empty
from stepgrade.readers.nsys.nvtx import add_ranges
from stepgrade.readers.processes import Events, RankFacts, in_order
from stepgrade.readers.source import ByteSource
from stepgrade.readers.sqlite import SqliteFile


def read_traces(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each process that used a device, in the order of their ranks."""
    with SqliteFile.opened(source) as file:
        events = Events()
        add_device_work(file, events)
        calls = add_ranges(file, events)
        add_overhead(file, events)
        events.join()
        settle_process(events)
        facts = facts_of(file, source.name)
        if any(text.startswith(("aten::", "void at::native")) for text in events.strings):
            facts = replace(facts, profiler=PROFILER_OF_TORCH)
        work, found, doubts = events.table("work"), [], {}
        for process in events.processes():
            communicators = Communicators(calls, process)
            describe_kernels(events, process, communicators)
            own = work["process"] == process
            count = int(own.sum()) + int((events.table("calls")["process"] == process).sum())
            doubts[process] = tuple(doubts_of(file, process, count))
            known = RankFacts(
                rank=communicators.rank,
                world_size=communicators.world_size,
                backend="nccl" if communicators.calls else None,
                devices=devices_of(file, process),
            )
            found.append((process, known, int(np.min(work["device"][own]))))
        if not found:
            problem, hint = why_empty(file)
            raise BadInput(problem, where=source.name, hint=hint)
    del work, own
    for process, known in in_order(found):
        yield events.take(process, replace(facts, doubts=doubts[process]), known)

"""Where the time of a step went when the host is the device: a trace without device events.

Time in operations is compute, on whichever thread; time in collectives with no other operation running is
exposed communication; time in the loader, with whatever operations it calls, is waiting for input; the rest
is the host between operations.
"""

from __future__ import annotations

import numpy as np

from stepgrade.model.events import HostOps, HostRanges, Trace
from stepgrade.naming.torch_names import (
    COMMUNICATION_OP,
    COMMUNICATION_RANGE,
    INPUT,
    Mask,
    named,
)
from stepgrade.trace import intervals as iv
from stepgrade.trace.intervals import NOTHING, Spans
from stepgrade.trace.ledger import Ledger
from stepgrade.trace.steps import HostSteps


def open_host_ledger(trace: Trace, steps: HostSteps, extent: tuple[int, int]) -> Ledger:
    """Return the accounts of the host's threads over the time of `extent`."""
    ops, ranges = trace.ops, trace.ranges
    lane = extent[1] - extent[0] + 1
    talks = named(trace.strings, ops.name, COMMUNICATION_OP)
    talk = iv.merge(
        _lanes(ops, talks, extent, lane),
        _lanes(ranges, named(trace.strings, ranges.name, COMMUNICATION_RANGE), extent, lane),
    )
    loads = named(trace.strings, ranges.name, INPUT) & (ranges.thread == steps.thread)
    load = _lanes(ranges, loads, extent, lane)
    compute = _flat(iv.subtract(_lanes(ops, ~talks, extent, lane), iv.merge(talk, load)), extent, lane)
    communication, fetching = _flat(talk, extent, lane), _flat(load, extent, lane)
    exposed = iv.subtract(communication, compute)
    waiting = iv.subtract(fetching, iv.merge(compute, exposed))
    rest = iv.gaps(iv.merge(compute, exposed, waiting), *extent)
    return Ledger(
        compute=compute,
        exposed_communication=exposed,
        exposed_copy=NOTHING,
        idle_input=waiting,
        idle_host=rest,
        idle_sync=NOTHING,
        unattributed=NOTHING,
        dispatch=NOTHING,
        communication=communication,
        copy=NOTHING,
    )


def _lanes(table: HostOps | HostRanges, chosen: Mask, extent: tuple[int, int], lane: int) -> Spans:
    """Return the union of the chosen events of each thread, threads laid one behind the other."""
    start = np.clip(table.start_ns[chosen], *extent) - extent[0]
    end = np.clip((table.start_ns + table.dur_ns)[chosen], *extent) - extent[0]
    offset = table.thread[chosen].astype(np.int64) * lane
    return iv.union(start + offset, end + offset)


def _flat(spans: Spans, extent: tuple[int, int], lane: int) -> Spans:
    """Return lanes laid back over each other."""
    offset = spans.starts // lane * lane - extent[0]
    return iv.union(spans.starts - offset, spans.ends - offset)

"""What is left of a trace without events that cannot have been: broken files hold impossible times."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import numpy as np

from stepgrade.model.events import DeviceWork, HostCalls, HostOps, HostRanges, Trace

LONGEST_NS = 24 * 3600 * 10**9
LATEST_NS = 30 * LONGEST_NS
Table = TypeVar("Table", HostOps, HostCalls, DeviceWork, HostRanges)


def keep_sound(trace: Trace) -> tuple[Trace, int]:
    """Return the trace without events that start before it, after a month, or last less than 0 or over a day.

    The number of events left out comes with it.
    """
    ops, calls, work, ranges = (
        _sound_rows(trace.ops),
        _sound_rows(trace.calls),
        _sound_rows(trace.work),
        _sound_rows(trace.ranges),
    )
    kept = sum(len(table.name) for table in (ops, calls, work, ranges))
    had = sum(len(table.name) for table in (trace.ops, trace.calls, trace.work, trace.ranges))
    if kept == had:
        return trace, 0
    return msgspec.structs.replace(trace, ops=ops, calls=calls, work=work, ranges=ranges), had - kept


def _sound_rows(table: Table) -> Table:
    start, dur = table.start_ns, table.dur_ns
    sound = (start >= 0) & (start <= LATEST_NS) & (dur >= 0) & (dur <= LONGEST_NS)
    if sound.all():
        return table
    rows = np.flatnonzero(sound)
    return type(table)(**{name: getattr(table, name)[rows] for name in table.__struct_fields__})

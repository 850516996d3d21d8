"""Account for the time of a step: every nanosecond is in exactly one account.

Work comes first: time with any compute is compute; communication and copies between host and device count
only where nothing computes ("exposed"). Copies within the device and memsets are compute. What is left is
idle, and the work that ends a gap shows why the device waited. Until that work was launched the host was
late: because it was fetching input, because it had waited for the device and so could not run ahead
(synchronisation: at most as long as it had waited), or because it was busy (host). After the launch the
device was turning to the work: up to `DISPATCH_NS` of that is the price of a launch (host as well, shown
apart as dispatch); what is longer waited for something the trace does not show and is unattributed, and so
is a gap before work whose launch was not recorded. Labels are given to time, not to steps: the accounts of
two windows add up to the account of both.

In a trace without device events the host is the device. Time in operations is compute, on whichever thread;
time in collectives with no other operation running is exposed communication; time in the loader, with
whatever operations it calls, is waiting for input; the rest is the host between operations.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import among, distinct
from stepgrade.model.events import DeviceEvent, DeviceWork, HostOps, HostRanges, Kinds, Longs, Trace
from stepgrade.model.ledger import ACCOUNTS, Ledger
from stepgrade.naming.torch_names import (
    COMMUNICATION_OP,
    COMMUNICATION_RANGE,
    COMPILES,
    INPUT,
    SYNC_CALL,
    Mask,
    named,
)
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.intervals import NOTHING, Spans
from stepgrade.timeline.links import Links
from stepgrade.timeline.steps import HostSteps
from stepgrade.timeline.windows import Windows

# Launch to start takes 5 to 20 microseconds on an idle device; more than this is not the launch.
DISPATCH_NS = 100_000
HOST_COPIES = (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H, DeviceEvent.COPY_OTHER)


class LedgerSpans(NamedTuple):
    """Disjoint sets of time, one for each account, which together fill the timeline."""

    accounts: dict[str, Spans]
    dispatch: Spans  # the part of idle_host in which the next work was already launched
    communication: Spans  # including what compute hides
    copy: Spans  # including what compute and communication hide

    def time_in(self, *names: str) -> Spans:
        """Return the time in these accounts; none where nothing was charged to them."""
        spans = [self.accounts.get(name, NOTHING) for name in names]
        return spans[0] if len(spans) == 1 else iv.merge(*spans)

    def by_account(self) -> list[Spans]:
        """Return the time of each account, in the order of the table."""
        return [self.time_in(name) for name in ACCOUNTS]

    def of_windows(self, windows: Windows) -> tuple[Ledger, ...]:
        """Return the accounts of each step in ns; those of a step add up to its length."""
        columns = [
            iv.covered_within(spans, windows.start_ns, windows.end_ns).tolist() for spans in self.by_account()
        ]
        return tuple(Ledger(**dict(zip(ACCOUNTS, row, strict=True))) for row in zip(*columns, strict=True))


class HostState(NamedTuple):
    """When the host was fetching input, and when it waited for the device."""

    fetching: Spans
    waiting: Spans


def find_host_state(trace: Trace, links: Links, steps: HostSteps) -> HostState:
    """Return when the threads that drive the device fetched input, and when they waited."""
    ranges, calls = trace.ranges, trace.calls
    loads = named(trace.strings, ranges.name, INPUT) & (ranges.thread == steps.thread)
    waits = waiting_calls(trace, links, steps)
    return HostState(
        fetching=iv.union(ranges.start_ns[loads], (ranges.start_ns + ranges.dur_ns)[loads]),
        waiting=iv.union(calls.start_ns[waits], calls.start_ns[waits] + calls.dur_ns[waits]),
    )


def waiting_calls(trace: Trace, links: Links, steps: HostSteps) -> Mask:
    """Tell which calls of a driving thread wait: synchronisations, and copies that the host stayed with."""
    calls = trace.calls
    drivers = np.append(distinct(links.thread[links.thread >= 0]), steps.thread)
    waits = named(trace.strings, calls.name, SYNC_CALL)
    copies = np.flatnonzero((links.call >= 0) & among(trace.work.kind, HOST_COPIES))
    done = trace.work.start_ns[copies] + trace.work.dur_ns[copies]
    of_copy = links.call[copies]
    waits[of_copy[calls.start_ns[of_copy] + calls.dur_ns[of_copy] >= done]] = True
    return waits & among(calls.thread, drivers)


def device_ledger(
    trace: Trace, links: Links, host: HostState, classes: Kinds, extent: tuple[int, int], chosen: Mask
) -> LedgerSpans:
    """Return the accounts of the device whose work is `chosen`, over the time of `extent`."""
    work = trace.work
    communicates = classes == WorkClass.COMMUNICATION
    copies = among(work.kind, HOST_COPIES) & ~communicates
    compute = _work_spans(work, chosen & ~communicates & ~copies)
    communication = _work_spans(work, chosen & communicates)
    copy = _work_spans(work, chosen & copies)
    busy = iv.merge(compute, communication)
    idle = iv.gaps(iv.merge(busy, copy), *extent)
    launch = _launch_after(idle, trace, links, chosen)
    known = launch >= 0
    gap = idle if known.all() else Spans(idle.starts[known], idle.ends[known])
    ready = np.clip(launch[known], gap.starts, gap.ends)
    del launch
    dispatched = np.minimum(ready + DISPATCH_NS, gap.ends)
    late = iv.union(gap.starts, ready)
    fetched = iv.intersect(late, host.fetching)
    # A gap that opened while the host waited is the wait's, for no longer than the host had waited.
    wait = iv.span_at(host.waiting, gap.starts)
    opened, limit = gap.starts[wait >= 0], (host.waiting.ends - host.waiting.starts)[wait[wait >= 0]]
    drained = iv.union(opened, np.minimum(ready[wait >= 0], opened + limit))
    waited = iv.subtract(iv.merge(drained, iv.intersect(late, host.waiting)), fetched)
    shown_communication = iv.clip(communication, *extent)
    shown_copy = iv.clip(copy, *extent)
    return LedgerSpans(
        accounts={
            "compute": iv.clip(compute, *extent),
            "exposed_communication": iv.subtract(shown_communication, compute),
            "exposed_copy": iv.subtract(shown_copy, busy),
            "idle_input": fetched,
            "idle_host": iv.subtract(iv.union(gap.starts, dispatched), iv.merge(fetched, waited)),
            "idle_sync": waited,
            "unattributed": iv.merge(
                Spans(idle.starts[~known], idle.ends[~known]), iv.union(dispatched, gap.ends)
            ),
        },
        dispatch=iv.union(ready, dispatched),
        communication=shown_communication,
        copy=shown_copy,
    )


def _work_spans(work: DeviceWork, chosen: Mask) -> Spans:
    rows = slice(None) if chosen.all() else chosen  # of an only account nothing is copied
    start = work.start_ns[rows]
    return iv.union(start, start + work.dur_ns[rows])


def _launch_after(idle: Spans, trace: Trace, links: Links, chosen: Mask) -> Longs:
    """Return for each gap when the launch of the work that ends it was done, NONE if not recorded.

    A gap that no work ends was the host's: it launched nothing more, so the launch is put at its end.
    """
    usable = chosen & (trace.work.dur_ns > 0)
    if not usable.any():
        return np.full(len(idle.starts), -1, np.int64)
    launched, known = links.launch_ns.copy(), links.call >= 0
    launched[known] += trace.calls.dur_ns[links.call[known]]
    start, launched = trace.work.start_ns[usable], launched[usable]
    if (start[1:] > start[:-1]).all():
        order = np.arange(len(start), dtype=np.int32)
    else:
        order = np.lexsort((-launched, start)).astype(np.int32)
    place = np.searchsorted(start[order], idle.ends, side="left")
    launch = launched[order[np.minimum(place, len(order) - 1)]]
    open_end = idle.ends if known.any() else np.full(len(idle.ends), -1, np.int64)
    return np.where(place < len(order), launch, open_end)


def host_ledger(trace: Trace, steps: HostSteps, extent: tuple[int, int]) -> LedgerSpans:
    """Return the accounts of the host's threads over the time of `extent`.

    Threads are laid one behind the other, each shifted by more than the extent, so that what one thread does
    in a collective or in the loader hides nothing of another; then they are laid over each other again.
    """
    ops, ranges = trace.ops, trace.ranges
    shift = extent[1] - extent[0] + 1

    def apart(table: HostOps | HostRanges, chosen: Mask) -> Spans:
        start = np.clip(table.start_ns[chosen], *extent) - extent[0]
        end = np.clip((table.start_ns + table.dur_ns)[chosen], *extent) - extent[0]
        offset = table.thread[chosen].astype(np.int64) * shift
        return iv.union(start + offset, end + offset)

    def together(spans: Spans) -> Spans:
        offset = spans.starts // shift * shift - extent[0]
        return iv.union(spans.starts - offset, spans.ends - offset)

    communicates = named(trace.strings, ops.name, COMMUNICATION_OP)
    collectives = iv.merge(
        apart(ops, communicates), apart(ranges, named(trace.strings, ranges.name, COMMUNICATION_RANGE))
    )
    load = apart(ranges, named(trace.strings, ranges.name, INPUT) & (ranges.thread == steps.thread))
    # What a compiler traces is not computed: the step waits for it.
    compiling = apart(ops, named(trace.strings, ops.name, COMPILES))
    compute = together(iv.subtract(apart(ops, ~communicates), iv.merge(collectives, load, compiling)))
    communication = together(collectives)
    exposed = iv.subtract(communication, compute)
    waiting = iv.subtract(together(load), iv.merge(compute, exposed))
    return LedgerSpans(
        accounts={
            "compute": compute,
            "exposed_communication": exposed,
            "idle_input": waiting,
            "idle_host": iv.gaps(iv.merge(compute, exposed, waiting), *extent),
        },
        dispatch=NOTHING,
        communication=communication,
        copy=NOTHING,
    )

"""Where the time of a step went on a device: every nanosecond is in exactly one account.

Work comes first: time with any compute is compute; communication and copies between host and device count
only where nothing computes ("exposed"). Copies within the device and memsets are compute. What is left is
idle, and the work that ends a gap tells why the device waited. Until that work was launched the host was
late: because it was fetching input, because it had waited for the device and so could not run ahead
(synchronisation: at most as long as it had waited), or because it was busy (host). After the launch the
device was turning to the work: up to `DISPATCH_NS` of that is the price of a launch (host as well, shown
apart as dispatch); what is longer waited for something the trace does not show and is unattributed, and so
is a gap before work whose launch was not recorded. Labels are given to time, not to steps: the accounts of
two windows add up to the account of both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import among, distinct
from stepgrade.model.events import DeviceEvent, DeviceWork, Longs, Trace
from stepgrade.naming.torch_names import INPUT, SYNC_CALL, Mask, named
from stepgrade.trace import intervals as iv
from stepgrade.trace.classify import Classes, WorkClass
from stepgrade.trace.intervals import Spans
from stepgrade.trace.links import Links, launched_ns
from stepgrade.trace.steps import HostSteps
from stepgrade.trace.windows import Windows

# Launch to start takes 5 to 20 microseconds on an idle device; more than this is not the launch.
DISPATCH_NS = 100_000

ACCOUNTS = (
    "compute",
    "exposed_communication",
    "exposed_copy",
    "idle_input",
    "idle_host",
    "idle_sync",
    "unattributed",
)


class Ledger(NamedTuple):
    """Disjoint sets of time, one for each account; together they fill the timeline."""

    compute: Spans
    exposed_communication: Spans
    exposed_copy: Spans
    idle_input: Spans
    idle_host: Spans
    idle_sync: Spans
    unattributed: Spans
    dispatch: Spans  # the part of idle_host in which the next work was already launched
    communication: Spans  # with what compute hides
    copy: Spans  # with what compute and communication hide

    def within(self, start_ns: Longs, end_ns: Longs) -> dict[str, Longs]:
        """Return each account in each window; the accounts of a window add up to its length."""
        return {name: iv.covered_within(getattr(self, name), start_ns, end_ns) for name in ACCOUNTS}


class HostState(NamedTuple):
    """When the host was fetching input, and when it waited for the device."""

    fetching: Spans
    waiting: Spans


def watch_host(trace: Trace, links: Links, steps: HostSteps) -> HostState:
    """Return what the threads that drive the device were held up by."""
    return HostState(_fetching(trace, steps), _waiting(trace, links, steps))


def foresee(host: HostState, steps: HostSteps, windows: Windows) -> HostState:
    """Return the host's state with the lead of a next step that was not recorded.

    The window of a last step reaches to where the next one could have begun, as late as the last step itself
    began to launch; in that time the host is taken to do again what it did then.
    """
    fetching = host.fetching
    for index in np.flatnonzero(~windows.end_known & (windows.dur_ns > 0)).tolist():
        start, end = int(steps.start_ns[index]), int(steps.end_ns[index])
        again = iv.clip(host.fetching, start, end)
        moved = Spans(again.starts + (end - start), again.ends + (end - start))
        fetching = iv.merge(fetching, iv.clip(moved, end, int(windows.end_ns[index])))
    return host._replace(fetching=fetching)


def _fetching(trace: Trace, steps: HostSteps) -> Spans:
    ranges = trace.ranges
    chosen = named(trace.strings, ranges.name, INPUT) & (ranges.thread == steps.thread)
    return iv.union(ranges.start_ns[chosen], (ranges.start_ns + ranges.dur_ns)[chosen])


def _waiting(trace: Trace, links: Links, steps: HostSteps) -> Spans:
    calls = trace.calls
    waits = waiting_calls(trace, links, steps)
    return iv.union(calls.start_ns[waits], (calls.start_ns + calls.dur_ns)[waits])


def waiting_calls(trace: Trace, links: Links, steps: HostSteps) -> Mask:
    """Tell which calls of a driving thread wait: synchronisations, and copies that the host stayed with."""
    calls = trace.calls
    drivers = np.append(distinct(links.thread[links.thread >= 0]), steps.thread)
    waits = named(trace.strings, calls.name, SYNC_CALL)
    end = calls.start_ns + calls.dur_ns
    copies = np.flatnonzero((links.call >= 0) & _host_copies(trace.work))
    done = trace.work.start_ns[copies] + trace.work.dur_ns[copies]
    stayed = links.call[copies][end[links.call[copies]] >= done]
    waits[stayed] = True
    return waits & among(calls.thread, drivers)


def _host_copies(work: DeviceWork) -> Mask:
    return among(work.kind, (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H, DeviceEvent.COPY_OTHER))


def open_ledger(
    trace: Trace, links: Links, host: HostState, classes: Classes, extent: tuple[int, int], chosen: Mask
) -> Ledger:
    """Return the accounts of the device whose work is `chosen`, over the time of `extent`."""
    work = trace.work
    communicates = classes == WorkClass.COMMUNICATION
    copies = _host_copies(work) & ~communicates
    compute = _spans(work, chosen & ~communicates & ~copies)
    communication = _spans(work, chosen & communicates)
    copy = _spans(work, chosen & copies)
    busy = iv.merge(compute, communication)
    idle = iv.gaps(iv.merge(busy, copy), *extent)
    reasons = _explain(idle, _launch_after(idle, trace, links, chosen), host)
    clipped = [iv.clip(one, *extent) for one in (compute, communication, copy)]
    return Ledger(
        clipped[0],
        iv.subtract(clipped[1], compute),
        iv.subtract(clipped[2], busy),
        *reasons,
        clipped[1],
        clipped[2],
    )


def _spans(work: DeviceWork, chosen: Mask) -> Spans:
    start = work.start_ns[chosen]
    return iv.union(start, start + work.dur_ns[chosen])


def _explain(idle: Spans, launch: Longs, host: HostState) -> tuple[Spans, Spans, Spans, Spans, Spans]:
    """Split idle time into input, host, sync, unattributed, and the dispatch part of host."""
    known = launch >= 0
    unattributed = Spans(idle.starts[~known], idle.ends[~known])
    gap = Spans(idle.starts[known], idle.ends[known])
    ready = np.clip(launch[known], gap.starts, gap.ends)
    turned = np.minimum(ready + DISPATCH_NS, gap.ends)
    fetched, waited = _held_up(gap.starts, ready, host)
    busy_host = iv.subtract(iv.union(gap.starts, turned), iv.merge(fetched, waited))
    unexplained = iv.merge(unattributed, iv.union(turned, gap.ends))
    return fetched, busy_host, waited, unexplained, iv.union(ready, turned)


def _held_up(start: Longs, ready: Longs, host: HostState) -> tuple[Spans, Spans]:
    """Return the time until the launch in which the host fetched input, and in which it waited."""
    late = iv.union(start, ready)
    fetched = iv.intersect(late, host.fetching)
    waited = iv.merge(_drained(start, ready, host.waiting), iv.intersect(late, host.waiting))
    return fetched, iv.subtract(waited, fetched)


def _launch_after(idle: Spans, trace: Trace, links: Links, chosen: Mask) -> Longs:
    """Return for each gap when the launch of the work that ends it was done, NONE if not recorded.

    A gap that no work ends was the host's: it launched nothing more, so the launch is put at its end.
    """
    usable = chosen & (trace.work.dur_ns > 0)
    if not usable.any():
        return np.full(len(idle.starts), -1, np.int64)
    start, launched = trace.work.start_ns[usable], launched_ns(trace, links)[usable]
    order = np.lexsort((-launched, start)).astype(np.int32)
    place = np.searchsorted(start[order], idle.ends, side="left")
    launch = launched[order[np.minimum(place, len(order) - 1)]]
    open_end = idle.ends if (links.call >= 0).any() else np.full(len(idle.ends), -1, np.int64)
    return np.where(place < len(order), launch, open_end)


def _drained(start: Longs, ready: Longs, waiting: Spans) -> Spans:
    """Return the head of each gap that opened while the host waited, no longer than the host had waited."""
    index = iv.span_at(waiting, start)
    held = index >= 0
    waited = (waiting.ends - waiting.starts)[index[held]]
    return iv.union(start[held], np.minimum(ready[held], start[held] + waited))

"""Windows and accounts of steps: when each ran on the device, which are steady, and where their time went.

The host runs ahead of the device by two steps and more, so a host step says little about what the device did
in it. Work belongs to the step in which the host launched it. The window of step n goes from the start of the
first work of step n to the start of the first work of step n + 1: windows follow each other without gap or
overlap, and the wait for the next batch falls into exactly one window. The last step has no next one: work
launched after it ends it, else it is shown up to the end of its last work, or of its step on the host if that
is later, and is not steady. If some step launched nothing, host windows are used. A trace without steps is
one window.

Every nanosecond of a window is in exactly one account. Time with any compute is compute; communication and
copies between host and device count only where nothing computes ("exposed"). Copies within the device and
memsets are compute. The rest is idle, and the work that ends a gap shows why the device waited. Until that
work was launched the host was late: because it was fetching input, because it had waited for the device and
so could not run ahead (synchronisation: at most as long as it had waited), or because it was busy (host).
After the launch, up to `DISPATCH_NS` is the cost of a launch (host as well, shown apart as dispatch); the
rest is unattributed, and so is a gap before work whose launch was not recorded.

In a trace without device events the host is the device. Time in operations is compute, on any thread; time in
collectives with no other operation running is exposed communication; time in the loader, with the operations
it calls, is waiting for input; the rest is the host between operations.
"""

from __future__ import annotations

from bisect import bisect_left
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import among, distinct, median
from stepgrade.model.events import NONE, DeviceEvent, DeviceWork, HostEvents, Ids, Kinds, Longs, Trace
from stepgrade.model.ledger import ACCOUNTS, Ledger
from stepgrade.naming.torch_names import (
    COMMUNICATION_OP,
    COMMUNICATION_RANGE,
    COMPILES,
    INPUT,
    LOADER,
    SYNC_CALL,
    Mask,
    named,
)
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.intervals import NOTHING, Spans
from stepgrade.timeline.links import Links
from stepgrade.timeline.steps import HostSteps, StepBasis, steps_of

FAR = np.iinfo(np.int64).max
TOLERANCE = 0.2  # from the median of its kind, for a step to be steady
SAME_KIND = 0.02  # difference in the amount of work
HARDLY_ANY = 0.1  # of the work of a usual step: what the loop leaves after its last one
DRAINED = 0.02  # of a step: that much of earlier work may still run when the host begins it
COMPILING_SHARE = 0.05  # of a step, for it to be no steady one
# Launch to start takes 5 to 20 microseconds on an idle device; more than this is not the launch.
DISPATCH_NS = 100_000
_STALL_NS, _STALL_SHARE, _LONGEST_LAUNCH_NS = 1_000_000, 0.02, 250_000
HOST_COPIES = (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H, DeviceEvent.COPY_OTHER)


class StepMark(StrEnum):
    """Whether a step is representative of the run, or why not."""

    STEADY = "steady"
    WARM_UP = "warm-up"
    FLUSH = "flush"
    EMPTY = "empty"
    OPEN = "open"  # its end is not in the trace
    COMPILING = "compiling"


class Attribution(NamedTuple):
    """The step to which each piece of work belongs."""

    step: Ids  # index of the step; the number of steps if launched after the last; NONE if not known
    inferred: Mask  # launch not recorded, step taken from its neighbours on the stream
    unlaunched: Mask  # launch not recorded
    launch_ns: Longs


class Windows(NamedTuple):
    """Each step's time on the device (or on the host, where the device does not show its steps)."""

    start_ns: Longs
    end_ns: Longs
    on_device: bool
    end_known: Mask  # whether the next step's work was seen to end it
    kind: Ids  # steps with the same number have about the same amount of work
    amount: Longs  # pieces of work in each step
    mark: tuple[StepMark, ...]

    @property
    def dur_ns(self) -> Longs:
        """Return how long each step took."""
        return self.end_ns - self.start_ns

    @property
    def steady(self) -> Mask:
        """Return which steps are representative of the run."""
        return np.array([mark == StepMark.STEADY for mark in self.mark], np.bool_)

    def without(self, spans: Spans) -> Windows:
        """Return the windows with steps largely inside `spans` marked as compiling, if others stay steady."""
        steady = self.steady
        much = iv.covered_within(spans, self.start_ns, self.end_ns) > COMPILING_SHARE * self.dur_ns
        if not (steady & ~much).any():
            return self
        marks = [
            StepMark.COMPILING if much[index] and (steady[index] or mark is StepMark.WARM_UP) else mark
            for index, mark in enumerate(self.mark)
        ]
        return self._replace(mark=tuple(marks))

    def is_steady(self, step: Ids) -> Mask:
        """Return whether the step at each index is steady; NONE and indices past the last are not."""
        known = np.append(self.steady, [False, False])
        return known[np.where(step >= 0, step, len(known) - 1)]

    def in_steady(self, spans: Spans) -> Longs:
        """Return how much of `spans` lies in each steady step."""
        steady = self.steady
        return iv.covered_within(spans, self.start_ns[steady], self.end_ns[steady])

    def steady_share(self, spans: Spans) -> float:
        """Return how much of the steady steps' time `spans` covers, from 0 to 1."""
        total = int(self.dur_ns[self.steady].sum())
        return float(self.in_steady(spans).sum() / max(total, 1))


def compile_spans(trace: Trace) -> iv.Spans:
    """Return when something was being compiled, on whichever thread."""
    return iv.covered_by(trace.ops, named(trace.strings, trace.ops.name, COMPILES))


def attribute(work: DeviceWork, links: Links, steps: HostSteps) -> Attribution:
    """Return the step of each piece of work, by the time of its launch.

    Work without a recorded launch gets the step of its neighbours on the stream, where both agree.
    """
    step = steps_of(links.launch_ns, steps)
    unlaunched = links.call < 0
    if steps.basis is StepBasis.SPAN:
        return Attribution(np.zeros(len(step), np.int32), unlaunched, unlaunched, links.launch_ns)
    if steps.basis in (StepBasis.KERNELS, StepBasis.EXECUTIONS) and unlaunched.all():
        nowhere = np.zeros(len(step), np.bool_)  # no step was inferred: the device itself shows them
        return Attribution(steps_of(work.start_ns, steps), nowhere, unlaunched, work.start_ns)
    step[unlaunched] = NONE
    if not unlaunched.any() or unlaunched.all():
        return Attribution(step, unlaunched & (step >= 0), unlaunched, links.launch_ns)
    order = np.lexsort((work.start_ns, work.stream, work.device)).astype(np.int32)
    known, missing = order[~unlaunched[order]], order[unlaunched[order]]
    after = np.searchsorted(np.flatnonzero(~unlaunched[order]), np.flatnonzero(unlaunched[order]))
    left, right = known[np.maximum(after - 1, 0)], known[np.minimum(after, len(known) - 1)]
    take = (after > 0) & (after < len(known)) & (step[left] == step[right])
    for queue in (work.stream, work.device):
        take &= (queue[left] == queue[missing]) & (queue[right] == queue[missing])
    step[missing[take]] = step[left[take]]
    return Attribution(step, unlaunched & (step >= 0), unlaunched, links.launch_ns)


def find_windows(
    trace: Trace, attribution: Attribution, steps: HostSteps, chosen: Mask, compiling: Spans
) -> Windows:
    """Return the window of each step on the device whose work is `chosen`."""
    work, count = trace.work, len(steps.start_ns)
    amount = np.bincount(attribution.step[chosen & (attribution.step >= 0)], minlength=count + 1)[:count]
    filled = np.flatnonzero(amount)
    used = int(filled[-1]) + 1 if len(filled) else 0
    if steps.basis is StepBasis.SPAN and chosen.any():
        # What the host does before its first launch is part of the trace, as it is of a marked step; the
        # launch itself is not. Work that waited since its launch shows that the device had earlier work.
        start = work.start_ns[chosen]
        waits = named(trace.strings, trace.ranges.name, LOADER)
        first, last = int(start.min()), int((start + work.dur_ns[chosen]).max())
        earliest = int(trace.ops.start_ns[trace.ops.thread == steps.thread].min(initial=first))
        launch = int(attribution.launch_ns[chosen][start.argmin()])
        is_prompt = launch >= 0 and first - launch <= DISPATCH_NS
        if first - earliest > DISPATCH_NS and (is_prompt or last - first < HARDLY_ANY * (last - earliest)):
            first = earliest
        first = int(trace.ranges.start_ns[waits].min(initial=first))
        known = np.ones(1, np.bool_)
        return _marked(np.array([first]), np.array([last]), known, np.array([len(start)]), on_device=True)
    if not used:
        # Where the host computes, a mark ends the last step too; operations do not.
        step = steps_of(trace.ops.start_ns, steps)
        step[iv.span_at(compiling, trace.ops.start_ns) >= 0] = NONE  # traced by a compiler, not computed
        amount = np.bincount(step[(step >= 0) & (step < count)], minlength=count)
        known = steps.joined | (steps.basis in (StepBasis.PROFILER_STEP, StepBasis.EXECUTIONS))
        return _marked(steps.start_ns, steps.end_ns, known, amount, on_device=False)
    if not amount[:used].all():
        return _marked(steps.start_ns, steps.end_ns, steps.joined, amount, on_device=False)
    own = chosen & (attribution.step >= 0) & ~attribution.inferred
    step, start = attribution.step[own], work.start_ns[own]
    # Copies on a stream of their own run as far ahead of their step as the host does: a step begins with its
    # first work on streams with kernels, unless a step has none there.
    kernels = distinct(work.stream[own & (work.kind == DeviceEvent.KERNEL)])
    leading = own & among(work.stream, kernels)
    if len(distinct(attribution.step[leading])) < len(distinct(step)):
        leading = own
    begin = np.full(count + 1, FAR, np.int64)
    np.minimum.at(begin, attribution.step[leading], work.start_ns[leading])
    begin = np.minimum.accumulate(begin[::-1])[::-1]
    finish = np.full(count + 1, NONE, np.int64)
    np.maximum.at(finish, step, start + work.dur_ns[own])
    host = steps.end_ns - steps.start_ns
    shown = np.maximum(finish[:-1], steps.end_ns)
    seen = steps.joined.copy()
    # Work that begins later than a whole step after the last one belongs to another loop.
    lag = max(int(begin[count - 1] - steps.start_ns[-1]), 0) if used == count else 0
    seen[-1] = used == count and begin[count] < shown[-1] + host[-1] + lag
    seen &= begin[1:] < FAR
    end = np.where(seen, begin[1:], np.minimum(shown, begin[1:]))
    begin = begin[:count].copy()
    if not seen.any():
        # A step begins with the host unless the device is still busy with earlier steps or work of no step.
        rows = np.flatnonzero(chosen & ~own)
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        ends = np.maximum.accumulate(np.append(NONE, work.end_ns[rows]))
        before = np.maximum.accumulate(np.append(NONE, finish[: count - 1]))
        busy = np.maximum(before, ends[np.searchsorted(work.start_ns[rows], begin, side="left")])
        idle = busy - steps.start_ns <= DRAINED * host
        begin = np.where(idle, np.minimum(begin, steps.start_ns), begin)
    begin[used:] = end[used:] = end[used - 1]
    return _marked(begin, end, seen, amount, on_device=True)


def _marked(start: Longs, end: Longs, known: Mask, amount: Longs, *, on_device: bool) -> Windows:
    """Return the windows with their kinds and marks, given the amount of work in each."""
    dur = end - start
    order = np.argsort(amount, kind="stable")
    jump = np.diff(amount[order]) > SAME_KIND * amount[order][1:]
    kind = np.empty(len(amount), np.int32)
    kind[order] = np.append(0, np.cumsum(jump))[: len(amount)]
    empty = (dur <= 0) | ((amount == 0) & bool(amount.any()))
    # Half of all work lies in steps that are no larger than the usual step.
    usual = amount[order][np.searchsorted(np.cumsum(amount[order]), amount.sum() / 2)] if len(amount) else 0
    empty |= amount < HARDLY_ANY * usual
    mark = np.where(empty, StepMark.EMPTY, StepMark.STEADY).astype(object)
    ended = np.flatnonzero(~empty & known)
    if len(ended):
        mark[~empty & ~known] = StepMark.OPEN
    full = ended if len(ended) else np.flatnonzero(~empty)
    # A step is warm-up while it is far from the median of the steps after it (of its kind, if there are any),
    # and from every step of the second half: the run itself may vary as much.
    later = np.sort(dur[full[len(full) // 2 :]]).tolist()
    left: dict[int, list[int]] = {NONE: []}  # durations in order: of all steps, and of each kind
    for ns, number in sorted(zip(dur[full].tolist(), kind[full].tolist(), strict=True)):
        left[NONE].append(ns)
        left.setdefault(number, []).append(ns)
    warm = 0
    for step in full[: len(full) // 2].tolist():
        ns, number = int(dur[step]), int(kind[step])
        for times in (left[NONE], left[number]):
            del times[bisect_left(times, ns)]
        others = left[number] or left[NONE]
        middle = (others[(len(others) - 1) // 2] + others[len(others) // 2]) / 2
        at = bisect_left(later, ns)
        closest = later[max(0, at - 1) : at + 1]
        if abs(ns - middle) <= TOLERANCE * middle or any(abs(n - ns) <= TOLERANCE * n for n in closest):
            break
        mark[step] = StepMark.WARM_UP
        warm += 1
    rest, last = full[warm:-1], full[-1:]
    # A last step that only the host's clock ends may hold the profiler's flush.
    if len(rest) > 1 and last[0] == len(mark) - 1 - int(empty[::-1].argmin()):
        alike = rest[kind[rest] == kind[last]]
        middle = median(dur[alike if len(alike) else rest])
        is_longer = dur[last[0]] > median(dur[rest])
        if is_longer and abs(int(dur[last[0]]) - middle) > TOLERANCE * middle:
            mark[last] = StepMark.FLUSH
    return Windows(start, end, on_device, known, kind, amount, tuple(map(StepMark, mark.tolist())))


class LedgerSpans(NamedTuple):
    """Disjoint sets of time, one for each account, which together fill the timeline."""

    accounts: dict[str, Spans]
    dispatch: Spans  # the part of idle_host in which the next work was already launched
    communication: Spans  # including what compute hides
    copy: Spans  # including what compute and communication hide

    def time_in(self, *names: str) -> Spans:
        """Return the time in these accounts; none where nothing was charged to them."""
        return iv.merge(*(self.accounts.get(name, NOTHING) for name in names))

    def by_account(self) -> list[Spans]:
        """Return the time of each account, in the order of the table."""
        return [self.time_in(name) for name in ACCOUNTS]

    def of_windows(self, windows: Windows) -> tuple[Ledger, ...]:
        """Return the accounts of each step in ns; those of a step add up to its length."""
        names = [name for name, account in ACCOUNTS.items() if not account.takes_all_ranks]
        columns = [
            iv.covered_within(self.time_in(name), windows.start_ns, windows.end_ns).tolist() for name in names
        ]
        return tuple(Ledger(**dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True))


class HostState(NamedTuple):
    """When the host was fetching input, and when it waited for the device."""

    fetching: Spans
    waiting: Spans


def find_host_state(trace: Trace, links: Links, steps: HostSteps) -> HostState:
    """Return when the threads that drive the device fetched input, and when they waited."""
    loads = named(trace.strings, trace.ranges.name, INPUT) & (trace.ranges.thread == steps.thread)
    return HostState(
        fetching=iv.covered_by(trace.ranges, loads),
        waiting=iv.covered_by(trace.calls, waiting_calls(trace, links, steps)),
    )


def stall_from_ns(step_ns: float) -> float:
    """Return the length from which a gap in a step of this length is more than a launch."""
    return min(_STALL_NS, max(_LONGEST_LAUNCH_NS, _STALL_SHARE * step_ns))


def waiting_calls(trace: Trace, links: Links, steps: HostSteps) -> Mask:
    """Return which calls of a driving thread wait: synchronisations, and copies that the host stayed with."""
    calls = trace.calls
    drivers = np.append(distinct(links.thread[links.thread >= 0]), steps.thread)
    waits = named(trace.strings, calls.name, SYNC_CALL)
    copies = np.flatnonzero((links.call >= 0) & among(trace.work.kind, HOST_COPIES))
    call = links.call[copies]
    waits[call[calls.end_ns[call] >= trace.work.end_ns[copies]]] = True
    return waits & among(calls.thread, drivers)


def device_ledger(
    trace: Trace, links: Links, host: HostState, classes: Kinds, extent: tuple[int, int], chosen: Mask
) -> LedgerSpans:
    """Return the accounts of the device whose work is `chosen`, over the time of `extent`."""
    work = trace.work
    communicates = classes == WorkClass.COMMUNICATION
    copies = among(work.kind, HOST_COPIES) & ~communicates
    compute = iv.covered_by(work, chosen & ~communicates & ~copies)
    communication = iv.covered_by(work, chosen & communicates)
    copy = iv.covered_by(work, chosen & copies)
    busy = iv.merge(compute, communication)
    idle = iv.gaps(iv.merge(busy, copy), *extent)
    # When the launch of the work that ends each gap was done, NONE if it was not recorded. A gap that no work
    # ends was the host's: it launched nothing more, so the launch is put at its end.
    launch = np.full(len(idle.starts), NONE, np.int64)
    usable = chosen & (work.dur_ns > 0)
    if usable.any():
        launched, has_call = links.launch_ns.copy(), links.call >= 0
        launched[has_call] += trace.calls.dur_ns[links.call[has_call]]
        start, launched = work.start_ns[usable], launched[usable]
        if not (start[1:] > start[:-1]).all():
            order = np.lexsort((-launched, start)).astype(np.int32)
            start, launched = start[order], launched[order]
        index = np.searchsorted(start, idle.ends, side="left")
        open_end = idle.ends if has_call.any() else launch
        launch = np.where(index < len(start), launched[np.minimum(index, len(start) - 1)], open_end)
        del start, launched, index
    known = launch >= 0
    gap = idle if known.all() else Spans(idle.starts[known], idle.ends[known])
    ready = np.clip(launch[known], gap.starts, gap.ends)
    del launch
    dispatched = np.minimum(ready + DISPATCH_NS, gap.ends)
    late = iv.union(gap.starts, ready)
    fetched = iv.intersect(late, host.fetching)
    # A wait that another thread launches in holds no launch up: the gap was not the wait's.
    during = iv.span_at(host.waiting, ready)
    others = during >= 0
    began = np.maximum(gap.starts[others], host.waiting.starts[during[others]])
    passed = iv.union(began, ready[others])
    # A gap that opened while the host waited is charged to the wait, for no longer than the host had waited.
    wait = iv.span_at(host.waiting, gap.starts)
    held = (wait >= 0) & (wait != during)
    opened, limit = gap.starts[held], (host.waiting.ends - host.waiting.starts)[wait[held]]
    drained = iv.union(opened, np.minimum(ready[held], opened + limit))
    waited = iv.merge(drained, iv.subtract(iv.intersect(late, host.waiting), passed))
    waited = iv.subtract(waited, fetched)
    shown_communication, shown_copy = iv.clip(communication, *extent), iv.clip(copy, *extent)
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


def host_ledger(trace: Trace, steps: HostSteps, extent: tuple[int, int]) -> LedgerSpans:
    """Return the accounts of the host's threads over the time of `extent`.

    Each thread is shifted by more than the extent, so that a collective or the loader on one thread hides
    nothing on another; the results are shifted back over each other.
    """
    ops, ranges = trace.ops, trace.ranges
    shift = extent[1] - extent[0] + 1

    def apart(table: HostEvents, chosen: Mask) -> Spans:
        offset = table.thread[chosen].astype(np.int64) * shift - extent[0]
        start, end = (np.clip(at[chosen], *extent) for at in (table.start_ns, table.end_ns))
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

"""Step windows and their ledger a second time: event by event, in plain Python, with none of the code under test.

What the trace says of host and device goes into lists; each question is answered by looking at all of them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

from stepgrade.model.events import DeviceEvent, Trace
from stepgrade.naming.work_class import WorkClass, classify

DISPATCH_NS = 100_000
INPUT = re.compile(
    r"^enumerate\(DataLoader\)#|data_?load|(load|wait_for|fetch|next|get)_(\w+_)?batch\b", re.IGNORECASE
)
SYNC = re.compile(r"Synchronize|^(cuda|hip)(Memcpy|Free|FreeHost|HostFree)$|MemcpyWithStream")
HOST_COPIES = (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H, DeviceEvent.COPY_OTHER)
Span = tuple[int, int]


class Call(NamedTuple):
    name: str
    start: int
    end: int
    thread: int


class Work(NamedTuple):
    start: int
    end: int
    stream: int
    is_kernel: bool
    account: str  # compute, exposed_communication or exposed_copy
    call: Call | None


class Round(NamedTuple):
    """A step on the host."""

    number: int
    start: int
    end: int
    is_followed: bool  # by the next one, at once


class SlowStep(NamedTuple):
    number: int
    start: int
    end: int
    is_known: bool  # the next step's first work is in the trace


def device_work(trace: Trace) -> list[Work]:
    """Return the work of the device that is busy longest, with the call that launched each piece."""
    calls: dict[int, Call] = {}
    table = trace.calls
    for row in range(len(table.name)):
        start = int(table.start_ns[row])
        call = Call(
            trace.strings[table.name[row]], start, start + int(table.dur_ns[row]), int(table.thread[row])
        )
        calls.setdefault(int(table.correlation[row]), call)
    busy: Counter[int] = Counter()
    work = trace.work
    for row in range(len(work.name)):
        busy[int(work.device[row])] += int(work.dur_ns[row])
    numbered = {device: ns for device, ns in busy.items() if device >= 0}
    chosen = max(numbered, key=lambda device: (numbered[device], -device)) if numbered else -1
    found = []
    for row in range(len(work.name)):
        if int(work.device[row]) != chosen:
            continue
        account = "compute"
        is_kernel = int(work.kind[row]) == DeviceEvent.KERNEL
        name = trace.strings[work.name[row]]
        if int(work.collective[row]) >= 0 or classify(name) == WorkClass.COMMUNICATION:
            account = "exposed_communication"
        elif int(work.kind[row]) in HOST_COPIES:
            account = "exposed_copy"
        start, correlation = int(work.start_ns[row]), int(work.correlation[row])
        call = calls.get(correlation) if correlation >= 0 else None
        found.append(
            Work(start, start + int(work.dur_ns[row]), int(work.stream[row]), is_kernel, account, call)
        )
    return found


def host_rounds(trace: Trace) -> tuple[list[Round], int]:
    """Return the steps on the host and the thread of their loop: of marks, else of what a loop calls.

    The first kind of sign counts whose steps launch at least half of what was launched.
    """
    named_ranges = [
        (
            trace.strings[trace.ranges.name[row]],
            int(trace.ranges.start_ns[row]),
            int(trace.ranges.start_ns[row] + trace.ranges.dur_ns[row]),
            int(trace.ranges.thread[row]),
        )
        for row in range(len(trace.ranges.name))
    ]
    launches = _launches(trace)
    whole = sum(ns for _, ns in launches)
    for rounds, thread in (
        _marked(named_ranges),
        _optimized(trace, named_ranges),
        _fetched(trace, named_ranges),
    ):
        inside = sum(ns for at, ns in launches if any(one.start <= at < one.end for one in rounds))
        if rounds and 2 * inside >= whole:
            return rounds, thread
    return [], -1


def _launches(trace: Trace) -> list[Span]:
    """Return when each piece of work was launched and how long it took; of operations where no work is."""
    table = trace.calls
    started = {
        int(table.correlation[row]): int(table.start_ns[row]) for row in reversed(range(len(table.name)))
    }
    found = [
        (started[int(trace.work.correlation[row])], int(trace.work.dur_ns[row]))
        for row in range(len(trace.work.name))
        if int(trace.work.correlation[row]) in started
    ]
    ops = trace.ops
    return found or [(int(ops.start_ns[row]), int(ops.dur_ns[row])) for row in range(len(ops.name))]


NamedRange = tuple[str, int, int, int]


def _commonest(values: list[int]) -> int:
    counts = Counter(values)
    return min(counts, key=lambda one: (-counts[one], one)) if counts else -1


def _marked(ranges: list[NamedRange]) -> tuple[list[Round], int]:
    """Return the steps of the profiler's marks on the thread that has most of them."""
    marks = []
    for name, start, end, thread in ranges:
        match = re.match(r"^ProfilerStep\s*#\s*(\d+)", name)
        if match:
            marks.append((start, end, int(match[1]), thread))
    thread = _commonest([mark[3] for mark in marks])
    marks = sorted((mark for mark in marks if mark[3] == thread), key=lambda mark: mark[0])
    rounds = []
    for place, (start, end, number, _) in enumerate(marks):
        follows = False
        if place + 1 < len(marks):
            later = marks[place + 1]
            follows = later[2] == number + 1 and later[0] - end <= max(end - start, 1_000_000) // 2
        rounds.append(Round(number, start, marks[place + 1][0] if follows else end, follows))
    return rounds, thread


def _optimized(trace: Trace, ranges: list[NamedRange]) -> tuple[list[Round], int]:
    """Return the steps that end with the optimizer that is called most."""
    calls: dict[str, list[NamedRange]] = defaultdict(list)
    for one in ranges:
        if one[0].startswith("Optimizer.step#"):
            calls[one[0]].append(one)
    if not calls:
        return [], -1
    busiest = max(calls.values(), key=lambda those: (len(those), max(end for _, _, end, _ in those)))
    loop = _commonest([thread for *_, thread in busiest])
    busiest.sort(key=lambda one: one[1])
    sizes = [
        sum(
            start <= int(trace.ops.start_ns[row]) < end and int(trace.ops.thread[row]) == loop
            for row in range(len(trace.ops.name))
        )
        for _, start, end, _ in busiest
    ]
    # Optimizers that take turns, each with its own number of operations from its second time on, share a step.
    turns = 1
    for each in (4, 3, 2, 1):
        if len(sizes) >= 3 * each and all(
            sizes[place] == sizes[place + each] for place in range(each, len(sizes) - each)
        ):
            turns = each
    edges = [_first(trace), *sorted(end for _, _, end, _ in busiest)[turns - 1 :: turns]]
    return _rounds(edges), loop


def _fetched(trace: Trace, ranges: list[NamedRange]) -> tuple[list[Round], int]:
    """Return the steps that begin with a batch of the loader."""
    loads = [one for one in ranges if one[0].startswith("enumerate(DataLoader)#")]
    if len(loads) < 2:
        return [], -1
    thread = _commonest([one[3] for one in loads])
    edges = sorted(start for _, start, _, where in loads if where == thread)
    return _rounds([*edges, _last(trace)]), thread


def _rounds(edges: list[int]) -> list[Round]:
    pairs = list(pairwise(edges))
    return [Round(place, *pair, place + 1 < len(pairs)) for place, pair in enumerate(pairs)]


def _first(trace: Trace) -> int:
    return min(int(start) for table in (trace.ops, trace.calls, trace.ranges) for start in table.start_ns)


def _last(trace: Trace) -> int:
    tables = (trace.ops, trace.calls, trace.ranges)
    return max(int(end) for table in tables for end in table.start_ns + table.dur_ns)


def slow_windows(trace: Trace) -> list[SlowStep]:
    """Return the steps from first work to next first work; a step that launched nothing ends the list."""
    rounds, _ = host_rounds(trace)
    starts = [one.start for one in rounds]
    launched: dict[int, list[Work]] = defaultdict(list)
    for work in device_work(trace):
        if work.call is None:
            continue
        place = bisect_right(starts, work.call.start) - 1
        if place < 0:
            continue
        if work.call.start < rounds[place].end:
            launched[place].append(work)
        elif place == len(rounds) - 1:
            launched[len(rounds)].append(work)
    # Copies may run ahead on a stream of their own: the first work is on a stream that has kernels.
    streams = {work.stream for works in launched.values() for work in works if work.is_kernel}
    has_kernels = all(any(work.stream in streams for work in works) for works in launched.values())
    begins = {
        place: min(work.start for work in works if not has_kernels or work.stream in streams)
        for place, works in launched.items()
    }
    for place in sorted(begins, reverse=True):  # never later than the next step's
        begins[place] = min([begins[place], *(begins[later] for later in begins if later > place)])
    found = []
    for place, one in enumerate(rounds):
        if place not in begins:
            break
        following = begins.get(place + 1)
        if following is not None and one.is_followed:
            found.append(SlowStep(one.number, begins[place], following, True))
        else:
            last = max(work.end for work in launched[place])
            found.append(SlowStep(one.number, begins[place], max(last, one.end), False))
    return found


def sample_of(works: list[Work], window: Span, most: int) -> tuple[list[Work], Span]:
    """Return a part of the window with at most `most` pieces of work, in its middle, and the work around it.

    What is left out ended long before or begins long after: it tells nothing of the part.
    """
    inside = sorted(
        (work for work in works if work.start < window[1] and work.end > window[0]), key=lambda w: w.start
    )
    if len(inside) > most:
        low = (len(inside) - most) // 2
        window = (max(window[0], inside[low].start), min(window[1], inside[low + most].start))
    before = sorted((work for work in works if work.end <= window[0]), key=lambda work: work.end)[-most:]
    after = sorted((work for work in works if work.start >= window[1]), key=lambda work: work.start)[:most]
    during = [work for work in works if work.start < window[1] and work.end > window[0]]
    empty = [work for work in works if work.start == work.end]
    return list({*before, *during, *after} - {*empty}), window


def slow_ledger(trace: Trace, window: Span, works: list[Work] | None = None) -> Counter[str]:
    """Return where the time of a window goes, one stretch between two moments after the other."""
    works = device_work(trace) if works is None else works
    _, loop = host_rounds(trace)
    fetching = [
        (int(trace.ranges.start_ns[row]), int(trace.ranges.start_ns[row] + trace.ranges.dur_ns[row]))
        for row in range(len(trace.ranges.name))
        if int(trace.ranges.thread[row]) == loop and INPUT.search(trace.strings[trace.ranges.name[row]][:120])
    ]
    waiting = _joined(_waits(trace, works, loop))
    moments = {*window}
    for start, end in (*fetching, *waiting, *((work.start, work.end) for work in works)):
        moments |= {start, end}
    for gap_start, gap_end in _idle(works, window):
        ready, _ = _ready(works, gap_start, gap_end)
        if ready is not None:
            moments |= {ready, min(ready + DISPATCH_NS, gap_end)}
            wait = next((span for span in waiting if span[0] <= gap_start < span[1]), None)
            if wait:
                moments.add(gap_start + wait[1] - wait[0])
    ordered = sorted(moment for moment in moments if window[0] <= moment <= window[1])
    waiting = [span for span in waiting if span[0] < window[1] and span[1] > _idle_since(works, window)]
    idle = _idle(works, window)
    total: Counter[str] = Counter()
    for start, end in pairwise(ordered):
        total[_account(works, idle, fetching, waiting, start)] += end - start
    return total


def _idle_since(works: list[Work], window: Span) -> int:
    """Return where the gap begins in which the window begins."""
    return max((work.end for work in works if work.end <= window[0]), default=0)


def slow_host_ledger(trace: Trace, window: Span) -> Counter[str]:
    """Return where the time of a window goes on a run without a device, moment by moment, thread by thread."""
    events = [event for event in _host_events(trace) if event[0] < window[1] and event[1] > window[0]]
    moments = sorted({*window, *(at for event in events for at in event[:2] if window[0] < at < window[1])})
    total: Counter[str] = Counter()
    for start, end in pairwise(moments):
        running: dict[int, set[str]] = defaultdict(set)
        for event in events:
            if event[0] <= start < event[1]:
                running[event[2]].add(event[3])
        seen = set().union(*running.values())
        if any(kinds == {"op"} for kinds in running.values()):
            account = "compute"
        elif "communication" in seen:
            account = "exposed_communication"
        else:
            account = "idle_input" if "input" in seen else "idle_host"
        total[account] += end - start
    return total


def _host_events(trace: Trace) -> list[tuple[int, int, int, str]]:
    """Return start, end, thread and kind of operations, of collectives and of the loop's loading."""
    loop = host_rounds(trace)[1]
    if loop < 0:  # no rounds are seen: the loop is where most happens
        tables = (trace.ranges, trace.ops, trace.calls)
        loop = _commonest([int(thread) for table in tables for thread in table.thread])
    events: list[tuple[int, int, int, str]] = []
    for row in range(len(trace.ops.name)):
        start, name = int(trace.ops.start_ns[row]), trace.strings[trace.ops.name[row]]
        kind = "communication" if name.startswith(("c10d::", "_c10d_", "record_param_comms")) else "op"
        events.append((start, start + int(trace.ops.dur_ns[row]), int(trace.ops.thread[row]), kind))
    for row in range(len(trace.ranges.name)):
        start, name = int(trace.ranges.start_ns[row]), trace.strings[trace.ranges.name[row]]
        thread, end = int(trace.ranges.thread[row]), start + int(trace.ranges.dur_ns[row])
        if re.match(r"^(nccl|gloo|mpi|ucc):", name):
            events.append((start, end, thread, "communication"))
        elif thread == loop and INPUT.search(name[:120]):
            events.append((start, end, thread, "input"))
    return events


def _account(works: list[Work], idle: list[Span], fetching: list[Span], waiting: list[Span], at: int) -> str:
    """Return the account of the moment `at`."""
    running = {work.account for work in works if work.start <= at < work.end}
    for account in ("compute", "exposed_communication", "exposed_copy"):
        if account in running:
            return account
    gap_start, gap_end = next(gap for gap in idle if gap[0] <= at < gap[1])
    ready, is_known = _ready(works, gap_start, gap_end)
    if not is_known or ready is None:
        return "unattributed"
    if at >= ready:
        return "idle_host" if at < ready + DISPATCH_NS else "unattributed"
    if any(start <= at < end for start, end in fetching):
        return "idle_input"
    # Those that the launch came after: in another, some thread launched.
    waiting = [span for span in waiting if not span[0] <= ready < span[1]]
    wait = next((span for span in waiting if span[0] <= gap_start < span[1]), None)
    if wait and at < gap_start + wait[1] - wait[0]:
        return "idle_sync"
    return "idle_sync" if any(start <= at < end for start, end in waiting) else "idle_host"


def _ready(works: list[Work], gap_start: int, gap_end: int) -> tuple[int | None, bool]:
    """Return when the launch of the work that ends a gap was done, and whether that is known."""
    enders = [work for work in works if work.start >= gap_end and work.end > work.start]
    if not enders:
        return (gap_end, True) if any(work.call for work in works) else (None, False)
    first = min(work.start for work in enders)
    launches = [work.call.end if work.call else -1 for work in enders if work.start == first]
    done = max(launches)
    return (None, False) if done < 0 else (min(max(done, gap_start), gap_end), True)


def _idle(works: list[Work], window: Span) -> list[Span]:
    """Return the times in which nothing runs, also those that begin before the window or end after it."""
    busy = _joined([(work.start, work.end) for work in works if work.end > work.start])
    edges = [0, *(moment for span in busy for moment in span), 2**62]
    gaps = [(edges[place], edges[place + 1]) for place in range(0, len(edges), 2)]
    return [gap for gap in gaps if gap[0] < window[1] and gap[1] > window[0] and gap[0] < gap[1]]


def _waits(trace: Trace, works: list[Work], loop: int) -> list[Span]:
    """Return when a driving thread waited for the device: in synchronisations, and in copies it stayed with."""
    drivers = {loop}
    launching: set[Call] = set()
    correlations = {int(trace.work.correlation[row]) for row in range(len(trace.work.name))}
    for row in range(len(trace.calls.name)):
        if int(trace.calls.correlation[row]) in correlations:
            drivers.add(int(trace.calls.thread[row]))
    for work in works:
        if work.call and work.account == "exposed_copy" and work.call.end >= work.end:
            launching.add(work.call)
    spans = [(call.start, call.end) for call in launching if call.thread in drivers]
    for row in range(len(trace.calls.name)):
        if int(trace.calls.thread[row]) in drivers and SYNC.search(
            trace.strings[trace.calls.name[row]][:120]
        ):
            start = int(trace.calls.start_ns[row])
            spans.append((start, start + int(trace.calls.dur_ns[row])))
    return spans


def _joined(spans: list[Span]) -> list[Span]:
    """Return the union of spans; those that touch become one."""
    joined: list[list[int]] = []
    for start, end in sorted(span for span in spans if span[1] > span[0]):
        if joined and start <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return [(start, end) for start, end in joined]

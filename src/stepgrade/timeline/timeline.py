"""Put a trace together: who launched what, in which step, and where the time went."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from stepgrade.model.columns import groups
from stepgrade.model.events import (
    NONE,
    DeviceEvent,
    DeviceWork,
    HostCalls,
    HostOps,
    HostRanges,
    Kinds,
    Longs,
    Trace,
)
from stepgrade.naming.torch_names import (
    BACKWARD,
    BACKWARD_PASS,
    COMMUNICATION_RANGE,
    DEVICE_OP,
    INPUT,
    LAUNCH_CALL,
    OPTIMIZER,
    Mask,
    classes_of,
    matching,
    named,
)
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.compiled import in_direction
from stepgrade.timeline.frames import LoopFrames, find_loop_frames
from stepgrade.timeline.ledger import HostState, LedgerSpans, device_ledger, find_host_state, host_ledger
from stepgrade.timeline.links import HostTree, Links, build_tree, inherit, link_work
from stepgrade.timeline.steps import HostSteps, find_steps, steps_of
from stepgrade.timeline.windows import Attribution, Windows, attribute, compile_spans, find_windows

IN_INPUT, IN_BACKWARD, IN_OPTIMIZER = 1, 2, 4
LONGEST_NS = 24 * 3600 * 10**9
LATEST_NS = 30 * LONGEST_NS
Table = TypeVar("Table", HostOps, HostCalls, DeviceWork, HostRanges)


class Driver(StrEnum):
    """Whose time a step is made of."""

    DEVICE = "device"
    HOST = "host"  # the host computes: there is no other device
    UNSEEN = "unseen"  # the host drives a device whose work was not recorded


class Timeline(NamedTuple):
    """A trace with everything that is worked out once for all parts of the analysis."""

    trace: Trace
    tree: HostTree
    context: Kinds  # of each row of the tree: IN_INPUT | IN_BACKWARD | IN_OPTIMIZER
    links: Links
    steps: HostSteps
    attribution: Attribution
    windows: Windows
    classes: Kinds  # of device work
    chosen: Mask  # work of the device that is analysed
    device: int | None
    driver: Driver
    host: HostState
    ledger: LedgerSpans | None
    frames: LoopFrames  # what the Python code of the loop's thread was in
    impossible: int  # events left out because of impossible times

    def in_steady_step(self, times: Longs) -> Mask:
        """Tell which of the host's times lie in a steady step."""
        return self.windows.is_steady(steps_of(times, self.steps))


def build_timeline(trace: Trace) -> Timeline:
    """Return the timeline of the trace's busiest device, or of its host if it has no other."""
    trace, impossible = drop_impossible_events(trace)
    tree = build_tree(trace)
    links = link_work(trace, tree)
    steps = find_steps(trace, tree, links)
    work = trace.work
    attribution = attribute(work, links, steps)
    numbered = work.device >= 0
    device = None
    if numbered.any():
        devices, which, _ = groups(work.device[numbered])
        device = int(devices[np.bincount(which, weights=work.dur_ns[numbered]).argmax()])
    chosen = work.device == (NONE if device is None else device)
    compiling = compile_spans(trace)
    windows = find_windows(trace, attribution, steps, chosen, compiling).without(compiling)
    # What carries a collective's description is communication, whatever its name.
    classes = np.where(work.collective >= 0, WorkClass.COMMUNICATION, classes_of(trace.strings, work.name))
    copies = (work.kind != DeviceEvent.KERNEL) & (classes != WorkClass.COMMUNICATION)
    classes = np.where(copies, WorkClass.COPY, classes).astype(np.int8)
    host = find_host_state(trace, links, steps)
    driver = Driver.DEVICE
    if not len(work.name):
        collectives = named(trace.strings, trace.ranges.name, COMMUNICATION_RANGE)
        names = (trace.strings[name] for name in trace.ranges.name[collectives].tolist())
        nccl = any(name.startswith("nccl:") for name in names)
        launches = named(trace.strings, trace.calls.name, LAUNCH_CALL).any()
        on_device = named(trace.strings, trace.ops.name, DEVICE_OP).any()
        driver = Driver.UNSEEN if launches or nccl or on_device else Driver.HOST
    # Each row of the tree lies in what its own name and those of the rows above it say.
    bits = np.zeros(max(len(trace.strings), 1), np.int8)
    for pattern, bit in ((INPUT, IN_INPUT), (BACKWARD, IN_BACKWARD), (OPTIMIZER, IN_OPTIMIZER)):
        bits[np.flatnonzero(matching(trace.strings, pattern))] |= bit
    extent = (int(windows.start_ns.min()), int(windows.end_ns.max()))
    ledger = None
    if driver is Driver.DEVICE:
        ledger = device_ledger(trace, links, host, classes, extent, chosen)
    elif driver is Driver.HOST and len(trace.ops.name):
        ledger = host_ledger(trace, steps, extent)
    return Timeline(
        trace=trace,
        tree=tree,
        context=_find_context(trace, tree, bits, steps.thread),
        links=links,
        steps=steps,
        attribution=attribution,
        windows=windows,
        classes=classes,
        chosen=chosen,
        device=device,
        driver=driver,
        host=host,
        ledger=ledger,
        frames=find_loop_frames(trace, steps.thread),
        impossible=impossible,
    )


def _find_context(trace: Trace, tree: HostTree, bits: Kinds, thread: int) -> Kinds:
    """Return for each row of the tree what its own name and those of the rows above it say.

    Where no operation shows a backward pass, the user's ranges do, by time: autograd launches from threads
    of its own.
    """
    own = bits[tree.name]
    for directions, bit in ((("backward", "recompute"), IN_BACKWARD), (("optimizer",), IN_OPTIMIZER)):
        own[tree.of_op[in_direction(trace, *directions)]] |= bit
    context = inherit(tree.parent, own)
    passes = named(trace.strings, trace.ranges.name, BACKWARD_PASS) & (trace.ranges.thread == thread)
    if not passes.any() or named(trace.strings, trace.ops.name, BACKWARD).any():
        return context
    start = trace.ranges.start_ns[passes]
    spans = iv.union(start, start + trace.ranges.dur_ns[passes])
    calls = trace.calls
    place = np.searchsorted(spans.starts, calls.start_ns, side="right") - 1
    inside = (place >= 0) & (calls.start_ns < spans.ends[np.maximum(place, 0)])
    context[tree.of_call[inside]] |= IN_BACKWARD
    return context


def drop_impossible_events(trace: Trace) -> tuple[Trace, int]:
    """Return the trace without events that start before it, after a month, or last less than 0 or over a day.

    Broken files have such times. The number of events left out comes with it.
    """
    ops, calls, work, ranges = (
        _possible_rows(trace.ops),
        _possible_rows(trace.calls),
        _possible_rows(trace.work),
        _possible_rows(trace.ranges),
    )
    kept = sum(len(table.name) for table in (ops, calls, work, ranges))
    had = sum(len(table.name) for table in (trace.ops, trace.calls, trace.work, trace.ranges))
    if kept == had:
        return trace, 0
    return structs.replace(trace, ops=ops, calls=calls, work=work, ranges=ranges), had - kept


def _possible_rows(table: Table) -> Table:
    start, dur = table.start_ns, table.dur_ns
    possible = (start >= 0) & (start <= LATEST_NS) & (dur >= 0) & (dur <= LONGEST_NS)
    if possible.all():
        return table
    columns = {name: column for name, column in structs.asdict(table).items() if column is not None}
    return type(table)(**{name: column[possible] for name, column in columns.items()})

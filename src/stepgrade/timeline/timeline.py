"""Assemble a trace: what launched what, in which step, and the pieces of work that its time is made of."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

import numpy as np
from msgspec import structs

from stepgrade.model.columns import among, groups
from stepgrade.model.events import NONE, DeviceEvent, Ids, Kinds, Longs, Trace, Wholes
from stepgrade.naming.torch_names import (
    BACKWARD,
    BACKWARD_PASS,
    COLLECTIVE,
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
from stepgrade.naming.work_class import MATMULS, WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import (
    Attribution,
    HostState,
    LedgerSpans,
    Windows,
    attribute,
    compile_spans,
    device_ledger,
    find_host_state,
    find_windows,
    host_ledger,
)
from stepgrade.timeline.links import (
    HostTree,
    Links,
    LoopFrames,
    build_tree,
    compiled_of,
    find_loop_frames,
    in_direction,
    link_work,
    nearest,
    pick,
)
from stepgrade.timeline.steps import HostSteps, find_steps, outermost_operations, steps_of

IN_INPUT, IN_BACKWARD, IN_OPTIMIZER = 1, 2, 4
# What opens a context: the name of a range or operation, or the pass that a compiler assigned it to.
_CONTEXTS = (
    (IN_INPUT, INPUT, ()),
    (IN_BACKWARD, BACKWARD, ("backward", "recompute")),
    (IN_OPTIMIZER, OPTIMIZER, ("optimizer",)),
)
LONGEST_NS = 24 * 3600 * 10**9
LATEST_NS = 30 * LONGEST_NS


class Driver(StrEnum):
    """Whose time a step is made of."""

    DEVICE = "device"
    HOST = "host"  # the host computes: there is no other device
    UNSEEN = "unseen"  # the host drives a device whose work was not recorded


class Phase(IntEnum):
    """The part of a step that a piece of work belongs to."""

    INPUT = 0
    H2D = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    COMMUNICATION = 5
    D2H = 6
    OTHER = 7


PHASES = tuple(phase.name.lower() for phase in Phase)


class Timeline(NamedTuple):
    """A trace with everything that is computed once for all parts of the analysis."""

    trace: Trace
    tree: HostTree
    context: Kinds  # of each row of the tree: IN_INPUT | IN_BACKWARD | IN_OPTIMIZER
    links: Links
    steps: HostSteps
    attribution: Attribution
    windows: Windows
    classes: Kinds  # of device work
    chosen: Mask  # work of the analysed device
    device: int | None
    driver: Driver
    host: HostState
    ledger: LedgerSpans | None
    frames: LoopFrames  # Python code on the thread of the training loop
    impossible: int  # events dropped because of impossible times

    def in_steady_step(self, times: Longs) -> Mask:
        """Return which of these host times lie in a steady step."""
        return self.windows.is_steady(steps_of(times, self.steps))

    def loop_operations(self) -> Ids:
        """Return the training loop's outermost operations outside input, backward pass and optimizer."""
        ops, tree = self.trace.ops, self.tree
        apart = (self.context[tree.of_op] & (IN_BACKWARD | IN_INPUT | IN_OPTIMIZER)) > 0
        rows = np.flatnonzero(outermost_operations(tree) & ~apart & (ops.thread == self.steps.thread))
        return rows[np.argsort(ops.start_ns[rows], kind="stable")].astype(np.int32)

    def per_steady_step(self, step: Ids, dur_ns: Wholes) -> Longs:
        """Return the total time of pieces in each steady step."""
        steady = self.windows.steady
        sums = np.bincount(step, weights=dur_ns, minlength=len(steady)).astype(np.int64)
        return sums[: len(steady)][steady]


def build_timeline(trace: Trace) -> Timeline:
    """Return the timeline of the trace's busiest device, or of its host if it has no other."""
    trace, impossible = _drop_impossible_events(trace)
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
    # Work with a recorded collective is communication, whatever its name.
    classes = np.where(work.collective >= 0, WorkClass.COMMUNICATION, classes_of(trace.strings, work.name))
    copies = (work.kind != DeviceEvent.KERNEL) & (classes != WorkClass.COMMUNICATION)
    classes = np.where(copies, WorkClass.COPY, classes).astype(np.int8)
    host = find_host_state(trace, links, steps)
    extent = (int(windows.start_ns.min()), int(windows.end_ns.max()))
    driver, ledger = Driver.DEVICE, None
    if len(work.name):
        ledger = device_ledger(trace, links, host, classes, extent, chosen)
    else:
        collectives = named(trace.strings, trace.ranges.name, COMMUNICATION_RANGE)
        names = (trace.strings[name] for name in trace.ranges.name[collectives].tolist())
        nccl = any(name.startswith("nccl:") for name in names)
        launches = named(trace.strings, trace.calls.name, LAUNCH_CALL).any()
        on_device = named(trace.strings, trace.ops.name, DEVICE_OP).any()
        driver = Driver.UNSEEN if launches or nccl or on_device else Driver.HOST
        if driver is Driver.HOST and len(trace.ops.name):
            ledger = host_ledger(trace, steps, extent)
    return Timeline(
        trace=trace,
        tree=tree,
        context=_find_context(trace, tree, steps.thread),
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


def _find_context(trace: Trace, tree: HostTree, thread: int) -> Kinds:
    """Return for each row of the tree the contexts named by the row itself and the rows above it.

    Where no operation shows a backward pass, the user's ranges do, by time: autograd launches from threads
    of its own.
    """
    context = np.zeros(len(tree.name), np.int8)
    for bit, pattern, directions in _CONTEXTS:
        opens = named(trace.strings, tree.name, pattern)
        opens[tree.of_op[in_direction(trace, *directions)]] = True
        context[nearest(tree.parent, opens) >= 0] |= bit
    passes = named(trace.strings, trace.ranges.name, BACKWARD_PASS) & (trace.ranges.thread == thread)
    if passes.any() and not named(trace.strings, trace.ops.name, BACKWARD).any():
        spans = iv.covered_by(trace.ranges, passes)
        context[tree.of_call[iv.span_at(spans, trace.calls.start_ns) >= 0]] |= IN_BACKWARD
    return context


def _drop_impossible_events(trace: Trace) -> tuple[Trace, int]:
    """Return the trace without events before its start, after a month, or longer than a day, and their count.

    Broken files have such times.
    """
    tables, dropped = {}, 0
    for name in ("ops", "calls", "work", "ranges"):
        table = getattr(trace, name)
        start, dur = table.start_ns, table.dur_ns
        possible = (start >= 0) & (start <= LATEST_NS) & (dur >= 0) & (dur <= LONGEST_NS)
        if not possible.all():
            columns = structs.asdict(table).items()
            tables[name] = type(table)(**{key: c[possible] for key, c in columns if c is not None})
            dropped += int((~possible).sum())
    return structs.replace(trace, **tables) if dropped else trace, dropped


class Pieces(NamedTuple):
    """One row for each piece of work: work on the analysed device, else operations of the host."""

    start_ns: Longs
    dur_ns: Wholes  # on a host: its own time, without nested operations
    launch_ns: Longs  # on a host: its start
    step: Ids
    row: Ids  # in the host tree, or NONE
    op: Ids  # row in trace.ops, or NONE
    name: Ids  # of the operation, else of the kernel
    kernel: Ids  # name of the kernel, or NONE on a host
    work: Ids  # row in trace.work, or NONE on a host
    work_class: Kinds
    context: Kinds  # IN_INPUT | IN_BACKWARD | IN_OPTIMIZER
    phase: Kinds  # a Phase
    steady: Mask  # belongs to a steady step
    label: Ids  # its displayed name, an index into `labels`
    labels: tuple[str, ...]  # the trace's strings, and one more for each class of work of a vague operation

    def longest(self, rows: Ids) -> int:
        """Return the longest of the pieces in `rows`, the first in time if there are several."""
        tied = rows[self.dur_ns[rows] == self.dur_ns[rows].max()]
        return int(tied[self.start_ns[tied].argmin()])


def find_pieces(timeline: Timeline) -> Pieces:
    """Return the pieces of the timeline's steps."""
    trace, tree, links, work = timeline.trace, timeline.tree, timeline.links, timeline.trace.work
    on_device = timeline.driver is Driver.DEVICE
    if on_device:
        rows = np.flatnonzero(timeline.chosen).astype(np.int32)
        own = slice(None) if timeline.chosen.all() else rows  # a slice copies nothing
        start, dur, launch = work.start_ns[own], work.dur_ns[own], links.launch_ns[own]
        step, op, row, kernel = timeline.attribution.step[own], links.op[own], links.row[own], work.name[own]
        work_class = timeline.classes[own]
        name = np.where(op >= 0, pick(trace.ops.name, op), kernel) if (op >= 0).any() else kernel
        if len(tree.name):
            # All collectives contain an operation of the same name: show the name of the collective itself.
            above = pick(nearest(tree.parent, matching(trace.strings, COLLECTIVE)[tree.name]), row)
            is_collective = (work_class == WorkClass.COMMUNICATION) & (above >= 0)
            if is_collective.any():
                name = np.where(is_collective, pick(tree.name, above), name)
        context = np.maximum(pick(timeline.context, row), 0)
        if compiled_of(trace):  # the compiler knows the operation, whichever call launched it
            context |= np.maximum(pick(timeline.context, pick(tree.of_op, op)), 0)
        label, labels = _label(trace.strings, np.where(op >= 0, name, NONE), work_class, name)
    else:
        ops = trace.ops
        rows = kernel = np.full(len(ops.name), NONE, np.int32)
        start, launch, dur = ops.start_ns, ops.start_ns, self_times(trace, tree)
        step, op, row = steps_of(start, timeline.steps), np.arange(len(start), dtype=np.int32), tree.of_op
        work_class, context = classes_of(trace.strings, ops.name), timeline.context[tree.of_op]
        name, label, labels = ops.name, ops.name, trace.strings
    # Work launched after the last backward piece of its step is neither forward nor backward.
    in_backward = ((context & IN_BACKWARD) > 0) & (step >= 0)
    last = np.full(int(step.max(initial=NONE)) + 2, NONE, np.int64)
    np.maximum.at(last, step[in_backward], launch[in_backward])
    last[last < 0] = np.iinfo(np.int64).max
    is_after = (step >= 0) & (launch > last[step])
    phase = np.where(is_after | (row < 0), Phase.OTHER, Phase.FORWARD).astype(np.int8)
    bits = ((IN_BACKWARD, Phase.BACKWARD), (IN_INPUT, Phase.INPUT), (IN_OPTIMIZER, Phase.OPTIMIZER))
    for bit, named_phase in bits:
        phase[(context & bit) > 0] = named_phase
    if on_device:
        phase[work.kind[rows] == DeviceEvent.COPY_H2D] = Phase.H2D
        phase[work.kind[rows] == DeviceEvent.COPY_D2H] = Phase.D2H
    phase[work_class == WorkClass.COMMUNICATION] = Phase.COMMUNICATION
    steady = timeline.windows.is_steady(step)
    return Pieces(
        *(start, dur, launch, step, row, op, name, kernel, rows),
        *(work_class, context, phase, steady, label, labels),
    )


def self_times(trace: Trace, tree: HostTree) -> Longs:
    """Return for each operation its time in ns without the operations nested in it."""
    above = pick(tree.op, tree.parent[tree.of_op])
    inside = above >= 0
    owner = tree.origin[above[inside]]
    nested = np.bincount(owner, weights=trace.ops.dur_ns[inside], minlength=len(trace.ops.name))
    return np.maximum(trace.ops.dur_ns - nested.astype(np.int64), 0)


def _label(
    strings: tuple[str, ...], operation: Ids, work_class: Kinds, name: Ids
) -> tuple[Ids, tuple[str, ...]]:
    """Return the label of each piece: its name, with its class where a vague operation has work of several.

    Compiled regions are vague, and so are library operations whose name does not say what they do.
    """
    width = len(WorkClass)
    values, which, _ = groups(operation.astype(np.int64) * width + work_class)
    op, own = values // width, values % width
    by_name = classes_of(strings, np.maximum(op, 0).astype(np.int32))
    is_library = np.array([not strings[index].startswith("aten::") for index in np.maximum(op, 0).tolist()])
    computes = among(op, op[among(own, MATMULS)])
    vague = (by_name == WorkClass.OTHER) | (is_library & computes & ~among(by_name, MATMULS))
    several = np.append(op[1:] == op[:-1], False) | np.append(False, op[1:] == op[:-1])
    split = (op >= 0) & vague & several & (own != WorkClass.COMMUNICATION)
    if not split.any():
        return name, strings
    label = np.full(len(values), NONE, np.int32)
    label[split] = len(strings) + np.arange(int(split.sum()))
    added = (
        f"{strings[index]} ({WorkClass(number).label})"
        for index, number in zip(op[split].tolist(), own[split].tolist(), strict=True)
    )
    return np.where(label[which] >= 0, label[which], name), (*strings, *added)

"""A trace understood as a whole: who launched what, in which step, and where the time went."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stepgrade.model.events import NONE, Kinds, Trace
from stepgrade.naming.torch_names import (
    BACKWARD,
    COMMUNICATION_RANGE,
    INPUT,
    LAUNCH_CALL,
    OPTIMIZER,
    Mask,
    matching,
    named,
    settled,
)
from stepgrade.trace.classify import WorkClass, classify_work
from stepgrade.trace.host_ledger import open_host_ledger
from stepgrade.trace.ledger import HostState, Ledger, foresee, open_ledger, watch_host
from stepgrade.trace.links import HostTree, Links, grow_tree, inherit, link_work
from stepgrade.trace.sound import keep_sound
from stepgrade.trace.steps import HostSteps, find_steps
from stepgrade.trace.windows import Attribution, Windows, attribute, find_windows

IN_INPUT, IN_BACKWARD, IN_OPTIMIZER = 1, 2, 4


class Driver(StrEnum):
    """Whose time a step is made of."""

    DEVICE = "device"
    HOST = "host"  # the host computes: there is no other device
    UNSEEN = "unseen"  # the host drives a device whose work was not recorded


class Timeline(NamedTuple):
    """Everything that the facts of a trace are read from."""

    trace: Trace
    tree: HostTree
    context: Kinds  # of each row of the tree: IN_INPUT | IN_BACKWARD | IN_OPTIMIZER
    links: Links
    steps: HostSteps
    attribution: Attribution
    windows: Windows
    classes: Kinds  # of device work
    chosen: Mask  # work of the device that is looked at
    device: int | None
    driver: Driver
    host: HostState
    ledger: Ledger | None
    unsound: int  # events left out because of impossible times


def lay_out(trace: Trace) -> Timeline:
    """Return the timeline of the trace's busiest device, or of its host if it has no other."""
    trace, unsound = keep_sound(settled(trace))
    tree = grow_tree(trace)
    links = link_work(trace, tree)
    steps = find_steps(trace, tree)
    attribution = attribute(trace.work, links, steps)
    device = _busiest_device(trace)
    chosen = trace.work.device == (NONE if device is None else device)
    windows = find_windows(trace.work, attribution, steps, chosen)
    classes = classify_work(trace.strings, trace.work)
    host = watch_host(trace, links, steps)
    if windows.on_device:
        host = foresee(host, steps, windows)
    bare = Timeline(
        trace=trace,
        tree=tree,
        context=_context(trace, tree),
        links=links,
        steps=steps,
        attribution=attribution,
        windows=windows,
        classes=classes,
        chosen=chosen,
        device=device,
        driver=_driver(trace),
        host=host,
        ledger=None,
        unsound=unsound,
    )
    return bare._replace(ledger=_ledger(bare))


def _context(trace: Trace, tree: HostTree) -> Kinds:
    """Return for each row of the tree what it lies in, told from its own name and those above it."""
    bits = np.zeros(max(len(trace.strings), 1), np.int8)
    for pattern, bit in ((INPUT, IN_INPUT), (BACKWARD, IN_BACKWARD), (OPTIMIZER, IN_OPTIMIZER)):
        bits[np.flatnonzero(matching(trace.strings, pattern))] |= bit
    return inherit(tree.parent, bits[tree.name])


def _busiest_device(trace: Trace) -> int | None:
    """Return the device with the most work; None if the trace names none."""
    device = trace.work.device
    if not (device >= 0).any():
        return None
    known = device[device >= 0]
    return int(np.bincount(known, weights=trace.work.dur_ns[device >= 0]).argmax())


def _driver(trace: Trace) -> Driver:
    if len(trace.work.name):
        return Driver.DEVICE
    launches = named(trace.strings, trace.calls.name, LAUNCH_CALL).any()
    remote = named(trace.strings, trace.ranges.name, COMMUNICATION_RANGE)
    talks = any(trace.strings[name].startswith("nccl:") for name in trace.ranges.name[remote].tolist())
    return Driver.UNSEEN if launches or talks else Driver.HOST


def _ledger(line: Timeline) -> Ledger | None:
    extent = (int(line.windows.start_ns.min()), int(line.windows.end_ns.max()))
    if line.driver is Driver.DEVICE:
        return open_ledger(line.trace, line.links, line.host, line.classes, extent, line.chosen)
    if line.driver is Driver.HOST and len(line.trace.ops.name):
        return open_host_ledger(line.trace, line.steps, extent)
    return None


def is_communication(line: Timeline) -> Mask:
    """Tell which device work is communication."""
    talks: Mask = line.classes == WorkClass.COMMUNICATION
    return talks

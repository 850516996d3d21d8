"""Whether a trace is fit to be graded: what is missing, broken or disturbed, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from stepgrade.model.events import RangeKind
from stepgrade.model.notes import Note
from stepgrade.naming.torch_names import QUEUE_FULL, named
from stepgrade.trace import intervals as iv
from stepgrade.trace.steps import StepBasis
from stepgrade.trace.timeline import Driver, Timeline
from stepgrade.trace.windows import StepMark
from stepgrade.units import show_ms, show_share

OVERHEAD_SHARE = 0.02
EARLY_START_SHARE = 0.001
UNATTRIBUTED_SHARE = 0.1
HOST_SHARE = 0.2


Check = Callable[[Timeline], Iterator[Note]]


def check_fitness(line: Timeline) -> tuple[Note, ...]:
    """Return everything that limits what the trace can tell, the fatal first."""
    found = [one for check in _CHECKS for one in check(line)]
    return tuple(sorted(found, key=lambda one: not one.fatal))


def _empty(line: Timeline) -> Iterator[Note]:
    tables = (line.trace.ops, line.trace.calls, line.trace.work, line.trace.ranges)
    if not any(len(table.name) for table in tables):
        yield Note(code="empty", text="The trace holds no events.", fatal=True)


def _truncated(line: Timeline) -> Iterator[Note]:
    for text in line.trace.lost:
        yield Note(code="truncated", text=text)


def _unseen(line: Timeline) -> Iterator[Note]:
    if line.driver is Driver.UNSEEN:
        text = "The host drives a device, but no work of a device was recorded. Record ProfilerActivity.CUDA."
        yield Note(code="device_unseen", text=text, fatal=True)
    elif line.driver is Driver.DEVICE and not len(line.trace.ops.name):
        text = "No host operations were recorded: only kernels are known. Record ProfilerActivity.CPU."
        yield Note(code="host_unseen", text=text)


def _no_steps(line: Timeline) -> Iterator[Note]:
    if line.steps.basis is StepBasis.SPAN:
        text = "The trace has no steps. Call prof.step() once in each iteration while recording."
        yield Note(code="no_steps", text=text, fatal=True)


def _few_steps(line: Timeline) -> Iterator[Note]:
    steady = int(line.windows.steady.sum())
    warm = line.windows.mark.count(StepMark.WARM_UP)
    if steady == 0:
        yield Note(code="no_steady_step", text="No step holds any work.", fatal=True)
    elif steady == 1 and line.steps.basis is not StepBasis.SPAN:
        yield Note(code="one_step", text="Only one steady step was recorded: its spread is not known.")
    if warm and warm >= steady:
        dur = line.windows.dur_ns
        first, later = float(dur[0]), float(np.median(dur[line.windows.steady]))
        why = "mostly warm-up" if first > later else "queues were still full, or other load came later"
        text = (
            f"{warm} of {warm + steady} steps differ from later ones ({show_ms(first / 1e6)} at first, "
            f"{show_ms(later / 1e6)} later): {why}."
        )
        yield Note(code="warm_up", text=text)


def _own_overhead(line: Timeline) -> Iterator[Note]:
    ranges = line.trace.ranges
    # A full command buffer means that the device is behind, not that the profiler works.
    own = (ranges.kind == RangeKind.OVERHEAD) & ~named(line.trace.strings, ranges.name, QUEUE_FULL)
    spans = iv.union(ranges.start_ns[own], (ranges.start_ns + ranges.dur_ns)[own])
    steady = line.windows.steady
    start, end = line.windows.start_ns[steady], line.windows.end_ns[steady]
    share = float(iv.covered_within(spans, start, end).sum() / max(int((end - start).sum()), 1))
    if share > OVERHEAD_SHARE:
        text = f"The profiler itself was at work for {show_share(share)} of the steady steps."
        yield Note(code="profiler_overhead", text=text)


def _host_slowed(line: Timeline) -> Iterator[Note]:
    heavy = sorted(line.trace.recorded & {"stacks", "memory", "shapes"})
    if line.ledger is None or not heavy or line.driver is not Driver.DEVICE:
        return
    steady = line.windows.steady
    start, end = line.windows.start_ns[steady], line.windows.end_ns[steady]
    waits = iv.covered_within(line.ledger.idle_host, start, end).sum()
    share = float(waits / max(int((end - start).sum()), 1))
    if share > HOST_SHARE:
        text = (
            f"The device waited for the host {show_share(share)} of the time while {_listed(heavy)} "
            "were recorded, which slows the host: without the profiler the share may be smaller."
        )
        yield Note(code="host_slowed", text=text)


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _clocks(line: Timeline) -> Iterator[Note]:
    work, links = line.trace.work, line.links
    early = (links.call >= 0) & (work.start_ns < links.launch_ns)
    launched = int((links.call >= 0).sum())
    if launched and early.sum() > max(EARLY_START_SHARE * launched, 0):
        lead = int((links.launch_ns - work.start_ns)[early].max())
        text = (
            f"{int(early.sum())} of {launched} launched kernels and copies start before their launch, by up "
            f"to {show_ms(lead / 1e6)}: the clocks of host and device do not agree."
        )
        yield Note(code="clocks", text=text)


def _out_of_range(line: Timeline) -> Iterator[Note]:
    if line.unsound:
        text = (
            f"{line.unsound} events have impossible times (negative, or longer than a day) and are left out."
        )
        yield Note(code="out_of_range", text=text)


def _unlaunched(line: Timeline) -> Iterator[Note]:
    if line.driver is not Driver.DEVICE or line.steps.basis is StepBasis.SPAN:
        return
    missing = line.chosen & line.attribution.unlaunched
    count, total = int(missing.sum()), int(line.chosen.sum())
    if not count:
        return
    start = int(line.windows.start_ns.min())
    before = int((missing & (line.trace.work.start_ns < start)).sum())
    text = f"{count} of {total} kernels and copies have no recorded launch"
    if before:
        those = "all" if before == count else str(before)
        text += f"; {those} of them ran before the first recorded step and belong to earlier ones"
    yield Note(code="unlaunched", text=text + ".")


def _unattributed(line: Timeline) -> Iterator[Note]:
    if line.ledger is None:
        return
    steady = line.windows.steady
    start, end = line.windows.start_ns[steady], line.windows.end_ns[steady]
    lost = iv.covered_within(line.ledger.unattributed, start, end).sum()
    share = float(lost / max(int((end - start).sum()), 1))
    if share > UNATTRIBUTED_SHARE:
        text = (
            f"{show_share(share)} of the step is idle time that the trace does not explain: "
            "events are missing, or the device worked for someone else."
        )
        yield Note(code="unattributed", text=text)


def _host_windows(line: Timeline) -> Iterator[Note]:
    if line.driver is Driver.DEVICE and not line.windows.on_device:
        text = "Some steps launched no recorded work: steps are timed on the host, which runs ahead."
        yield Note(code="host_windows", text=text)


_CHECKS: tuple[Check, ...] = (
    _empty,
    _truncated,
    _unseen,
    _no_steps,
    _few_steps,
    _own_overhead,
    _host_slowed,
    _clocks,
    _out_of_range,
    _unlaunched,
    _unattributed,
    _host_windows,
)

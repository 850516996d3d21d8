"""Check how far a trace can be trusted: what is missing, broken or disturbed in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from stepgrade.model.events import RangeKind
from stepgrade.model.notes import Note
from stepgrade.naming.torch_names import LAUNCH_CALL, QUEUE_FULL, named
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.compiled import compiled_of
from stepgrade.timeline.steps import StepBasis
from stepgrade.timeline.timeline import Driver, Timeline
from stepgrade.timeline.windows import StepMark
from stepgrade.units import show_ms, show_share

OVERHEAD_SHARE = 0.02
WARM_UP_RATIO = 1.5  # a few steps that differ by less may differ for any reason
EARLY_START_SHARE = 0.001
UNATTRIBUTED_SHARE = 0.1
HOST_SHARE = 0.2


def check_quality(timeline: Timeline) -> tuple[Note, ...]:
    """Return everything that limits what the trace can tell."""
    checks = (_check_contents, _check_steps, _check_profiler, _check_times, _check_device)
    found = [note for check in checks for note in check(timeline)]
    return by_weight(found)


def by_weight(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return the notes in the order in which they are shown: fatal ones, what was lost, the others."""
    return tuple(sorted(notes, key=lambda note: (not note.fatal, note.code != "lost")))


def _check_contents(timeline: Timeline) -> Iterator[Note]:
    trace = timeline.trace
    if not any(len(table.name) for table in (trace.ops, trace.calls, trace.work, trace.ranges)):
        yield Note("empty", "The trace has no events.", fatal=True)
    for text in trace.lost:
        yield Note("lost", f"lost in reading: {text}")
        yield Note("truncated", text)
    for text in trace.doubts:
        yield Note("not_collected", text)
    if timeline.driver is Driver.UNSEEN and named(trace.strings, trace.calls.name, LAUNCH_CALL).any():
        text = "Launches were recorded, but no work of the device: its driver did not give any away."
        yield Note("kernels_missing", text, fatal=True)
    elif timeline.driver is Driver.UNSEEN:
        text = (
            f"The host drives a device, but no work of a device was recorded. {trace.profiler.record_device}"
        )
        yield Note("device_unseen", text, fatal=True)
    elif timeline.driver is Driver.DEVICE and not len(trace.ops.name):
        text = f"No host operations were recorded: only kernels are known. {trace.profiler.record_operations}"
        yield Note("host_unseen", text)


def _check_steps(timeline: Timeline) -> Iterator[Note]:
    windows, basis = timeline.windows, timeline.steps.basis
    if basis is StepBasis.SPAN:
        text = f"The trace has no steps. {timeline.trace.profiler.mark_steps}"
        yield Note("no_steps", text, fatal=True)
    steady = int(windows.steady.sum())
    warm = windows.mark.count(StepMark.WARM_UP)
    if steady == 0:
        yield Note("no_steady_step", "No step has any work.", fatal=True)
    elif steady == 1 and basis is not StepBasis.SPAN:
        yield Note("one_step", "Only one steady step was recorded: its spread is not known.")
    if warm and warm >= steady:
        first, later = float(windows.dur_ns[0]), float(np.median(windows.dur_ns[windows.steady]))
        why = "mostly warm-up" if first > later else "queues were still full, or other load came later"
        text = (
            f"{warm} of {warm + steady} steps differ from later ones ({show_ms(first / 1e6)} at first, "
            f"{show_ms(later / 1e6)} later): {why}."
        )
        # Of two steps the faster may be either: only a slow start is known to be warm-up.
        is_warm_up = first > later or warm + steady > 2
        if is_warm_up and max(first, later) > WARM_UP_RATIO * min(first, later):
            yield Note("warm_up", text)


def _check_profiler(timeline: Timeline) -> Iterator[Note]:
    ranges = timeline.trace.ranges
    # A full command buffer means that the device is behind, not that the profiler works.
    own = (ranges.kind == RangeKind.OVERHEAD) & ~named(timeline.trace.strings, ranges.name, QUEUE_FULL)
    spans = iv.union(ranges.start_ns[own], (ranges.start_ns + ranges.dur_ns)[own])
    share = timeline.windows.steady_share(spans)
    if share > OVERHEAD_SHARE:
        text = f"The profiler itself was at work for {show_share(share)} of the steady steps."
        yield Note("profiler_overhead", text)
    heavy = sorted(timeline.trace.recorded & {"stacks", "memory", "shapes"})
    if compiled_of(timeline.trace):
        heavy = [name for name in heavy if name != "shapes"]  # they are the program's, and cost nothing
    if timeline.ledger is None or not heavy or timeline.driver is not Driver.DEVICE:
        return
    share = timeline.windows.steady_share(timeline.ledger.time_in("idle_host"))
    if share > HOST_SHARE:
        listed = " and ".join(filter(None, (", ".join(heavy[:-1]), heavy[-1])))
        text = (
            f"The device waited for the host {show_share(share)} of the time while {listed} "
            "were recorded, which slows the host: without the profiler the share may be smaller."
        )
        yield Note("host_slowed", text)


def _check_times(timeline: Timeline) -> Iterator[Note]:
    work, links = timeline.trace.work, timeline.links
    early = (links.call >= 0) & (work.start_ns < links.launch_ns)
    launched = int((links.call >= 0).sum())
    if launched and early.sum() > EARLY_START_SHARE * launched:
        lead = int((links.launch_ns - work.start_ns)[early].max())
        text = (
            f"{int(early.sum())} of {launched} launched kernels and copies start before their launch, by up "
            f"to {show_ms(lead / 1e6)}: the clocks of host and device do not agree."
        )
        yield Note("clocks", text)
    if timeline.impossible:
        text = "events have impossible times (negative, or longer than a day) and are left out."
        yield Note("out_of_range", f"{timeline.impossible} {text}")


def _check_device(timeline: Timeline) -> Iterator[Note]:
    on_device = timeline.driver is Driver.DEVICE
    missing = timeline.chosen & timeline.attribution.unlaunched
    # Where no launch at all was recorded, that is said of the host's operations.
    by_launch = timeline.steps.basis is not StepBasis.SPAN and (timeline.links.call >= 0).any()
    if on_device and by_launch and missing.any():
        count, total = int(missing.sum()), int(timeline.chosen.sum())
        before = int((missing & (timeline.trace.work.start_ns < timeline.windows.start_ns.min())).sum())
        text = f"{count} of {total} kernels and copies have no recorded launch"
        if before:
            those = "all" if before == count else str(before)
            text += f"; {those} of them ran before the first recorded step and belong to earlier ones"
        yield Note("unlaunched", text + ".")
    share = timeline.windows.steady_share(timeline.ledger.time_in("unattributed")) if timeline.ledger else 0.0
    if share > UNATTRIBUTED_SHARE:
        text = (
            f"{show_share(share)} of the step is idle time that the trace does not explain: "
            "events are missing, or the device worked for another process."
        )
        yield Note("unattributed", text)
    if on_device and not timeline.windows.on_device:
        text = "Some steps launched no recorded work: steps are timed on the host, which runs ahead."
        yield Note("host_windows", text)

"""Analyse the trace of one rank: from its events to its Profile, with notes on what limits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import structs

from stepgrade.costs.call_costs import most_of
from stepgrade.model.columns import distinct, median
from stepgrade.model.events import Longs, RangeKind, Trace
from stepgrade.model.ledger import Ledger
from stepgrade.model.notes import Note, by_weight
from stepgrade.model.operations import Span
from stepgrade.model.profile import PhaseShare, Profile, Recorded, Source
from stepgrade.model.ranks import Communication
from stepgrade.naming.torch_names import LAUNCH_CALL, QUEUE_FULL, named
from stepgrade.ranks.collectives import collectives_of_rank, find_arrivals
from stepgrade.ranks.packed_ranks import RankProfile, RankStep, pack_spans
from stepgrade.ranks.ranks import merge_ranks
from stepgrade.replay.packed import record_steps
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.intervals import NOTHING
from stepgrade.timeline.ledger import StepMark, Windows
from stepgrade.timeline.links import compiled_of
from stepgrade.timeline.steps import ALIKE, NOTES, StepBasis
from stepgrade.timeline.timeline import (
    PHASES,
    Driver,
    Phase,
    Pieces,
    Timeline,
    build_timeline,
    find_pieces,
)
from stepgrade.trace.activity import capability_by_kernels, measure_activity
from stepgrade.trace.compilation import find_compilation
from stepgrade.trace.counts import count_images, count_launches, count_tokens, find_work
from stepgrade.trace.kernels import find_device, kernel_use
from stepgrade.trace.layers import Layers, find_layers
from stepgrade.trace.memory import locate_memory, memory_of_trace
from stepgrade.trace.operations import find_places, sum_operations
from stepgrade.trace.tracks import view_steps
from stepgrade.units import NS_PER_MS, show_count, show_ms, show_share

STEADY = StepMark.STEADY
# Where two phases run at once the first in this order has the time: computing hides moving.
_PRECEDENCE = (
    *(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER),
    *(Phase.COMMUNICATION, Phase.H2D, Phase.D2H),
)
OVERHEAD_SHARE = 0.02
WARM_UP_RATIO = 1.5  # a few steps that differ by less may differ for any reason
EARLY_START_SHARE = 0.001
UNATTRIBUTED_SHARE = 0.1
HOST_SHARE = 0.2


def profile_of_traces(traces: Iterable[Trace]) -> Profile:
    """Return the profile of a run; the traces of its ranks are taken one by one and not kept."""
    ranks = [*map(analyse_rank, traces)]  # a loop would keep one trace while the next is read
    return merge_ranks(ranks)


def analyse_rank(trace: Trace) -> RankProfile:
    """Return the profile of one rank's trace, with what merging ranks needs beside it."""
    timeline = build_timeline(trace)
    return analyse_timeline(timeline, find_pieces(timeline))


def analyse_timeline(timeline: Timeline, pieces: Pieces) -> RankProfile:
    """Return the profile of one rank whose timeline is already built."""
    trace, windows = timeline.trace, timeline.windows
    layers = find_layers(timeline, pieces)
    operations = sum_operations(timeline, pieces)
    located = locate_memory(timeline)
    modules, placed = find_places(timeline, pieces, layers.again, located, operations.longest_first)
    tokens = count_tokens(timeline)
    device = find_device(timeline)
    ledgers = timeline.ledger.of_windows(windows) if timeline.ledger else (None,) * len(windows.mark)
    recorded_steps = tuple(
        RankStep(number=number, start_ns=start, dur_ns=end - start, steady=mark is STEADY, ledger=ledger)
        for number, start, end, mark, ledger in zip(
            timeline.steps.number.tolist(),
            *(windows.start_ns.tolist(), windows.end_ns.tolist(), windows.mark, ledgers),
            strict=True,
        )
    )
    steady = [step for step in recorded_steps if step.steady]
    steps, total_ns = len(steady), sum(step.dur_ns for step in steady)
    steady_ledgers = [step.ledger for step in steady if step.ledger]
    typical = sorted(steady, key=lambda step: step.dur_ns)[steps // 2] if steps else None
    activity = structs.replace(
        measure_activity(timeline, pieces),
        recompute_ms=layers.recompute_ns / max(steps, 1) / NS_PER_MS,
        capability=(device.capability if device else None) or capability_by_kernels(trace),
        sequence=tokens.sequence if tokens else None,
    )
    work = find_work(timeline)
    memory = memory_of_trace(timeline, layers, located)
    arrivals = find_arrivals(timeline, pieces)
    collectives = collectives_of_rank(arrivals, [step.number for step in steady])
    node_devices = len(trace.devices) or None
    in_steady = iv.union(windows.start_ns[windows.steady], windows.end_ns[windows.steady])
    exposed = timeline.ledger.time_in("exposed_communication") if timeline.ledger else NOTHING
    profile = Profile(
        source=Source(format=trace.profiler.format, files=(trace.file,), producer=trace.profiler.producer),
        work=work,
        steps=steps or None,
        recorded_steps=len(recorded_steps),
        mean_step_ms=total_ns / steps / NS_PER_MS if steps else None,
        samples_ms=tuple(step.dur_ns / NS_PER_MS for step in steady),
        phases=sum_phases(timeline, pieces),
        layers=layers.times,
        modules=modules,
        views=view_steps(timeline, pieces),
        steps_to_replay=record_steps(timeline, pieces, arrivals),
        operations=placed,
        typical_step=Span(file=0, start_ns=trace.file_zero_ns + typical.start_ns, dur_ns=typical.dur_ns)
        if typical
        else None,
        tokens_per_step=tokens.per_step if tokens else None,
        samples_per_step=count_images(timeline) if work == "inference" and tokens is None else None,
        launches_per_step=count_launches(timeline, pieces) / max(steps, 1) or None,
        ledger=Ledger.sum(steady_ledgers) if steady_ledgers and total_ns else None,
        world_size=trace.world_size,
        # A trace lists the machine's accelerators even when the run did not use them.
        device=device.alone() if device and device.name and timeline.driver is Driver.DEVICE else None,
        matmul_flops=operations.matmul_flops,
        matmul_known_share=operations.known_share,
        matmul_dtype=most_of(activity.matmul_dtype_ms),
        activity=activity,
        compilation=find_compilation(timeline),
        kernel_use=kernel_use(timeline, pieces),
        memory=memory,
        peak_memory_bytes=memory.peak_bytes if memory else None,
        links=Communication(collectives=collectives, node_devices=node_devices) if collectives else None,
        recorded=Recorded(versions=trace.versions, settings=tuple(sorted(trace.recorded))),
        contents=_describe_contents(timeline, layers),
        notes=tuple(_find_notes(timeline, layers)),
        warnings=by_weight([*_check_host(timeline), *_check_device(timeline)]),
    )
    return RankProfile(
        profile=profile,
        rank=trace.rank,
        base_ns=trace.base_ns,
        steps=recorded_steps,
        arrivals=arrivals,
        process=trace.process,
        alone=pack_spans(iv.intersect(in_steady, exposed)) if len(arrivals) else b"",
    )


def _describe_contents(timeline: Timeline, layers: Layers) -> dict[str, str]:
    """Return descriptions of the trace's contents."""
    trace = timeline.trace
    counts = sorted(trace.categories.items(), key=lambda item: -item[1])
    contents = {
        "trace": trace.era,
        "events": ", ".join(f"{show_count(count)} {name}" for name, count in counts[:5]),
        "recorded": ", ".join(sorted(trace.recorded)) or "neither shapes nor stacks",
        "devices": ", ".join(sorted({device.name or "unnamed" for device in trace.devices})),
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(trace.versions.items())),
        "steps from": timeline.steps.basis.value,
        "layers from": layers.basis.value if layers.basis else "",
    }
    return {name: text for name, text in contents.items() if text}


def _find_notes(timeline: Timeline, layers: Layers) -> Iterator[Note]:
    windows = timeline.windows
    if timeline.steps.basis in NOTES:
        yield Note("steps_basis", NOTES[timeline.steps.basis])
    yield from _left_out(windows)
    steady_ns, count = windows.dur_ns[windows.steady], len(windows.mark)
    compiling = windows.dur_ns[[mark is StepMark.COMPILING for mark in windows.mark]]
    if len(compiling):
        text = (
            f"{len(compiling)} of {count} steps {'is' if len(compiling) == 1 else 'are'} left out because "
            f"torch.compile compiled in them: {show_ms(float(compiling.sum()) / NS_PER_MS)} in all."
        )
        yield Note("compiling_steps_left_out", text)
    if StepMark.OPEN in windows.mark:
        text = f"The last of {count} steps is left out: its end is not in the trace."
        yield Note("last_step_open", text)
    kind = windows.kind[windows.steady]
    by_kind = np.argsort(kind, kind="stable")
    kinds = np.split(steady_ns[by_kind], np.flatnonzero(np.diff(kind[by_kind])) + 1)
    if sum(len(members) > 1 for members in kinds) > 1:
        times = " and ".join(show_ms(median(members) / NS_PER_MS) for members in kinds)
        text = f"Steps are of {len(kinds)} kinds with different amounts of work: {times}."
        yield Note("kinds_of_steps", text)
    if layers.note:
        yield layers.note
    if layers.recompute_ns:
        per_step = show_ms(layers.recompute_ns / NS_PER_MS / max(len(steady_ns), 1))
        yield Note(
            "recompute", f"{per_step} of the mean step is forward work done again in the backward pass."
        )
    if len(distinct(timeline.trace.work.device)) > 1:
        text = f"The trace has several devices; the ledger covers device {timeline.device}, the busiest."
        yield Note("several_devices", text)


def _left_out(windows: Windows) -> Iterator[Note]:
    """Yield which first and last steps are left out, and why."""
    steady_ns, count = windows.dur_ns[windows.steady], len(windows.mark)
    for mark, where in ((StepMark.WARM_UP, "first"), (StepMark.FLUSH, "last")):
        odd = windows.dur_ns[[other == mark for other in windows.mark]]
        if len(odd) and len(steady_ns):
            theirs, usual = median(odd), median(steady_ns)
            reason = "warm-up" if theirs > usual else "start-up"
            which, took = (
                (f"{where} of {count} steps is", "it took")
                if len(odd) == 1
                else (f"{where} {len(odd)} of {count} steps are", "they took")
            )
            times = f"{took} {show_ms(theirs / NS_PER_MS)}, the others {show_ms(usual / NS_PER_MS)}"
            reason = "the profiler's flush" if mark is StepMark.FLUSH else reason
            own, others = (
                median(windows.amount[[each is kind for each in windows.mark]]) for kind in (mark, STEADY)
            )
            if abs(own - others) > ALIKE * others:
                pieces = f"{show_count(round(own))} pieces of work instead of {show_count(round(others))}"
                reason += f", though {pieces} may be another task"
            yield Note(f"{where}_steps_left_out", f"The {which} left out as {reason}: {times}.")


def _check_host(timeline: Timeline) -> Iterator[Note]:
    """Yield what limits the conclusions from the trace: missing events, and steps that say little."""
    trace, windows, basis = timeline.trace, timeline.windows, timeline.steps.basis
    if not any(len(table.name) for table in (trace.ops, trace.calls, trace.work, trace.ranges)):
        yield Note("empty", "The trace has no events.", fatal=True)
    yield from (Note("lost", f"lost in reading: {text}") for text in trace.lost)
    yield from (Note("truncated", text) for text in trace.lost)
    yield from (Note("not_collected", text) for text in trace.doubts)
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
    if basis is StepBasis.SPAN:
        text = f"The trace has no steps. {trace.profiler.mark_steps}"
        yield Note("no_steps", text, fatal=True)
    steady = int(windows.steady.sum())
    warm = windows.mark.count(StepMark.WARM_UP)
    if steady == 0:
        yield Note("no_steady_step", "No step has any work.", fatal=True)
    elif steady == 1 and basis is not StepBasis.SPAN:
        yield Note("one_step", "Only one steady step was recorded, so the spread is unknown.")
    if warm >= max(steady, 1):
        first, later = float(windows.dur_ns[0]), median(windows.dur_ns[windows.steady])
        why = "mostly warm-up" if first > later else "queues were still full, or other load came later"
        # Of two steps the faster may be either: only a slow start is known to be warm-up.
        is_warm_up = first > later or warm + steady > 2
        if is_warm_up and max(first, later) > WARM_UP_RATIO * min(first, later):
            text = (
                f"{warm} of {warm + steady} steps differ from later ones ({show_ms(first / 1e6)} at first, "
                f"{show_ms(later / 1e6)} later): {why}."
            )
            yield Note("warm_up", text)


def _check_device(timeline: Timeline) -> Iterator[Note]:
    """Yield what disturbs the device's times: the profiler, clocks that differ, work of unknown origin."""
    trace, windows, on_device = timeline.trace, timeline.windows, timeline.driver is Driver.DEVICE
    # A full command buffer means that the device is behind, not that the profiler is busy.
    own = trace.ranges.kind == RangeKind.OVERHEAD
    own &= ~named(trace.strings, trace.ranges.name, QUEUE_FULL)
    share = windows.steady_share(iv.covered_by(trace.ranges, own))
    if share > OVERHEAD_SHARE:
        text = f"The profiler itself was at work for {show_share(share)} of the steady steps."
        yield Note("profiler_overhead", text)
    heavy = sorted(trace.recorded & {"stacks", "memory", "shapes"})
    if compiled_of(trace):
        heavy = [name for name in heavy if name != "shapes"]  # from the program itself, at no cost
    share = windows.steady_share(timeline.ledger.time_in("idle_host")) if timeline.ledger else 0.0
    if heavy and on_device and share > HOST_SHARE:
        listed = " and ".join(filter(None, (", ".join(heavy[:-1]), heavy[-1])))
        text = (
            f"The device waited for the host {show_share(share)} of the time while {listed} "
            "were recorded, which slows the host: without the profiler the share may be smaller."
        )
        yield Note("host_slowed", text)
    links, start_ns = timeline.links, trace.work.start_ns
    early = (links.call >= 0) & (start_ns < links.launch_ns)
    launched = int((links.call >= 0).sum())
    if launched and early.sum() > EARLY_START_SHARE * launched:
        lead = int((links.launch_ns - start_ns)[early].max())
        text = (
            f"{int(early.sum())} of {launched} launched kernels and copies start before their launch, by up "
            f"to {show_ms(lead / 1e6)}: the clocks of host and device do not agree."
        )
        yield Note("clocks", text)
    if timeline.impossible:
        text = "events have impossible times (negative, or longer than a day) and are left out."
        yield Note("out_of_range", f"{timeline.impossible} {text}")
    missing = timeline.chosen & timeline.attribution.unlaunched
    # Where no launch at all was recorded, the note on missing host operations covers it.
    by_launch = timeline.steps.basis is not StepBasis.SPAN and (timeline.links.call >= 0).any()
    if on_device and by_launch and missing.any():
        count, total = int(missing.sum()), int(timeline.chosen.sum())
        before = int((missing & (trace.work.start_ns < windows.start_ns.min())).sum())
        text = f"{count} of {total} kernels and copies have no recorded launch"
        if before:
            those = "all" if before == count else str(before)
            text += f"; {those} of them ran before the first recorded step and belong to earlier ones"
        yield Note("unlaunched", text + ".")
    share = windows.steady_share(timeline.ledger.time_in("unattributed")) if timeline.ledger else 0.0
    if share > UNATTRIBUTED_SHARE:
        text = (
            f"{show_share(share)} of the step is idle time that the trace does not explain: "
            "events are missing, or the device worked for another process."
        )
        yield Note("unattributed", text)
    if on_device and not windows.on_device:
        text = "Some steps launched no recorded work: steps are timed on the host, which runs ahead."
        yield Note("host_windows", text)


def sum_phases(timeline: Timeline, pieces: Pieces) -> tuple[PhaseShare, ...]:
    """Return the phases that occur in the steady steps.

    On a device each phase has only the time that no phase before it in the precedence has, so that the phases
    add up to the busy time. Input is the time in which the device waited for it.
    """
    if timeline.driver is Driver.UNSEEN:
        return ()
    on_device = timeline.driver is Driver.DEVICE
    spent: dict[int, tuple[int, Longs]] = {}
    waits = timeline.windows.in_steady(
        timeline.ledger.time_in("idle_input") if timeline.ledger else iv.NOTHING
    )
    if waits.any():
        spent[Phase.INPUT] = int(waits.sum()), waits
    taken = iv.NOTHING
    for phase in _PRECEDENCE:
        chosen = pieces.steady & (pieces.phase == phase)
        if on_device:
            if phase == Phase.OTHER:
                chosen |= pieces.steady & (pieces.phase == Phase.INPUT)
            start = pieces.start_ns[chosen]
            spans = iv.union(start, start + pieces.dur_ns[chosen])
            own = iv.subtract(spans, taken)
            taken = iv.merge(taken, spans)
            busy, own_ns, step_ns = len(spans.starts) > 0, iv.total_ns(own), timeline.windows.in_steady(own)
        else:
            own_ns = int(pieces.dur_ns[chosen].sum())
            busy, step_ns = own_ns > 0, timeline.per_steady_step(pieces.step[chosen], pieces.dur_ns[chosen])
        if busy:
            spent[phase] = own_ns, step_ns
    # Work of a steady step may run outside of its window: the samples can add up to less than the total.
    return tuple(
        PhaseShare(
            name=PHASES[phase],
            ms=own_ns / len(step_ns) / NS_PER_MS,
            samples_ms=tuple((step_ns / NS_PER_MS).tolist()),
        )
        for phase, (own_ns, step_ns) in sorted(spent.items())
    )

"""Analyse the trace of one rank: from its events to its Profile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from msgspec import structs

from stepgrade.costs.matmuls import most_of
from stepgrade.model.collectives import Communication
from stepgrade.model.columns import distinct
from stepgrade.model.events import Trace
from stepgrade.model.ledger import Ledger
from stepgrade.model.notes import Note
from stepgrade.model.operations import Span
from stepgrade.model.profile import Profile, Recorded, Source
from stepgrade.ranks.arrivals import collectives_of_rank, find_arrivals
from stepgrade.ranks.ranks import RankProfile, RankStep, merge_ranks
from stepgrade.ranks.recordings import join_recordings
from stepgrade.timeline.pieces import Pieces, find_pieces
from stepgrade.timeline.quality import check_quality
from stepgrade.timeline.steps import NOTES
from stepgrade.timeline.timeline import Driver, Timeline, build_timeline
from stepgrade.timeline.windows import StepMark, Windows
from stepgrade.trace.activity import capability_by_kernels, measure_activity
from stepgrade.trace.compilation import find_compilation
from stepgrade.trace.counts import count_images, count_launches, count_tokens
from stepgrade.trace.kernels import find_device, kernel_use
from stepgrade.trace.layers import Layers, find_layers
from stepgrade.trace.memory import locate_memory, memory_of_trace
from stepgrade.trace.operations import sum_operations
from stepgrade.trace.phases import find_phases, sum_phases
from stepgrade.trace.places import find_places
from stepgrade.trace.step_view import view_steps
from stepgrade.trace.work import find_work
from stepgrade.units import NS_PER_MS, show_count, show_ms


def profile_of_traces(traces: Iterable[Trace]) -> Profile:
    """Return the profile of a run; the traces of its ranks are taken one by one and not kept."""
    ranks = [*map(analyse_rank, traces)]  # a loop would keep one trace while the next is read
    return merge_ranks(join_recordings(ranks))


def analyse_trace(trace: Trace) -> Profile:
    """Return the profile of one rank's trace."""
    return analyse_rank(trace).profile


def analyse_rank(trace: Trace) -> RankProfile:
    """Return the profile of one rank's trace, with what merging ranks needs beside it."""
    timeline = build_timeline(trace)
    return analyse_timeline(timeline, find_pieces(timeline))


def analyse_timeline(timeline: Timeline, pieces: Pieces) -> RankProfile:
    """Return the profile of one rank, whose trace was put together already."""
    trace = timeline.trace
    phase = find_phases(timeline, pieces)
    layers = find_layers(timeline, pieces, phase)
    operations = sum_operations(timeline, pieces)
    located = locate_memory(timeline)
    places = find_places(timeline, pieces, phase, layers.again, located)
    tokens = count_tokens(timeline)
    device = find_device(timeline)
    recorded_steps = _list_steps(timeline)
    steady = [step for step in recorded_steps if step.steady]
    steps, total_ns = len(steady), sum(step.dur_ns for step in steady)
    ledgers = [step.ledger for step in steady if step.ledger]
    typical = sorted(steady, key=lambda step: step.dur_ns)[steps // 2] if steps else None
    activity = structs.replace(
        measure_activity(timeline, pieces, phase),
        recompute_ms=layers.recompute_ns / max(steps, 1) / NS_PER_MS,
        capability=(device.capability if device else None) or capability_by_kernels(trace),
        sequence=tokens.sequence if tokens else None,
    )
    work = find_work(timeline)
    memory = memory_of_trace(timeline, layers, located)
    profile = Profile(
        source=Source(format=trace.profiler.format, files=(trace.file,), producer=trace.profiler.producer),
        work=work,
        steps=steps or None,
        recorded_steps=len(recorded_steps),
        mean_step_ms=total_ns / steps / NS_PER_MS if steps else None,
        samples_ms=tuple(step.dur_ns / NS_PER_MS for step in steady),
        phases=sum_phases(timeline, pieces, phase),
        layers=layers.times,
        modules=places.modules,
        views=view_steps(timeline, pieces, phase),
        operations=tuple(map(places.put_into, operations.longest_first)),
        typical_step=(
            Span(file=0, start_ns=trace.file_zero_ns + typical.start_ns, dur_ns=typical.dur_ns)
            if typical
            else None
        ),
        tokens_per_step=tokens.per_step if tokens else None,
        samples_per_step=count_images(timeline) if work == "inference" and tokens is None else None,
        launches_per_step=count_launches(timeline, pieces) / max(steps, 1) or None,
        ledger=Ledger.sum(ledgers) if ledgers and total_ns else None,
        world_size=trace.world_size,
        device=(
            device.alone()
            if device and device.name and timeline.driver is Driver.DEVICE
            else None  # a trace lists the machine's accelerators even when the run did not use them
        ),
        matmul_flops=operations.matmul_flops,
        matmul_known_share=operations.known_share,
        matmul_dtype=most_of(activity.matmul_dtype_ms),
        activity=activity,
        compilation=find_compilation(timeline),
        kernel_use=kernel_use(timeline, pieces),
        memory=memory,
        peak_memory_bytes=memory.peak_bytes if memory else None,
        recorded=Recorded(versions=trace.versions, settings=tuple(sorted(trace.recorded))),
        contents=_describe_contents(timeline, layers),
        notes=tuple(_find_notes(timeline, layers)),
        warnings=check_quality(timeline),
    )
    arrivals = find_arrivals(timeline, pieces)
    found = collectives_of_rank(arrivals, [step.number for step in steady])
    links = Communication(collectives=found, node_devices=len(trace.devices) or None) if found else None
    return RankProfile(
        profile=structs.replace(profile, links=links),
        rank=trace.rank,
        base_ns=trace.base_ns,
        steps=recorded_steps,
        arrivals=arrivals,
        process=trace.process,
    )


def _list_steps(timeline: Timeline) -> tuple[RankStep, ...]:
    windows = timeline.windows
    ledgers = timeline.ledger.of_windows(windows) if timeline.ledger else None
    return tuple(
        RankStep(
            number=number,
            start_ns=int(windows.start_ns[index]),
            dur_ns=int(windows.end_ns[index] - windows.start_ns[index]),
            steady=windows.mark[index] is StepMark.STEADY,
            ledger=ledgers[index] if ledgers else None,
        )
        for index, number in enumerate(timeline.steps.number.tolist())
    )


def _describe_contents(timeline: Timeline, layers: Layers) -> dict[str, str]:
    """Return what the trace contains, in words."""
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
    steady_ns, count = windows.dur_ns[windows.steady], len(windows.mark)
    for mark, place in ((StepMark.WARM_UP, "first"), (StepMark.FLUSH, "last")):
        odd = windows.dur_ns[[other == mark for other in windows.mark]]
        if len(odd) and len(steady_ns):
            theirs, usual = float(np.median(odd)), float(np.median(steady_ns))
            reason = "warm-up" if theirs > usual else "start-up"
            which, took = f"{place} {len(odd)} of {count} steps are", "they took"
            if len(odd) == 1:
                which, took = f"{place} of {count} steps is", "it took"
            times = f"{took} {show_ms(theirs / NS_PER_MS)}, the others {show_ms(usual / NS_PER_MS)}"
            reason = "the profiler's flush" if mark is StepMark.FLUSH else reason
            yield Note(f"{place}_steps_left_out", f"The {which} left out as {reason}: {times}.")
    yield from compiling_notes(windows)
    if StepMark.OPEN in windows.mark:
        text = f"The last of {count} steps is left out: its end is not in the trace."
        yield Note("last_step_open", text)
    kind = windows.kind[windows.steady]
    by_kind = np.argsort(kind, kind="stable")
    kinds = np.split(steady_ns[by_kind], np.flatnonzero(np.diff(kind[by_kind])) + 1)
    if sum(len(members) > 1 for members in kinds) > 1:
        times = " and ".join(show_ms(float(np.median(members)) / NS_PER_MS) for members in kinds)
        text = f"Steps are of {len(kinds)} kinds with different amounts of work: {times}."
        yield Note("kinds_of_steps", text)
    if layers.note:
        yield layers.note
    if layers.recompute_ns:
        per_step = show_ms(layers.recompute_ns / NS_PER_MS / max(len(steady_ns), 1))
        yield Note("recompute", f"{per_step} of each step is forward work done again in the backward pass.")
    if len(distinct(timeline.trace.work.device)) > 1:
        text = f"The trace has several devices; the ledger covers device {timeline.device}, the busiest."
        yield Note("several_devices", text)


def compiling_notes(windows: Windows) -> Iterator[Note]:
    """Yield how many steps are left out because something was compiled in them."""
    count = len(windows.mark)
    compiling = windows.dur_ns[[mark is StepMark.COMPILING for mark in windows.mark]]
    if len(compiling):
        text = (
            f"{len(compiling)} of {count} steps {'is' if len(compiling) == 1 else 'are'} left out because "
            f"torch.compile compiled in them: {show_ms(float(compiling.sum()) / NS_PER_MS)} in all."
        )
        yield Note("compiling_steps_left_out", text)

"""What a step did beyond its ledger: kernels, gaps, copies, waits, the optimizer, telling operations."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepgrade.model.activity import (
    Activity,
    CollectiveTally,
    CopyTally,
    HostGaps,
    KernelTally,
    OptimizerTally,
)
from stepgrade.model.columns import among, distinct
from stepgrade.model.events import DeviceEvent, Kinds
from stepgrade.naming.torch_names import GRAPH_LAUNCH, LAUNCH_CALL, Mask, named
from stepgrade.trace import intervals as iv
from stepgrade.trace.classify import WorkClass
from stepgrade.trace.collectives import CollectiveFacts
from stepgrade.trace.gemms import tally_gemms
from stepgrade.trace.intervals import Spans
from stepgrade.trace.marks import (
    count_marks,
    group_kernels,
    loader_of,
    optimizer_of,
    reading_scalars,
)
from stepgrade.trace.parts import tally_parts
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.precision import matmul_time_by_dtype
from stepgrade.trace.timeline import IN_BACKWARD, IN_INPUT, IN_OPTIMIZER, Driver, Timeline
from stepgrade.trace.tokens import count_backward_passes
from stepgrade.trace.waits import gap_openings, steady_windows, tally_waits
from stepgrade.units import NS_PER_MS

SHORT_NS = 10_000  # TraceLens and nsys-ai call kernels below 10 microseconds short
# nsys-ai: a gap above 1 ms is a bubble. In a short step 2 % of it is one, if no launch can take as long.
STALL_NS, STALL_SHARE, LONGEST_LAUNCH_NS = 1_000_000, 0.02, 250_000
FEW_SHARE = 0.1
_COPIES = {DeviceEvent.COPY_H2D: "h2d", DeviceEvent.COPY_D2H: "d2h", DeviceEvent.COPY_OTHER: "other"}
_DURING = ((IN_OPTIMIZER, "optimizer"), (IN_BACKWARD, "backward"), (IN_INPUT, "input"))
_MANY_TENSORS = (
    "multi_tensor_apply",
    "multitensorapply",
    "multi_tensor",
    "fusedadam",
    "fused_adam",
    "triton",
)
_FUSED = ("fusedadam", "fused_adam", "fusedsgd", "fused_sgd", "fusedoptim", "fused_adagrad")


def watch(line: Timeline, pieces: Pieces, phase: Kinds, collectives: tuple[CollectiveFacts, ...]) -> Activity:
    """Return what one steady step of this rank did."""
    steps = max(1, int(line.windows.steady.sum()))
    on_device = line.driver is Driver.DEVICE
    skipped, part = _skipped(line, pieces)
    return Activity(
        driver=line.driver.value,
        kernels=_kernels(line, pieces, steps) if on_device else None,
        gaps=_gaps(line, steps) if on_device else None,
        copies=tuple(_copies(line, pieces, steps)) if on_device else (),
        waits=tally_waits(line, steps) if on_device else (),
        collectives=tuple(_collective(one, steps) for one in collectives),
        communication_ms=_steady_ms(line, line.ledger.communication, steps) if line.ledger else 0.0,
        optimizer=_optimizer(line, pieces, steps) if on_device else None,
        gemms=tally_gemms(line.trace, pieces, steps),
        parts=tally_parts(line, pieces, phase, steps),
        matmul_dtype_ms={
            dtype: ns / steps / NS_PER_MS for dtype, ns in matmul_time_by_dtype(line.trace, pieces).items()
        },
        marks=count_marks(line, steps),
        kernel_group_ms=group_kernels(line, pieces, steps) if on_device else {},
        class_kernels=_class_kernels(pieces, steps) if on_device else {},
        input_ms=_input_ms(line),
        loader=loader_of(line),
        scalar_read_ms=_steady_ms(line, reading_scalars(line), steps),
        backward_passes=count_backward_passes(line),
        skipped_steps=skipped,
        skipped_part=part,
    )


def _steady_ms(line: Timeline, spans: Spans, steps: int) -> float:
    return iv.total_ns(iv.intersect(spans, steady_windows(line))) / steps / NS_PER_MS


def _is_kernel(line: Timeline, pieces: Pieces) -> Mask:
    kernel = line.trace.work.kind[pieces.work] == DeviceEvent.KERNEL
    mine: Mask = pieces.steady & kernel & (pieces.work_class != WorkClass.COMMUNICATION)
    return mine


def _kernels(line: Timeline, pieces: Pieces, steps: int) -> KernelTally:
    rows = np.flatnonzero(_is_kernel(line, pieces))
    dur = pieces.dur_ns[rows]
    call = line.links.call[pieces.work[rows]]
    known = call >= 0
    calls = line.trace.calls
    launches = distinct(call[known])
    launches = launches[named(line.trace.strings, calls.name[launches], LAUNCH_CALL)]
    graphs = named(line.trace.strings, calls.name[call[known]], GRAPH_LAUNCH)
    outrun = (dur[known] < calls.dur_ns[call[known]]) & ~graphs
    short = dur < SHORT_NS
    return KernelTally(
        count=len(rows) / steps,
        ms=float(dur.sum()) / steps / NS_PER_MS,
        short_count=float(short.sum()) / steps,
        short_ms=float(dur[short].sum()) / steps / NS_PER_MS,
        graph_share=float(graphs.sum()) / max(len(rows), 1),
        launch_call_us=float(calls.dur_ns[launches].sum()) / len(launches) / 1e3 if len(launches) else None,
        outrun_share=float(outrun.sum()) / max(len(rows), 1),
    )


def _gaps(line: Timeline, steps: int) -> HostGaps | None:
    if line.ledger is None:
        return None
    spans = iv.intersect(line.ledger.idle_host, steady_windows(line))
    lengths = spans.ends - spans.starts
    drained = _opened_in_wait(line, spans)
    long = lengths[(lengths > _stall_ns(line)) & ~drained]
    return HostGaps(
        after_sync_ms=float(lengths[drained].sum()) / steps / NS_PER_MS,
        stall_ms=float(long.sum()) / steps / NS_PER_MS,
        stalls=len(long) / steps,
        longest_ms=float(lengths.max(initial=0)) / NS_PER_MS,
        dispatch_ms=_steady_ms(line, line.ledger.dispatch, steps),
    )


def _stall_ns(line: Timeline) -> float:
    step_ns = float(np.median(line.windows.dur_ns[line.windows.steady])) if line.windows.steady.any() else 0.0
    return min(STALL_NS, max(LONGEST_LAUNCH_NS, STALL_SHARE * step_ns))


def _opened_in_wait(line: Timeline, spans: Spans) -> Mask:
    """Tell which waits for the host lie in a gap that opened while the host waited for the device.

    The host could not run ahead then: without its wait it would have used the time before the gap.
    """
    waited: Mask = iv.span_at(line.host.waiting, gap_openings(line, spans)) >= 0
    return waited


def _copies(line: Timeline, pieces: Pieces, steps: int) -> Iterator[CopyTally]:
    work, strings = line.trace.work, line.trace.strings
    kind = work.kind[pieces.work]
    chosen = pieces.steady & among(kind, _COPIES) & (pieces.work_class != WorkClass.COMMUNICATION)
    groups: dict[tuple[str, str | None, str], list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        memory = _memory(strings[int(work.name[pieces.work[row]])])
        key = (_COPIES[DeviceEvent(int(kind[row]))], memory, _during(int(pieces.context[row])))
        groups.setdefault(key, []).append(row)
    for (direction, memory, during), rows in sorted(groups.items(), key=lambda item: str(item[0])):
        moved = work.bytes[pieces.work[rows]]
        yield CopyTally(
            direction=direction,
            memory=memory,
            during=during,
            count=len(rows) / steps,
            ms=float(pieces.dur_ns[rows].sum()) / steps / NS_PER_MS,
            bytes=float(moved.sum()) / steps if (moved >= 0).all() else None,
        )


def _memory(name: str) -> str | None:
    text = name.lower()
    return "pageable" if "pageable" in text else "pinned" if "pinned" in text else None


def _during(context: int) -> str:
    return next((name for bit, name in _DURING if context & bit), "forward")


def _collective(facts: CollectiveFacts, steps: int) -> CollectiveTally:
    return CollectiveTally(
        name=facts.name,
        group_size=facts.group_size,
        count=facts.count / steps,
        ms=facts.total_ns / steps / NS_PER_MS,
        bytes=None if facts.bytes is None else facts.bytes / steps,
    )


def _optimizer(line: Timeline, pieces: Pieces, steps: int) -> OptimizerTally | None:
    mine = _is_kernel(line, pieces) & ((pieces.context & IN_OPTIMIZER) > 0)
    rows = np.flatnonzero(mine)
    if not len(rows):
        return None
    strings = line.trace.strings
    names = {index: strings[index][:250].lower() for index in distinct(pieces.kernel[rows]).tolist()}
    many = [index for index, name in names.items() if any(word in name for word in _MANY_TENSORS)]
    busy = float(pieces.dur_ns[rows].sum())
    at_once = float(pieces.dur_ns[rows[among(pieces.kernel[rows], many)]].sum())
    return OptimizerTally(
        kernels=len(rows) / steps,
        ms=busy / steps / NS_PER_MS,
        span_ms=(busy + _pauses_ns(pieces, mine)) / steps / NS_PER_MS,
        multi_tensor_share=at_once / max(busy, 1.0),
        fused=any(word in name for name in names.values() for word in _FUSED),
        name=optimizer_of(line),
    )


def _pauses_ns(pieces: Pieces, mine: Mask) -> float:
    """Return the time between two pieces that both are `mine` with none of another kind in between."""
    rows = np.flatnonzero(pieces.steady)
    rows = rows[np.argsort(pieces.start_ns[rows], kind="stable")]
    end = np.maximum.accumulate((pieces.start_ns + pieces.dur_ns)[rows])
    pause = np.maximum(pieces.start_ns[rows][1:] - end[:-1], 0)
    same_step = pieces.step[rows][1:] == pieces.step[rows][:-1]
    return float(pause[mine[rows][1:] & mine[rows][:-1] & same_step].sum())


def _class_kernels(pieces: Pieces, steps: int) -> dict[str, float]:
    counts = np.bincount(pieces.work_class[pieces.steady], minlength=len(WorkClass))
    return {WorkClass(index).label: count / steps for index, count in enumerate(counts.tolist()) if count}


def _input_ms(line: Timeline) -> tuple[float, ...]:
    if line.ledger is None:
        return ()
    steady = line.windows.steady
    waits = iv.covered_within(
        line.ledger.idle_input, line.windows.start_ns[steady], line.windows.end_ns[steady]
    )
    return tuple((waits / NS_PER_MS).tolist())


def _skipped(line: Timeline, pieces: Pieces) -> tuple[int, str | None]:
    """Return how many steady steps lack a part that most of them have: the backward pass or the optimizer."""
    steady = np.flatnonzero(line.windows.steady)
    for bit, name in ((IN_BACKWARD, "backward pass"), (IN_OPTIMIZER, "optimizer")):
        mine = pieces.steady & ((pieces.context & bit) > 0)
        counts = np.bincount(pieces.step[mine], minlength=len(line.windows.steady))[steady]
        usual = float(counts.max(initial=0))
        without = int((counts < FEW_SHARE * usual).sum())
        if usual and without:
            return without, name
    return 0, None

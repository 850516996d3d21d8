"""What a rank did in a steady step beyond its ledger: kernels, gaps, copies, waits and Python loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepgrade.costs.call_costs import tally_gemms, time_by_precision
from stepgrade.model.activity import (
    Activity,
    CopyRow,
    HostGaps,
    HostLine,
    KernelTally,
    LoopTally,
    OptimizerTally,
    StallRow,
    WaitTally,
)
from stepgrade.model.columns import among, distinct, groups, median, quantile
from stepgrade.model.events import NONE, DeviceEvent, Longs, Trace, Wholes
from stepgrade.naming.torch_names import (
    BACKWARD,
    GRAPH_LAUNCH,
    LAUNCH_CALL,
    LOADER,
    OPTIMIZER_STEP,
    Mask,
    matching,
    named,
)
from stepgrade.naming.work_class import MATMULS, RANDOM, WorkClass
from stepgrade.patterns import regex
from stepgrade.ranks.collectives import communication_by_purpose, tally_collectives
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.ledger import HOST_COPIES, LedgerSpans, stall_from_ns, waiting_calls
from stepgrade.timeline.links import NO_FRAMES, OP, nearest, pick
from stepgrade.timeline.steps import outermost_operations, steps_of
from stepgrade.timeline.timeline import IN_BACKWARD, IN_INPUT, IN_OPTIMIZER, Driver, Pieces, Timeline
from stepgrade.trace.counts import (
    class_in_range,
    count_backward_passes,
    count_marks,
    count_skipped_steps,
    group_kernels,
    scalar_reads,
)
from stepgrade.trace.layers import match_forward
from stepgrade.trace.operations import tally_parts
from stepgrade.trace.stalls import tally_stalls
from stepgrade.units import NS_PER_MS

SHORT_NS = 10_000  # TraceLens and nsys-ai call kernels below 10 microseconds short
# nsys-ai: a gap above 1 ms is a bubble. In a short step 2 % of it is one, if no launch can take as long.
# A first launch loads its kernel, a first allocation makes the context: milliseconds to seconds.
SETS_UP = regex(
    r"^(cu|hip)\w*(Launch|Malloc|HostAlloc|Module|LibraryLoad|Create|Init|SetDevice|GetDevice|FuncGet|Occupancy)"
    r"|^(cuda|hip)Free$",
)
SETUP_NS, FEW_CALLS = 5_000_000, 20
WAITS_WITH_LINES = 50
# Runtimes whose events have categories of their own, and how the calls of others begin.
_OWN_CATEGORIES = ("mtia", "xpu", "hpu")
_PLATFORMS = (
    ("rocm", regex(r"hip[A-Z]|AMD\b|__amd_|Cijk_")),
    ("cuda", regex(r"cu(da)?[A-Z]|NVIDIA\b|Tesla\b|GeForce\b|Quadro\b")),
    ("npu", regex(r"acl[a-z]|Ascend")),
)
_ARCHITECTURES = (
    ("6.0", regex(r"(maxwell|pascal)_")),
    ("7.0", regex(r"(volta|turing)_")),
    ("8.0", regex(r"(ampere|sm80)_")),
    ("9.0", regex(r"(nvjet|sm90)_")),
    ("10.0", regex(r"sm10\d_")),
)
_DROPOUT = regex(r"^aten::\w*dropout")
_COPIES = {DeviceEvent.COPY_H2D: "h2d", DeviceEvent.COPY_D2H: "d2h", DeviceEvent.COPY_OTHER: "other"}
_DURING = ((IN_OPTIMIZER, "optimizer"), (IN_BACKWARD, "backward"), (IN_INPUT, "input"))
_DIRECTIONS = (None, "h2d", "d2h")
_MANY_TENSORS = ("multitensorapply", "multi_tensor", "fusedadam", "fused_adam", "triton")
_FUSED = ("fusedadam", "fused_adam", "fusedsgd", "fused_sgd", "fusedoptim", "fused_adagrad")
LONGEST_TURN = 32  # operations of one turn
FEWEST_TURNS = 64  # models have fewer layers than that, one behind the other, of so few operations
SHORT_TURN_NS = 1_000_000  # a layer takes longer


def measure_activity(timeline: Timeline, pieces: Pieces) -> Activity:
    """Return what one steady step of this rank did."""
    trace, windows, ledger = timeline.trace, timeline.windows, timeline.ledger
    steps = max(1, int(windows.steady.sum()))
    on_device = timeline.driver is Driver.DEVICE
    gaps, stalls = tally_gaps(timeline, ledger, steps) if ledger else (None, ())
    # Where the device was not seen, the host's waits are all there is to see of its input.
    fetching = ledger.time_in("idle_input") if ledger else timeline.host.fetching
    skipped, part = count_skipped_steps(timeline, pieces)
    class_counts = np.bincount(pieces.work_class[pieces.steady], minlength=len(WorkClass)).tolist()
    matmuls = np.flatnonzero(pieces.steady & among(pieces.work_class, MATMULS)).astype(np.int32)
    dtype_ns = time_by_precision(trace, pieces, matmuls)
    return Activity(
        driver=timeline.driver.value,
        kernels=tally_kernels(timeline, pieces, steps) if on_device else None,
        gaps=gaps,
        copies=tally_copies(timeline, pieces, steps) if on_device else (),
        waits=tally_waits(timeline, steps) if on_device else (),
        stalls=stalls,
        collectives=tally_collectives(timeline, pieces, steps),
        communication_ms=_steady_ms(timeline, ledger.communication, steps) if ledger else 0.0,
        optimizer=tally_optimizer(timeline, pieces, steps) if on_device else None,
        gemms=tally_gemms(trace, pieces, steps),
        parts=tally_parts(timeline, pieces, steps),
        matmul_dtype_ms={dtype: ns / steps / NS_PER_MS for dtype, ns in dtype_ns.items()},
        marks=count_marks(timeline, steps),
        parallelism_ms=communication_by_purpose(timeline, pieces, steps),
        kernel_group_ms=group_kernels(timeline, pieces, steps) if on_device else {},
        class_kernels={
            work_class.label: class_counts[work_class] / steps
            for work_class in WorkClass
            if on_device and class_counts[work_class]
        },
        input_ms=tuple((windows.in_steady(fetching) / NS_PER_MS).tolist()),
        loader=class_in_range(timeline, LOADER),
        scalar_read_ms=_steady_ms(timeline, scalar_reads(timeline), steps),
        dropout_ms=_steady_ms(timeline, random_draws(timeline, of_dropout=True), steps),
        loop=tally_loop(timeline, steps) if timeline.driver is Driver.HOST else None,
        backward_passes=count_backward_passes(timeline),
        skipped_steps=skipped,
        skipped_part=part,
        platform=find_platform(timeline),
        startup_ms=startup_ms(timeline, steps) if on_device else 0.0,
        lines=find_lines(timeline, steps),
    )


def _steady_ms(timeline: Timeline, spans: iv.Spans, steps: int) -> float:
    return int(timeline.windows.in_steady(spans).sum()) / steps / NS_PER_MS


def find_platform(timeline: Timeline) -> str | None:
    """Return whose runtime the host drives (cuda, rocm, mtia, xpu, npu, hpu), cpu without a device."""
    trace = timeline.trace
    if timeline.driver is Driver.HOST:
        return "cpu"
    own = (name for name in _OWN_CATEGORIES if any(each.startswith(name) for each in trace.categories))
    used = distinct(np.append(trace.calls.name, trace.work.name)).tolist()  # there may be no calls
    texts = [*(trace.strings[index] for index in used), *(device.name or "" for device in trace.devices)]
    known = (name for name, start in _PLATFORMS if any(start.match(text) for text in texts))
    return next(own, None) or next(known, None)


def capability_by_kernels(trace: Trace) -> str | None:
    """Return NVIDIA's compute capability by the newest architecture that a kernel's name begins with."""
    names = [trace.strings[index] for index in distinct(trace.work.name).tolist()]
    found = [version for version, start in _ARCHITECTURES if any(start.match(name) for name in names)]
    return found[-1] if found else None


def startup_ms(timeline: Timeline, steps: int) -> float:
    """Return the time in calls that set the device up or load a kernel for its first launch, the device idle.

    Such a call takes milliseconds, hundreds of times the usual duration of its name, and waits for no device
    work.
    """
    calls, strings, ledger = timeline.trace.calls, timeline.trace.strings, timeline.ledger
    sets_up = named(strings, calls.name, SETS_UP) & (calls.dur_ns >= SETUP_NS)
    rows = np.flatnonzero(sets_up & timeline.in_steady_step(calls.start_ns))
    if ledger is None or not len(rows):
        return 0.0
    # A call that is as slow every time, as freeing memory can be, is not start-up.
    by_length = np.lexsort((calls.dur_ns, calls.name))
    name = calls.name[by_length]
    first, after = (np.searchsorted(name, calls.name[rows], side=side) for side in ("left", "right"))
    dur_ns = calls.dur_ns.astype(np.float64)
    usual = (dur_ns[by_length[(first + after - 1) // 2]] + dur_ns[by_length[(first + after) // 2]]) / 2
    rare = rows[(after - first <= FEW_CALLS) | (dur_ns[rows] > 50 * usual)]
    spans = iv.union(calls.start_ns[rare], calls.end_ns[rare])
    idle = ledger.time_in("idle_host", "idle_sync", "unattributed")
    return _steady_ms(timeline, iv.intersect(spans, idle), steps)


def find_lines(timeline: Timeline, steps: int) -> dict[str, tuple[HostLine, ...]]:
    """Return the user's lines that the host was in while the step waited, by what it waited for."""
    ledger = timeline.ledger
    if ledger is None or timeline.frames is NO_FRAMES:
        return {}
    steady = _steady_spans(timeline)
    late = iv.intersect(
        iv.merge(
            ledger.time_in("idle_host"), iv.subtract(ledger.time_in("idle_sync"), timeline.host.waiting)
        ),
        steady,
    )
    long = late.ends - late.starts > stall_ns(timeline)
    waits = {
        "stall": iv.Spans(late.starts[long], late.ends[long]),
        "launch": iv.Spans(late.starts[~long], late.ends[~long]),
        "input": iv.intersect(ledger.time_in("idle_input"), steady),
        "reads": iv.intersect(scalar_reads(timeline), steady),
        "random": iv.intersect(random_draws(timeline, of_dropout=False), steady),
    }
    return {
        name: lines
        for name, spans in waits.items()
        if (lines := timeline.frames.lines_of(as_recorded(timeline, spans), steps))
    }


def random_draws(timeline: Timeline, *, of_dropout: bool) -> iv.Spans:
    """Return the time in operations that draw random numbers, for dropout or for something else."""
    trace, tree = timeline.trace, timeline.tree
    drawn = np.flatnonzero(named(trace.strings, trace.ops.name, RANDOM))
    if not len(drawn):
        return iv.NOTHING
    drops = matching(trace.strings, _DROPOUT)[tree.name] & (tree.kind == OP)
    inside = nearest(tree.parent, drops)[tree.of_op[drawn]] >= 0
    rows = drawn[inside == of_dropout]
    return iv.union(trace.ops.start_ns[rows], trace.ops.end_ns[rows])


def as_recorded(timeline: Timeline, spans: iv.Spans) -> iv.Spans:
    """Return the spans with time after a last step's end on the host moved to the step's own start.

    The window of a last step reaches to where the next one would begin: the host is assumed to do again what
    it did at the start of the step.
    """
    windows, steps = timeline.windows, timeline.steps
    moving = np.flatnonzero(~windows.end_known & (windows.dur_ns > 0))
    if not windows.on_device or not len(moving):
        return spans
    end = np.maximum.accumulate(windows.end_ns[moving])
    # Steps may end on the host before the device has finished earlier ones: each has the time after those.
    start = np.maximum(steps.end_ns[moving], np.append(steps.end_ns[moving[:1]], end[:-1]))
    which, other = iv.overlaps(spans, start, end)
    back = (steps.end_ns - steps.start_ns)[moving[which]]
    starts, ends = np.maximum(spans.starts[other], start[which]), np.minimum(spans.ends[other], end[which])
    kept = iv.subtract(spans, iv.union(starts, ends))
    return iv.merge(kept, iv.union(starts - back, ends - back))


def stall_ns(timeline: Timeline) -> float:
    """Return the length from which a gap is more than a launch: the host did something else."""
    windows = timeline.windows
    step_ns = median(windows.dur_ns[windows.steady]) if windows.steady.any() else 0.0
    return stall_from_ns(step_ns)


def _is_kernel(timeline: Timeline, pieces: Pieces) -> Mask:
    """Return which pieces are kernels of a steady step that do not communicate."""
    kernel: Mask = timeline.trace.work.kind[pieces.work] == DeviceEvent.KERNEL
    kernel &= pieces.work_class != WorkClass.COMMUNICATION
    return pieces.steady & kernel


def tally_kernels(timeline: Timeline, pieces: Pieces, steps: int) -> KernelTally:
    """Return the kernels of a steady step, the short ones among them, and their launches."""
    strings, calls = timeline.trace.strings, timeline.trace.calls
    rows = np.flatnonzero(_is_kernel(timeline, pieces))
    dur = pieces.dur_ns[rows]
    call = timeline.links.call[pieces.work[rows]]
    known = call >= 0
    launches = distinct(call[known])
    launches = launches[named(strings, calls.name[launches], LAUNCH_CALL)]
    graphs = named(strings, calls.name[call[known]], GRAPH_LAUNCH)
    outrun = (dur[known] < calls.dur_ns[call[known]]) & ~graphs
    short = dur < SHORT_NS
    return KernelTally(
        count=len(rows) / steps,
        ms=float(dur.sum()) / steps / NS_PER_MS,
        short_count=float(short.sum()) / steps,
        short_ms=float(dur[short].sum()) / steps / NS_PER_MS,
        graph_share=float(graphs.sum()) / max(len(rows), 1),
        launch_call_us=median(calls.dur_ns[launches]) / 1e3 if len(launches) else None,
        outrun_share=float(outrun.sum()) / max(len(rows), 1),
    )


def tally_gaps(timeline: Timeline, ledger: LedgerSpans, steps: int) -> tuple[HostGaps, tuple[StallRow, ...]]:
    """Return the time in which the device waited for its host in a steady step, and the long gaps by cause.

    A gap that opened while the host waited for the device is charged to the wait: the host could not run
    ahead then. Without its waits it would be ahead by no more than it waited; the rest of such gaps is the
    host's own work.
    """
    windows, steady = timeline.windows, _steady_spans(timeline)
    whole = iv.intersect(ledger.time_in("idle_host", "idle_sync"), steady)
    longest = int((whole.ends - whole.starts).max(initial=0))
    del whole
    spans = iv.intersect(ledger.time_in("idle_host"), steady)
    lengths = spans.ends - spans.starts
    after_wait = iv.span_at(timeline.host.waiting, _gap_starts(ledger, spans)) >= 0
    waited = iv.total_ns(iv.intersect(timeline.host.waiting, steady))
    ahead = max(0, waited - int(windows.in_steady(ledger.time_in("idle_sync")).sum()))
    opened = int(lengths[after_wait].sum())
    own = np.where(after_wait, 1.0 - min(1.0, ahead / max(opened, 1)), 1.0)  # the host's share
    long = (lengths > stall_ns(timeline)) & (own > 0.0)
    stalls = iv.Spans(spans.starts[long], spans.ends[long])
    own_ns = np.asarray(lengths[long] * own[long], np.float64)
    per_step = windows.in_steady(stalls)
    gaps = HostGaps(
        after_sync_ms=float(min(opened, ahead)) / steps / NS_PER_MS,
        stall_ms=float(own_ns.sum()) / steps / NS_PER_MS,
        stalls=float(long.sum()) / steps,
        steady_stall_ms=quantile(per_step, 0.25) / NS_PER_MS if len(per_step) else None,
        longest_ms=longest / NS_PER_MS,
        dispatch_ms=_steady_ms(timeline, ledger.dispatch, steps),
        stall_from_ms=stall_ns(timeline) / NS_PER_MS,
    )
    return gaps, tally_stalls(timeline, stalls, own_ns, steps) if len(timeline.trace.work.name) else ()


def _steady_spans(timeline: Timeline) -> iv.Spans:
    windows, steady = timeline.windows, timeline.windows.steady
    return iv.union(windows.start_ns[steady], windows.end_ns[steady])


def _gap_starts(ledger: LedgerSpans, spans: iv.Spans) -> Longs:
    """Return when the device became idle in the gap that each of the idle spans lies in."""
    busy = iv.merge(ledger.time_in("compute"), ledger.communication, ledger.copy)
    if not len(busy.ends):
        return spans.starts
    index = np.searchsorted(busy.ends, spans.starts, side="right").astype(np.int32) - 1
    opened: Longs = busy.ends[index]
    first = int(np.searchsorted(index, 0))  # spans before all work opened the gap themselves
    opened[:first] = spans.starts[:first]
    return opened


def tally_copies(timeline: Timeline, pieces: Pieces, steps: int) -> tuple[CopyRow, ...]:
    """Return the copies between host and device of a steady step by direction, memory and phase."""
    work, strings = timeline.trace.work, timeline.trace.strings
    kind = work.kind[pieces.work]
    chosen = pieces.steady & among(kind, HOST_COPIES) & (pieces.work_class != WorkClass.COMMUNICATION)
    rows_of: dict[tuple[str, str | None, str], list[int]] = {}
    for row in np.flatnonzero(chosen).tolist():
        name = strings[int(work.name[pieces.work[row]])].lower()
        memory = "pageable" if "pageable" in name else "pinned" if "pinned" in name else None
        during = next((part for bit, part in _DURING if int(pieces.context[row]) & bit), "forward")
        rows_of.setdefault((_COPIES[DeviceEvent(int(kind[row]))], memory, during), []).append(row)
    found = []
    for (direction, memory, during), rows in sorted(rows_of.items(), key=lambda item: str(item[0])):
        moved = work.bytes[pieces.work[rows]]
        found.append(
            CopyRow(
                direction=direction,
                memory=memory,
                during=during,
                calls=len(rows) / steps,
                ms=float(pieces.dur_ns[rows].sum()) / steps / NS_PER_MS,
                bytes=float(moved.sum(dtype=np.float64)) / steps if (moved >= 0).all() else None,
            )
        )
    return tuple(found)


def tally_optimizer(timeline: Timeline, pieces: Pieces, steps: int) -> OptimizerTally | None:
    """Return the optimizer's kernels in a steady step; None if there are none."""
    in_optimizer = _is_kernel(timeline, pieces) & ((pieces.context & IN_OPTIMIZER) > 0)
    rows = np.flatnonzero(in_optimizer)
    if not len(rows):
        return None
    strings = timeline.trace.strings
    names = {index: strings[index][:250].lower() for index in distinct(pieces.kernel[rows]).tolist()}
    many = [index for index, name in names.items() if any(word in name for word in _MANY_TENSORS)]
    busy = float(pieces.dur_ns[rows].sum())
    at_once = float(pieces.dur_ns[rows[among(pieces.kernel[rows], many)]].sum())
    # Its span is its busy time and the pauses between two of its kernels with no other work in between.
    steady = np.flatnonzero(pieces.steady)
    steady = steady[np.argsort(pieces.start_ns[steady], kind="stable")]
    end = np.maximum.accumulate((pieces.start_ns + pieces.dur_ns)[steady])
    pause = np.maximum(pieces.start_ns[steady][1:] - end[:-1], 0)
    same_step = pieces.step[steady][1:] == pieces.step[steady][:-1]
    pauses = float(pause[in_optimizer[steady][1:] & in_optimizer[steady][:-1] & same_step].sum())
    return OptimizerTally(
        kernels=len(rows) / steps,
        ms=busy / steps / NS_PER_MS,
        span_ms=(busy + pauses) / steps / NS_PER_MS,
        multi_tensor_share=at_once / max(busy, 1.0),
        fused=any(word in name for name in names.values() for word in _FUSED),
        name=class_in_range(timeline, OPTIMIZER_STEP),
    )


def tally_waits(timeline: Timeline, steps: int) -> tuple[WaitTally, ...]:
    """Return the waits of the host for the device in a steady step, by call and operation, longest first."""
    calls, tree, strings = timeline.trace.calls, timeline.tree, timeline.trace.strings
    work, links = timeline.trace.work, timeline.links
    waits = waiting_calls(timeline.trace, links, timeline.steps)
    rows = np.flatnonzero(waits & timeline.in_steady_step(calls.start_ns))
    if not len(rows):
        return ()
    operation = pick(tree.op, tree.of_call[rows])
    # The direction of the copy that each wait was for: its own, or its operation's, 0 for none.
    copies = np.flatnonzero(
        (links.call >= 0) & among(work.kind, (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H))
    )
    direction = np.where(work.kind[copies] == DeviceEvent.COPY_H2D, 1, 2).astype(np.int8)
    by_call, by_operation = np.zeros(len(calls.name), np.int8), np.zeros(len(tree.kind) + 1, np.int8)
    by_call[links.call[copies]] = direction
    by_operation[pick(tree.op, tree.of_call[links.call[copies]])] = direction
    by_operation[-1] = 0  # that of no operation
    directions = np.where(by_call[rows] > 0, by_call[rows], by_operation[operation])
    width = len(strings) + 1
    key = calls.name[rows].astype(np.int64) * width + pick(tree.name, operation).astype(np.int64) + 1
    values, which, counts = groups(key * len(_DIRECTIONS) + directions)
    total = np.bincount(which, weights=calls.dur_ns[rows])
    # How long the device was idle in gaps that opened in each wait.
    idle = np.zeros(len(rows))
    if timeline.ledger is not None:
        idle_time = timeline.ledger.time_in("idle_sync", "idle_host")
        spans = iv.intersect(idle_time, _steady_spans(timeline))
        order = np.argsort(calls.start_ns[rows], kind="stable")
        start = calls.start_ns[rows][order]
        end = start + calls.dur_ns[rows][order]
        opened = _gap_starts(timeline.ledger, spans)
        index = np.searchsorted(start, opened, side="right").astype(np.int32) - 1
        inside = np.flatnonzero((index >= 0) & (opened <= end[np.maximum(index, 0)]))
        np.add.at(idle, order[index[inside]], spans.ends[inside] - spans.starts[inside])
    found = []
    # Only the longest are looked up in the user's code: nobody reads the lines of thousands.
    is_long = np.zeros(len(values), np.bool_)
    is_long[np.argsort(-total, kind="stable")[:WAITS_WITH_LINES]] = True
    by_value = rows[np.argsort(which, kind="stable")]
    columns = (values, counts, total, np.bincount(which, weights=idle), np.cumsum(counts), is_long)
    for value, count, ns, idle_ns, last, looked_up in zip(*(each.tolist() for each in columns), strict=True):
        lines: tuple[HostLine, ...] = ()
        if looked_up:
            alike = by_value[last - count : last]
            dur_ns = calls.dur_ns[alike].astype(np.int64)
            lines = timeline.frames.lines_at(calls.start_ns[alike], dur_ns, steps)
        pair, way = divmod(value, len(_DIRECTIONS))
        call, caller = divmod(pair, width)
        found.append(
            WaitTally(
                call=strings[call],
                caller=strings[caller - 1] if caller - 1 != NONE else None,
                count=count / steps,
                ms=ns / steps / NS_PER_MS,
                idle_ms=idle_ns / steps / NS_PER_MS,
                direction=_DIRECTIONS[way],
                line=lines[0] if lines else None,
            )
        )
    return tuple(sorted(found, key=lambda wait: (-wait.ms, wait.call, wait.caller or "")))


def find_turns(names: Wholes, starts: Longs) -> NDArray[np.int64]:
    """Return first and last index and period of stretches of equal short turns, longest first, as columns."""
    found: list[tuple[int, int, int]] = []
    for period in range(1, min(LONGEST_TURN, len(names) // FEWEST_TURNS) + 1):
        same = names[:-period] == names[period:]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        for first, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            turns = (stop - first) // period + 1
            last = first + turns * period - 1
            # The median: on a busy machine a few turns wait for a core, thousands of times as long.
            if turns >= FEWEST_TURNS and median(np.diff(starts[first : last + 1 : period])) <= SHORT_TURN_NS:
                found.append((first, last, period))
    # A stretch repeats with twice its period as well: the shorter period is kept. Kept stretches are never
    # shorter: one that overlaps this stretch holds its first or its last index.
    kept: list[tuple[int, int, int]] = []
    taken = np.zeros(len(names), np.bool_)
    for first, last, period in sorted(found, key=lambda turn: (turn[0] - turn[1], turn[2])):
        if not (taken[first] or taken[last]):
            taken[first : last + 1] = True
            kept.append((first, last, period))
    return np.array(kept, np.int64).reshape(-1, 3).T


def tally_loop(timeline: Timeline, steps: int) -> LoopTally | None:
    """Return the Python loops over small operations of a steady step, with their backward pass."""
    tree, ops = timeline.tree, timeline.trace.ops
    rows = timeline.loop_operations()
    rows = rows[timeline.in_steady_step(ops.start_ns[rows])]
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    # What lies between the loops of two steps is not a turn: names include their step.
    step = steps_of(start, timeline.steps).astype(np.int64)
    first, last, period = find_turns(step * len(timeline.trace.strings) + ops.name[rows], start)
    if not len(first):
        return None
    spans = iv.union(start[first], end[last])
    # A node of the backward pass belongs to the loop that made it.
    node = matching(timeline.trace.strings, BACKWARD)[ops.name]
    outermost = node & outermost_operations(tree) & timeline.in_steady_step(ops.start_ns)
    made = np.full(len(node), NONE, np.int32)
    made[node] = match_forward(timeline.trace, node)
    nodes = np.flatnonzero(outermost & (made >= 0))
    nodes = nodes[iv.span_at(spans, ops.start_ns[made[nodes]]) >= 0]
    longest = int((last - first).argmax())
    turn = rows[first[longest] : first[longest] + period[longest]]
    lines = timeline.frames.lines_of(spans, steps)
    return LoopTally(
        turns=float(((last - first + 1) // period).sum()) / steps,
        ms=iv.total_ns(spans) / steps / NS_PER_MS,
        backward_ms=float(ops.dur_ns[nodes].sum()) / steps / NS_PER_MS,
        operations=tuple(dict.fromkeys(timeline.trace.strings[name] for name in ops.name[turn].tolist())),
        line=lines[0] if lines else None,
    )

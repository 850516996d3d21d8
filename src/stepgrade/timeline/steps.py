"""Find the steps on the host: from the profiler's marks, else from what a training loop does.

Without marks a step is one round of the loop: from one Optimizer.step to the next, from batch to batch, from
forward pass to forward pass; where there is no backward pass, one run of the range or of the model that is
run again and again, or of the operations or kernels that are. Whatever they are found from, steps hold most
of what the device computes: those that do not are not the steps of the run. Weights that are copied and sent
before the first step, and what a range calls warm-up, do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import among, groups
from stepgrade.model.events import (
    NONE,
    DeviceEvent,
    DeviceWork,
    HostCalls,
    HostOps,
    HostRanges,
    Ids,
    Longs,
    RangeKind,
    Trace,
)
from stepgrade.naming.torch_names import (
    BACKWARD,
    BACKWARD_PASS,
    COMPILED,
    EXECUTION,
    FORWARD_PASS,
    FRAMEWORK_RANGE,
    INPUT,
    LOADER,
    LONGEST_NAME,
    OPTIMIZER_STEP,
    STEP,
    WARM_UP,
    Mask,
    matching,
    named,
)
from stepgrade.timeline.links import MODULE, OP, HostTree, Links, nearest, pick

LEAST_SHARE = 0.5  # of the device's work, for steps to be those of the run
MOST_SHARE = 0.8  # of it, for a repeated range or module to be the steps
REPEATED_SHARE = 0.9  # of the operations, for a repetition of them to be the steps
# Ranges that count rounds of a loop; others whose names differ by a number may be layers.
_ROUND = re.compile(r"step|iter|batch|epoch|round|loop|request", re.IGNORECASE)
_COUNTED = re.compile(r"\b(train(ing)?[ _-]?)?(step|iter(ation)?)\b[ _#:.-]*\d*", re.IGNORECASE)
# What a model does once in a pass, at its start or its end: a repetition that holds one is no layer.
_ONCE_A_PASS = re.compile(
    r"^aten::(embedding|adaptive_avg_pool\w*|cross_entropy_loss|nll_loss\w*|mse_loss|log_softmax|argmax|topk"
    r"|multinomial|randn?|randint|item|to|_local_scalar_dense|flatten)$"
)
# The same of kernels; and a graph that is replayed is a whole.
_KERNEL_ONCE_A_PASS = re.compile(
    r"multi_tensor_apply|adam|fused_?sgd|nll_loss|cross_?entropy|log_?softmax|(?<!rotary_)embedding|indexselect"
    r"|^CUDA graph",
    re.IGNORECASE,
)
_COLLECTIVE_KERNEL = re.compile(r"^(nccl|rccl)")

# Of these no layer has one: where a round does, the rounds are whole passes.
_WHOLE_PASS = re.compile(
    r"^aten::(adaptive_avg_pool\w*|cross_entropy_loss|nll_loss\w*|mse_loss|log_softmax|argmax)$"
)
MOST_TURNS = 4  # of optimizers with one name, in one step
SHORTEST_ROUND = 4  # operations
SHORTEST_LOOP = 2  # of one that does what a model does once in a pass
_NEARLY = 0.95  # of the longest stretch, to be as good
_ALL_PERIODS = 4000  # the longest sequence in which every period is tried
_PERIODS_TRIED = 100
_RANGES_TRIED = 50


class StepBasis(StrEnum):
    """What the steps were found from."""

    PROFILER_STEP = "profiler_step"
    EXECUTIONS = "executions"
    OPTIMIZER = "optimizer"
    LOADER = "loader"
    BACKWARD = "backward"
    RANGE = "range"
    PASSES = "passes"
    OPERATIONS = "operations"
    KERNELS = "kernels"
    SPAN = "span"


NOTES = {
    StepBasis.EXECUTIONS: "Steps are the executions of the program that takes the most time.",
    StepBasis.OPTIMIZER: "The trace marks no steps: each ends with an Optimizer.step.",
    StepBasis.LOADER: "The trace marks no steps: each begins with the loader's next batch.",
    StepBasis.BACKWARD: "The trace marks no steps: each begins with the forward pass after a backward pass.",
    StepBasis.RANGE: "The trace marks no steps: each is one run of the range or model that repeats.",
    StepBasis.PASSES: "The trace marks no steps: each begins with the range of a forward pass.",
    StepBasis.OPERATIONS: "The trace marks no steps: each is one round of the operations that repeat.",
    StepBasis.KERNELS: "The trace marks no steps: each is one round of the kernels that repeat.",
    StepBasis.SPAN: "The trace marks no steps and shows no repetition: the whole trace is taken as one step.",
}


class HostSteps(NamedTuple):
    """Steps on the host's clock, in order; `end_ns` is the next start where steps follow each other."""

    basis: StepBasis
    number: Longs
    start_ns: Longs
    end_ns: Longs
    joined: Mask  # whether the next step follows at once
    thread: int  # the thread that runs the loop, or NONE


class Computed(NamedTuple):
    """What steps are to hold: when it was launched, and how long it took."""

    when_ns: Longs
    dur_ns: Longs
    warm_up: tuple[Longs, Longs]  # start and end of the ranges that say they are

    def shares(self, start: Longs, end: Longs) -> NDArray[np.float64]:
        """Return the share of each span in all of it."""
        place = np.searchsorted(start, self.when_ns, side="right") - 1
        inside = (place >= 0) & (self.when_ns < end[place])
        total = int(self.dur_ns.sum())
        sums = np.bincount(place[inside], weights=self.dur_ns[inside], minlength=len(start))
        return sums / total if total else np.full(len(start), 1 / len(start))

    def is_warm_up(self, times: Longs) -> Mask:
        """Tell which times lie in a range that is called warm-up."""
        return _in_spans(times, *self.warm_up)


def find_steps(trace: Trace, tree: HostTree, links: Links) -> HostSteps:
    """Return the steps of the trace; without any sign of them the whole span is one step."""
    thread = loop_thread(trace, links)
    computed = _what_was_computed(trace, links)

    def signs() -> Iterator[HostSteps | None]:
        """Yield what each sign of steps shows, the plainest first; the later ones take long to look for."""
        yield _from_marks(trace, StepBasis.PROFILER_STEP, STEP)
        yield _from_marks(trace, StepBasis.EXECUTIONS, EXECUTION)
        yield _from_optimizer(trace)
        yield _from_loader(trace)
        yield _from_backward(trace, tree)
        # Autograd may launch more than the loop: the thread whose ranges take longest is looked at too.
        threads = [thread]
        if len(trace.ranges.name):
            threads.append(int(np.bincount(trace.ranges.thread, weights=trace.ranges.dur_ns).argmax()))
        for find in (_from_ranges, _from_passes):
            for place in dict.fromkeys(threads):
                yield find(trace, tree, computed, place)
        yield _from_operations(trace, tree, computed, thread)
        yield _from_kernels(trace, links, computed, thread)

    for steps in signs():
        if steps is not None and computed.shares(steps.start_ns, steps.end_ns).sum() >= LEAST_SHARE:
            return steps
    extent = _extent(trace.ops, trace.calls, trace.work, trace.ranges)
    return _chain(StepBasis.SPAN, np.array(extent, np.int64), thread)


def _what_was_computed(trace: Trace, links: Links) -> Computed:
    """Return the kernels that were launched, else all work that was, else operations."""
    work, ranges = trace.work, trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, WARM_UP))
    start, end = ranges.start_ns[rows], (ranges.start_ns + ranges.dur_ns)[rows]
    outer: Mask = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])[: len(start)]
    warm_up = (start[outer], end[outer])
    known = links.call >= 0
    if known.any():
        when, dur = links.launch_ns, work.dur_ns
        computes = known & (work.kind == DeviceEvent.KERNEL)
        computes &= ~named(trace.strings, work.name, _COLLECTIVE_KERNEL)
    elif len(trace.ops.name) or not len(work.name):
        when, dur = trace.ops.start_ns, trace.ops.dur_ns
        known = computes = np.ones(len(when), np.bool_)
    else:
        when, dur, known = work.start_ns, work.dur_ns, np.ones(len(work.name), np.bool_)
        computes = (work.kind == DeviceEvent.KERNEL) & ~named(trace.strings, work.name, _COLLECTIVE_KERNEL)
    for wanted in (computes, ~_in_spans(when, *warm_up)):
        if (known & wanted).any():
            known = known & wanted
    return Computed(when[known], dur[known], warm_up)


def _in_spans(times: Longs, start: Longs, end: Longs) -> Mask:
    """Tell which times lie in one of the spans, which are in order and apart."""
    if not len(start):
        return np.zeros(len(times), np.bool_)
    place = np.searchsorted(start, times, side="right") - 1
    return (place >= 0) & (times < end[np.maximum(place, 0)])


def loop_thread(trace: Trace, links: Links) -> int:
    """Return the thread that launches most of the device's work, else the one with most events."""
    launched = links.thread >= 0
    if launched.any():
        return int(np.bincount(links.thread[launched], weights=trace.work.dur_ns[launched]).argmax())
    threads = np.concatenate([table.thread for table in (trace.ranges, trace.ops, trace.calls)])
    return int(np.bincount(threads).argmax()) if len(threads) else NONE


def _chain(basis: StepBasis, edges: Longs, thread: int) -> HostSteps:
    """Return steps that follow each other from edge to edge, numbered from 0."""
    count = len(edges) - 1
    joined = np.ones(count, np.bool_)
    joined[-1:] = False
    return HostSteps(basis, np.arange(count), edges[:-1], edges[1:], joined, thread)


def _extent(*tables: HostOps | HostCalls | HostRanges | DeviceWork) -> tuple[int, int]:
    """Return when the first event of the tables starts and the last one ends."""
    starts = [int(table.start_ns.min()) for table in tables if len(table.name)]
    ends = [int((table.start_ns + table.dur_ns).max()) for table in tables if len(table.name)]
    return min(starts, default=0), max(ends, default=0)


def _from_marks(trace: Trace, basis: StepBasis, pattern: re.Pattern[str]) -> HostSteps | None:
    """Return the steps that ranges such as `ProfilerStep#n` mark."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, pattern))
    if not len(rows):
        return None
    thread = int(np.bincount(ranges.thread[rows]).argmax())
    rows = rows[ranges.thread[rows] == thread]
    others = np.delete(ranges.thread, rows)
    if basis is StepBasis.EXECUTIONS and len(others):
        thread = int(np.bincount(others).argmax())  # executions lie on no thread: the loop is on another
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    marks = [pattern.search(trace.strings[name]) for name in ranges.name[rows].tolist()]
    number = np.array([min(int(mark[1]), 2**62) if mark else NONE for mark in marks], np.int64)
    start = ranges.start_ns[rows]
    own_end = start + ranges.dur_ns[rows]
    # The next step follows at once if its number is the next one and recording did not pause in between.
    longest_pause = np.maximum(own_end[:-1] - start[:-1], 1_000_000) // 2
    follows = (np.diff(number) == 1) & (start[1:] - own_end[:-1] <= longest_pause)
    joined = np.append(follows, False)
    end = np.where(joined, np.append(start[1:], NONE), own_end)
    return HostSteps(basis, number, start, end, joined, thread)


def _from_optimizer(trace: Trace) -> HostSteps | None:
    """Return steps that end where the optimizer's step ends; of several optimizers the busiest counts.

    Optimizers of one kind have one name: where two take turns, as those of a GAN do, both are of one step.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, OPTIMIZER_STEP))
    if not len(rows):
        return None
    ends = ranges.start_ns[rows] + ranges.dur_ns[rows]
    names, which, counts = groups(ranges.name[rows])
    last = np.full(len(names), NONE, np.int64)
    np.maximum.at(last, which, ends)
    chosen = names[np.lexsort((last, counts))[-1]]
    of_chosen = rows[ranges.name[rows] == chosen]
    of_chosen = of_chosen[np.argsort(ranges.start_ns[of_chosen], kind="stable")]
    thread = int(np.bincount(ranges.thread[of_chosen]).argmax())
    # An optimizer calls as many operations each time but the first: numbers that alternate are of several.
    called = np.sort(trace.ops.start_ns[trace.ops.thread == thread])
    start = ranges.start_ns[of_chosen]
    end = start + ranges.dur_ns[of_chosen]
    calls = np.searchsorted(called, end) - np.searchsorted(called, start)
    periods = [period for period in range(1, MOST_TURNS + 1) if len(calls) >= 3 * period]
    turns = next((each for each in periods if (calls[each:-each] == calls[2 * each :]).all()), 1)
    edges = np.append(_extent(trace.ops, trace.calls, ranges)[0], np.sort(end)[turns - 1 :: turns])
    return _chain(StepBasis.OPTIMIZER, edges.astype(np.int64), thread)


def _from_loader(trace: Trace) -> HostSteps | None:
    """Return steps that begin where the loop asks the loader for the next batch."""
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, LOADER))
    if len(rows) < 2:
        return None
    thread = int(np.bincount(ranges.thread[rows]).argmax())
    starts = np.sort(ranges.start_ns[rows][ranges.thread[rows] == thread])
    edges = np.append(starts, _extent(trace.ops, trace.calls, ranges)[1])
    return _chain(StepBasis.LOADER, edges.astype(np.int64), thread)


def _from_backward(trace: Trace, tree: HostTree) -> HostSteps | None:
    """Return steps that begin with the first differentiable operation after a backward pass."""
    if not len(trace.ops.name):
        return None
    is_backward = matching(trace.strings, BACKWARD)[trace.ops.name]
    top = outermost_operations(tree)
    forward = top & ~is_backward & (trace.ops.sequence >= 0)
    starts = np.append(trace.ops.start_ns[forward], trace.ops.start_ns[is_backward & top])
    backward = np.append(np.zeros(forward.sum(), np.bool_), np.ones((is_backward & top).sum(), np.bool_))
    order = np.argsort(starts, kind="stable")
    starts, backward = starts[order], backward[order]
    begins = ~backward & np.append(True, backward[:-1])
    if begins.sum() < 2 or not backward.any():
        return None
    edges = np.append(starts[begins], _extent(trace.ops, trace.calls, trace.ranges)[1])
    thread = int(np.bincount(trace.ops.thread[forward]).argmax())
    return _chain(StepBasis.BACKWARD, edges.astype(np.int64), thread)


def outermost_operations(tree: HostTree) -> Mask:
    """Tell which operations lie in no other operation, whatever ranges and modules are around them."""
    return pick(tree.op, tree.parent[tree.of_op]) < 0


def _from_ranges(trace: Trace, tree: HostTree, computed: Computed, thread: int) -> HostSteps | None:
    """Return the runs of the outermost module, or of the named range, that holds most of the work."""
    ranges, strings = trace.ranges, trace.strings
    if not len(ranges.name):
        return None
    is_range = tree.kind < OP
    in_module = pick(nearest(tree.parent, tree.kind == MODULE), tree.parent) >= 0
    rows = tree.origin[is_range & ~in_module]
    usable = (ranges.thread[rows] == thread) & (ranges.kind[rows] != RangeKind.OVERHEAD)
    for pattern in (FRAMEWORK_RANGE, COMPILED, INPUT):
        usable &= ~named(strings, ranges.name[rows], pattern)
    rows = rows[usable]
    warm = computed.is_warm_up(ranges.start_ns[rows])
    rows = rows if warm.all() else rows[~warm]
    kinds: dict[str, list[int]] = {}
    for row, name in zip(rows.tolist(), ranges.name[rows].tolist(), strict=True):
        text = strings[name]
        numbered = re.sub(r"\d+", "#", text) if _ROUND.search(text, 0, 120) else text
        kinds.setdefault(numbered, []).append(row)
    best: tuple[float, float, Longs, Longs] | None = None
    several = [members for members in kinds.values() if len(members) > 1]
    several.sort(key=lambda members: -int(ranges.dur_ns[members].sum()))
    for members in several[:_RANGES_TRIED]:
        start = ranges.start_ns[members]
        end = start + ranges.dur_ns[members]
        outer: Mask = np.append(True, start[1:] >= np.maximum.accumulate(end)[:-1])  # none lies in another
        start, end = start[outer], end[outer]
        share = float(computed.shares(start, end).sum()) if len(start) > 1 else 0.0
        rank = (round(share, 2), float(np.mean(end - start)))
        says_so = _COUNTED.search(strings[int(ranges.name[members[0]])], 0, LONGEST_NAME)
        if share >= (LEAST_SHARE if says_so else MOST_SHARE) and (best is None or rank > best[:2]):
            best = (*rank, start, end)
    if best is None:
        return None
    _, _, start, own_end = best
    # The next one follows at once unless there is a pause before it.
    joined = np.append(start[1:] - own_end[:-1] <= (own_end - start)[:-1] // 2, False)
    end = np.where(joined, np.append(start[1:], NONE), own_end)
    return HostSteps(StepBasis.RANGE, np.arange(len(start)), start, end, joined, thread)


def _from_passes(trace: Trace, _: HostTree, computed: Computed, thread: int) -> HostSteps | None:
    """Return steps that begin with the first range of a forward pass after one of a backward pass."""
    ranges, strings = trace.ranges, trace.strings
    backward = named(strings, ranges.name, BACKWARD_PASS)
    forward = named(strings, ranges.name, FORWARD_PASS) & ~backward
    rows = np.flatnonzero((forward | backward) & (ranges.thread == thread))
    warm = computed.is_warm_up(ranges.start_ns[rows])
    rows = rows if warm.all() else rows[~warm]
    begins = forward[rows] & np.append(True, backward[rows][:-1])[: len(rows)]
    if not begins.any() or not backward[rows].any():
        return None
    end = (ranges.start_ns + ranges.dur_ns)[rows].max()
    edges = np.append(ranges.start_ns[rows[begins]], max(end, computed.when_ns.max(initial=0) + 1))
    return _chain(StepBasis.PASSES, edges.astype(np.int64), thread)


def _from_kernels(trace: Trace, links: Links, computed: Computed, thread: int) -> HostSteps | None:
    """Return the rounds in which the same kernels are launched, or run where no launch was recorded.

    Where operations were recorded they tell more: kernels of a layer repeat as well.
    """
    work = trace.work
    launched = links.call >= 0
    if 2 * int((links.op >= 0).sum()) > len(work.name):
        return None
    # Collectives alone, as some traces hold them, show no round of a loop.
    chosen = (work.kind == DeviceEvent.KERNEL) & ~named(trace.strings, work.name, _COLLECTIVE_KERNEL)
    if launched.any():
        chosen &= launched
        when = links.launch_ns
    elif len(work.name):
        # Streams run beside each other: the order on one of them is that of its launches.
        which = groups(np.where(chosen, work.stream, NONE)).which
        busy = np.bincount(which, weights=work.dur_ns * chosen)
        chosen &= which == int(busy.argmax())
        when = work.start_ns
    rows = np.flatnonzero(chosen)
    if len(rows) < 2 * SHORTEST_ROUND:
        return None
    rows = rows[np.argsort(when[rows], kind="stable")]
    names = work.name[rows]
    found = longest_repetition(names)
    if found is None:
        return None
    start, period, length = found
    once = named(trace.strings, names[start : start + period], _KERNEL_ONCE_A_PASS)
    if not (once.any() or (start == 0 and length == len(names))):
        return None
    first = start + length % period if start > 0 and start + length == len(names) else start
    places = np.arange(first, start + length - period + 1, period)
    after = places[-1] + period
    last = int(when[rows[after]]) if after < len(rows) else int(when[rows[-1]]) + 1
    edges = np.append(when[rows[places]], last).astype(np.int64)
    shares = computed.shares(edges[:-1], edges[1:])
    usual = float(np.median(shares))
    alike = (np.abs(shares - usual) <= 0.5 * usual).mean()
    return _chain(StepBasis.KERNELS, edges, thread) if min(alike, shares.sum()) >= MOST_SHARE else None


def _from_operations(trace: Trace, tree: HostTree, computed: Computed, thread: int) -> HostSteps | None:
    """Return the rounds of a loop that calls the same operations again and again, from first to last.

    A stack of equal layers repeats as well, but inside one module, with something before and after it: a
    repetition that leaves nothing out, or that holds what a model does once in a pass, is the loop's. Its
    rounds do about the same amount of work.
    """
    ops = trace.ops
    rows = np.flatnonzero(outermost_operations(tree) & (ops.thread == thread))
    names = ops.name[rows]
    found = _rounds_of(trace, names, names)
    if found is None:
        return None
    # Sizes tell the first layer of a pass from the others, unless they change from round to round.
    sized = groups(names.astype(np.int64) * (len(trace.inputs) + 1) + ops.inputs[rows] + 1).which
    by_sizes = _rounds_of(trace, names, sized.astype(np.int32))
    if by_sizes is not None and by_sizes[2] >= _NEARLY * found[2]:
        found = by_sizes
    start, period, length = found
    is_whole = start == 0 and length == len(names) and length % period == 0
    # What comes before the loop, making the model for one, is not of its rounds.
    least = 0.5 if _is_pass(trace, names, found, _WHOLE_PASS) else REPEATED_SHARE
    if length < least * len(names) or not (is_whole or _is_pass(trace, names, found, _ONCE_A_PASS)):
        return None
    # Rounds are counted from the end that the repetition shares with the loop.
    first = start + length % period if start > 0 and start + length == len(names) else start
    places = np.arange(first, start + length - period + 1, period)
    is_module = tree.kind == MODULE
    is_outer = is_module & (pick(nearest(tree.parent, is_module), tree.parent) < 0)
    module = pick(nearest(tree.parent, is_outer), tree.of_op[rows[places]])
    after = places[-1] + period
    last = rows[after - 1]
    end = ops.start_ns[rows[after]] if after < len(rows) else ops.start_ns[last] + ops.dur_ns[last]
    edges = np.append(ops.start_ns[rows[places]], end).astype(np.int64)
    shares = computed.shares(edges[:-1], edges[1:])
    usual = float(np.median(shares))
    alike = (np.abs(shares - usual) <= 0.5 * usual).mean() if len(trace.work.name) else 1.0
    if ((module[1:] == module[:-1]) & (module[1:] >= 0)).any() or min(alike, shares.sum()) < MOST_SHARE:
        return None
    return _chain(StepBasis.OPERATIONS, edges, thread)


def _rounds_of(trace: Trace, names: Ids, signs: Ids) -> tuple[int, int, int] | None:
    """Return the longest repetition of the signs that is a round of a loop by its length or by its names."""
    found = longest_repetition(signs, SHORTEST_LOOP)
    if found is not None and found[1] < SHORTEST_ROUND and not _is_pass(trace, names, found, _ONCE_A_PASS):
        found = longest_repetition(signs)
    return found


def _is_pass(trace: Trace, names: Ids, found: tuple[int, int, int], pattern: re.Pattern[str]) -> bool:
    """Tell whether a round of the repetition holds what a model does once in a pass."""
    start, period, _ = found
    return bool(named(trace.strings, names[start : start + period], pattern).any())


def longest_repetition(names: Ids, shortest: int = SHORTEST_ROUND) -> tuple[int, int, int] | None:
    """Return where the longest stretch that repeats itself starts, its period and its length; None without.

    Of several periods the shortest whose stretch is nearly as long as any counts, for twice a period is one
    as well. In a long sequence only the usual distances between two of a name that is seldom are tried.
    """
    periods = np.arange(shortest, len(names) // 2 + 1)
    if len(names) > _ALL_PERIODS:
        order = np.argsort(names, kind="stable")
        near = names[order][1:] == names[order][:-1]
        values, _, count = groups(names)
        rare = values[np.argsort(count, kind="stable")][: len(values) // 2 + 1]
        distances, _, times = groups(np.diff(order)[near & among(names[order][1:], rare)])
        periods = np.sort(distances[np.argsort(-times, kind="stable")][:_PERIODS_TRIED])
        periods = periods[(periods >= shortest) & (periods <= len(names) // 2)]
    found = []
    for period in periods.tolist():
        breaks = np.flatnonzero(np.append(names[:-period] != names[period:], True))
        lengths = np.diff(breaks, prepend=NONE) - 1
        longest = int(lengths.argmax())
        if lengths[longest] >= period:  # at least two whole rounds
            found.append((int(breaks[longest] - lengths[longest]), period, int(lengths[longest]) + period))
    most = max((length for _, _, length in found), default=0)
    return next((stretch for stretch in found if stretch[2] >= _NEARLY * most), None)


def steps_of(times: Longs, steps: HostSteps) -> Ids:
    """Return the index of the step in which each time lies; the count of steps after the last, else NONE."""
    if (times[1:] >= times[:-1]).all():  # in order, as events are: where each step begins among them tells
        edges = [0, *np.searchsorted(times, steps.start_ns, side="left").tolist(), len(times)]
        found = np.repeat(np.arange(len(steps.start_ns) + 1, dtype=np.int32), np.diff(edges))
    else:
        found = np.searchsorted(steps.start_ns, times, side="right").astype(np.int32)
    found -= 1
    outside = (found < 0) | (times >= steps.end_ns[found])
    after = (found == len(steps.start_ns) - 1) & outside & (times >= 0)
    found[outside] = NONE
    found[after] = len(steps.start_ns)
    return found

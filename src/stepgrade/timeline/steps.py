"""Find the steps on the host: from the profiler's marks, else from what a training loop does.

Without marks a step is one round of the loop: from one Optimizer.step to the next, from batch to batch, from
forward pass to forward pass; without a backward pass, one run of the range or module that repeats, or one
round of the operations or kernels that repeat. Whatever shows the steps, those that are alike must together
hold at least half of what the device computes: else the next sign is tried, and without any the whole trace
is one step, which is not graded. Weights that are copied and sent before the first step, and ranges called
warm-up, do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import among, groups, median
from stepgrade.model.events import NONE, DeviceEvent, Ids, Longs, RangeKind, TimedEvents, Trace
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
from stepgrade.patterns import regex
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.links import MODULE, OP, HostTree, Links, nearest, pick

LEAST_SHARE = 0.5  # of the device's work, for steps to be those of the run
ALIKE = (
    0.5  # from the usual step, in time of the work or in the number of its pieces, for a step to be like it
)
MOST_SHARE = 0.8  # of it, for a repeated range or module to be the steps
REPEATED_SHARE = 0.9  # of the operations, for a repetition of them to be the steps
# Ranges that count rounds of a loop; others whose names differ by a number may be layers.
_ROUND = regex(r"step|iter|batch|epoch|round|loop|request", re.IGNORECASE)
_COUNTED = regex(r"\b(train(ing)?[ _-]?)?(step|iter(ation)?)\b[ _#:.-]*\d*", re.IGNORECASE)
# Done once in a pass, at its start or its end: a repetition that holds one of these is not a layer.
_ONCE_A_PASS = regex(
    r"^aten::(embedding|adaptive_avg_pool\w*|cross_entropy_loss|nll_loss\w*|mse_loss|log_softmax|argmax"
    r"|multinomial|randn?|randint)$"
)
# The same for kernels; a replayed graph is a whole pass.
_KERNEL_ONCE_A_PASS = regex(
    r"multi_tensor_apply|adam|fused_?sgd|nll_loss|cross_?entropy|log_?softmax|(?<!rotary_)embedding|indexselect"
    r"|^CUDA graph",
    re.IGNORECASE,
)
_COLLECTIVE_KERNEL = regex(r"^(nccl|rccl)")
# No layer has one of these: rounds that do are whole passes.
_WHOLE_PASS = regex(
    r"^aten::(adaptive_avg_pool\w*|cross_entropy_loss|nll_loss\w*|mse_loss|log_softmax|argmax)$"
)
MOST_TURNS = 4  # of optimizers with one name, in one step
SHORTEST_ROUND = 4  # operations
SHORTEST_LOOP = 2  # of one that does what a model does once in a pass
_NEARLY = 0.95  # of the longest stretch, to be as good
_ALL_PERIODS = 4000  # the longest sequence in which every period is tried
_PERIODS_TRIED = 100
_RANGES_TRIED = 50
Rows = NDArray[Any]


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


MARKED = frozenset({StepBasis.PROFILER_STEP, StepBasis.EXECUTIONS})
NOTES = {
    StepBasis.EXECUTIONS: "Steps are the executions of the program that takes the most time.",
    StepBasis.OPTIMIZER: "The trace marks no steps: each ends with an Optimizer.step.",
    StepBasis.LOADER: "The trace marks no steps: each begins with the loader's next batch.",
    StepBasis.BACKWARD: "The trace marks no steps: each begins with the forward pass after a backward pass.",
    StepBasis.RANGE: "The trace marks no steps: each is one run of the range or model that repeats.",
    StepBasis.PASSES: "The trace marks no steps: each begins with the range of a forward pass.",
    StepBasis.OPERATIONS: "The trace marks no steps: each is one round of the operations that repeat.",
    StepBasis.KERNELS: "The trace marks no steps: each repetition of the kernels counts as one.",
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
    """The work that steps must hold: when it was launched, and how long it took."""

    when_ns: Longs
    dur_ns: Longs
    warm_up: iv.Spans  # ranges called warm-up

    def shares(self, start: Longs, end: Longs) -> NDArray[np.float64]:
        """Return the share of the work in each span."""
        index = iv.span_at(iv.Spans(start, end), self.when_ns)
        total = int(self.dur_ns.sum())
        sums = np.bincount(index[index >= 0], weights=self.dur_ns[index >= 0], minlength=len(start))
        return sums / total if total else np.full(len(start), 1 / len(start))

    def are_steps(self, steps: HostSteps) -> bool:
        """Return whether these are steps of the run: those that are alike hold at least half of the work.

        The profiler's own marks are steps however they differ. Batches of several sizes take different times
        but launch as much; rounds of an optimizer now and then launch more. A single step is like itself.
        """
        shares = self.shares(steps.start_ns, steps.end_ns)
        if steps.basis in MARKED:
            return bool(shares.sum() >= LEAST_SHARE)
        index = iv.span_at(iv.Spans(steps.start_ns, steps.end_ns), self.when_ns)
        counts = np.bincount(index[index >= 0], minlength=len(shares))
        alike = _are_usual(shares, shares) | _are_usual(counts, shares)
        held = shares[alike].sum()
        # What a range holds may be anything: the stretches of another length are not its first steps.
        least = MOST_SHARE * shares.sum() if steps.basis is StepBasis.RANGE else LEAST_SHARE
        return bool(held >= max(least, LEAST_SHARE) and (alike.sum() > 1 or len(shares) == 1))

    def are_equal_rounds(self, edges: Longs, *, of_one_size: bool = True) -> bool:
        """Return whether rounds hold most of the work, and most of them about the same amount of it."""
        shares = self.shares(edges[:-1], edges[1:])
        usual = median(shares)
        alike = (np.abs(shares - usual) <= 0.5 * usual).mean() if of_one_size else 1.0
        return bool(min(alike, shares.sum()) >= MOST_SHARE)

    def without_warm_up(self, rows: Rows, start_ns: Longs) -> Rows:
        """Return the rows that start outside of warm-up ranges; all of them if none does."""
        warm = iv.span_at(self.warm_up, start_ns[rows]) >= 0
        return rows if warm.all() else rows[~warm]


def _are_usual(amounts: NDArray[Any], shares: NDArray[np.float64]) -> Mask:
    """Return which amounts are near the usual one, that of the steps in which half of the work lies."""
    order = np.argsort(amounts, kind="stable")
    middle = int(np.searchsorted(np.cumsum(shares[order]), shares.sum() / 2))
    usual = amounts[order[min(middle, len(order) - 1)]]
    near: Mask = np.abs(amounts - usual) <= ALIKE * usual
    return near


def find_steps(trace: Trace, tree: HostTree, links: Links) -> HostSteps:
    """Return the steps of the trace; without any sign of them the whole span is one step."""
    # The loop runs on the thread that launches most of the device's work, else on the one with most events.
    launched = links.thread >= 0
    threads = np.concatenate([table.thread for table in (trace.ranges, trace.ops, trace.calls)])
    thread = int(np.bincount(threads).argmax()) if len(threads) else NONE
    if launched.any():
        thread = int(np.bincount(links.thread[launched], weights=trace.work.dur_ns[launched]).argmax())
    computed = _find_computed(trace, links)

    def signs() -> Iterator[HostSteps | None]:
        """Yield the steps by each sign of them, the plainest first; the later ones take long to look for."""
        yield _from_marks(trace, StepBasis.PROFILER_STEP, STEP)
        yield _from_marks(trace, StepBasis.EXECUTIONS, EXECUTION)
        yield _from_optimizer(trace)
        yield _from_loader(trace)
        yield _from_backward(trace, tree)
        # Autograd may launch more than the loop: the thread whose ranges take longest is looked at too.
        others = [thread]
        if len(trace.ranges.name):
            others.append(int(np.bincount(trace.ranges.thread, weights=trace.ranges.dur_ns).argmax()))
        for find in (_from_ranges, _from_passes):
            for other in dict.fromkeys(others):
                yield find(trace, tree, computed, other)
        yield _from_operations(trace, tree, computed, thread)
        yield _from_kernels(trace, links, computed, thread)

    for steps in signs():
        if steps is not None and computed.are_steps(steps):
            return steps
    extent = _extent(trace.ops, trace.calls, trace.work, trace.ranges)
    return _chain(StepBasis.SPAN, np.array(extent, np.int64), thread)


def _find_computed(trace: Trace, links: Links) -> Computed:
    """Return the kernels that were launched, else all launched work, else operations."""
    work, ranges = trace.work, trace.ranges
    warm_up = iv.covered_by(ranges, named(trace.strings, ranges.name, WARM_UP))
    computes = (work.kind == DeviceEvent.KERNEL) & ~named(trace.strings, work.name, _COLLECTIVE_KERNEL)
    when, dur, known = links.launch_ns, work.dur_ns, links.call >= 0
    if not known.any() and (len(trace.ops.name) or not len(work.name)):
        when, dur = trace.ops.start_ns, trace.ops.dur_ns
        known = computes = np.ones(len(when), np.bool_)
    elif not known.any():
        when, known = work.start_ns, np.ones(len(work.name), np.bool_)
    for wanted in (computes, iv.span_at(warm_up, when) < 0):
        if (known & wanted).any():
            known = known & wanted
    return Computed(when[known], dur[known], warm_up)


def _chain(basis: StepBasis, edges: Longs, thread: int) -> HostSteps:
    """Return steps that follow each other from edge to edge, numbered from 0."""
    count = len(edges) - 1
    joined = np.ones(count, np.bool_)
    joined[-1:] = False
    return HostSteps(basis, np.arange(count), edges[:-1], edges[1:], joined, thread)


def _apart(basis: StepBasis, number: Longs, spans: iv.Spans, follows: Mask, thread: int) -> HostSteps:
    """Return the steps of these spans; where the next one follows, a step ends where that begins."""
    joined = np.append(follows, False)
    end = np.where(joined, np.append(spans.starts[1:], NONE), spans.ends)
    return HostSteps(basis, number, spans.starts, end, joined, thread)


def _extent(*tables: TimedEvents) -> tuple[int, int]:
    """Return when the first event of the tables starts and the last one ends."""
    used = [table for table in tables if len(table.name)]
    starts, ends = ([int(t.start_ns.min()) for t in used], [int(t.end_ns.max()) for t in used])
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
        thread = int(np.bincount(others).argmax())  # executions are on no thread: the loop is on another
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    marks = [pattern.search(trace.strings[name]) for name in ranges.name[rows].tolist()]
    number = np.array([min(int(mark[1]), 2**62) if mark else NONE for mark in marks], np.int64)
    start, end = ranges.start_ns[rows], ranges.end_ns[rows]
    # The next step follows if its number is the next one and recording did not pause in between.
    longest_pause = np.maximum(end[:-1] - start[:-1], 1_000_000) // 2
    follows = (np.diff(number) == 1) & (start[1:] - end[:-1] <= longest_pause)
    return _apart(basis, number, iv.Spans(start, end), follows, thread)


def _from_optimizer(trace: Trace) -> HostSteps | None:
    """Return steps that end where the optimizer's step ends; of several optimizers the busiest counts.

    Optimizers of one kind have one name: if two take turns, as in a GAN, both belong to one step.
    """
    ranges = trace.ranges
    rows = np.flatnonzero(named(trace.strings, ranges.name, OPTIMIZER_STEP))
    if not len(rows):
        return None
    names, which, counts = groups(ranges.name[rows])
    last = np.full(len(names), NONE, np.int64)
    np.maximum.at(last, which, ranges.end_ns[rows])
    rows = rows[ranges.name[rows] == names[np.lexsort((last, counts))[-1]]]
    rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
    thread = int(np.bincount(ranges.thread[rows]).argmax())
    # An optimizer calls as many operations each time but the first: alternating numbers show several.
    called = np.sort(trace.ops.start_ns[trace.ops.thread == thread])
    end = ranges.end_ns[rows]
    calls = np.searchsorted(called, end) - np.searchsorted(called, ranges.start_ns[rows])
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
    rows = np.append(np.flatnonzero(forward), np.flatnonzero(is_backward & top))
    rows = rows[np.argsort(trace.ops.start_ns[rows], kind="stable")]
    starts, backward = trace.ops.start_ns[rows], is_backward[rows]
    begins = ~backward & np.append(True, backward[:-1])
    if begins.sum() < 2 or not backward.any():
        return None
    edges = np.append(starts[begins], _extent(trace.ops, trace.calls, trace.ranges)[1])
    thread = int(np.bincount(trace.ops.thread[forward]).argmax())
    return _chain(StepBasis.BACKWARD, edges.astype(np.int64), thread)


def outermost_operations(tree: HostTree) -> Mask:
    """Return which operations lie in no other operation, whatever ranges and modules are around them."""
    return pick(tree.op, tree.parent[tree.of_op]) < 0


def _from_ranges(trace: Trace, tree: HostTree, computed: Computed, thread: int) -> HostSteps | None:
    """Return the runs of the outermost module, or of the named range, that holds most of the work."""
    ranges, strings = trace.ranges, trace.strings
    if not len(ranges.name):
        return None
    in_module = pick(nearest(tree.parent, tree.kind == MODULE), tree.parent) >= 0
    rows = tree.origin[(tree.kind < OP) & ~in_module]
    usable = (ranges.thread[rows] == thread) & (ranges.kind[rows] != RangeKind.OVERHEAD)
    for pattern in (FRAMEWORK_RANGE, COMPILED, INPUT):
        usable &= ~named(strings, ranges.name[rows], pattern)
    rows = computed.without_warm_up(rows[usable], ranges.start_ns)
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
        is_counted = _COUNTED.search(strings[int(ranges.name[members[0]])], 0, LONGEST_NAME)
        if share >= (LEAST_SHARE if is_counted else MOST_SHARE) and (best is None or rank > best[:2]):
            best = (*rank, start, end)
    if best is None:
        return None
    _, _, start, end = best
    follows = start[1:] - end[:-1] <= (end - start)[:-1] // 2  # unless there is a pause
    return _apart(StepBasis.RANGE, np.arange(len(start)), iv.Spans(start, end), follows, thread)


def _from_passes(trace: Trace, _: HostTree, computed: Computed, thread: int) -> HostSteps | None:
    """Return steps that begin with the first range of a forward pass after one of a backward pass."""
    ranges, strings = trace.ranges, trace.strings
    backward = named(strings, ranges.name, BACKWARD_PASS)
    forward = named(strings, ranges.name, FORWARD_PASS) & ~backward
    rows = np.flatnonzero((forward | backward) & (ranges.thread == thread))
    rows = computed.without_warm_up(rows, ranges.start_ns)
    begins = forward[rows] & np.append(True, backward[rows][:-1])[: len(rows)]
    if not begins.any() or not backward[rows].any():
        return None
    end = max(ranges.end_ns[rows].max(), computed.when_ns.max(initial=0) + 1)
    edges = np.append(ranges.start_ns[rows[begins]], end)
    return _chain(StepBasis.PASSES, edges.astype(np.int64), thread)


def _from_kernels(trace: Trace, links: Links, computed: Computed, thread: int) -> HostSteps | None:
    """Return the rounds in which the same kernels are launched, or run where no launch was recorded.

    Recorded operations show more: kernels of a layer repeat as well.
    """
    work = trace.work
    launched = links.call >= 0
    if 2 * int((links.op >= 0).sum()) > len(work.name):
        return None
    # Collectives alone, as some traces hold them, show no round of a loop.
    chosen = (work.kind == DeviceEvent.KERNEL) & ~named(trace.strings, work.name, _COLLECTIVE_KERNEL)
    when = links.launch_ns
    if launched.any():
        chosen &= launched
    elif len(work.name):
        # Streams run beside each other: only on one stream is the order that of the launches.
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
    is_whole = found[0] == 0 and found[2] == len(names)
    if not (is_whole or _is_pass(trace, names, found, _KERNEL_ONCE_A_PASS)):
        return None
    firsts, after = _rounds(found, len(names))
    last = int(when[rows[after]]) if after < len(rows) else int(when[rows[-1]]) + 1
    edges = np.append(when[rows[firsts]], last).astype(np.int64)
    return _chain(StepBasis.KERNELS, edges, thread) if computed.are_equal_rounds(edges) else None


def _rounds(found: tuple[int, int, int], count: int) -> tuple[Longs, int]:
    """Return where the rounds of a repetition begin, aligned with the end of the loop, and where they end."""
    start, period, length = found
    first = start + length % period if start > 0 and start + length == count else start
    firsts = np.arange(first, start + length - period + 1, period)
    return firsts, int(firsts[-1]) + period


def _from_operations(trace: Trace, tree: HostTree, computed: Computed, thread: int) -> HostSteps | None:
    """Return the rounds of a loop that calls the same operations again and again, from first to last.

    A stack of equal layers repeats as well, but inside one module, with something before and after it: a
    repetition that leaves nothing out, or that holds what a model does once in a pass, is the loop's.
    """
    ops = trace.ops
    rows = np.flatnonzero(outermost_operations(tree) & (ops.thread == thread))
    names = ops.name[rows]
    found = _longest_rounds(trace, names, names)
    if found is None:
        return None
    # Sizes distinguish the first layer of a pass from the others, unless they change from round to round.
    sized = groups(names.astype(np.int64) * (len(trace.inputs) + 1) + ops.inputs[rows] + 1).which
    by_sizes = _longest_rounds(trace, names, sized.astype(np.int32))
    if by_sizes is not None and by_sizes[2] >= _NEARLY * found[2]:
        found = by_sizes
    start, period, length = found
    is_whole = start == 0 and length == len(names) and length % period == 0
    # Operations before the loop, such as those that make the model, belong to no round.
    least = 0.5 if _is_pass(trace, names, found, _WHOLE_PASS) else REPEATED_SHARE
    if length < least * len(names) or not (is_whole or _is_pass(trace, names, found, _ONCE_A_PASS)):
        return None
    firsts, after = _rounds(found, len(names))
    is_module = tree.kind == MODULE
    is_outer = is_module & (pick(nearest(tree.parent, is_module), tree.parent) < 0)
    module = pick(nearest(tree.parent, is_outer), tree.of_op[rows[firsts]])
    end = ops.start_ns[rows[after]] if after < len(rows) else ops.end_ns[rows[after - 1]]
    edges = np.append(ops.start_ns[rows[firsts]], end).astype(np.int64)
    in_one_module = ((module[1:] == module[:-1]) & (module[1:] >= 0)).any()
    if in_one_module or not computed.are_equal_rounds(edges, of_one_size=len(trace.work.name) > 0):
        return None
    return _chain(StepBasis.OPERATIONS, edges, thread)


def _longest_rounds(trace: Trace, names: Ids, signs: Ids) -> tuple[int, int, int] | None:
    """Return the longest repetition of the signs that is a round of a loop by its length or by its names."""
    found = longest_repetition(signs, SHORTEST_LOOP)
    if found is not None and found[1] < SHORTEST_ROUND and not _is_pass(trace, names, found, _ONCE_A_PASS):
        found = longest_repetition(signs)
    return found


def _is_pass(trace: Trace, names: Ids, found: tuple[int, int, int], pattern: re.Pattern[str]) -> bool:
    """Return whether a round of the repetition holds what a model does once in a pass."""
    start, period, _ = found
    return bool(named(trace.strings, names[start : start + period], pattern).any())


def longest_repetition(names: Ids, shortest: int = SHORTEST_ROUND) -> tuple[int, int, int] | None:
    """Return start, period and length of the longest stretch that repeats itself; None without any.

    The shortest period whose stretch is nearly as long as any counts, since twice a period is a period as
    well. In a long sequence only the usual distances between two rare names are tried.
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
    found = [stretch for stretch in repetitions(names, periods.tolist()) if stretch[2] >= 2 * stretch[1]]
    most = max((length for _, _, length in found), default=0)
    return next((stretch for stretch in found if stretch[2] >= _NEARLY * most), None)


def repetitions(names: Ids, periods: Iterable[int]) -> Iterator[tuple[int, int, int]]:
    """Yield start, period and length of the longest stretch that repeats itself with each period."""
    for period in periods:
        breaks = np.flatnonzero(np.append(names[:-period] != names[period:], True))
        lengths = np.diff(breaks, prepend=NONE) - 1
        longest = int(lengths.argmax())
        yield int(breaks[longest] - lengths[longest]), period, int(lengths[longest]) + period


def steps_of(times: Longs, steps: HostSteps) -> Ids:
    """Return the index of the step in which each time lies; the count of steps after the last, else NONE."""
    if (times[1:] >= times[:-1]).all():  # sorted, as events are: look up where each step begins among them
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

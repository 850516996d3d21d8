"""Find the time of each step on the device, and which steps are steady.

The host runs ahead of the device, by two steps and more, so a host step says little about what the device
did in it. Work belongs to the step in which the host launched it. The window of step n on the device goes
from the start of the first work of step n to the start of the first work of step n + 1: windows follow each
other without gap or overlap, their length is the time between two equal points of the loop where the work is
really done, and the wait for the next batch falls into exactly one window.


The last step has no next one. If work launched after it was recorded, that ends it. If not, its end is not
in the trace: it is shown up to the end of its last work, or of its step on the host if that is later, and is
not steady. Where no step's end is known, as in a trace of one step, these are all there is; each then begins
where the host begins it, unless the device still has earlier work to do. If some step launched nothing, the
device does not show where steps begin and host windows are used. A trace without steps is one window, from
the first work, or from the wait for its batch, to the end of the last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import among, distinct
from stepgrade.model.events import NONE, DeviceEvent, DeviceWork, Ids, Longs, Trace
from stepgrade.naming.torch_names import COMPILES, LOADER, Mask, named
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.links import Links
from stepgrade.timeline.steps import HostSteps, StepBasis, steps_of

FAR = np.iinfo(np.int64).max
TOLERANCE = 0.2  # from the median of its kind, for a step to be steady
SAME_KIND = 0.02  # difference in the amount of work
HARDLY_ANY = 0.1  # of the work of a usual step: what the loop leaves after its last one
DRAINED = 0.02  # of a step: that much of earlier work may still run when the host begins it


COMPILING_SHARE = 0.05  # of a step, for it to be no steady one


class StepMark(StrEnum):
    """Whether a step is representative of the run, or why not."""

    STEADY = "steady"
    WARM_UP = "warm-up"
    FLUSH = "flush"
    EMPTY = "empty"
    OPEN = "open"  # its end is not in the trace
    COMPILING = "compiling"


class Attribution(NamedTuple):
    """The step to which each piece of work belongs."""

    step: Ids  # index of the step; the number of steps if launched after the last; NONE if not known
    inferred: Mask  # launch not recorded, step taken from its neighbours on the stream
    unlaunched: Mask  # launch not recorded
    launch_ns: Longs


class Windows(NamedTuple):
    """Each step's time on the device (or on the host, where the device does not show its steps)."""

    start_ns: Longs
    end_ns: Longs
    on_device: bool
    end_known: Mask  # whether the next step's work was seen to end it
    kind: Ids  # steps with the same number have about the same amount of work
    mark: tuple[StepMark, ...]

    @property
    def dur_ns(self) -> Longs:
        """Return how long each step took."""
        return self.end_ns - self.start_ns

    @property
    def steady(self) -> Mask:
        """Tell which steps are representative of the run."""
        return np.array([mark == StepMark.STEADY for mark in self.mark], np.bool_)

    def without(self, spans: iv.Spans) -> Windows:
        """Return these with the steps that lie in `spans` to a good part no longer steady, if others are."""
        much = iv.covered_within(spans, self.start_ns, self.end_ns) > COMPILING_SHARE * self.dur_ns
        if not (self.steady & ~much).any():
            return self
        steady = self.steady
        marks = [
            StepMark.COMPILING if much[place] and (steady[place] or mark is StepMark.WARM_UP) else mark
            for place, mark in enumerate(self.mark)
        ]
        return self._replace(mark=tuple(marks))

    def is_steady(self, step: Ids) -> Mask:
        """Tell for each index of a step whether that step is steady; NONE and those past the last are not."""
        known = np.append(self.steady, [False, False])
        return known[np.where(step >= 0, step, len(known) - 1)]

    def in_steady(self, spans: iv.Spans) -> Longs:
        """Return how much of `spans` lies in each steady step."""
        steady = self.steady
        return iv.covered_within(spans, self.start_ns[steady], self.end_ns[steady])

    def steady_share(self, spans: iv.Spans) -> float:
        """Return how much of the steady steps' time `spans` covers, from 0 to 1."""
        total = int(self.dur_ns[self.steady].sum())
        return float(self.in_steady(spans).sum() / max(total, 1))


def compile_spans(trace: Trace) -> iv.Spans:
    """Return when something was being compiled, on whichever thread."""
    rows = named(trace.strings, trace.ops.name, COMPILES)
    return iv.union(trace.ops.start_ns[rows], (trace.ops.start_ns + trace.ops.dur_ns)[rows])


def attribute(work: DeviceWork, links: Links, steps: HostSteps) -> Attribution:
    """Return the step of each piece of work, by the time of its launch.

    Work without a recorded launch gets the step of its neighbours on the stream, where both agree.
    """
    step = steps_of(links.launch_ns, steps)
    unlaunched = links.call < 0
    if steps.basis is StepBasis.SPAN:
        return Attribution(np.zeros(len(step), np.int32), unlaunched, unlaunched, links.launch_ns)
    if steps.basis in (StepBasis.KERNELS, StepBasis.EXECUTIONS) and unlaunched.all():
        nowhere = np.zeros(len(step), np.bool_)  # no step was inferred: the device itself shows them
        return Attribution(steps_of(work.start_ns, steps), nowhere, unlaunched, work.start_ns)
    step[unlaunched] = NONE
    if not unlaunched.any() or unlaunched.all():
        return Attribution(step, unlaunched & (step >= 0), unlaunched, links.launch_ns)
    order = np.lexsort((work.start_ns, work.stream, work.device)).astype(np.int32)
    known, missing = order[~unlaunched[order]], order[unlaunched[order]]
    after = np.searchsorted(np.flatnonzero(~unlaunched[order]), np.flatnonzero(unlaunched[order]))
    left, right = known[np.maximum(after - 1, 0)], known[np.minimum(after, len(known) - 1)]
    take = (after > 0) & (after < len(known)) & (step[left] == step[right])
    for queue in (work.stream, work.device):
        take &= (queue[left] == queue[missing]) & (queue[right] == queue[missing])
    step[missing[take]] = step[left[take]]
    return Attribution(step, unlaunched & (step >= 0), unlaunched, links.launch_ns)


def find_windows(
    trace: Trace, attribution: Attribution, steps: HostSteps, chosen: Mask, compiling: iv.Spans
) -> Windows:
    """Return the window of each step on the device whose work is `chosen`."""
    work, count = trace.work, len(steps.start_ns)
    amount = np.bincount(attribution.step[chosen & (attribution.step >= 0)], minlength=count + 1)[:count]
    filled = np.flatnonzero(amount)
    used = int(filled[-1]) + 1 if len(filled) else 0
    if steps.basis is StepBasis.SPAN and chosen.any():
        start = work.start_ns[chosen]
        waits = trace.ranges.start_ns[named(trace.strings, trace.ranges.name, LOADER)]
        first, last = np.append(waits, start).min(), (start + work.dur_ns[chosen]).max()
        known = np.ones(1, np.bool_)
        return _marked(np.array([first]), np.array([last]), known, np.array([len(start)]), on_device=True)
    if not used:
        # Where the host computes, a mark ends the last step too; what was found in operations does not.
        step = steps_of(trace.ops.start_ns, steps)
        step[iv.span_at(compiling, trace.ops.start_ns) >= 0] = NONE  # what is traced is not computed
        amount = np.bincount(step[(step >= 0) & (step < count)], minlength=count)
        known = steps.joined | (steps.basis in (StepBasis.PROFILER_STEP, StepBasis.EXECUTIONS))
        return _marked(steps.start_ns, steps.end_ns, known, amount, on_device=False)
    if not amount[:used].all():
        return _marked(steps.start_ns, steps.end_ns, steps.joined, amount, on_device=False)
    begin, end, known = _device_edges(work, attribution, steps, chosen, used)
    return _marked(begin, end, known, amount, on_device=True)


def _device_edges(
    work: DeviceWork, attribution: Attribution, steps: HostSteps, chosen: Mask, used: int
) -> tuple[Longs, Longs, Mask]:
    """Return start and end of each window, and whether the end was seen."""
    count = len(steps.start_ns)
    own = chosen & (attribution.step >= 0) & ~attribution.inferred
    step, start = attribution.step[own], work.start_ns[own]
    # Copies on a stream of their own run ahead of the step that they belong to, as far as the host does: the
    # first work of a step is that on streams with kernels, unless a step has none there.
    kernels = distinct(work.stream[own & (work.kind == DeviceEvent.KERNEL)])
    leading = own & among(work.stream, kernels)
    if len(distinct(attribution.step[leading])) < len(distinct(step)):
        leading = own
    begin = np.full(count + 1, FAR, np.int64)
    np.minimum.at(begin, attribution.step[leading], work.start_ns[leading])
    begin = np.minimum.accumulate(begin[::-1])[::-1]
    finish = np.full(count + 1, NONE, np.int64)
    np.maximum.at(finish, step, start + work.dur_ns[own])
    host = steps.end_ns - steps.start_ns
    shown = np.maximum(finish[:-1], steps.end_ns)
    seen = steps.joined.copy()
    # What comes later than a whole step after it is of another loop.
    lag = max(int(begin[count - 1] - steps.start_ns[-1]), 0) if used == count else 0
    seen[-1] = used == count and begin[count] < shown[-1] + host[-1] + lag
    seen &= begin[1:] < FAR
    end = np.where(seen, begin[1:], np.minimum(shown, begin[1:]))
    begin = begin[:count].copy()
    if not seen.any():
        # How long the device is busy with what came before: earlier steps, and work of no step.
        rows = np.flatnonzero(chosen & ~own)
        rows = rows[np.argsort(work.start_ns[rows], kind="stable")]
        ends = np.maximum.accumulate(np.append(NONE, (work.start_ns + work.dur_ns)[rows]))
        busy = np.maximum(
            np.maximum.accumulate(np.append(NONE, finish[: count - 1])),
            ends[np.searchsorted(work.start_ns[rows], begin, side="left")],
        )
        idle = busy - steps.start_ns <= DRAINED * host
        begin = np.where(idle, np.minimum(begin, steps.start_ns), begin)
    begin[used:] = end[used:] = end[used - 1]
    return begin, end, seen


def _marked(start: Longs, end: Longs, known: Mask, amount: Longs, *, on_device: bool) -> Windows:
    """Return the windows with their kinds and marks, given the amount of work in each."""
    dur = end - start
    order = np.argsort(amount, kind="stable")
    jump = np.diff(amount[order]) > SAME_KIND * amount[order][1:]
    kind = np.empty(len(amount), np.int32)
    kind[order] = np.append(0, np.cumsum(jump))[: len(amount)]
    empty = (dur <= 0) | ((amount == 0) & bool(amount.any()))
    # The usual step is the one in which half of the work lies in steps that are no larger.
    usual = amount[order][np.searchsorted(np.cumsum(amount[order]), amount.sum() / 2)] if len(amount) else 0
    empty |= amount < HARDLY_ANY * usual
    mark = np.where(empty, StepMark.EMPTY, StepMark.STEADY).astype(object)
    ended = np.flatnonzero(~empty & known)
    if len(ended):
        mark[~empty & ~known] = StepMark.OPEN
    full = ended if len(ended) else np.flatnonzero(~empty)
    # What a step of the second half does as well is how the run is, not its warm-up.
    warm, later = 0, np.sort(dur[full[len(full) // 2 :]])
    nearest = np.searchsorted(later, dur[full])
    others = _Others(dur, kind, full)
    while (
        warm < len(full) // 2
        and others.is_off(int(full[warm]))
        # Of the later ones the next shorter and the next longer are the most alike.
        and all(
            abs(ns - int(dur[full[warm]])) > TOLERANCE * ns
            for ns in later[max(0, nearest[warm] - 1) : nearest[warm] + 1].tolist()
        )
    ):
        mark[full[warm]] = StepMark.WARM_UP
        warm += 1
    rest, last = full[warm:-1], full[-1:]
    # A last step that only the host's clock ends may hold the profiler's flush.
    if len(rest) > 1 and last[0] == len(mark) - 1 - int(empty[::-1].argmin()):
        longer = dur[last[0]] > np.median(dur[rest])
        if longer and _Others(dur, kind, full[warm:]).is_off(int(last[0])):
            mark[last] = StepMark.FLUSH
    return Windows(start, end, on_device, known, kind, tuple(map(StepMark, mark.tolist())))


class _Others:
    """The steps that are left while one after the other is taken out and held against them."""

    def __init__(self, dur: Longs, kind: Ids, steps: NDArray[np.intp]) -> None:
        self._dur = dict(zip(steps.tolist(), dur[steps].tolist(), strict=True))
        self._kind = dict(zip(steps.tolist(), kind[steps].tolist(), strict=True))
        self._all = _Median(self._dur)
        of_kind: dict[int, dict[int, int]] = {}
        for step, ns in self._dur.items():
            of_kind.setdefault(self._kind[step], {})[step] = ns
        self._alike = {number: _Median(members) for number, members in of_kind.items()}

    def is_off(self, step: int) -> bool:
        """Take a step out; tell whether it is far from the others' median, of its own kind if any is."""
        alike = self._alike[self._kind[step]]
        for median in (self._all, alike):
            median.remove(step)
        middle = (alike if alike.count else self._all).value
        return bool(abs(self._dur[step] - middle) > TOLERANCE * middle)


class _Median:
    """The median of numbers that are taken out one by one: sorted once, then a step to a neighbour each."""

    def __init__(self, values: Mapping[int, int]) -> None:
        order = sorted(values, key=lambda key: values[key])
        self._values = [values[key] for key in order]
        self._place = {key: place for place, key in enumerate(order)}
        self._before = [*range(-1, len(order) - 1)]
        self._after = [*range(1, len(order) + 1)]
        self._middle = (len(order) - 1) // 2
        self.count = len(order)

    def remove(self, key: int) -> None:
        """Take one number out."""
        place, before, after = self._place[key], self._before, self._after
        if self.count % 2 and place >= self._middle:
            self._middle = before[self._middle]
        elif self.count % 2 == 0 and place <= self._middle:
            self._middle = after[self._middle]
        if before[place] >= 0:
            after[before[place]] = after[place]
        if after[place] < len(before):
            before[after[place]] = before[place]
        self.count -= 1

    @property
    def value(self) -> float:
        """Return the median of what is left; NaN of nothing."""
        if not self.count:
            return math.nan
        middle = self._values[self._middle]
        return middle if self.count % 2 else (middle + self._values[self._after[self._middle]]) / 2

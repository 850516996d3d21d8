"""Steps as the device saw them, and which of them are steady.

The host runs ahead of the device, by two steps and more, so a host step says little about what the device
did in it. Work belongs to the step in which the host launched it. The window of step n on the device goes
from the start of the first work of step n to the start of the first work of step n + 1: windows follow each
other without gap or overlap, their length is the time between two equal points of the loop where the work is
really done, and the wait for the next batch falls into exactly one window.

The last step has no next one. If work launched after it was recorded, that ends it. Else it ends when its
last work ends or, if later, when the next step's first work could have started: as long after the step's end
on the host as its own first launch came after its start. If some step launched nothing the device has no say
and host windows are used. A trace without steps is one window, from the first work to the end of the last.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from stepgrade.model.columns import among, distinct
from stepgrade.model.events import NONE, DeviceEvent, DeviceWork, Ids, Longs
from stepgrade.naming.torch_names import Mask
from stepgrade.trace.links import Links
from stepgrade.trace.steps import HostSteps, StepBasis, steps_of

FAR = np.iinfo(np.int64).max
TOLERANCE = 0.2
SAME_KIND = 0.02


class StepMark(StrEnum):
    """Whether a step stands for the run."""

    STEADY = "steady"
    WARM_UP = "warm-up"
    FLUSH = "flush"
    EMPTY = "empty"


class Attribution(NamedTuple):
    """The step to which each piece of work belongs."""

    step: Ids  # index of the step; the number of steps if launched after the last; NONE if not known
    inferred: Mask  # launch not recorded, told from its neighbours on the stream
    unlaunched: Mask  # launch not recorded
    launch_ns: Longs


class Windows(NamedTuple):
    """Each step's time on the device (or on the host, where the device has no say)."""

    start_ns: Longs
    end_ns: Longs
    on_device: bool
    end_known: Mask  # whether a next step's work was seen to end it
    kind: Ids  # steps with the same number are alike in their amount of work
    mark: tuple[StepMark, ...]

    @property
    def dur_ns(self) -> Longs:
        """Return how long each step took."""
        return self.end_ns - self.start_ns

    @property
    def steady(self) -> Mask:
        """Tell which steps stand for the run."""
        return np.array([mark == StepMark.STEADY for mark in self.mark], np.bool_)


def attribute(work: DeviceWork, links: Links, steps: HostSteps) -> Attribution:
    """Return the step of each piece of work, by the time of its launch."""
    step = steps_of(links.launch_ns, steps)
    unlaunched = links.call < 0
    if steps.basis is StepBasis.SPAN:
        return Attribution(np.zeros(len(step), np.int32), unlaunched, unlaunched, links.launch_ns)
    step[unlaunched] = NONE
    filled = _between_neighbours(work, step, unlaunched)
    inferred = unlaunched & (filled >= 0)
    return Attribution(filled, inferred, unlaunched, links.launch_ns)


def _between_neighbours(work: DeviceWork, step: Ids, unlaunched: Mask) -> Ids:
    """Give work without a launch the step of its neighbours on the stream, where both agree."""
    if not unlaunched.any() or unlaunched.all():
        return step
    order = np.lexsort((work.start_ns, work.stream, work.device)).astype(np.int32)
    known, missing = order[~unlaunched[order]], order[unlaunched[order]]
    after = np.searchsorted(np.flatnonzero(~unlaunched[order]), np.flatnonzero(unlaunched[order]))
    left, right = known[np.maximum(after - 1, 0)], known[np.minimum(after, len(known) - 1)]
    take = (after > 0) & (after < len(known)) & (step[left] == step[right])
    for lane in (work.stream, work.device):
        take &= (lane[left] == lane[missing]) & (lane[right] == lane[missing])
    filled = step.copy()
    filled[missing[take]] = step[left[take]]
    return filled


def find_windows(work: DeviceWork, attribution: Attribution, steps: HostSteps, chosen: Mask) -> Windows:
    """Return the window of each step on the device whose work is `chosen`."""
    count = len(steps.start_ns)
    amount = np.bincount(attribution.step[chosen & (attribution.step >= 0)], minlength=count + 1)[:count]
    filled = np.flatnonzero(amount)
    used = int(filled[-1]) + 1 if len(filled) else 0
    if steps.basis is StepBasis.SPAN and chosen.any():
        return _whole_span(work, chosen)
    if used == 0 or not amount[:used].all():
        return _marked(steps.start_ns, steps.end_ns, steps.joined, amount, on_device=False)
    start, end, known = _device_edges(work, attribution, steps, chosen, used)
    return _marked(start, end, known, amount, on_device=True)


def _whole_span(work: DeviceWork, chosen: Mask) -> Windows:
    start = work.start_ns[chosen]
    first, last = start.min(), (start + work.dur_ns[chosen]).max()
    known = np.ones(1, np.bool_)
    return _marked(np.array([first]), np.array([last]), known, np.array([len(start)]), on_device=True)


def _device_edges(
    work: DeviceWork, attribution: Attribution, steps: HostSteps, chosen: Mask, used: int
) -> tuple[Longs, Longs, Mask]:
    """Return start and end of each window, and whether the end was seen."""
    count = len(steps.start_ns)
    mine = chosen & (attribution.step >= 0) & ~attribution.inferred
    step, start = attribution.step[mine], work.start_ns[mine]
    begin = _first_work(work, attribution, mine, count)
    begin = np.minimum.accumulate(begin[::-1])[::-1]
    finish = np.full(count + 1, NONE, np.int64)
    np.maximum.at(finish, step, start + work.dur_ns[mine])
    lasting = np.maximum(finish[:-1], _next_possible(attribution, steps, mine, start))
    seen = steps.joined.copy()
    host = steps.end_ns - steps.start_ns
    seen[-1] = begin[count] < lasting[-1] + host[-1] if used == count else False
    seen &= begin[1:] < FAR
    end = np.where(seen, begin[1:], np.minimum(lasting, begin[1:]))
    begin = begin[:count].copy()
    begin[used:] = end[used:] = end[used - 1]
    return begin, end, seen


def _first_work(work: DeviceWork, attribution: Attribution, mine: Mask, count: int) -> Longs:
    """Return when the first work of each step started, FAR where there is none.

    Copies on a stream of their own run ahead of the step that they belong to, as far as the host does.
    """
    kernels = distinct(work.stream[mine & (work.kind == DeviceEvent.KERNEL)])
    for chosen in (mine & among(work.stream, kernels), mine):
        begin = np.full(count + 1, FAR, np.int64)
        np.minimum.at(begin, attribution.step[chosen], work.start_ns[chosen])
        if len(distinct(attribution.step[chosen])) == len(distinct(attribution.step[mine])):
            return begin
    return begin


def _next_possible(attribution: Attribution, steps: HostSteps, mine: Mask, start: Longs) -> Longs:
    """Return when the first work after each step could have started at the earliest."""
    step, launch = attribution.step[mine], attribution.launch_ns[mine]
    first = np.full(len(steps.start_ns) + 1, FAR, np.int64)
    np.minimum.at(first, step, launch)
    latency = np.full(len(steps.start_ns) + 1, FAR, np.int64)
    np.minimum.at(latency, step, np.maximum(start - launch, 0))
    latency[latency == FAR] = 0
    lead = np.minimum(first[:-1], steps.end_ns) - steps.start_ns
    return steps.end_ns + lead + latency[:-1]


def _marked(start: Longs, end: Longs, known: Mask, amount: Longs, *, on_device: bool) -> Windows:
    dur = end - start
    kind = _kinds(amount)
    empty = (dur <= 0) | ((amount == 0) & bool(amount.any()))
    full = np.flatnonzero(~empty)
    mark = np.where(empty, StepMark.EMPTY, StepMark.STEADY).astype(object)
    leading = _warm_ups(dur[full], kind[full])
    mark[full[:leading]] = StepMark.WARM_UP
    rest = full[leading:]
    if len(rest) > 2 and not known[rest[-1]] and _is_flush(dur[rest], kind[rest]):
        mark[rest[-1]] = StepMark.FLUSH
    return Windows(start, end, on_device, known, kind, tuple(mark.tolist()))


def _kinds(amount: Longs) -> Ids:
    """Return a kind for each step: steps whose amounts of work differ by little are of one kind."""
    order = np.argsort(amount, kind="stable")
    jump = np.diff(amount[order]) > SAME_KIND * amount[order][1:]
    kind = np.empty(len(amount), np.int32)
    kind[order] = np.append(0, np.cumsum(jump))[: len(amount)]
    return kind


def _warm_ups(dur: Longs, kind: Ids) -> int:
    """Return how many leading steps differ from the later ones of their kind."""
    limit = len(dur) // 2
    for index in range(limit):
        if not _is_off(dur[index], dur[index + 1 :], kind[index] == kind[index + 1 :]):
            return index
    return limit


def _is_off(one: np.int64, others: Longs, alike: Mask) -> bool:
    middle = float(np.median(others[alike] if alike.any() else others))
    return bool(abs(float(one) - middle) > TOLERANCE * middle)


def _is_flush(dur: Longs, kind: Ids) -> bool:
    longer = dur[-1] > np.median(dur[:-1])
    return bool(longer) and _is_off(dur[-1], dur[:-1], kind[:-1] == kind[-1])

"""The phases of a step: input, h2d, forward, backward, optimizer, communication, d2h, other."""

from __future__ import annotations

import numpy as np

from stepgrade.model.events import NONE, DeviceEvent, Kinds, Longs
from stepgrade.model.profile import PhaseShare
from stepgrade.naming.work_class import WorkClass
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.pieces import Pieces, per_steady_step
from stepgrade.timeline.timeline import IN_BACKWARD, IN_INPUT, IN_OPTIMIZER, Driver, Timeline
from stepgrade.units import NS_PER_MS

PHASES = ("input", "h2d", "forward", "backward", "optimizer", "communication", "d2h", "other")
INPUT, H2D, FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION, D2H, OTHER = range(len(PHASES))
# Where two phases run at once the first in this order has the time: computing hides moving.
_PRECEDENCE = (FORWARD, BACKWARD, OPTIMIZER, OTHER, COMMUNICATION, H2D, D2H)


def find_phases(timeline: Timeline, pieces: Pieces) -> Kinds:
    """Return the phase of each piece, as an index into PHASES."""
    # Work launched after the last backward piece of its step is neither forward nor backward.
    slots = int(pieces.step.max(initial=NONE)) + 2
    in_backward = ((pieces.context & IN_BACKWARD) > 0) & (pieces.step >= 0)
    last = np.full(slots, NONE, np.int64)
    np.maximum.at(last, pieces.step[in_backward], pieces.launch_ns[in_backward])
    last[last < 0] = np.iinfo(np.int64).max
    after_backward = (pieces.step >= 0) & (pieces.launch_ns > last[pieces.step])
    phase = np.where(after_backward, OTHER, FORWARD).astype(np.int8)
    phase[pieces.row < 0] = OTHER
    for bit, index in ((IN_BACKWARD, BACKWARD), (IN_INPUT, INPUT), (IN_OPTIMIZER, OPTIMIZER)):
        phase[(pieces.context & bit) > 0] = index
    if timeline.driver is Driver.DEVICE:
        kind = timeline.trace.work.kind[pieces.work]
        phase[kind == DeviceEvent.COPY_H2D] = H2D
        phase[kind == DeviceEvent.COPY_D2H] = D2H
    phase[pieces.work_class == WorkClass.COMMUNICATION] = COMMUNICATION
    return phase


def sum_phases(timeline: Timeline, pieces: Pieces, phase: Kinds) -> tuple[PhaseShare, ...]:
    """Return the phases that occur in the steady steps.

    On a device each phase has only the time that no phase before it in the precedence has, so that the phases
    add up to the busy time. Input is the time in which the device waited for it.
    """
    if timeline.driver is Driver.UNSEEN:
        return ()
    found: dict[int, PhaseShare] = {}
    waits = timeline.windows.in_steady(
        timeline.ledger.time_in("idle_input") if timeline.ledger else iv.NOTHING
    )
    if waits.any():
        found[INPUT] = _phase_time(PHASES[INPUT], int(waits.sum()), waits)
    taken = iv.NOTHING
    for index in _PRECEDENCE:
        chosen = pieces.steady & (phase == index)
        if timeline.driver is Driver.DEVICE:
            if index == OTHER:
                chosen |= pieces.steady & (phase == INPUT)
            start = pieces.start_ns[chosen]
            spans = iv.union(start, start + pieces.dur_ns[chosen])
            own = iv.subtract(spans, taken)
            taken = iv.merge(taken, spans)
            busy, own_ns, step_ns = len(spans.starts) > 0, iv.total_ns(own), timeline.windows.in_steady(own)
        else:
            own_ns = int(pieces.dur_ns[chosen].sum())
            busy, step_ns = own_ns > 0, per_steady_step(timeline, pieces.step[chosen], pieces.dur_ns[chosen])
        if busy:
            found[index] = _phase_time(PHASES[index], own_ns, step_ns)
    return tuple(found[index] for index in sorted(found))


def phase_stretches(
    pieces: Pieces, phase: Kinds, extent: tuple[int, int] | None = None
) -> tuple[Longs, Longs, Kinds] | None:
    """Return when phases began and ended, and which; what is of one phase in a row is one stretch."""
    stop = pieces.start_ns + pieces.dur_ns
    inside = pieces.dur_ns > 0
    if extent is not None:
        inside &= (stop > extent[0]) & (pieces.start_ns < extent[1])
    rows = np.flatnonzero(inside)
    if not len(rows):
        return None
    rows = rows[np.lexsort((phase[rows], stop[rows], pieces.start_ns[rows]))]
    kind = phase[rows]
    first = np.flatnonzero(np.append(True, kind[1:] != kind[:-1]))
    start = pieces.start_ns[rows][first]
    last = int(stop[rows].max()) if extent is None else extent[1]
    ends = np.minimum(np.maximum.reduceat(stop[rows], first), np.append(start[1:], last))
    return start, ends, kind[first]


def _phase_time(name: str, own_ns: int, step_ns: Longs) -> PhaseShare:
    # Work of a steady step may run outside of its window: the samples can add up to less than the total.
    return PhaseShare(
        name=name,
        ms=own_ns / len(step_ns) / NS_PER_MS,
        samples_ms=tuple((step_ns / NS_PER_MS).tolist()),
    )

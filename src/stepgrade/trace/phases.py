"""The phases of a step: input, h2d, forward, backward, optimizer, communication, d2h, other."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepgrade.model.events import NONE, DeviceEvent, Kinds
from stepgrade.naming.torch_names import Mask
from stepgrade.trace import intervals as iv
from stepgrade.trace.classify import WorkClass
from stepgrade.trace.intervals import Spans
from stepgrade.trace.operations import per_steady_step
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.timeline import IN_BACKWARD, IN_INPUT, IN_OPTIMIZER, Driver, Timeline

PHASES = ("input", "h2d", "forward", "backward", "optimizer", "communication", "d2h", "other")
# Where two phases run at once the first in this order has the time: computing hides moving.
_PRECEDENCE = ("forward", "backward", "optimizer", "other", "communication", "h2d", "d2h")


class PhaseFacts(Struct, frozen=True, kw_only=True):
    """One phase, in totals over the steady steps."""

    name: str
    busy_ns: int  # some of its work was running; phases may run at once
    own_ns: int  # the same without what an earlier phase in the precedence had; adds up to the busy time
    step_ns: tuple[int, ...]  # of its own time, what lies in each steady step


def phase_of(line: Timeline, pieces: Pieces) -> Kinds:
    """Return the phase of each piece, as an index into PHASES."""
    forward = _index("forward")
    phase = np.where(_after_backward(pieces), _index("other"), forward).astype(np.int8)
    phase[pieces.row < 0] = _index("other")
    for bit, name in ((IN_BACKWARD, "backward"), (IN_INPUT, "input"), (IN_OPTIMIZER, "optimizer")):
        phase[(pieces.context & bit) > 0] = _index(name)
    if line.driver is Driver.DEVICE:
        kind = line.trace.work.kind[pieces.work]
        phase[kind == DeviceEvent.COPY_H2D] = _index("h2d")
        phase[kind == DeviceEvent.COPY_D2H] = _index("d2h")
    phase[pieces.work_class == WorkClass.COMMUNICATION] = _index("communication")
    return phase


def _index(name: str) -> int:
    return PHASES.index(name)


def _after_backward(pieces: Pieces) -> Mask:
    """Tell which pieces were launched after the last backward piece of their step."""
    slots = int(pieces.step.max(initial=NONE)) + 2
    last = np.full(slots, np.iinfo(np.int64).max, np.int64)
    backward = ((pieces.context & IN_BACKWARD) > 0) & (pieces.step >= 0)
    seen = np.zeros(slots, np.int64) - 1
    np.maximum.at(seen, pieces.step[backward], pieces.launch_ns[backward])
    last = np.where(seen >= 0, seen, last)
    return (pieces.step >= 0) & (pieces.launch_ns > last[pieces.step])


def sum_phases(line: Timeline, pieces: Pieces, phase: Kinds) -> tuple[PhaseFacts, ...]:
    """Return the phases that occur in the steady steps."""
    if line.driver is Driver.DEVICE:
        return _device_phases(line, pieces, phase)
    return _host_phases(line, pieces, phase)


def _device_phases(line: Timeline, pieces: Pieces, phase: Kinds) -> tuple[PhaseFacts, ...]:
    taken = iv.NOTHING
    facts: dict[str, PhaseFacts] = {}
    for name in _PRECEDENCE:
        chosen = pieces.steady & (phase == _index(name))
        if name == "other":
            chosen |= pieces.steady & (phase == _index("input"))
        spans = _spans(pieces, chosen)
        own = iv.subtract(spans, taken)
        taken = iv.merge(taken, spans)
        facts[name] = PhaseFacts(
            name=name, busy_ns=iv.total_ns(spans), own_ns=iv.total_ns(own), step_ns=_by_step(line, own)
        )
    facts["input"] = _input_wait(line)
    return tuple(facts[name] for name in PHASES if facts[name].busy_ns)


def _by_step(line: Timeline, spans: Spans) -> tuple[int, ...]:
    steady = line.windows.steady
    inside = iv.covered_within(spans, line.windows.start_ns[steady], line.windows.end_ns[steady])
    return tuple(inside.tolist())


def _spans(pieces: Pieces, chosen: Mask) -> Spans:
    start = pieces.start_ns[chosen]
    return iv.union(start, start + pieces.dur_ns[chosen])


def _input_wait(line: Timeline) -> PhaseFacts:
    """Return the time in which the device waited for input."""
    steady = line.windows.steady
    spans = line.ledger.idle_input if line.ledger else iv.NOTHING
    waits = iv.covered_within(spans, line.windows.start_ns[steady], line.windows.end_ns[steady])
    total = int(waits.sum())
    return PhaseFacts(name="input", busy_ns=total, own_ns=total, step_ns=tuple(waits.tolist()))


def _host_phases(line: Timeline, pieces: Pieces, phase: Kinds) -> tuple[PhaseFacts, ...]:
    found = {"input": _input_wait(line)}
    for name in PHASES[1:]:
        chosen = pieces.steady & (phase == _index(name))
        total = int(pieces.dur_ns[chosen].sum())
        steps = per_steady_step(line, pieces.step[chosen], pieces.dur_ns[chosen])
        found[name] = PhaseFacts(name=name, busy_ns=total, own_ns=total, step_ns=steps)
    return tuple(found[name] for name in PHASES if found[name].own_ns)

"""The edges that the training thread records, a stamp and a code each, and the times of a step from them."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any

from stepgrade.record.totals import Totals

# Codes of phases: from such an edge to the next the step is in that phase.
NONE = 0
AFTER_FORWARD = 1  # in no phase, but inside the caller of the model, such as an optimizer
INPUT = 2
H2D = 3
D2H = 4
FORWARD = 5
LOSS = 6
BACKWARD = 7
COMMUNICATION = 8
OPTIMIZER = 9
EVALUATION = 10
BACKWARD_DONE = 11  # not a phase: ends the layers whose input needs no gradient
GRADIENTS = 12
HOST = 13
UPDATED = 14  # not a phase: ends a step whose loop updated the weights itself
ROLLOUT = 15  # an agent acts: forward without gradients in training mode, on no batch of a loader
ENVIRONMENT = 16

PHASE_NAMES = {
    INPUT: "input",
    H2D: "h2d",
    D2H: "d2h",
    FORWARD: "forward",
    LOSS: "loss",
    BACKWARD: "backward",
    COMMUNICATION: "communication",
    OPTIMIZER: "optimizer",
    EVALUATION: "evaluation",
    GRADIENTS: "gradients",
    HOST: "host",
    ROLLOUT: "rollout",
    ENVIRONMENT: "environment",
}
# Named by the phases around them, and dropped if they are very short.
GAPS = frozenset({"gradients", "host", "environment"})
FIRST_FREE_PHASE = 17

# A layer's edge is LAYER_BASE + LAYER_WIDTH * layer + one of these.
LAYER_BASE = 4096
LAYER_WIDTH = 8
FWD_IN, FWD_OUT, RECOMPUTE_IN, RECOMPUTE_OUT, BWD_IN, BWD_OUT = range(6)

_DIRECTIONS = frozenset({FORWARD, BACKWARD, EVALUATION, ROLLOUT})
_CLOSED_BY = {FWD_IN: FWD_OUT, RECOMPUTE_IN: RECOMPUTE_OUT, BWD_IN: BWD_OUT}
# Names of time outside phases, by the main phases before and after it; a step starts after NONE.
_MAIN = frozenset({FORWARD, BACKWARD, OPTIMIZER, UPDATED, ROLLOUT})
_GAPS = {
    (NONE, FORWARD): HOST,
    (OPTIMIZER, FORWARD): HOST,
    (BACKWARD, FORWARD): HOST,
    (NONE, ROLLOUT): HOST,
    (OPTIMIZER, ROLLOUT): HOST,
    (ROLLOUT, ROLLOUT): ENVIRONMENT,
    (ROLLOUT, FORWARD): ENVIRONMENT,
    (FORWARD, FORWARD): FORWARD,
    (FORWARD, BACKWARD): LOSS,
    (BACKWARD, OPTIMIZER): GRADIENTS,
    (BACKWARD, UPDATED): OPTIMIZER,
}


def layer_code(layer: int, edge: int) -> int:
    """Return the code of an edge of a layer."""
    return LAYER_BASE + LAYER_WIDTH * layer + edge


class StepTimeline:
    """The edges of the current step, as stamp, code, stamp, code, …; there is always one current phase.

    A phase inside another one takes its time away from it, so phases never add up to more than the
    step. Phases that the user opens win over those that hooks find inside them.
    """

    def __init__(self, now: Callable[[], Any]) -> None:
        self.edges: list[Any] = []
        self.ended = 0  # steps
        self.now = now
        self.thread = 0  # the training thread, once it has stepped
        self.live = False
        self.current = NONE
        self.direction = NONE
        self._outer: list[tuple[int, int]] = []
        self._user_phases = 0

    def start(self) -> None:
        """Start the first step."""
        self.live = True
        self.restart_step()

    @property
    def is_elsewhere(self) -> bool:
        """Return whether this thread is neither the training thread nor one of its backward threads."""
        return self.thread not in (0, get_ident()) and self.direction != BACKWARD

    def enter(self, code: int) -> None:
        """Start a phase found by a hook; a forward inside backward is recomputation and stays backward."""
        if not self.live or self.is_elsewhere:
            return
        self._outer.append((self.current, self.direction))
        if code in _DIRECTIONS:
            if self.direction == BACKWARD:
                return
            self.direction = code
        if not self._user_phases:
            self._switch(code)

    def leave(self) -> None:
        """End the innermost phase; what follows a forward may be the loss."""
        if not self._outer or self.is_elsewhere:
            return  # the step ended meanwhile
        left = self.current
        current, self.direction = self._outer.pop()
        if left == current:
            return
        # Some optimizers call forward and backward from their step.
        self._switch(AFTER_FORWARD if left == FORWARD and current in (NONE, OPTIMIZER) else current)
        self.current = current

    def enter_user_phase(self, code: int) -> None:
        """Start a phase named by the user."""
        if not self.live or self.is_elsewhere:
            return
        self._outer.append((self.current, self.direction))
        self._user_phases += 1
        if code in _DIRECTIONS:
            self.direction = code
        self._switch(code)

    def leave_user_phase(self) -> None:
        """End a phase named by the user."""
        if self.is_elsewhere:
            return
        self._user_phases = max(0, self._user_phases - 1)
        self.leave()

    def mark(self, code: int) -> None:
        """Add an edge."""
        edges = self.edges
        edges += (self.now(), code)

    def span(self, start: Any, code: int) -> None:
        """Add a phase from `start` until now, without edges in between."""
        if self._user_phases or not self.live or self.is_elsewhere:
            return
        edges = self.edges
        edges += (start, code, self.now(), self.current)

    def drop_open_phases(self) -> None:
        """Drop phases left open by an exception; the user's own are still in their `with`."""
        if self._outer and not self._user_phases:
            self.current, self.direction = self._outer[0]
            self._outer.clear()

    def end_step(self) -> list[Any]:
        """Return the edges so far, closed by a stamp, and start the next step at that stamp.

        The list itself stays the same: hooks keep a reference to it.
        """
        stamp = self.now()
        self.ended += 1
        done = [*self.edges, stamp, NONE]
        self.edges.clear()
        self.edges += (stamp, self.current)
        return done

    def split_step(self, position: int) -> list[Any]:
        """Return the edges before an index as a step that ended there; the rest belongs to the next."""
        stamp = self.edges[position - 2]
        self.ended += 1
        done = [*self.edges[:position], stamp, NONE]
        self.edges[:position] = [stamp, NONE]
        return done

    def restart_step(self) -> None:
        """Drop the edges of the current step and restart it now."""
        self.edges.clear()
        self.edges += (self.now(), self.current)

    def stop(self) -> None:
        """Reset, so that hooks that outlive the recorder do nothing."""
        self.live = False
        self.edges.clear()
        self._outer.clear()
        self.current = self.direction = NONE
        self._user_phases = 0

    def _switch(self, code: int) -> None:
        self.current = code
        self.mark(code)


def fold_step(
    times_ns: list[int], codes: list[int], ends_by: dict[int, int | None], exposed_ns: int = 0
) -> Totals:
    """Return the times of one step from its edges: every nanosecond is in one phase or in none.

    `ends_by` maps a layer to the one whose backward begins where it ends; in the last `exposed_ns` of
    backward nothing was computed.
    """
    step = Totals()
    step.steps, step.wall_ns = 1, times_ns[-1] - times_ns[0]
    step.samples.add(step.wall_ns)
    phases_ns, layers = step.phases_ns, _Layers(step, ends_by)
    # A loop that updates its weights itself may work on plain tensors, whose forward no hook sees.
    gaps = _GAPS | {(NONE, BACKWARD): FORWARD} if UPDATED in codes else _GAPS
    current, since_ns = NONE, times_ns[0]
    last_main, open_ns = NONE, 0  # time outside phases since then, until the next main phase names it
    for time_ns, code in zip(times_ns, codes, strict=True):
        if code >= LAYER_BASE:
            layers.add_edge(time_ns, code - LAYER_BASE)
            continue
        if code == BACKWARD_DONE:
            layers.end_backward(time_ns - exposed_ns)
            continue
        if current in (NONE, AFTER_FORWARD):
            open_ns += time_ns - since_ns
        else:
            phases_ns[current] += time_ns - since_ns
        # With `zero_grad` before forward or backward, the gap ends with those.
        if code in _MAIN and (code != OPTIMIZER or last_main == BACKWARD):
            if open_ns and (last_main, code) in gaps:
                phases_ns[gaps[last_main, code]] += open_ns
            last_main, open_ns = code, 0
        current, since_ns = NONE if code == UPDATED else code, time_ns
    if open_ns and last_main == OPTIMIZER and FORWARD in phases_ns:
        phases_ns[HOST] += open_ns
    return step


class _Layers:
    """Layers between their edges; recomputation is not counted as backward."""

    def __init__(self, step: Totals, ends_by: dict[int, int | None]) -> None:
        self._totals_ns = {
            FWD_OUT: step.forward_ns,
            BWD_OUT: step.backward_ns,
            RECOMPUTE_OUT: step.recompute_ns,
        }
        self._since: dict[int, dict[int, int]] = {edge: {} for edge in _CLOSED_BY.values()}
        self._backward = self._since[BWD_OUT]
        self._ends_by = ends_by

    def add_edge(self, time_ns: int, code: int) -> None:
        layer, edge = divmod(code, LAYER_WIDTH)
        closing = _CLOSED_BY.get(edge)
        if closing is None:
            self._close(layer, edge, time_ns)
            return
        if edge == BWD_IN and self._backward:
            for other in [open_ for open_ in self._backward if self._ends_by.get(open_) == layer]:
                self._close(other, BWD_OUT, time_ns)
        self._since[closing][layer] = time_ns

    def end_backward(self, time_ns: int) -> None:
        """Close the layers whose input needs no gradient."""
        for layer, since_ns in list(self._backward.items()):
            self._close(layer, BWD_OUT, max(since_ns, time_ns))

    def _close(self, layer: int, edge: int, time_ns: int) -> None:
        started = self._since[edge].pop(layer, None)
        if started is None:
            return
        self._totals_ns[edge][layer] += time_ns - started
        if edge == RECOMPUTE_OUT:
            for other in self._backward:
                self._backward[other] += time_ns - started

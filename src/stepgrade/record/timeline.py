"""The edges that the training thread records: a stamp and a code each, nothing else."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from typing import Any

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
}
# Named by the phases around them, and dropped if they are very short.
GAPS = frozenset({"gradients", "host"})
FIRST_FREE_PHASE = 16

# A layer's edge is LAYER_BASE + LAYER_WIDTH * layer + one of these.
LAYER_BASE = 4096
LAYER_WIDTH = 8
FWD_IN, FWD_OUT, RECOMPUTE_IN, RECOMPUTE_OUT, BWD_IN, BWD_OUT = range(6)

_DIRECTIONS = frozenset({FORWARD, BACKWARD, EVALUATION})


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

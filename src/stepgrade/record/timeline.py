"""What the training thread appends while it runs: stamps and codes, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepgrade.record.codes import AFTER_FORWARD, BACKWARD, EVALUATION, FORWARD, NONE, OPTIMIZER

_DIRECTIONS = frozenset({FORWARD, BACKWARD, EVALUATION})


class Timeline:
    """The edges of the step at hand, as stamp, code, stamp, code, …; at any time one phase is current.

    A phase inside another one takes its time away from it, so phases never add up to more than the
    step. Phases that the user opens win over those that hooks find inside them.
    """

    def __init__(self, now: Callable[[], Any]) -> None:
        self.edges: list[Any] = []
        self.now = now
        self.live = False
        self.current = NONE
        self.direction = NONE
        self._outer: list[tuple[int, int]] = []
        self._by_hand = 0

    def start(self) -> None:
        """Begin the first step."""
        self.live = True
        self.drop()

    def enter(self, code: int) -> None:
        """Begin a phase that a hook found; a forward inside backward is recomputation, and stays there."""
        if not self.live:
            return
        self._outer.append((self.current, self.direction))
        if code in _DIRECTIONS:
            if self.direction == BACKWARD:
                return
            self.direction = code
        if not self._by_hand:
            self._switch(code)

    def leave(self) -> None:
        """End the phase that began last; what follows a forward may be the loss."""
        if not self._outer:
            return  # the step ended in between
        left = self.current
        current, self.direction = self._outer.pop()
        if left == current:
            return
        # Some optimizers call forward and backward from their step.
        self._switch(AFTER_FORWARD if left == FORWARD and current in (NONE, OPTIMIZER) else current)
        self.current = current

    def enter_by_hand(self, code: int) -> None:
        """Begin a phase that the user named."""
        if not self.live:
            return
        self._outer.append((self.current, self.direction))
        self._by_hand += 1
        if code in _DIRECTIONS:
            self.direction = code
        self._switch(code)

    def leave_by_hand(self) -> None:
        """End the user's phase."""
        self._by_hand = max(0, self._by_hand - 1)
        self.leave()

    def mark(self, code: int) -> None:
        """Add one edge."""
        edges = self.edges
        edges += (self.now(), code)

    def span(self, start: Any, code: int) -> None:
        """Add a phase that began at `start` and ends now; nothing was marked since."""
        if self._by_hand or not self.live:
            return
        edges = self.edges
        edges += (start, code, self.now(), self.current)

    def forget_open(self) -> None:
        """Drop phases that an exception left open; the user's own are still in their `with`."""
        if self._outer and not self._by_hand:
            self.current, self.direction = self._outer[0]
            self._outer.clear()

    def cut(self) -> list[Any]:
        """Return the edges so far, closed by a stamp, and begin the next step at that stamp.

        The list itself stays the same: hooks hold on to it.
        """
        stamp = self.now()
        done = [*self.edges, stamp, NONE]
        self.edges.clear()
        self.edges += (stamp, self.current)
        return done

    def drop(self) -> None:
        """Forget the step at hand and begin a new one now."""
        self.edges.clear()
        self.edges += (self.now(), self.current)

    def stop(self) -> None:
        """Be current in nothing: what outlives the recorder marks nothing more."""
        self.live = False
        self.edges.clear()
        self._outer.clear()
        self.current = self.direction = NONE
        self._by_hand = 0

    def _switch(self, code: int) -> None:
        self.current = code
        self.mark(code)

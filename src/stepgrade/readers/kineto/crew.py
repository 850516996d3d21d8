"""Who reads: this process alone, or with helpers when the file is large enough to pay for them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol

from stepgrade.readers.kineto.lane import Lane
from stepgrade.readers.kineto.split import Chunk, Slots


class HelperLost(Exception):
    """A helper went away or has read past the end: everything must be read again without it."""


class Reading(Protocol):
    """A helper, as far as the reader knows it."""

    def offer(self, chunk: Chunk, slots: Slots) -> bool:
        """Hand a chunk over if the helper is free to take it."""

    def finish(self, lane: Lane) -> None:
        """Add all that the helper has read to `lane`."""


class Crew:
    """The helpers of one reading, none or some, and the slots that all share."""

    def __init__(self, slots: Slots, helpers: Sequence[Reading]) -> None:
        self.slots = slots
        self._helpers = helpers

    @classmethod
    def of(cls, lanes: int, stack: ExitStack) -> Crew:
        """Start what `lanes` readers need beside ourselves; `stack` ends it."""
        if lanes < 2:
            return cls(Slots.private(), ())
        # Small traces should not wait for the modules that only large ones need.
        from stepgrade.readers.kineto.helper import start  # noqa: PLC0415

        return cls(*start(lanes, stack))

    def offer(self, chunk: Chunk) -> bool:
        """Hand a chunk to a helper that is free; tell whether one was."""
        return any(helper.offer(chunk, self.slots) for helper in self._helpers)

    def finish(self, lane: Lane) -> None:
        """Add all that the helpers have read to `lane`."""
        for helper in self._helpers:
            helper.finish(lane)

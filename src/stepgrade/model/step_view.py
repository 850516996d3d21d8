"""One step drawn to be read: what each stream and thread did, gathered to what a screen can show."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

LaneKind = Literal["ledger", "phases", "stream", "thread"]


class Lane(Struct, frozen=True, kw_only=True):
    """What one stream or thread did, or what its time went into; slices are in order and do not overlap."""

    kind: LaneKind
    name: str
    start_ns: tuple[int, ...]  # from the start of the step
    dur_ns: tuple[int, ...]
    label: tuple[str, ...]  # the longest event of the slice, an account or a phase
    look: tuple[str, ...]  # the class of the work, the account or the phase
    count: tuple[int, ...]  # of events that the slice stands for


class StepWait(Struct, frozen=True, kw_only=True):
    """A wait for the last rank to arrive at a collective."""

    start_ns: int  # from the start of the step
    dur_ns: int
    late: int  # the rank that was waited for
    name: str  # of the collective


class StepView(Struct, frozen=True, kw_only=True):
    """One step of one rank; `at_ns` is when it begins, on a clock that the ranks share where one is known."""

    rank: int | None
    number: int
    at_ns: int
    dur_ns: int
    lanes: tuple[Lane, ...]
    waits: tuple[StepWait, ...] = ()  # the longest

"""Allocations and frees of one device in columns, as a memory snapshot or a timeline records them."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from stepgrade.model.events import Floats, Ids, Kinds, Longs
from stepgrade.model.memory import Holder, OutOfMemory
from stepgrade.model.notes import Note

# How many values of a weight's size an optimizer keeps for each weight.
STATES_PER_WEIGHT = dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "Adamax"), 2)
STATES_PER_WEIGHT |= dict.fromkeys(("Adagrad", "RMSprop"), 1)
IN_FORWARD, IN_BACKWARD, IN_OPTIMIZER, IN_ZERO_GRAD, IN_SETUP = range(5)


class Allocations(NamedTuple):
    """Allocations and frees of one device, in order."""

    time_ns: Longs  # NONE where the source has no times
    delta: Longs  # bytes; less than 0 for a free
    address: Longs
    phase: Kinds  # IN_FORWARD, IN_BACKWARD, …
    tag: Ids  # who: an index into `makers`
    makers: tuple[Holder, ...]  # of 0 bytes
    base_bytes: int  # allocated before the first one
    states_per_weight: int  # how many states of its size the optimizer has for each weight
    reserved: Longs  # by the framework after each event; NONE where it is not known


class MemoryTimeline(Struct, frozen=True, eq=False, kw_only=True):
    """What one device held over time, already told apart: bytes of each category at the same moments."""

    file: str
    format: str  # the reader's name
    at_ms: Floats  # from the first moment
    levels: dict[str, Floats]


class MemoryRecording(Struct, frozen=True, eq=False, kw_only=True):
    """The memory of one device, recorded without the times of steps."""

    file: str
    format: str  # the reader's name
    producer: str
    events: Allocations
    has_phases: bool  # which pass an event is in is known
    held_bytes: int  # when the recording ends
    reserved_bytes: int
    largest_free_bytes: int  # in one piece, of what is reserved
    step_ends: tuple[int, ...] = ()  # numbers of the events that the optimizer's steps ended before
    retries: int | None = None
    failed: OutOfMemory | None = None
    contents: dict[str, str] = {}
    notes: tuple[Note, ...] = ()

"""A whole trace as tracks of slices, for a timeline tool: what one rank did, and where its time went."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.model.events import Ids, Longs, Wholes
from stepgrade.model.step_view import StepWait

TrackKind = Literal["steps", "ledger", "phases", "stream", "thread"]


class Track(Struct, frozen=True, eq=False, kw_only=True):
    """Slices that lie within each other or apart, in order of start, the outer ones first.

    Texts are places in `RankTracks.strings`; numbers that are not known are NONE.
    """

    kind: TrackKind
    name: str
    start_ns: Longs
    dur_ns: Wholes
    label: Ids
    category: Ids | None = None  # the class of work, or whether a step counts
    operation: Ids | None = None  # that launched it
    step: Longs | None = None
    launched: Longs | None = None  # a number that a launch and what it launched share


class Counter(Struct, frozen=True, eq=False, kw_only=True):
    """Bytes over time."""

    name: str
    at_ns: Longs
    value: Longs


class RankTracks(Struct, frozen=True, eq=False, kw_only=True):
    """One rank's trace as tracks; times count from `base_ns`, which is 0 where no clock is known."""

    file: str
    file_zero_ns: int  # what times count from, by the clock of the file itself
    base_ns: int
    strings: list[str]
    tracks: tuple[Track, ...]
    counters: tuple[Counter, ...] = ()
    longest: dict[str, tuple[int, int]] = {}  # of each account in a typical step: start and duration
    typical_step: tuple[int, int] | None = None


class CollectiveWait(StepWait, frozen=True, kw_only=True):
    """Such a wait of one rank, on the clock that ranks share."""

    rank: int
    until_ns: int  # when the last one arrives


class RanksTogether(Struct, frozen=True, kw_only=True):
    """The ranks of a run, in the order in which they were read, on one clock."""

    ranks: tuple[int, ...]
    offsets_ns: tuple[int, ...]  # by how much each rank's clock is ahead
    basis: str  # of what is common to the clocks, in words
    waits: tuple[CollectiveWait, ...] = ()

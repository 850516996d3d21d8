"""Why a distributed run hangs: what each rank's flight recorder holds, and what the ranks together show."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

HangKind = Literal["missing_rank", "mismatch", "deadlock", "unfinished", "one_rank", "none"]


class FlightCall(Struct, frozen=True, kw_only=True):
    """One call of a collective by one rank; `peers` are the sender and the receiver of a message."""

    group: str
    sequence: int  # among the calls of its group
    name: str  # all_reduce, all_gather, send, …
    input_sizes: str = ""  # as text: [[4, 8]]
    output_sizes: str = ""
    dtype: str = ""
    state: str = "scheduled"  # scheduled, started, completed
    where: str | None = None  # "file.py:line" of the user's own code
    peers: tuple[int, int] | None = None  # within the group


class FlightRecord(Struct, frozen=True, kw_only=True):
    """The last collectives of one rank, oldest first, as PyTorch's Flight Recorder dumps them."""

    file: str
    rank: int | None
    groups: dict[str, tuple[int, ...]]  # the ranks of each group, where the dump lists them
    descriptions: dict[str, str]  # of groups: default_pg, mesh_tp, …
    calls: tuple[FlightCall, ...]
    is_whole: bool  # the first call of the process is still in it


class RankCall(Struct, frozen=True, kw_only=True):
    """The last collective that ranks have called: those that called the same one are one row."""

    ranks: tuple[int, ...]
    group: str | None = None
    sequence: int | None = None
    name: str | None = None
    state: str | None = None
    where: str | None = None


class Difference(Struct, frozen=True, kw_only=True):
    """What ranks that differ at one collective gave: its kind, sizes or type."""

    ranks: tuple[int, ...]
    value: str
    where: str | None = None


class Hang(Struct, frozen=True, kw_only=True):
    """What the ranks' flight recorders show together; the collective is the one that the others wait in."""

    kind: HangKind
    group: str | None = None
    sequence: int | None = None
    name: str | None = None
    where: str | None = None  # of the ranks that wait
    waiting: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()  # ranks that never reached it
    without_dump: tuple[int, ...] = ()  # members of its group that left no dump
    last_calls: tuple[RankCall, ...] = ()  # of all ranks
    differ_in: str | None = None  # kind, sizes, type
    differences: tuple[Difference, ...] = ()
    circle: tuple[RankCall, ...] = ()  # ranks that wait for each other

"""What many ranks tell together, however many they are: in so many figures, not in a row for each."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from stepgrade.model.notes import Note
from stepgrade.units import show_share


class RankSpread(Struct, frozen=True, kw_only=True):
    """One figure over all ranks, in milliseconds of a step, and who is at both ends."""

    figure: str  # step, busy (all of a step but waiting for and moving data), waiting
    least_ms: float
    lower_ms: float  # a quarter of the ranks is below
    median_ms: float
    upper_ms: float
    most_ms: float
    least_rank: int
    most_rank: int


class RankGroups(Struct, frozen=True, kw_only=True):
    """The process groups of one parallel dimension."""

    dimension: str  # data, tensor, pipeline, expert
    groups: int
    size: int  # ranks of each


class SlowPart(Struct, frozen=True, kw_only=True):
    """Ranks that are slower than the others, or a group whose data moves slower."""

    kind: str  # rank, neighbours (ranks), host, hosts (side by side), stage, link, switch (of hosts)
    name: str
    ranks: str
    slower: float  # than the others, as a share of theirs
    always: float | None = None  # share of the steps in which it is so


class ManyRanks(Struct, frozen=True, kw_only=True):
    """The ranks of a run as a whole."""

    ranks: int
    hosts: int | None  # None where devices of a host are not known
    per_host: int | None
    spreads: tuple[RankSpread, ...] = ()
    groups: tuple[RankGroups, ...] = ()
    slow: tuple[SlowPart, ...] = ()
    wandering: bool = False  # in nearly every step some rank is slow, and hardly ever the same


def notes_of(many: ManyRanks) -> Iterator[Note]:
    """Yield what is slow, in words."""
    for part in many.slow:
        times = "" if part.always is None else f", in {show_share(part.always)} of the steps"
        share = show_share(part.slower)
        if part.kind == "link":
            text = f"{part.name} takes {share} longer than in the other groups of its size."
        elif part.kind == "switch":
            text = (
                f"data between {part.name} takes {share} longer than elsewhere: they may share a slow switch."
            )
        elif part.kind in ("hosts", "neighbours"):
            shared = (
                "a switch, a rack or its power" if part.kind == "hosts" else "a bus, or a processor's memory"
            )
            text = (
                f"{part.name} compute {share} longer than the quicker ranks{times}: they may share {shared}."
            )
        else:
            text = f"{part.name} computes {share} longer than the quicker ranks{times}."
        yield Note(f"slow_{part.kind}", text[0].upper() + text[1:])
    if many.wandering:
        text = (
            "In nearly every step some rank is slow, and hardly ever the same: no host or rank is to blame."
        )
        yield Note("slow_in_turns", text)

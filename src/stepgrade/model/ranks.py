"""What several ranks show together: their collectives, pipeline and experts, slow ranks, and hangs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from stepgrade.model.notes import Note
from stepgrade.statistics import mean, median
from stepgrade.units import show_share


class CollectiveRow(Struct, frozen=True, kw_only=True):
    """The calls of a collective with one message size in one process group, in one step of the mean rank.

    Rates are over the time in which data moved: from the last arrival on where several ranks are known, else
    over all of it, and then they are lower bounds.
    """

    name: str
    group: str
    groups: int = 1  # that this is the mean of: many of one name and size that do the same
    group_size: int | None = None
    nodes: str | None = None  # one, several
    bytes: float | None = None  # of the larger side of one call
    calls: float = 0.0
    ms: float = 0.0
    wait_ms: float | None = None  # until the last rank has arrived; None where one rank alone is known
    algbw_gb_s: float | None = None
    busbw_gb_s: float | None = None
    link_share: float | None = None  # of the rate of the device's link, by busbw
    at_least: bool = False
    ranks: str = ""  # of the group, as the trace lists them
    moving_ms: float | None = None  # of the last rank to arrive: it waits for nobody


class CollectiveFit(Struct, frozen=True, kw_only=True):
    """A line through the sizes of a collective: what a call takes whatever its size, and the rate beyond."""

    name: str
    group: str
    latency_us: float
    gb_s: float
    sizes: int


class StageRow(Struct, frozen=True, kw_only=True):
    """One stage of a pipeline; waiting for a peer is a part of the bubble, what a message takes is not."""

    rank: int
    busy_ms: float
    bubble_ms: float
    transfer_ms: float
    wait_ms: float  # in receives, until the peer sent
    bubble_share: float


class PipelineUse(Struct, frozen=True, kw_only=True):
    """The stages of a pipeline in order, their mean bubble, and the one that its schedule cannot avoid."""

    stages: tuple[StageRow, ...]
    micro_batches: float  # of a step, times the parts of a stage where these are interleaved
    bubble_share: float
    ideal_bubble_share: float

    def slow_stage(self, ratio: float) -> StageRow | None:
        """Return the slowest stage if it computes this many times as long as the median of the others."""
        slowest = max(self.stages, key=lambda stage: (stage.busy_ms, -stage.rank))
        return slowest if slowest.busy_ms >= ratio * self.usual_ms(slowest) else None

    def usual_ms(self, but: StageRow) -> float:
        """Return how long the median of the other stages computes."""
        return median([stage.busy_ms for stage in self.stages if stage is not but])

    @classmethod
    def of(cls, stages: Sequence[StageRow], micro_batches: float) -> PipelineUse:
        """Return the pipeline of these stages; filling and draining it takes (p - 1) / (m v + p - 1)."""
        waits = len(stages) - 1
        return cls(
            stages=tuple(stages),
            micro_batches=micro_batches,
            bubble_share=mean([stage.bubble_share for stage in stages]),
            ideal_bubble_share=waits / (micro_batches + waits) if micro_batches else 0.0,
        )


class ExpertUse(Struct, frozen=True, kw_only=True):
    """All-to-alls of one process group: what each rank receives, and what waiting for the busiest costs."""

    group: str
    calls: float
    ranks: tuple[int, ...]
    received_bytes: tuple[float, ...]  # by each of the ranks
    max_over_mean: float | None  # what the busiest rank receives; None if nobody gets anything
    busiest_rank: int  # of several the first
    wait_ms: float


class Communication(Struct, frozen=True, kw_only=True):
    """All that is known of a run's communication."""

    collectives: tuple[CollectiveRow, ...] = ()
    pipeline: PipelineUse | None = None
    experts: tuple[ExpertUse, ...] = ()
    node_devices: int | None = None  # of one machine, as the trace lists them


class RankMessages(Struct, frozen=True, kw_only=True):
    """What one rank receives from others: until they sent, and while it is on its way; whom it sends to."""

    rank: int
    wait_ns: int
    transfer_ns: int
    sent: dict[int, int]  # how many messages went to which rank


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
    longer = " longer outside of communication than the quicker ranks"
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
            text = f"{part.name} spend {share}{longer}{times}: they may share {shared}."
        else:
            text = f"{part.name} spends {share}{longer}{times}."
        yield Note(f"slow_{part.kind}", text[0].upper() + text[1:])
    if many.wandering:
        text = (
            "In nearly every step some rank is slow, and hardly ever the same: no host or rank is to blame."
        )
        yield Note("slow_in_turns", text)


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

"""What ranks tell each other: collectives by message size, the stages of a pipeline, exchanges of tokens.

Times are totals over the profiled steps, of the mean rank where several are known.
"""

from __future__ import annotations

from msgspec import Struct


class CollectiveTime(Struct, frozen=True, kw_only=True):
    """The calls of one collective in one process group with one message size."""

    name: str
    group: str
    calls: float
    total_ms: float
    group_size: int | None = None
    ranks: str = ""  # of the group, as the trace lists them
    bytes: float | None = None  # of the larger side of one call
    wait_ms: float | None = None  # until the last rank has arrived; None where one rank alone is known
    moving_ms: float | None = None  # of the last rank to arrive: it waits for nobody


class StageTime(Struct, frozen=True, kw_only=True):
    """One stage of a pipeline; waiting for a peer is a part of the bubble, what a message takes is not."""

    rank: int
    busy_ms: float
    transfer_ms: float
    wait_ms: float  # in receives, until the peer sent
    bubble_ms: float


class Pipeline(Struct, frozen=True, kw_only=True):
    """The stages of a pipeline in order, and the bubble that its schedule cannot avoid."""

    stages: tuple[StageTime, ...]
    micro_batches: float  # of a step, times the parts of a stage where these are interleaved

    @property
    def ideal_bubble(self) -> float:
        """Return the share of the step that fills and drains the pipeline: (p - 1) / (m v + p - 1)."""
        waits = len(self.stages) - 1
        return waits / (self.micro_batches + waits) if self.micro_batches else 0.0


class Exchange(Struct, frozen=True, kw_only=True):
    """All-to-alls of one process group: what each rank receives, and what waiting for the busiest costs."""

    group: str
    calls: float
    ranks: tuple[int, ...]
    received_bytes: tuple[float, ...]  # of all calls, by each of the ranks
    wait_ms: float

    @property
    def max_over_mean(self) -> float | None:
        """Return what the busiest rank receives over what the mean one does; None if nobody gets anything."""
        whole = sum(self.received_bytes)
        return max(self.received_bytes) * len(self.received_bytes) / whole if whole else None

    @property
    def busiest_rank(self) -> int:
        """Return the rank that receives most, of several the first."""
        return self.ranks[self.received_bytes.index(max(self.received_bytes))]


class Communication(Struct, frozen=True, kw_only=True):
    """All that is known of a run's communication."""

    collectives: tuple[CollectiveTime, ...] = ()
    pipeline: Pipeline | None = None
    exchanges: tuple[Exchange, ...] = ()
    node_devices: int | None = None  # of one machine, as the trace lists them


class RankMessages(Struct, frozen=True, kw_only=True):
    """What one rank receives from others: until they sent, and while it is on its way; whom it sends to."""

    rank: int
    wait_ns: int
    transfer_ns: int
    sent: dict[int, int]  # how many messages went to which rank

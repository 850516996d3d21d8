"""What ranks exchange in one step: collectives by message size, the stages of a pipeline, tokens of experts.

Times are those of the mean rank where several are known.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepgrade.statistics import mean


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

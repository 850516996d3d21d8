"""Every threshold that a judgement rests on, with its source, in one place."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """Thresholds; shares are 0 to 1."""

    # The reference: Bottleneck::classify and its recommendations.
    transfer_share: float = 0.30
    launch_share: float = 0.40
    launch_advice_share: float = 0.30
    near_ceiling: float = 0.50
    # Ours: input, communication and host waits count as transfers do.
    waiting_share: float = 0.30
    # Ours: emitters round phases to 0.01 ms, so a few tenths of a percent too much are rounding.
    overlap_tolerance: float = 0.005
    # Ours: a producer's totals and averages describe the same steps; more apart than this, one is wrong.
    average_tolerance: float = 0.05
    # Iglewicz and Hoaglin's modified z-score uses 3.5; a layer must also cost a quarter more than the median.
    outlier_score: float = 3.5
    outlier_ratio: float = 1.25
    outlier_least_layers: int = 4


DEFAULT_LIMITS = Limits()

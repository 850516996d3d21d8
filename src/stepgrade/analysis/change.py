"""What became of a metric between two runs: the shapes that a comparison fills in."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Outcome = Literal["regressed", "improved", "no change", "cannot tell"]
NoiseBasis = Literal["measured", "repeated", "given", "assumed"]


class Noise(Struct, frozen=True, kw_only=True):
    """How much identical runs differ: the standard deviation as a share, and how it is known.

    `freedom` says how well it is known (runs less one); None is a figure taken as it is.
    """

    share: float
    basis: NoiseBasis
    freedom: int | None = None


class MetricChange(Struct, frozen=True, kw_only=True):
    """One metric before and now; `change` is a share of what was before.

    From `low` to `high` it surely is (99.5 %), from `near_low` to `near_high` probably (90 %).
    """

    metric: str
    outcome: Outcome
    before: float | None = None
    now: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    near_low: float | None = None
    near_high: float | None = None
    p_value: float | None = None
    noise: Noise | None = None
    before_runs: int = 0
    now_runs: int = 0
    why: str = ""
    more: str = ""  # what would tell, when this does not


class Shift(Struct, frozen=True, kw_only=True):
    """One part of a step that explains a change: before and now, in milliseconds unless `unit` says else."""

    kind: Literal[
        "ledger", "phase", "operation", "new operation", "gone operation", "calls", "launches", "overlap"
    ]
    name: str
    before: float | None
    now: float | None
    unit: str = "ms"

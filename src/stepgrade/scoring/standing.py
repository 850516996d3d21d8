"""Where a run stands: its rate under each ceiling, its ranks side by side, its long tails summed up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from stepgrade.hardware.ceilings import lowest
from stepgrade.model import Ledger
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.operations import Operation
from stepgrade.model.profile import RankRow
from stepgrade.model.scorecard import Scorecard


class Standing(Struct, frozen=True, kw_only=True):
    """The run's share of one ceiling; None when the run has no rate."""

    ceiling: Ceiling
    share: float | None
    counts: bool  # the grade is taken against this one


class Tail(Struct, frozen=True, kw_only=True):
    """What is left out of a long list."""

    count: int
    ms: float
    share: float | None


class RankGroup(Struct, frozen=True, kw_only=True):
    """Ranks that follow each other: the value among them that matters most, and whose it is."""

    first: int
    last: int
    value: float
    rank: int


def standings(card: Scorecard) -> tuple[Standing, ...]:
    """Return the run's share of every ceiling, the lowest ceiling first."""
    roof = lowest(card.ceilings)
    rate = card.efficiency * roof.tok_s if roof and card.efficiency is not None and card.throughput else None
    ordered = sorted(card.ceilings, key=lambda ceiling: ceiling.tok_s)
    return tuple(
        Standing(
            ceiling=ceiling,
            share=None if rate is None else rate / ceiling.tok_s,
            counts=ceiling is roof,
        )
        for ceiling in ordered
    )


def tail_of(operations: Sequence[Operation], shown: int) -> Tail | None:
    """Sum up the operations after the first `shown`; None when there are none."""
    rest = operations[shown:]
    if not rest:
        return None
    shares = [op.share for op in rest if op.share is not None]
    return Tail(count=len(rest), ms=sum(op.ms or 0.0 for op in rest), share=sum(shares) if shares else None)


def grouped(
    ranks: Sequence[RankRow],
    figure: Callable[[RankRow], float | None],
    most: int,
    *,
    least_counts: bool = False,
) -> tuple[RankGroup, ...]:
    """Return the greatest (or the least) value of neighbouring ranks, in at most `most` groups."""
    size = max(1, -(-len(ranks) // most))
    sign = -1.0 if least_counts else 1.0
    groups = []
    for start in range(0, len(ranks), size):
        near = ranks[start : start + size]
        known = [(value, row.rank) for row in near if (value := figure(row)) is not None]
        if known:
            value, rank = max(known, key=lambda pair: (sign * pair[0], -pair[1]))
            groups.append(RankGroup(first=near[0].rank, last=near[-1].rank, value=value, rank=rank))
    return tuple(groups)


def waiting_share(ledger: Ledger | None) -> float | None:
    """Return the share of a step in which the device does not compute."""
    return None if ledger is None or ledger.compute is None else max(0.0, 1.0 - ledger.compute)

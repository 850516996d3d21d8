"""Figures that reports draw from a card: the roofline, the spread of steps, ceilings and ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from stepgrade.hardware.ceilings import lowest
from stepgrade.model import Ledger
from stepgrade.model.ceiling import Ceiling, Roof
from stepgrade.model.operations import Operation
from stepgrade.model.profile import RankRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.scoring.step_times import STEADY
from stepgrade.statistics import quantile


class RoofPoint(Struct, frozen=True, kw_only=True):
    """One operation, or the whole run, under the roofs."""

    name: str
    kind: str | None
    ms: float
    flops_per_byte: float
    flops_s: float
    roof_share: float | None  # of what the stated roofs allow at this many FLOPs per byte
    limit: str | None  # the roof above it: compute or memory


class Roofline(Struct, frozen=True, kw_only=True):
    """The operations whose FLOPs and bytes are known, longest first, and the run as a whole."""

    roofs: tuple[Roof, ...]
    points: tuple[RoofPoint, ...]
    run: RoofPoint | None
    known_share: float | None  # of the operations' time, how much has FLOPs and bytes known
    ridge: float | None  # FLOPs per byte where the stated roofs meet


def roofline_of(card: Scorecard) -> Roofline | None:
    """Place the operations of a card under its roofs; None when no operation's FLOPs and bytes are known."""
    known = [op for op in card.operations if op.ms and op.flops and op.bytes]
    if not known:
        return None
    compute, memory = (
        next((roof.per_s for roof in card.roofs if roof.kind == kind and roof.basis != "measured"), None)
        for kind in ("compute", "memory")
    )

    run = None
    if card.step_time_ms:
        flops, moved = sum(op.flops or 0.0 for op in known), sum(op.bytes or 0.0 for op in known)
        density, flops_s = flops / moved, flops / card.step_time_ms * 1000.0
        allowed = min(compute, memory * density) if compute and memory else None
        run = RoofPoint(
            name="the whole step",
            kind=None,
            ms=card.step_time_ms,
            flops_per_byte=density,
            flops_s=flops_s,
            roof_share=flops_s / allowed if allowed else None,
            limit=None if allowed is None else "compute" if allowed == compute else "memory",
        )
    whole_ms = sum(op.ms or 0.0 for op in card.operations)
    return Roofline(
        roofs=card.roofs,
        points=tuple(
            RoofPoint(
                name=op.name,
                kind=op.kind,
                ms=op.ms or 0.0,
                flops_per_byte=(op.flops or 0.0) / (op.bytes or 1.0),
                flops_s=op.flops_per_s or (op.flops or 0.0) / (op.ms or 1.0) * 1000.0,
                roof_share=op.roof_share,
                limit=op.roof,
            )
            for op in known
        ),
        run=run,
        known_share=sum(op.ms or 0.0 for op in known) / whole_ms if whole_ms else None,
        ridge=compute / memory if compute and memory else None,
    )


_MOST_BINS = 40


class Bin(Struct, frozen=True, kw_only=True):
    """How many samples lie from `low_ms` to `high_ms`."""

    low_ms: float
    high_ms: float
    count: int


class Stretch(Struct, frozen=True, kw_only=True):
    """Some steps that follow each other; `marks` are those that any of them carries."""

    first: int
    last: int
    low_ms: float
    median_ms: float
    high_ms: float
    mark: str


def histogram(samples_ms: tuple[float, ...]) -> tuple[Bin, ...]:
    """Return equal bins from the least to the greatest sample, as wide as Freedman and Diaconis advise."""
    low, high = min(samples_ms), max(samples_ms)
    if not high > low:
        return (Bin(low_ms=low, high_ms=high, count=len(samples_ms)),)
    ordered = sorted(samples_ms)
    middle_half = quantile(ordered, 0.75) - quantile(ordered, 0.25)
    width = 2.0 * middle_half / len(samples_ms) ** (1 / 3)
    count = min(_MOST_BINS, max(5, round((high - low) / width))) if width > 0.0 else 5
    width = (high - low) / count
    counts = [0] * count
    for ms in samples_ms:
        counts[min(count - 1, int((ms - low) / width))] += 1
    return tuple(
        Bin(low_ms=low + index * width, high_ms=low + (index + 1) * width, count=found)
        for index, found in enumerate(counts)
    )


def stretches(samples_ms: tuple[float, ...], marks: tuple[str, ...], most: int) -> tuple[Stretch, ...]:
    """Return the run in at most `most` stretches of equal length; one step each where they are enough."""
    size = max(1, -(-len(samples_ms) // most))
    found = []
    for first in range(0, len(samples_ms), size):
        part = samples_ms[first : first + size]
        odd = [mark for mark in marks[first : first + size] if mark != STEADY]
        found.append(
            Stretch(
                first=first,
                last=first + len(part) - 1,
                low_ms=min(part),
                median_ms=quantile(sorted(part), 0.5),
                high_ms=max(part),
                mark=odd[0] if odd else STEADY,
            )
        )
    return tuple(found)


class Standing(Struct, frozen=True, kw_only=True):
    """The run's share of one ceiling; None when the run has no rate."""

    ceiling: Ceiling
    share: float | None
    counts: bool  # the grade is taken against this one
    devices: int | None  # that share the run's throughput; a ceiling is of one


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
            devices=card.device.count if card.device else None,
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

"""The rule that the error bands come from, and how well it foretells rows that it did not see.

Of the rows of a kind one in 40 may lie above the band, to the nearest row, and one in 40 below: a kind of fewer
than 20 rows has none outside. Widths are rounded up (whole percents; steps of 5 where only the passing part is
fitted) and never fall below a least; where a single source measured the kind, they are a quarter wider, since rows
of one source err alike. Sequences of varying length take no part: the allocator decides there.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from stepgrade.hardware.memory.need import BANDS, Band, kinds_of, verdict_of
from tests.hardware.published_memory import Case, held_in, predict

ROWS_PER_ROW_OUTSIDE = 40
LEAST_ABOVE = 0.10
WIDER_FOR_ONE_SOURCE = 1.25
LEAST_BELOW = {"lora": 0.10, "qlora": 0.10}
LEAST_BELOW_FULL = 0.04
ADAPTERS = ("lora", "qlora")


def bands_of(cases: Iterable[Case]) -> dict[str, Band]:
    """Return each kind's band as these rows have it; a kind that they do not have gets the widest of them."""
    above: dict[str, list[float]] = {}
    below: dict[str, list[float]] = {}
    sources: dict[str, set[str]] = {}
    for case in cases:
        if case.measured is None or case.plan.lengths != "fixed":
            continue
        for kind in kinds_of(case.shape, case.plan):
            above.setdefault(kind, []).append(share_above(case, kind))
            below.setdefault(kind, []).append(1 - case.measured / held_in(case).allocated)
            sources.setdefault(kind, set()).add(case.row["source"])
    found = {}
    for kind, base in BANDS.items():
        if kind not in above:
            continue
        step = 0.05 if kind in ADAPTERS else 0.01
        wide = max(LEAST_ABOVE, allowed(above[kind]))
        wide = rounded_up(wide * (WIDER_FOR_ONE_SOURCE if len(sources[kind]) == 1 else 1.0), step)
        least = LEAST_BELOW.get(kind, LEAST_BELOW_FULL)
        low = max(least, rounded_up(allowed(below[kind]), 0.01))
        lasting = base.lasting if kind in ADAPTERS else wide
        found[kind] = structs.replace(base, below=low, lasting=lasting, passing=wide)
    widest = structs.replace(
        max(found.values(), key=lambda band: band.lasting), below=max(band.below for band in found.values())
    )
    return {kind: found.get(kind, widest) for kind in BANDS}


def share_above(case: Case, kind: str) -> float:
    """Return the least share with which the kind's band reaches up to what was measured."""
    band, memory = BANDS[kind], held_in(case)
    shares = []
    for lasting, passing in memory.moments:
        if kind in ADAPTERS:
            known = lasting * (1 + band.lasting) + band.fixed_bytes
            shares.append(((case.measured or 0.0) - known) / passing - 1 if passing else math.inf)
        else:
            shares.append((case.measured or 0.0) / (lasting + passing) - 1)
    return min(shares)


def allowed(shares: list[float]) -> float:
    """Return the largest share but for the rows that may lie outside."""
    return sorted(shares, reverse=True)[round(len(shares) / ROWS_PER_ROW_OUTSIDE)]


def rounded_up(share: float, step: float) -> float:
    return round(step * math.ceil(share / step - 1e-9), 4)


class Trial(Struct):
    """How a set of bands did on rows: how many lie inside, and what was said of runs that did or did not fit."""

    said: Counter[tuple[str, str]]
    rows: int = 0
    inside: int = 0

    @property
    def wrong(self) -> int:
        return self.said["ran", "does_not_fit"] + self.said["ran out of memory", "fits"]

    @property
    def close(self) -> int:
        return self.said["ran", "too_close"] + self.said["ran out of memory", "too_close"]

    @property
    def judged(self) -> int:
        return sum(self.said.values())


def tried(cases: Iterable[Case], bands: Mapping[str, Band] = BANDS) -> Trial:
    """Return how these bands do on these rows."""
    trial = Trial(said=Counter())
    for case in cases:
        said = predict(case, bands)
        if case.measured is not None:
            trial.rows += 1
            trial.inside += said.low <= case.measured <= said.high
        if case.capacity is not None:
            ended = "ran out of memory" if case.is_oom else "ran"
            trial.said[ended, verdict_of(said.need, case.capacity)] += 1
    return trial


def without_each_source(cases: list[Case]) -> Trial:
    """Return how every source fares with the bands that all the others give."""
    trial = Trial(said=Counter())
    for source in {case.row["source"] for case in cases}:
        one = tried(
            [case for case in cases if case.row["source"] == source],
            bands_of(case for case in cases if case.row["source"] != source),
        )
        trial.rows += one.rows
        trial.inside += one.inside
        trial.said += one.said
    return trial

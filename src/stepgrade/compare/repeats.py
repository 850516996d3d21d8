"""Identical runs side by side: the noise that a change has to exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from stepgrade.model.comparison import RATES
from stepgrade.model.notes import Result
from stepgrade.model.scorecard import Scorecard
from stepgrade.statistics import mean


class RepeatedRun(Struct, frozen=True, kw_only=True):
    """A run: its file, median step time, grade, and rate under the metric's name."""

    file: str
    step_ms: float | None
    grade: str
    rate: float | None
    rate_metric: str


class Repeats(Result, frozen=True, kw_only=True):
    """Runs of one command; `noise_share` is the standard deviation of their step times, None for one run."""

    runs: tuple[RepeatedRun, ...]
    noise_share: float | None


def repeats_of(cards: Sequence[Scorecard]) -> Repeats:
    """Return the runs and their noise."""
    runs = []
    for card in cards:
        metric = next((name for name in RATES if card.metrics[name] is not None), RATES[0])
        runs.append(
            RepeatedRun(
                file=card.source.shown,
                step_ms=card.step_time_ms,
                grade=card.grade,
                rate=card.metrics[metric],
                rate_metric=metric,
            )
        )
    logs = [math.log(run.step_ms) for run in runs if run.step_ms]
    noise = None
    if len(logs) > 1:
        middle = mean(logs)
        noise = math.expm1(math.sqrt(sum((log - middle) ** 2 for log in logs) / (len(logs) - 1)))
    return Repeats(runs=tuple(runs), noise_share=noise)

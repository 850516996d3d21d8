"""Two kept runs beside each other: the gate's comparison, and operation by operation."""

from __future__ import annotations

import datetime as dt
from typing import Any

from msgspec import Struct

from stepgrade.compare.fingerprint import FIELDS
from stepgrade.compare.noise import pooled_noise
from stepgrade.config import Config
from stepgrade.gating.baselines import BaselineRuns
from stepgrade.gating.budgets import judge
from stepgrade.gating.run import compare_with_earlier
from stepgrade.model import Baseline
from stepgrade.model.comparison import GateReport
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.history import History, Selection

OPERATIONS_SHOWN = 50
_NOISE_RUNS = 100


class OperationPair(Struct, frozen=True, kw_only=True):
    """One operation in the typical step of both runs; None where a run has it not."""

    name: str
    before_ms: float | None
    now_ms: float | None
    ratio: float | None


class Compared(Struct, frozen=True, kw_only=True):
    """Run `b` compared with run `a`: the gate's report, and their operations, the longest first."""

    a: int
    b: int
    report: dict[str, Any]
    operations: list[OperationPair]


def compare_cards(history: History, a: int, b: int) -> Compared:
    """Return run `b` compared with run `a`; raise NoSuchRun when one is not there."""
    report, operations = report_on(history, a, b)
    return Compared(a=a, b=b, report=report.to_dict(), operations=operations)


def report_on(history: History, a: int, b: int) -> tuple[GateReport, list[OperationPair]]:
    """Return the gate's report on run `b` against run `a`, whatever differs, and their operations."""
    before, now = history.card(a), history.card(b)
    (run,) = history.runs(Selection(after=a - 1, before=a + 1))
    which = Selection(digests=(run.digest,), branch=run.branch, limit=_NOISE_RUNS)
    noise = pooled_noise([[value for _, value in history.series("step_time_ms", which)]])
    earlier = BaselineRuns(runs=(Baseline.of(before, f"run {a}"),), name=f"run {a}", pooled_noise=noise)
    config = Config()
    comparison = compare_with_earlier([now], earlier, config, frozenset(FIELDS))
    today = dt.datetime.now(dt.UTC).date()
    return judge(now, comparison, config, (), today), operation_pairs(before, now)


def operation_pairs(before: Scorecard, now: Scorecard) -> list[OperationPair]:
    """Return the operations of two cards by name, those that take longest in either first."""
    old, new = ({one.name: one.ms for one in card.operations if one.ms is not None} for card in (before, now))
    names = sorted({*old, *new}, key=lambda name: -max(old.get(name, 0.0), new.get(name, 0.0)))
    pairs = []
    for name in names[:OPERATIONS_SHOWN]:
        one, other = old.get(name), new.get(name)
        ratio = other / one if one and other is not None else None
        pairs.append(OperationPair(name=name, before_ms=one, now_ms=other, ratio=ratio))
    return pairs

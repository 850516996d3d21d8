"""Two stored runs side by side: the gate's comparison, and operation by operation."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from stepgrade.compare.fingerprint import FIELDS
from stepgrade.compare.noise import pooled_noise
from stepgrade.config import Config
from stepgrade.gating.baselines import BaselineRuns
from stepgrade.gating.budgets import judge
from stepgrade.gating.run import compare_with_earlier
from stepgrade.model import Baseline
from stepgrade.model.comparison import GateReport
from stepgrade.model.operations import Operation
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.runs import Runs, Selection

OPERATIONS_SHOWN = 50
_NOISE_RUNS = 100


class OperationPair(Struct, frozen=True, kw_only=True):
    """An operation or kind of work in the typical step of both runs; None where a run lacks it."""

    name: str
    before_ms: float | None
    now_ms: float | None
    ratio: float | None
    before_calls: float | None = None
    now_calls: float | None = None


class Compared(Struct, frozen=True, kw_only=True):
    """Run `b` compared with run `a`: the gate's report, and their operations, longest first."""

    a: int
    b: int
    report: dict[str, Any]
    operations: list[OperationPair]
    kinds: list[OperationPair]  # gemm, attention, …: comparable even if the names of operations differ
    matched_share: float | None  # of the operations' time, the part whose names are in both runs


def compare_cards(history: Runs, a: int, b: int) -> Compared:
    """Return run `b` compared with run `a`; raise NoSuchRun if one does not exist."""
    report, pairs = report_on(history, a, b)
    return Compared(
        a=a,
        b=b,
        report=report.to_dict(),
        operations=pairs.operations,
        kinds=pairs.kinds,
        matched_share=pairs.matched_share,
    )


class Pairs(NamedTuple):
    """The operations of two runs side by side, longest first, and by kind of work."""

    operations: list[OperationPair]
    kinds: list[OperationPair]
    matched_share: float | None


def report_on(history: Runs, a: int, b: int) -> tuple[GateReport, Pairs]:
    """Return the gate's report on run `b` against run `a`, even if setups differ, and their operations."""
    before, now = history.card(a), history.card(b)
    (run,) = history.runs(Selection(after=a - 1, before=a + 1))
    which = Selection(digests=(run.digest,), branch=run.branch, limit=_NOISE_RUNS)
    noise = pooled_noise([[value for _, value in history.series("step_time_ms", which)]])
    earlier = BaselineRuns(runs=(Baseline.of(before, f"run {a}"),), name=f"run {a}", pooled_noise=noise)
    config = Config()
    comparison = compare_with_earlier([now], earlier, config, frozenset(FIELDS))
    today = dt.datetime.now(dt.UTC).date()
    return judge(now, comparison, config, (), today), operation_pairs(before, now)


def operation_pairs(before: Scorecard, now: Scorecard) -> Pairs:
    """Return the operations of two cards by name and by kind, longest in either first."""
    sums = [
        (_add_up(card.operations, by_kind=False), _add_up(card.operations, by_kind=True))
        for card in (before, now)
    ]
    (old, old_kinds), (new, new_kinds) = sums
    both = old.keys() & new.keys()
    shares = []
    for side in (old, new):
        total = sum(ms for ms, _ in side.values())
        shares.append(sum(side[name][0] for name in both) / total if total > 0.0 else None)
    known = [share for share in shares if share is not None]
    return Pairs(
        _paired(old, new)[:OPERATIONS_SHOWN],
        _paired(old_kinds, new_kinds),
        min(known) if len(known) == len(shares) else None,
    )


def _add_up(operations: Iterable[Operation], *, by_kind: bool) -> dict[str, tuple[float, float | None]]:
    """Return (ms, calls) per step by name or kind; calls are None if any are unknown."""
    found: dict[str, tuple[float, float | None]] = {}
    for op in operations:
        if op.ms is not None:
            name = (op.kind or "other") if by_kind else op.name
            ms, calls = found.get(name, (0.0, 0.0))
            found[name] = ms + op.ms, None if calls is None or op.calls is None else calls + op.calls
    return found


def _paired(
    old: Mapping[str, tuple[float, float | None]], new: Mapping[str, tuple[float, float | None]]
) -> list[OperationPair]:
    nothing = (None, None)
    pairs = []
    for name in {**old, **new}:
        (before_ms, before_calls), (now_ms, now_calls) = old.get(name, nothing), new.get(name, nothing)
        pairs.append(
            OperationPair(
                name=name,
                before_ms=before_ms,
                now_ms=now_ms,
                ratio=now_ms / before_ms if before_ms and now_ms is not None else None,
                before_calls=before_calls,
                now_calls=now_calls,
            )
        )
    return sorted(pairs, key=lambda pair: -max(pair.before_ms or 0.0, pair.now_ms or 0.0))

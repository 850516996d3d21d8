"""Two stored runs side by side: the gate's comparison, and operation by operation."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from stepgrade.compare.fingerprint import FIELDS
from stepgrade.config import Config
from stepgrade.gating.budgets import judge
from stepgrade.gating.run import compare_with_earlier, runs_around
from stepgrade.model.comparison import GateReport
from stepgrade.model.operations import Operation
from stepgrade.store.runs import Runs

OPERATIONS_SHOWN = 50


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


def compare_runs(history: Runs, a: int, b: int) -> tuple[GateReport, Compared]:
    """Return the gate's report on run `b` against the level of run `a`, even if setups differ, and more.

    Raise NoSuchRun if a run does not exist.
    """
    before, now = history.card(a), history.card(b)
    config = Config()
    comparison = compare_with_earlier([now], runs_around(history, a, without=b), config, frozenset(FIELDS))
    report = judge(now, comparison, config, (), dt.datetime.now(dt.UTC).date())
    old, new = (_add_up(card.operations, by_kind=False) for card in (before, now))
    both = old.keys() & new.keys()
    shares = []
    for side in (old, new):
        total = sum(ms for ms, _ in side.values())
        shares.append(sum(side[name][0] for name in both) / total if total > 0.0 else None)
    known = [share for share in shares if share is not None]
    return report, Compared(
        a=a,
        b=b,
        report=report.to_dict(),
        operations=_paired(old, new)[:OPERATIONS_SHOWN],
        kinds=_paired(*(_add_up(card.operations, by_kind=True) for card in (before, now))),
        matched_share=min(known) if len(known) == len(shares) else None,
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

"""Short answers for assistants: the important fields of the JSON, at most a page."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepgrade.errors import BadInput, BadOption
from stepgrade.model.comparison import GateReport
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.names import shortened
from stepgrade.store.history import History
from stepgrade.store.runs import Runs, Selection
from stepgrade.store.tables import finding_costs
from stepgrade.store.trend import trend_of

# A token is about four characters, so a card stays below 1,500 tokens.
MOST_CHARACTERS = 5_000
_MOST_TEXT = 240
_MOST_FILES = 10_000
_CARD = (
    "grade",
    "grade_at_most",
    "efficiency",
    "bottleneck",
    "bottleneck_evidence",
    "throughput_tok_s",
    "step_time_ms",
    "wall_coverage",
    "mfu",
    "hfu",
    "peak_memory_bytes",
    "launches_per_step",
    "ungraded_because",
    "recommendations",
)
_FINDING = ("rule", "severity", "claim", "remedy", "gain_low", "gain_high", "where")


class Roots:
    """The folders that an assistant may read; links that lead out of them are not followed."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = [os.path.realpath(folder) for folder in folders]

    def path(self, given: str) -> str:
        """Return the real path of a file; raise BadInput if it is outside the folders or missing."""
        if not self._folders:
            raise BadOption("files are not available here: use run ids")
        if "\0" in given or "://" in given:
            raise BadInput("not a path", where=shortened(given, 80))
        full = given if os.path.isabs(given) else os.path.join(self._folders[0], given)
        real = os.path.realpath(full)
        inside = self._holds(real) and (not os.path.isdir(real) or self._holds_all(real))
        if not inside or not os.path.exists(real):
            # One message for both, so that it does not reveal which files exist elsewhere.
            raise BadInput("no such file in the allowed folders", where=shortened(given, 80))
        return real

    def _holds(self, real: str) -> bool:
        return any(
            real == folder or real.startswith(folder.rstrip(os.sep) + os.sep) for folder in self._folders
        )

    def _holds_all(self, folder: str) -> bool:
        count = 0
        for parent, folders, names in os.walk(folder):
            for name in (*folders, *names):
                count += 1
                if count > _MOST_FILES or not self._holds(os.path.realpath(f"{parent}{os.sep}{name}")):
                    return False
        return True


def brief(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """Return a value with texts and lists shortened until it fits; unknown values are dropped."""
    for rows in (20, 8, 5, 3, 1):
        cut = _cut(value, rows)
        if len(msgspec.json.encode(cut)) <= most:
            return cut
    return {"note": "too large to show: read the report instead"}


def _cut(value: Any, rows: int) -> Any:
    match value:
        case str():
            return shortened(value, _MOST_TEXT)
        case float():
            return float(f"{value:.5g}")
        case Mapping():
            pairs = [(name, inner) for name, inner in value.items() if inner not in (None, (), [], {}, "")]
            return {shortened(str(name), 80): _cut(inner, rows) for name, inner in pairs[: 4 * rows]}
        case list() | tuple():
            return [_cut(inner, rows) for inner in value[:rows]]
    return value


def brief_card(card: Scorecard) -> dict[str, Any]:
    """Return the important fields of a scorecard, named as in its JSON."""
    full = card.to_dict()
    found: dict[str, Any] = {name: full.get(name) for name in _CARD}
    found["device"] = (full.get("device") or {}).get("key")
    found["source"] = card.source.shown
    found["ledger"] = full.get("ledger")
    found["findings"] = [{name: row.get(name) for name in _FINDING} for row in full["findings"][:6]]
    found["operations"] = [
        {name: row.get(name) for name in ("name", "class", "ms", "share")} for row in full["operations"][:6]
    ]
    answer: dict[str, Any] = brief(found)
    return answer


def brief_report(report: GateReport, operations: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the important fields of a comparison."""
    full = report.to_dict()
    names = ("verdict", "baseline", "differences", "reasons", "notes")
    found = {name: full.get(name) for name in names}
    kept = ("metric", "before", "now", "change", "low", "high", "outcome", "why")
    found["changes"] = [{name: row.get(name) for name in kept} for row in full["changes"]]
    found["shifts"] = full.get("shifts")
    found["operations"] = [msgspec.to_builtins(pair) for pair in operations[:8]]
    answer: dict[str, Any] = brief(found)
    return answer


def history_answer(history: Runs, metric: str, branch: str | None, limit: int) -> dict[str, Any]:
    """Return the newest runs and where a metric's level changed."""
    which = Selection(branch=branch, limit=max(1, min(limit, 500)))
    found = trend_of(history, metric, which)
    runs = history.runs(Selection(branch=branch, limit=5))
    answer: dict[str, Any] = brief(
        {
            "metric": metric,
            "runs_in_trend": len(found.points),
            "newest": found.points[-1].value,
            "changes": [msgspec.to_builtins(change) for change in found.changes[-5:]],
            "newest_runs": [msgspec.to_builtins(run) for run in reversed(runs)],
        }
    )
    return answer


def findings_answer(history: Runs, limit: int) -> list[dict[str, Any]]:
    """Return the findings of the newest runs by cost."""
    if not isinstance(history, History):
        raise BadOption("findings over many runs are not available from a server")
    costs = finding_costs(history, Selection(limit=max(1, min(limit, 1000))))
    answer: list[dict[str, Any]] = brief([msgspec.to_builtins(cost) for cost in costs[:8]])
    return answer

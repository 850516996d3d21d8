"""The trend of a metric, from the history."""

from __future__ import annotations

from msgspec import structs

from stepgrade.compare.trend import LevelChange, Point, Trend, level_changes
from stepgrade.errors import NotMeasured
from stepgrade.store.history import METRICS, History, Selection


def trend_of(history: History, metric: str, which: Selection, allowed: frozenset[str] = frozenset()) -> Trend:
    """Return the trend of the runs that are comparable with the newest of those selected."""
    newest = history.runs(structs.replace(which, limit=1))
    if not newest:
        raise NotMeasured("history has no such run", where=history.name, hint="stepgrade history list")
    mine = history.fingerprints()[newest[0].digest]
    digests = history.comparable(mine, allowed) if allowed else (newest[0].digest,)
    series = history.series(metric, structs.replace(which, digests=digests))
    points = tuple(Point(id=number, value=value) for number, value in series)
    if not points:
        hint = f"there are {', '.join(METRICS)}"
        raise NotMeasured(f"no run has {metric}", where=history.name, hint=hint)
    return Trend(
        metric=metric,
        branch=which.branch,
        digest=newest[0].digest,
        history=history.name,
        points=points,
        changes=_with_commits(history, level_changes(points)),
    )


def _with_commits(history: History, changes: tuple[LevelChange, ...]) -> tuple[LevelChange, ...]:
    """Return the changes with their commits: of a hundred thousand runs only these are asked for."""
    commits = history.commits([point.id for change in changes for point in (change.last, change.first)])
    return tuple(
        structs.replace(change, last_commit=commits[change.last.id], first_commit=commits[change.first.id])
        for change in changes
    )

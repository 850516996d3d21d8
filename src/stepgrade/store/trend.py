"""The trend of a metric, from the history."""

from __future__ import annotations

from msgspec import structs

from stepgrade.compare.change_points import change_points
from stepgrade.errors import NotMeasured
from stepgrade.model.run import LevelChange, Point, Trend
from stepgrade.store.runs import KEPT_METRICS, Runs, Selection

# Smaller changes of level are not reported.
LEAST_CHANGE = 0.01


def trend_of(history: Runs, metric: str, which: Selection, allowed: frozenset[str] = frozenset()) -> Trend:
    """Return the trend of the runs that are comparable with the newest of those selected."""
    newest = history.runs(structs.replace(which, limit=1))
    if not newest:
        raise NotMeasured("no matching run", where=history.name, hint="stepgrade history list")
    digests: tuple[str, ...] = (newest[0].digest,)
    if allowed and (fingerprint := history.fingerprints().get(newest[0].digest)):
        digests = history.comparable(fingerprint, allowed)
    series = history.series(metric, structs.replace(which, digests=digests))
    points = tuple(Point(id=number, value=value) for number, value in series)
    if not points:
        hint = f"known metrics: {', '.join(KEPT_METRICS)}"
        raise NotMeasured(f"no run has {metric}", where=history.name, hint=hint)
    found = change_points([point.value for point in points], least_change=LEAST_CHANGE)
    # Only these commits are needed, out of possibly 100,000 runs.
    commits = history.commits([points[index].id for new in found for index in (new.index - 1, new.index)])
    return Trend(
        metric=metric,
        branch=which.branch,
        digest=newest[0].digest,
        history=history.name,
        points=points,
        changes=tuple(
            LevelChange(
                index=new.index,
                last=points[new.index - 1],
                first=points[new.index],
                last_commit=commits[points[new.index - 1].id],
                first_commit=commits[points[new.index].id],
                before=new.before,
                after=new.after,
                change=new.change,
            )
            for new in found
        ),
    )

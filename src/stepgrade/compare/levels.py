"""Changes of level in a series of runs that the gate's own judgement confirms, and what they amount to.

`change_points` proposes them. The runs after one, against those before it, must then be judged to have
changed, by the same function as any other runs: a series is looked at again with each new run, and proposals
alone would be wrong too often.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepgrade.compare.change_points import LEAST_SEGMENT, change_points
from stepgrade.compare.effect import MOST_RUNS
from stepgrade.compare.metrics import DEFAULT_SENSITIVITY, change_of
from stepgrade.compare.noise import Sample, noise_of
from stepgrade.config import Sensitivity
from stepgrade.model.comparison import METRICS, ChangePoint, MetricChange

# Changes for the worse within so many runs of each other are one: a drift, or an estimate that moves.
ONE_CHANGE = 5 * LEAST_SEGMENT


class JudgedLevel(ChangePoint, frozen=True, kw_only=True):
    """A change of level, and the judgement on the runs on both sides of it."""

    judged: MetricChange


def judged_levels(
    metric: str,
    values: Sequence[float],
    sensitivity: Sensitivity = DEFAULT_SENSITIVITY,
    *,
    sure: bool = False,
) -> tuple[JudgedLevel, ...]:
    """Return the changes of level that are confirmed: with 95 %, or `sure` as regressed or improved."""
    points = [point.index for point in change_points(values, least_change=sensitivity.allow)]
    while points:
        edges = [0, *points, len(values)]
        levels = [
            judged_level(metric, values, *ends, sensitivity)
            for ends in zip(edges, edges[1:], edges[2:], strict=False)
        ]
        # Without the least sure one, its neighbours have more runs.
        doubtful = [level for level in levels if not _is_confirmed(level.judged, sensitivity, sure=sure)]
        if not doubtful:
            return tuple(levels)
        points.remove(max(doubtful, key=lambda level: level.judged.p_value).index)
    return ()


def judged_level(
    metric: str, values: Sequence[float], begin: int, index: int, end: int, sensitivity: Sensitivity
) -> JudgedLevel:
    """Return the judgement on the runs from `index` to `end` against those from `begin` on."""
    before = Sample(values=tuple(values[begin:index])[-MOST_RUNS:])
    after = Sample(values=tuple(values[index:end])[:MOST_RUNS])
    kind = METRICS[metric]
    judged = change_of(kind, after, before, noise_of(after, before, kind), sensitivity)
    return JudgedLevel(
        index=index, before=judged.before, after=judged.now, change=judged.change, judged=judged
    )


def _is_confirmed(judged: MetricChange, sensitivity: Sensitivity, *, sure: bool) -> bool:
    if sure:
        return judged.outcome in ("regressed", "improved")
    return judged.near_low > sensitivity.allow or judged.near_high < -sensitivity.allow


class Episode(Struct, frozen=True, kw_only=True):
    """A stay on a worse level, or an improvement: from run `begin` on, and up to run `end` if it is over."""

    begin: int
    last: int  # the first run of its last change for the worse
    end: int | None
    before: float
    after: float
    is_better: bool = False


def episodes(metric: str, levels: Sequence[JudgedLevel]) -> list[Episode]:
    """Return what the changes of level amount to, oldest first.

    A drift is one episode. A level is over when the next is nearer to what was before than to the worse one.
    """
    found: list[Episode] = []
    sign = 1.0 if METRICS[metric].worse == "up" else -1.0
    for level in levels:
        is_better = sign * level.change < 0.0
        here = Episode(
            begin=level.index,
            last=level.index,
            end=None,
            before=level.before,
            after=level.after,
            is_better=is_better,
        )
        running = [one for one in found if one.end is None and not one.is_better]
        if not is_better and running and level.index - running[-1].last <= ONE_CHANGE:
            place = found.index(running[-1])
            found[place] = Episode(
                begin=running[-1].begin,
                last=level.index,
                end=None,
                before=running[-1].before,
                after=level.after,
            )
        elif is_better and running:
            for one in running:
                if sign * (level.after - (one.before + one.after) / 2.0) < 0.0:
                    found[found.index(one)] = Episode(
                        begin=one.begin, last=one.last, end=level.index, before=one.before, after=one.after
                    )
        else:
            found.append(here)
    return found

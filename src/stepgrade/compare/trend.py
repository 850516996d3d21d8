"""A metric over the runs of a branch: its values, and where its level changed."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from stepgrade.compare.changes import change_points

# Changes of level smaller than this are not worth a line.
LEAST_CHANGE = 0.01


class Point(Struct, frozen=True, kw_only=True, gc=False):
    """One run."""

    id: int
    value: float


class LevelChange(Struct, frozen=True, kw_only=True):
    """A new level: between which runs and commits, from what to what."""

    index: int
    last: Point
    first: Point
    last_commit: str | None = None
    first_commit: str | None = None
    before: float
    after: float
    change: float


class Trend(Struct, frozen=True, kw_only=True):
    """The series, oldest first, and its changes."""

    metric: str
    branch: str | None
    digest: str
    history: str
    points: tuple[Point, ...]
    changes: tuple[LevelChange, ...]


def level_changes(points: Sequence[Point]) -> tuple[LevelChange, ...]:
    """Return where the level changed, and between which runs."""
    return tuple(
        LevelChange(
            index=found.index,
            last=points[found.index - 1],
            first=points[found.index],
            before=found.before,
            after=found.after,
            change=found.change,
        )
        for found in change_points([point.value for point in points], least_change=LEAST_CHANGE)
    )

"""Runs of the history, and the trend of a metric over them."""

from __future__ import annotations

from msgspec import Struct


class RunRow(Struct, frozen=True, kw_only=True):
    """A run in the history, without its scorecard."""

    id: int
    added_at: str
    digest: str
    commit: str | None
    branch: str | None
    labels: dict[str, str]
    source: str
    grade: str
    metrics: dict[str, float]


class Point(Struct, frozen=True, kw_only=True, gc=False):
    """The metric of one run."""

    id: int
    value: float


class ChangePoint(Struct, frozen=True, kw_only=True):
    """A new level from `index` on; `change` is a share of the level before."""

    index: int
    before: float
    after: float
    change: float


class LevelChange(ChangePoint, frozen=True, kw_only=True):
    """A new level in a history: between which runs and commits."""

    last: Point
    first: Point
    last_commit: str | None = None
    first_commit: str | None = None


class Trend(Struct, frozen=True, kw_only=True):
    """A metric over the runs of a branch, oldest first, and where its level changed."""

    metric: str
    branch: str | None
    digest: str
    history: str
    points: tuple[Point, ...]
    changes: tuple[LevelChange, ...]

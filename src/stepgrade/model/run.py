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
    """A metric over the runs of a branch, oldest first, and where its level changed."""

    metric: str
    branch: str | None
    digest: str
    history: str
    points: tuple[Point, ...]
    changes: tuple[LevelChange, ...]

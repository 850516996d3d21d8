"""A kept run, without its scorecard."""

from __future__ import annotations

from msgspec import Struct


class RunRow(Struct, frozen=True, kw_only=True):
    """One row of the history."""

    id: int
    added_at: str
    digest: str
    commit: str | None
    branch: str | None
    labels: dict[str, str]
    source: str
    grade: str
    metrics: dict[str, float]

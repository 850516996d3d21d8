"""What every history offers, whether its runs are in a database here or on a server."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self

import msgspec
from msgspec import Struct, structs

from stepgrade.compare.fingerprint import differences
from stepgrade.errors import BadHistory, BadOption, NoSuchRun
from stepgrade.memory import default_limit
from stepgrade.model.comparison import METRICS, RunRow
from stepgrade.model.scorecard import Fingerprint, Scorecard

# Metrics with a column in stepgrade_run.
KEPT_METRICS = tuple(name for name, metric in METRICS.items() if metric.on_card and name != "hfu")
DECODED_BYTES = 24  # memory per byte of a scorecard's JSON
NO_BRANCH = ""  # in a Selection: runs whose branch is unknown
# How many damaged runs are listed; the rest are counted.
_LISTED = 3


class NewRun(Struct, frozen=True, kw_only=True):
    """A scored run to add, and where it comes from."""

    card: Scorecard
    commit: str | None = None
    branch: str | None = None
    labels: dict[str, str] = {}
    added_at: str | None = None  # when it was made, ISO 8601 with a time zone; default: now
    key: str | None = None  # idempotency key: a run is stored once per key; default: a random one
    added_by: str | None = None
    device_hours: float | None = None  # of the whole training; default: what the card covers
    content: str | None = None  # digest of the input it was scored from; default: the card's digest
    is_decoded: bool = False  # the card was decoded from JSON, so it is known to be readable

    def storable(self) -> NewRun:
        """Return the run with a time, and with undecodable bytes of its texts escaped."""
        return structs.replace(
            self,
            commit=self.commit and as_text(self.commit),
            branch=self.branch and as_text(self.branch),
            labels={as_text(name): as_text(label) for name, label in self.labels.items()},
            added_at=in_utc(self.added_at) if self.added_at else moment(dt.datetime.now(dt.UTC)),
        )


class RunOrigin(Struct, frozen=True, kw_only=True):
    """How a run was added to the history."""

    key: str | None
    added_by: str | None
    device_hours: float | None


class Selection(Struct, frozen=True, kw_only=True):
    """A filter on runs; a field that is None matches every run."""

    branch: str | None = None
    digests: tuple[str, ...] | None = None
    labels: dict[str, str] = {}
    grade: str | None = None
    commit: str | None = None  # a prefix is enough
    added_by: str | None = None
    since: str | None = None  # ISO 8601 in UTC, compared with added_at
    until: str | None = None
    before: int | None = None  # runs with a lower id
    after: int | None = None
    limit: int | None = None  # the newest ones


class Runs(ABC):
    """A history of scored runs. Use it in a `with` block.

    `damaged` maps the ids of runs that could not be read to the reason; such runs are skipped.
    """

    is_remote: ClassVar[bool] = False

    def __init__(self, name: str, project: str, max_memory: int | None) -> None:
        self.name = name  # where the history is, without passwords
        self.project = project  # only this project's runs are visible
        self.damaged: dict[int, str] = {}
        self.remarks: list[str] = []  # on a server: why runs wait in the outbox
        self._max_bytes = default_limit() if max_memory is None else max_memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def add(self, run: NewRun) -> int:
        """Add a run and return its id. Once this returns, the run is durable."""
        return self.add_all([run])[0]

    @abstractmethod
    def add_all(self, runs: Iterable[NewRun]) -> list[int]:
        """Add runs and return their ids; a run whose key is known keeps the id it has."""

    @abstractmethod
    def runs(self, which: Selection | None = None) -> list[RunRow]:
        """Return runs without their scorecards, oldest first."""

    @abstractmethod
    def batches(self, which: Selection) -> Iterator[list[RunRow]]:
        """Yield runs in batches whose scorecards fit into memory together, oldest first."""

    @abstractmethod
    def series(self, metric: str, which: Selection) -> list[tuple[int, float]]:
        """Return (id, value) pairs of one metric, oldest first."""

    @abstractmethod
    def commits(self, ids: Sequence[int]) -> dict[int, str | None]:
        """Return the commits of runs by id."""

    @abstractmethod
    def origins(self, ids: Sequence[int]) -> dict[int, RunOrigin]:
        """Return how runs were added, by id."""

    @abstractmethod
    def cards(self, ids: Sequence[int]) -> dict[int, Scorecard]:
        """Return scorecards by run id; those that cannot be read are recorded in `damaged` instead.

        Raise NoSuchRun for an unknown id.
        """

    @abstractmethod
    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of all runs by digest."""

    def card(self, number: int) -> Scorecard:
        """Return the scorecard of a run; raise BadHistory when it is missing or damaged."""
        found = self.cards([number])
        if number in self.damaged:
            raise BadHistory(self.damaged[number], where=f"{self.name}: run {number}")
        return found[number]

    def comparable(self, fingerprint: Fingerprint, allowed: frozenset[str]) -> tuple[str, ...]:
        """Return the digests of stored fingerprints that differ from this one in allowed fields only."""
        return tuple(
            digest
            for digest, other in sorted(self.fingerprints().items())
            if not differences(fingerprint, other, allowed)
        )

    def export(self, which: Selection | None = None) -> Iterator[dict[str, Any]]:
        """Yield each readable run with its scorecard, ready for JSON, oldest first.

        Raise BadHistory when there are runs and none can be read: the disk may be failing.
        """
        is_empty = True
        for some in self.batches(which or Selection()):
            try:
                cards = self.cards([row.id for row in some])
            except NoSuchRun:  # another process is removing runs
                cards = {}
                for row in some:
                    try:
                        cards |= self.cards([row.id])
                    except NoSuchRun:
                        self._skip(row.id, "it was removed meanwhile, or its scorecard is missing")
            for row in some:
                if row.id in cards:
                    is_empty = False
                    yield {**msgspec.to_builtins(row), "card": cards.pop(row.id).to_dict()}
        if is_empty and self.damaged:
            raise BadHistory(f"no run can be read: {self.damage()}", where=self.name)

    def damage(self) -> str:
        """Return which runs could not be read and why; empty if all could."""
        shown = [f"run {number} ({problem})" for number, problem in sorted(self.damaged.items())[:_LISTED]]
        rest = len(self.damaged) - len(shown)
        return ", ".join([*shown, *([f"{rest} more"] if rest else [])])

    def _skip(self, number: object, problem: str) -> None:
        self.damaged[number if isinstance(number, int) else -1] = problem


def moment(at: dt.datetime) -> str:
    """Return a time as it is stored: in UTC, so that times are in the order of their texts."""
    return at.astimezone(dt.UTC).isoformat(timespec="seconds")


def in_utc(text: str) -> str:
    """Return a time as it is stored, UTC if it has no time zone; raise BadOption if it is none."""
    try:
        at = dt.datetime.fromisoformat(text)
        return moment(at.replace(tzinfo=dt.UTC) if at.tzinfo is None else at)
    except (ValueError, OverflowError):
        hint = "write it like 2026-03-01 or 2026-03-01T12:00:00+00:00"
        raise BadOption(f"{text[:40]!r} is not a time", field="added_at", hint=hint) from None


def as_text(text: str) -> str:
    """Return command-line text with undecodable bytes escaped, so that it can be stored."""
    return text.encode("utf-8", "backslashreplace").decode()

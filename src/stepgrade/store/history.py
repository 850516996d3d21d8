"""Runs over time: added whole or not at all, found by what they ran on, read back as they were scored."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from stepgrade.compare.fingerprint import differences, digest_of
from stepgrade.errors import BadHistory
from stepgrade.model import Fingerprint
from stepgrade.model.run import RunRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.scoring.step_times import step_times
from stepgrade.store.database import Database
from stepgrade.store.migrations import migrate

DEFAULT_PATH = ".stepgrade/history.db"
METRICS = (
    "step_time_ms",
    "throughput_tok_s",
    "efficiency",
    "mfu",
    "wall_coverage",
    "launches_per_step",
    "peak_memory_bytes",
)
# SQLite takes no more values than 999 in its older versions.
_AT_ONCE = 900
_COLUMNS = ("added_at", "digest", "git_commit", "branch", "labels", "source", "grade", *METRICS, "step_sigma")


class NewRun(Struct, frozen=True, kw_only=True):
    """A scored run and where it comes from."""

    card: Scorecard
    commit: str | None = None
    branch: str | None = None
    labels: dict[str, str] = {}
    added_at: str | None = None  # ISO 8601 with its zone; None is now


class Selection(Struct, frozen=True, kw_only=True):
    """Which runs: all that is None does not matter."""

    branch: str | None = None
    digests: tuple[str, ...] | None = None
    labels: dict[str, str] = {}
    before_id: int | None = None
    limit: int | None = None  # the newest ones


class History:
    """A store of runs. Use it in a `with` block."""

    def __init__(self, database: Database) -> None:
        self._database = database
        try:
            migrate(database)
        except BadHistory:
            database.close()
            raise

    @property
    def name(self) -> str:
        """Return where the history is, without passwords."""
        return self._database.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def add(self, run: NewRun) -> int:
        """Keep a run and return its number; when this returns, the run is on the disk."""
        return self.add_all([run])[0]

    def add_all(self, runs: Iterable[NewRun]) -> list[int]:
        """Keep several runs, all or none, and return their numbers."""
        with self._database.transaction():
            return [self._insert(run) for run in runs]

    def _insert(self, run: NewRun) -> int:
        fingerprint = run.card.fingerprint or Fingerprint()
        digest = digest_of(fingerprint)
        self._database.execute(
            "insert into stepgrade_fingerprint (digest, body) values (?, ?) on conflict (digest) do nothing",
            (digest, msgspec.json.encode(fingerprint, order="sorted").decode()),
        )
        names, marks = ", ".join(_COLUMNS), ", ".join("?" * len(_COLUMNS))
        number = self._database.insert(
            f"insert into stepgrade_run ({names}) values ({marks})",  # noqa: S608  our own names
            _values(run, digest),
        )
        body = zlib.compress(run.card.to_json().encode())
        self._database.execute("insert into stepgrade_card (run_id, body) values (?, ?)", (number, body))
        return number

    def runs(self, which: Selection = Selection()) -> list[RunRow]:  # noqa: B008  frozen
        """Return runs, oldest first."""
        where, values = _where(which)
        names = ", ".join(("id", *_COLUMNS))
        order = "order by id desc limit ?" if which.limit is not None else "order by id"
        if which.limit is not None:
            values.append(which.limit)
        rows = self._database.execute(f"select {names} from stepgrade_run {where} {order}", values)  # noqa: S608
        found = [_row(row) for row in rows]
        return found[::-1] if which.limit is not None else found

    def series(self, metric: str, which: Selection) -> list[tuple[int, float]]:
        """Return (id, value) of one metric, oldest first: no more than a trend needs."""
        if metric not in METRICS:
            raise BadHistory(f"keeps no metric called {metric!r}", hint=f"there are {', '.join(METRICS)}")
        where, values = _where(which)
        joint = "and" if where else "where"
        sql = (
            f"select id, {metric} from stepgrade_run {where} {joint} {metric} is not null "  # noqa: S608
            "order by id desc"
        )
        if which.limit is not None:
            sql += " limit ?"
            values.append(which.limit)
        return [(row[0], row[1]) for row in self._database.execute(sql, values)][::-1]

    def commits(self, numbers: Sequence[int]) -> dict[int, str | None]:
        """Return the commits of some runs."""
        found: dict[int, str | None] = {}
        for start in range(0, len(numbers), _AT_ONCE):
            part = numbers[start : start + _AT_ONCE]
            marks = ", ".join("?" * len(part))
            sql = f"select id, git_commit from stepgrade_run where id in ({marks})"  # noqa: S608  marks only
            found |= {row[0]: row[1] for row in self._database.execute(sql, part)}
        return found

    def card(self, number: int) -> Scorecard:
        """Return the scorecard of a run; raise BadHistory when there is no such run."""
        rows = self._database.execute("select body from stepgrade_card where run_id = ?", (number,))
        if not rows:
            raise BadHistory(f"has no run {number}", where=self.name, hint="stepgrade history list")
        return _card(rows[0][0], f"{self.name}: run {number}")

    def cards(self, numbers: Sequence[int]) -> list[Scorecard]:
        """Return the scorecards of several runs, in their order."""
        return [self.card(number) for number in numbers]

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return every fingerprint by its digest."""
        rows = self._database.execute("select digest, body from stepgrade_fingerprint")
        return {digest: msgspec.json.decode(body, type=Fingerprint) for digest, body in rows}

    def comparable(self, with_this: Fingerprint, allowed: frozenset[str]) -> tuple[str, ...]:
        """Return the digests of the fingerprints that a run with this one may be compared with."""
        return tuple(
            digest
            for digest, other in sorted(self.fingerprints().items())
            if not differences(with_this, other, allowed)
        )

    def prune(self, *, keep: int | None = None, older_than: str | None = None) -> int:
        """Remove all but the newest `keep` runs of each branch and fingerprint, or those older than a day."""
        found = list(self._doomed(keep, older_than))
        with self._database.transaction():
            for number in found:
                self._database.execute("delete from stepgrade_card where run_id = ?", (number,))
                self._database.execute("delete from stepgrade_run where id = ?", (number,))
        return len(found)

    def export(self, which: Selection = Selection()) -> Iterator[dict[str, Any]]:  # noqa: B008  frozen
        """Yield every run with its scorecard, oldest first, ready to be written as JSON."""
        for row in self.runs(which):
            yield {**msgspec.to_builtins(row), "card": self.card(row.id).to_dict()}

    def _doomed(self, keep: int | None, older_than: str | None) -> Iterator[int]:
        places: dict[tuple[str, str | None], int] = {}
        rows = self._database.execute(
            "select id, digest, branch, added_at from stepgrade_run order by id desc"
        )
        for number, digest, branch, added_at in rows:
            places[digest, branch] = places.get((digest, branch), 0) + 1
            too_many = keep is not None and places[digest, branch] > keep
            if too_many or (older_than is not None and added_at < older_than):
                yield number


def open_history(place: str | None = None, *, create: bool = True) -> History:
    """Open the history at a path or a postgresql:// URL; the default is a file in this directory."""
    place = place or DEFAULT_PATH
    if place.startswith(("postgresql://", "postgres://")):
        from stepgrade.store.postgres import PostgresDatabase  # noqa: PLC0415  an extra

        return History(PostgresDatabase(place))
    from stepgrade.store.sqlite import SqliteDatabase  # noqa: PLC0415  not needed for a server

    return History(SqliteDatabase(place.removeprefix("sqlite:///"), create=create))


def _values(run: NewRun, digest: str) -> list[object]:
    card = run.card
    times = step_times(card.steps.samples_ms) if card.steps else None
    added_at = run.added_at or datetime.now(UTC).isoformat(timespec="seconds")
    metrics = [getattr(card, name) for name in METRICS]
    return [
        added_at,
        digest,
        run.commit,
        run.branch,
        msgspec.json.encode(run.labels, order="sorted").decode(),
        ", ".join(card.source.files),
        card.grade,
        *metrics,
        times.sigma_log if times else None,
    ]


def _where(which: Selection) -> tuple[str, list[Any]]:
    parts: list[str] = []
    values: list[Any] = []
    if which.branch is not None:
        parts.append("branch = ?")
        values.append(which.branch)
    if which.digests is not None:
        parts.append(f"digest in ({', '.join('?' * len(which.digests)) or 'null'})")
        values += which.digests
    if which.before_id is not None:
        parts.append("id < ?")
        values.append(which.before_id)
    for name, value in sorted(which.labels.items()):
        parts.append("labels like ? escape '~'")
        values.append(f"%{_escaped(_label(name, value))}%")
    return f"where {' and '.join(parts)}" if parts else "", values


def _label(name: str, value: str) -> str:
    """Return a label as it stands in the column; names and values are JSON texts, so quotes end them."""
    encoded = msgspec.json.encode(name), msgspec.json.encode(value)
    return f"{encoded[0].decode()}:{encoded[1].decode()}"


def _escaped(text: str) -> str:
    for sign in "~%_":
        text = text.replace(sign, f"~{sign}")
    return text


def _row(row: tuple[Any, ...]) -> RunRow:
    values: Mapping[str, Any] = dict(zip(("id", *_COLUMNS), row, strict=True))
    return RunRow(
        id=values["id"],
        added_at=values["added_at"],
        digest=values["digest"],
        commit=values["git_commit"],
        branch=values["branch"],
        labels=msgspec.json.decode(values["labels"], type=dict[str, str]),
        source=values["source"],
        grade=values["grade"],
        metrics={name: values[name] for name in METRICS if values[name] is not None},
    )


def _card(body: bytes, where: str) -> Scorecard:
    try:
        return Scorecard.from_json(zlib.decompress(body))
    except (zlib.error, msgspec.DecodeError) as error:
        raise BadHistory(f"its scorecard is damaged: {error}", where=where) from error

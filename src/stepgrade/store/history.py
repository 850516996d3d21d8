"""The history: add scored runs, select them, and read them back as they were scored."""

from __future__ import annotations

import datetime as dt
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import isfinite
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from stepgrade.compare.fingerprint import differences, digest_of
from stepgrade.decoding import from_builtins, from_json
from stepgrade.errors import BadHistory, BadOption, DamagedHistory, KeyTaken, NoSuchRun, did_you_mean
from stepgrade.files import MODES
from stepgrade.memory import default_limit
from stepgrade.model import Fingerprint
from stepgrade.model.comparison import METRICS
from stepgrade.model.run import RunRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.scoring.step_times import step_times
from stepgrade.store.database import Database, Row
from stepgrade.store.migrations import migrate
from stepgrade.store.place import VARIABLE, place_of
from stepgrade.units import show_bytes

# As the columns of stepgrade_run have them.
KEPT_METRICS = tuple(name for name in METRICS if name != "hfu")
# SQLite takes no more values than 999 in its older versions.
_AT_ONCE = 900
# A scorecard is some hundred kilobytes; that of a thousand ranks some megabytes.
_EXPORTED_AT_ONCE = 50
_LARGEST_CARD = 32 << 20
DECODED_BYTES = 24  # of memory for a byte of a card's text
# So many damaged runs are named; the others are counted.
_NAMED = 3
_COLUMNS = (
    "added_at",
    "digest",
    "git_commit",
    "branch",
    "labels",
    "source",
    "grade",
    *KEPT_METRICS,
    "step_sigma",
)
RUN_COLUMNS = ("id", *_COLUMNS)
# Beside those: what a run of a team has.
_ORIGIN = ("project", "upload_key", "upload_digest", "added_by", "device_hours", "has_findings")
DEFAULT_PROJECT = "default"
PINNED = "pinned"  # the label of runs that are never removed by age or number
NO_BRANCH = ""  # in a selection: runs of which no branch is known


class NewRun(Struct, frozen=True, kw_only=True):
    """A scored run and where it comes from."""

    card: Scorecard
    commit: str | None = None
    branch: str | None = None
    labels: dict[str, str] = {}
    added_at: str | None = None  # ISO 8601 with its zone; None is now
    key: str | None = None  # a second run with the same one is not kept twice; None makes one
    added_by: str | None = None
    device_hours: float | None = None  # of the whole training; None is what was recorded of it
    content: str | None = None  # the digest of what it was made of; None is that of its card


class RunOrigin(Struct, frozen=True, kw_only=True):
    """How a run came into the history."""

    key: str | None
    added_by: str | None
    device_hours: float | None


class Selection(Struct, frozen=True, kw_only=True):
    """Which runs: all that is None does not matter."""

    branch: str | None = None
    digests: tuple[str, ...] | None = None
    labels: dict[str, str] = {}
    grade: str | None = None
    commit: str | None = None  # or how it begins
    added_by: str | None = None
    since: str | None = None  # ISO 8601, as added_at
    until: str | None = None
    before: int | None = None  # runs with a lower number than this
    after: int | None = None
    limit: int | None = None  # the newest ones


class History:
    """A store of runs. Use it in a `with` block."""

    def __init__(
        self,
        database: Database,
        max_memory: int | None = None,
        project: str = DEFAULT_PROJECT,
        *,
        is_migrated: bool = False,
    ) -> None:
        self._database = database
        self._most_bytes = default_limit() if max_memory is None else max_memory
        self.project = project  # the only one whose runs are seen
        self.damaged: dict[int, str] = {}  # runs that could not be read, and why; they are passed over
        if is_migrated:
            return
        try:
            migrate(database)
        except BadHistory:
            database.close()
            raise

    @property
    def database(self) -> Database:
        """Return the connection, for the tables beside the runs."""
        return self._database

    def of_project(self, name: str) -> History:
        """Return the history of another project on the same connection."""
        return History(self._database, self._most_bytes, name, is_migrated=True)

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
        """Keep several runs, all or none, and return their numbers; one that was kept before keeps its own.

        Raise KeyTaken when a run's key stands for another run.
        """
        names = (*_COLUMNS, *_ORIGIN)
        columns, marks = ", ".join(names), ", ".join("?" * len(names))
        numbers = []
        with self._database.transaction():
            for run in runs:
                fingerprint = run.card.fingerprint or Fingerprint()
                digest = digest_of(fingerprint)
                text = _text_of(run.card)
                key = run.key or os.urandom(16).hex()
                content = run.content or _digest_of_run(run, text)
                if (earlier := self.number_of_key(key, content)) is not None:
                    numbers.append(earlier)
                    continue
                self._database.execute(
                    "insert into stepgrade_fingerprint (digest, body) values (?, ?) "
                    "on conflict (digest) do nothing",
                    (digest, msgspec.json.encode(fingerprint, order="sorted").decode()),
                )
                hours = device_hours(run.card) if run.device_hours is None else run.device_hours
                number = self._database.insert(
                    f"insert into stepgrade_run ({columns}) values ({marks}) "
                    "on conflict (project, upload_key) do nothing",
                    [*_values(run, digest), self.project, key, content, run.added_by, hours, 1],
                )
                if not number:  # another connection was first
                    numbers.append(self.number_of_key(key, content) or 0)
                    continue
                self._database.execute(
                    "insert into stepgrade_card (run_id, body) values (?, ?)", (number, zlib.compress(text))
                )
                self.keep_findings(number, run.card)
                numbers.append(number)
        return numbers

    def number_of_key(self, key: str, content: str) -> int | None:
        """Return the run that has this key; raise KeyTaken when it is another one."""
        sql = "select id, upload_digest from stepgrade_run where project = ? and upload_key = ?"
        for number, other in self._database.execute(sql, (self.project, key)):
            if other != content:
                raise KeyTaken(
                    f"its key belongs to run {number}, which is another one",
                    where=self.name,
                    hint="a new run needs a key of its own",
                )
            return int(number)
        return None

    def run_with_key(self, key: str) -> int | None:
        """Return the run that was kept with this key; None when there is none."""
        sql = "select id from stepgrade_run where project = ? and upload_key = ?"
        return next((int(row[0]) for row in self._database.execute(sql, (self.project, key))), None)

    def set_key(self, number: int, key: str) -> None:
        """Give a run of before there were keys the one that it has elsewhere."""
        self._database.execute(
            "update stepgrade_run set upload_key = ? where project = ? and id = ? and upload_key is null",
            (key, self.project, number),
        )

    def keep_findings(self, number: int, card: Scorecard) -> None:
        """Keep what a run's findings are worth, so that those of all runs can be added up."""
        for found in card.findings:
            self._database.execute(
                "insert into stepgrade_finding (run_id, rule, severity, claim, gain_low, gain_high) "
                "values (?, ?, ?, ?, ?, ?)",
                (number, found.rule, found.severity, found.claim, found.gain_low, found.gain_high),
            )

    def without_findings(self, limit: int) -> list[int]:
        """Return runs that were kept before findings were, newest first."""
        sql = "select id from stepgrade_run where project = ? and has_findings = 0 order by id desc limit ?"
        return [int(row[0]) for row in self._database.execute(sql, (self.project, limit))]

    def fill_findings(self, numbers: Sequence[int]) -> None:
        """Keep the findings and device-hours of runs that were kept before there was a place for them."""
        cards = self.cards(numbers)
        for number in numbers:
            with self._database.transaction():
                hours = None
                if number in cards:
                    self.keep_findings(number, cards[number])
                    hours = device_hours(cards[number])
                self._database.execute(
                    "update stepgrade_run set has_findings = 1, device_hours = coalesce(device_hours, ?) "
                    "where id = ?",
                    (hours, number),
                )

    def origins(self, numbers: Sequence[int]) -> dict[int, RunOrigin]:
        """Return how some runs came here."""
        sql = "select id, upload_key, added_by, device_hours from stepgrade_run where project = ? and id in"
        return {
            number: RunOrigin(key=key, added_by=added_by, device_hours=hours)
            for number, key, added_by, hours in self._rows_of(sql, numbers, self.project)
        }

    def runs(self, which: Selection = Selection()) -> list[RunRow]:  # noqa: B008  frozen
        """Return runs, oldest first."""
        where, values = conditions(which, self.project)
        names = ", ".join(RUN_COLUMNS)
        order = "order by id desc limit ?" if which.limit is not None else "order by id"
        if which.limit is not None:
            values.append(which.limit)
        rows = self._database.execute(f"select {names} from stepgrade_run {where} {order}", values)
        found = self.as_runs(rows)
        return found[::-1] if which.limit is not None else found

    def batches(self, which: Selection) -> Iterator[list[RunRow]]:
        """Yield runs some at a time, oldest first, so that their number takes no memory."""
        where, values = conditions(which, self.project)
        order = "" if which.limit is None else f"order by id desc limit {int(which.limit)}"
        rows = self._database.execute(f"select id from stepgrade_run {where} {order}", values)
        numbers = sorted(number for (number,) in rows)
        for start in range(0, len(numbers), _EXPORTED_AT_ONCE):
            some = numbers[start : start + _EXPORTED_AT_ONCE]
            within = {"after": some[0] - 1, "before": some[-1] + 1, "limit": None}
            yield self.runs(msgspec.structs.replace(which, **within))

    def as_runs(self, rows: Iterable[Row]) -> list[RunRow]:
        """Return rows of RUN_COLUMNS as runs; those that make no sense are passed over."""
        found = []
        for row in rows:
            try:
                found.append(_row(row))
            except (msgspec.DecodeError, msgspec.ValidationError, TypeError, UnicodeError):
                self._pass_over(row[0], "its row makes no sense")
        return found

    def series(self, metric: str, which: Selection) -> list[tuple[int, float]]:
        """Return (id, value) of one metric, oldest first: no more than a trend needs."""
        if metric not in KEPT_METRICS:
            raise BadHistory(
                f"the history keeps no metric called {metric!r}", hint=did_you_mean(metric, KEPT_METRICS)
            )
        where, values = conditions(which, self.project)
        sql = f"select id, {metric} from stepgrade_run {where} and {metric} is not null order by id desc"
        if which.limit is not None:
            sql += " limit ?"
            values.append(which.limit)
        found = []
        for number, value in self._database.execute(sql, values):
            if isinstance(value, int | float) and isfinite(value):
                found.append((number, value))
            else:
                self._pass_over(number, f"its {metric} is no number")
        return found[::-1]

    def commits(self, numbers: Sequence[int]) -> dict[int, str | None]:
        """Return the commits of some runs."""
        sql = "select id, git_commit from stepgrade_run where project = ? and id in"
        return dict(self._rows_of(sql, numbers, self.project))

    def card(self, number: int) -> Scorecard:
        """Return the scorecard of a run; raise BadHistory when it is not there or damaged."""
        found = self.cards([number])
        if number in self.damaged:
            raise BadHistory(self.damaged[number], where=f"{self.name}: run {number}")
        return found[number]

    def cards(self, numbers: Sequence[int]) -> dict[int, Scorecard]:
        """Return the scorecards of several runs by number; a damaged one is left out and named in `damaged`.

        So is one for which the memory does not suffice. Raise BadHistory when there is no such run.
        """
        # Of this project alone: a number is no key to others' runs.
        sql = (
            "select run_id, body from stepgrade_card join stepgrade_run on stepgrade_run.id = run_id "
            "where project = ? and run_id in"
        )
        try:
            bodies: dict[int, bytes] = dict(self._rows_of(sql, numbers, self.project))
        except DamagedHistory:  # one unreadable page fails the whole query
            bodies = {}
            for number in numbers:
                try:
                    bodies.update(self._rows_of(sql, [number], self.project))
                except DamagedHistory as error:
                    self._pass_over(number, error.problem)
        found = {}
        left_bytes = self._most_bytes
        for number in numbers:
            if number in self.damaged or number in found:
                continue
            if number not in bodies:
                raise NoSuchRun(f"has no run {number}", where=self.name, hint="stepgrade history list")
            try:
                inflate = zlib.decompressobj()
                text = inflate.decompress(bodies.pop(number), _LARGEST_CARD)
                if not inflate.eof:  # cut short, or larger than any we keep
                    problem = f"its scorecard is damaged: it does not end within {_LARGEST_CARD} bytes"
                    self._pass_over(number, problem)
                    continue
                left_bytes -= len(text) * DECODED_BYTES
                if left_bytes < 0:
                    limit = show_bytes(self._most_bytes)
                    self._pass_over(
                        number, f"with its scorecard the runs would take more memory than {limit}"
                    )
                    continue
                found[number] = Scorecard.from_json(text)
            except (
                zlib.error,
                msgspec.DecodeError,
                msgspec.ValidationError,
                TypeError,
                UnicodeError,
            ) as error:
                self._pass_over(number, f"its scorecard is damaged: {error}")
        return found

    def damage(self) -> str:
        """Return which runs could not be read and why; empty when all could."""
        shown = [f"run {number} ({problem})" for number, problem in sorted(self.damaged.items())[:_NAMED]]
        rest = len(self.damaged) - len(shown)
        return ", ".join([*shown, *([f"{rest} more"] if rest else [])])

    def _pass_over(self, number: object, problem: str) -> None:
        self.damaged[number if isinstance(number, int) else -1] = problem

    def _rows_of(self, sql: str, numbers: Sequence[int], *before: str) -> Iterator[Row]:
        """Yield the rows of some runs, with as few queries as the database's limit allows."""
        for start in range(0, len(numbers), _AT_ONCE):
            some = numbers[start : start + _AT_ONCE]
            yield from self._database.execute(f"{sql} ({', '.join('?' * len(some))})", [*before, *some])

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return every fingerprint of the project's runs by its digest."""
        # One look into the index for each fingerprint: PostgreSQL would join "exists" with all runs.
        rows = self._database.execute(
            "select digest, body from stepgrade_fingerprint where (select 1 from stepgrade_run "
            "where project = ? and stepgrade_run.digest = stepgrade_fingerprint.digest "
            "order by branch, id limit 1) is not null",
            (self.project,),
        )
        found = {}
        for digest, body in rows:
            with suppress(msgspec.DecodeError, msgspec.ValidationError, TypeError, UnicodeError):
                found[str(digest)] = from_json(body, Fingerprint)
        return found

    def comparable(self, with_this: Fingerprint, allowed: frozenset[str]) -> tuple[str, ...]:
        """Return the digests of the fingerprints that a run with this one may be compared with."""
        return tuple(
            digest
            for digest, other in sorted(self.fingerprints().items())
            if not differences(with_this, other, allowed)
        )

    def prunable(self, *, keep: int | None = None, older_than: dt.date | None = None) -> list[int]:
        """Return the runs but for the newest `keep` of each branch and fingerprint, or those before a day.

        Runs with the label `pinned` are never among them, nor runs whose labels cannot be read. Raise
        BadOption for a number below 1 or a day to come: they would mean every run.
        """
        if keep is not None and keep < 1:
            raise BadOption(f"must be 1 or more, not {keep}", field="keep")
        if older_than is not None and older_than > dt.datetime.now(dt.UTC).date():
            raise BadOption(f"{older_than} is still to come", field="older_than")
        newer: dict[tuple[str, str | None], int] = {}
        chosen = []
        columns = "id, digest, branch, added_at, labels"
        rows = self._database.execute(
            f"select {columns} from stepgrade_run where project = ? order by id desc",
            (self.project,),
        )
        for number, digest, branch, added_at, labels in rows:
            rank = newer.get((digest, branch), 0)
            newer[digest, branch] = rank + 1
            is_too_old = older_than is not None and str(added_at) < older_than.isoformat()
            if is_too_old or (keep is not None and rank >= keep):
                with suppress(msgspec.DecodeError):
                    if PINNED not in from_json(labels, dict[str, str]):
                        chosen.append(number)
        return chosen

    def remove(self, numbers: Sequence[int]) -> None:
        """Remove these runs, all or none."""
        with self._database.transaction():
            for number in numbers:
                mine = "(select id from stepgrade_run where id = ? and project = ?)"
                for table, column in (("finding", "run_id"), ("card", "run_id"), ("run", "id")):
                    sql = f"delete from stepgrade_{table} where {column} in {mine}"
                    self._database.execute(sql, (number, self.project))

    def export(self, which: Selection = Selection()) -> Iterator[dict[str, Any]]:  # noqa: B008  frozen
        """Yield every run that can be read with its scorecard, oldest first, ready to be written as JSON."""
        for some in self.batches(which):
            try:
                cards = self.cards([row.id for row in some])
            except NoSuchRun:  # another process removes runs meanwhile
                cards = {}
                for row in some:
                    try:
                        cards |= self.cards([row.id])
                    except NoSuchRun:
                        self._pass_over(row.id, "it was removed meanwhile, or its scorecard is missing")
            for row in some:
                if row.id in cards:
                    yield {**msgspec.to_builtins(row), "card": cards.pop(row.id).to_dict()}


def open_history(
    place: str | None = None,
    *,
    create: bool = True,
    max_memory: int | None = None,
    readable_by: str = "owner",
    project: str = DEFAULT_PROJECT,
) -> History:
    """Open the history at a path, a postgresql:// URL, or https://SERVER/PROJECT with STEPGRADE_TOKEN.

    The default is STEPGRADE_HISTORY, otherwise .stepgrade/history.db. `max_memory` limits the bytes of runs
    read at once (default: a quarter of the machine's memory). `readable_by` (owner, group or all) applies to
    a new file, within the umask. `project` selects one in a team's file or database.
    """
    if readable_by not in MODES:
        raise BadOption(f"must be one of {', '.join(MODES)}", field="readable_by")
    named = place or os.environ.get(VARIABLE)
    if named and re.match(r"(?i)https?:", named):
        from stepgrade.store.remote import RemoteHistory  # needs ssl

        return RemoteHistory(named, max_memory)
    url, name = place_of(place)
    if url is not None:
        from stepgrade.store.postgres import PostgresDatabase  # an extra

        return History(PostgresDatabase(url, name), max_memory, project)
    from stepgrade.store.sqlite import SqliteDatabase  # not needed for a server

    return History(SqliteDatabase(name, create=create, new_mode=MODES[readable_by]), max_memory, project)


def _values(run: NewRun, digest: str) -> list[object]:
    card = run.card
    times = step_times(card.steps.samples_ms) if card.steps else None
    added_at = run.added_at or dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    metrics = card.metrics
    labels = {as_text(name): as_text(label) for name, label in run.labels.items()}
    return [
        added_at,
        digest,
        run.commit and as_text(run.commit),
        run.branch and as_text(run.branch),
        msgspec.json.encode(labels, order="sorted").decode(),
        ", ".join(card.source.files),
        card.grade,
        *(metrics[name] for name in KEPT_METRICS),
        times.sigma_log if times else None,
    ]


def as_text(words: str) -> str:
    """Return words of a command line as text that can be kept: they may hold bytes that are none."""
    return words.encode("utf-8", "backslashreplace").decode()


def conditions(which: Selection, project: str) -> tuple[str, list[Any]]:
    """Return the `where` of a selection in a project, and its values."""
    parts: list[str] = ["project = ?"]
    values: list[Any] = [project]
    if which.branch == NO_BRANCH:
        parts.append("branch is null")
    given = {
        "branch = ?": which.branch or None,
        "grade = ?": which.grade,
        "added_by = ?": which.added_by,
        "added_at >= ?": which.since,
        "added_at < ?": which.until,
        "id < ?": which.before,
        "id > ?": which.after,
        "git_commit like ? escape '~'": None if which.commit is None else f"{_literal(which.commit)}%",
    }
    for part, value in given.items():
        if value is not None:
            parts.append(part)
            values.append(as_text(value) if isinstance(value, str) else value)
    if which.digests is not None:
        parts.append(f"digest in ({', '.join('?' * len(which.digests)) or 'null'})")
        values += which.digests
    for name, value in sorted(which.labels.items()):
        # Names and values are JSON texts in the column, so their quotes end them.
        encoded = [msgspec.json.encode(as_text(text)).decode() for text in (name, value)]
        parts.append("labels like ? escape '~'")
        values.append(f"%{_literal(':'.join(encoded))}%")
    return f"where {' and '.join(parts)}", values


def _literal(text: str) -> str:
    """Return a text as a pattern that matches nothing else."""
    for sign in "~%_":
        text = text.replace(sign, f"~{sign}")
    return text


def _row(row: Row) -> RunRow:
    """Return a run as it was kept; raise what msgspec raises where a foreign hand wrote something else."""
    values = dict(zip(RUN_COLUMNS, row, strict=True))
    metrics = {name: values[name] for name in KEPT_METRICS if values[name] is not None}
    if not all(isinstance(value, int | float) and isfinite(value) for value in metrics.values()):
        raise TypeError("a metric is no number")
    return from_builtins(
        {
            **{name: values[name] for name in ("id", "added_at", "digest", "branch", "source", "grade")},
            "commit": values["git_commit"],
            "labels": msgspec.json.decode(values["labels"]),
            "metrics": metrics,
        },
        RunRow,
    )


def device_hours(card: Scorecard) -> float | None:
    """Return the device-hours that a card's source covers; None where it does not tell."""
    devices = card.fingerprint.world_size if card.fingerprint else None
    devices = devices or (card.device.count if card.device else None) or len(card.ranks) or 1
    if card.goodput is not None:
        return card.goodput.wall_s * devices / 3600.0
    count = card.steps.count if card.steps else None
    if not count or card.step_time_ms is None:
        return None
    return count * card.step_time_ms / 1000.0 * devices / 3600.0


def _digest_of_run(run: NewRun, text: bytes) -> str:
    """Return what tells a run that is sent again from another with the same key."""
    import hashlib  # only when something is kept

    origin = as_text(repr((run.commit, run.branch, sorted(run.labels.items()))))
    return hashlib.sha256(text + origin.encode()).hexdigest()


def _text_of(card: Scorecard) -> bytes:
    """Return a card as it is kept; raise BadHistory for one that could not be read back."""
    text = card.to_json().encode()
    try:
        Scorecard.from_json(text)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError) as error:
        raise BadHistory(f"the run was not kept, since it could not be read back: {error}") from error
    if len(text) > _LARGEST_CARD:
        raise BadHistory(f"the run was not kept: a scorecard of {len(text)} bytes is beyond {_LARGEST_CARD}")
    return text

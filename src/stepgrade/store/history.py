"""Runs in a database, and the functions that open a history."""

from __future__ import annotations

import datetime as dt
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any

import msgspec

from stepgrade.compare.fingerprint import digest_of
from stepgrade.decoding import from_builtins, from_json
from stepgrade.errors import BadHistory, BadOption, DamagedHistory, KeyTaken, NoSuchRun, did_you_mean
from stepgrade.files import MODES
from stepgrade.model.comparison import RunRow
from stepgrade.model.scorecard import Fingerprint, Scorecard
from stepgrade.scoring.step_times import step_times
from stepgrade.store.database import VARIABLE, Database, Row, locate, migrate
from stepgrade.store.runs import (
    DECODED_BYTES,
    KEPT_METRICS,
    NO_BRANCH,
    NewRun,
    RunOrigin,
    Runs,
    Selection,
    as_text,
)
from stepgrade.units import show_bytes

# Older versions of SQLite accept at most 999 values per query.
_MAX_VALUES = 900
# A scorecard is a few hundred kilobytes; with a thousand ranks, a few megabytes.
_EXPORT_BATCH = 50
_LARGEST_CARD = 32 << 20
RUN_COLUMNS = (
    "id",
    "added_at",
    "digest",
    "git_commit",
    "branch",
    "labels",
    "source",
    "grade",
    *KEPT_METRICS,
)
# A run's place in time is when it was made; ids are in the order of arrival.
NEWEST_FIRST = "order by added_at desc, id desc"
DEFAULT_PROJECT = "default"
PINNED = "pinned"  # runs with this label are never removed automatically


class History(Runs):
    """The runs of one project in a database."""

    def __init__(
        self,
        database: Database,
        max_memory: int | None = None,
        project: str = DEFAULT_PROJECT,
        *,
        is_migrated: bool = False,
    ) -> None:
        super().__init__(database.name, project, max_memory)
        self.database = database
        if is_migrated:
            return
        try:
            migrate(database)
        except BadHistory:
            database.close()
            raise

    def in_project(self, name: str) -> History:
        """Return the history of another project on the same connection."""
        return History(self.database, self._max_bytes, name, is_migrated=True)

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def add_all(self, runs: Iterable[NewRun]) -> list[int]:
        """Add runs, all or none, and return their ids; a run whose key is known keeps the id it has.

        Raise KeyTaken when a key belongs to a different run.
        """
        import hashlib  # only when something is stored

        numbers = []
        with self.database.transaction():
            for run in runs:
                card = run.card
                text = card.to_json().encode()
                try:
                    if not run.is_decoded:
                        Scorecard.from_json(text)
                except (msgspec.DecodeError, UnicodeError) as error:
                    problem = f"the run was not stored: its scorecard could not be read back: {error}"
                    raise BadHistory(problem) from error
                if len(text) > _LARGEST_CARD:
                    problem = f"its scorecard has {len(text)} bytes, more than {_LARGEST_CARD}"
                    raise BadHistory(f"the run was not stored: {problem}")
                key = run.key or os.urandom(16).hex()
                # The same when a run is sent again, and different for another run.
                origin = as_text(repr((run.commit, run.branch, sorted(run.labels.items()))))
                content = run.content or hashlib.sha256(text + origin.encode()).hexdigest()
                if (earlier := self.run_with_key(key, content)) is not None:
                    numbers.append(earlier)
                    continue
                fingerprint = card.fingerprint or Fingerprint()
                digest = digest_of(fingerprint)
                body = msgspec.json.encode(fingerprint, order="sorted").decode()
                self.database.put("fingerprint", {"digest": digest, "body": body}, "digest")
                times = step_times(card.steps.samples_ms) if card.steps else None
                new = run.storable()
                row = {
                    "project": self.project,
                    "added_at": new.added_at,
                    "git_commit": new.commit,
                    "branch": new.branch,
                    "labels": msgspec.json.encode(new.labels, order="sorted").decode(),
                    "digest": digest,
                    "upload_key": key,
                    "upload_digest": content,
                    "source": ", ".join(card.source.files),
                    "grade": card.grade,
                    **{name: card.metrics[name] for name in KEPT_METRICS},
                    "step_sigma": times.sigma_log if times else None,
                    "added_by": run.added_by,
                    "device_hours": device_hours(card) if run.device_hours is None else run.device_hours,
                    "has_findings": 1,
                }
                number = self.database.insert("run", row, "project, upload_key")
                if not number:  # another connection was faster
                    numbers.append(self.run_with_key(key, content) or 0)
                    continue
                self.database.put("card", {"run_id": number, "body": zlib.compress(text)})
                self._add_findings(number, card)
                numbers.append(number)
        return numbers

    def run_with_key(self, key: str, content: str | None = None) -> int | None:
        """Return the id of the run with this key; raise KeyTaken if its content is not `content`."""
        sql = "select id, upload_digest from stepgrade_run where project = ? and upload_key = ?"
        for number, other in self.database.execute(sql, (self.project, key)):
            if content is not None and other != content:
                raise KeyTaken(
                    f"the key belongs to run {number}, which is a different run",
                    where=self.name,
                    hint="use a new key for a new run",
                )
            return int(number)
        return None

    def set_key(self, number: int, key: str) -> None:
        """Set the key of a run that was stored before runs had keys."""
        self.database.execute(
            "update stepgrade_run set upload_key = ? where project = ? and id = ? and upload_key is null",
            (key, self.project, number),
        )

    def _add_findings(self, number: int, card: Scorecard) -> None:
        for found in card.findings:
            names = ("rule", "severity", "claim", "gain_low", "gain_high")
            row = {name: getattr(found, name) for name in names}
            self.database.put("finding", {"run_id": number, **row})

    def without_findings(self, limit: int) -> list[int]:
        """Return ids of runs stored before findings had a table, newest first."""
        sql = "select id from stepgrade_run where project = ? and has_findings = 0 order by id desc limit ?"
        return [int(row[0]) for row in self.database.execute(sql, (self.project, limit))]

    def fill_findings(self, numbers: Sequence[int]) -> None:
        """Store findings and device-hours of runs that predate their columns."""
        cards = self.cards(numbers)
        for number in numbers:
            with self.database.transaction():
                hours = None
                if number in cards:
                    self._add_findings(number, cards[number])
                    hours = device_hours(cards[number])
                self.database.execute(
                    "update stepgrade_run set has_findings = 1, device_hours = coalesce(device_hours, ?) "
                    "where id = ?",
                    (hours, number),
                )

    def origins(self, numbers: Sequence[int]) -> dict[int, RunOrigin]:
        """Return how runs were added, by id."""
        sql = "select id, upload_key, added_by, device_hours from stepgrade_run where project = ? and id in"
        return {
            number: RunOrigin(key=key, added_by=added_by, device_hours=hours)
            for number, key, added_by, hours in self._rows_for(sql, numbers, self.project)
        }

    def runs(self, which: Selection | None = None) -> list[RunRow]:
        """Return runs without their scorecards, oldest first."""
        which = which or Selection()
        where, values = conditions(which, self.project)
        names = ", ".join(RUN_COLUMNS)
        order = "order by added_at, id"
        if which.limit is not None:
            order = f"{NEWEST_FIRST} limit ?"
        if which.limit is not None:
            values.append(which.limit)
        rows = self.database.execute(f"select {names} from stepgrade_run {where} {order}", values)
        found = self.as_runs(rows)
        return found[::-1] if which.limit is not None else found

    def batches(self, which: Selection) -> Iterator[list[RunRow]]:
        """Yield runs in batches whose scorecards fit into memory together, oldest first."""
        where, values = conditions(which, self.project)
        order = "" if which.limit is None else f"{NEWEST_FIRST} limit {int(which.limit)}"
        rows = self.database.execute(f"select id from stepgrade_run {where} {order}", values)
        numbers = sorted(number for (number,) in rows)
        for start in range(0, len(numbers), _EXPORT_BATCH):
            some = numbers[start : start + _EXPORT_BATCH]
            within = {"after": some[0] - 1, "before": some[-1] + 1, "limit": None}
            yield self.runs(msgspec.structs.replace(which, **within))

    def as_runs(self, rows: Iterable[Row]) -> list[RunRow]:
        """Return rows of RUN_COLUMNS as runs; invalid rows are skipped."""
        found = []
        for row in rows:
            values = dict(zip(RUN_COLUMNS, row, strict=True))
            values["metrics"] = {name: values[name] for name in KEPT_METRICS if values[name] is not None}
            values["commit"] = values["git_commit"]
            try:
                values["labels"] = msgspec.json.decode(values["labels"])
                run = from_builtins({name: values[name] for name in RunRow.__struct_fields__}, RunRow)
                is_valid = all(map(isfinite, run.metrics.values()))
            except (msgspec.DecodeError, TypeError, UnicodeError):
                is_valid = False
            if is_valid:
                found.append(run)
            else:
                self._skip(row[0], "its row is invalid")
        return found

    def series(self, metric: str, which: Selection) -> list[tuple[int, float]]:
        """Return (id, value) pairs of one metric, oldest first."""
        if metric not in KEPT_METRICS:
            raise BadHistory(f"unknown metric {metric!r}", hint=did_you_mean(metric, KEPT_METRICS))
        where, values = conditions(which, self.project)
        sql = f"select id, {metric} from stepgrade_run {where} and {metric} is not null {NEWEST_FIRST}"
        if which.limit is not None:
            sql += " limit ?"
            values.append(which.limit)
        found = []
        for number, value in self.database.execute(sql, values):
            if isinstance(value, int | float) and isfinite(value):
                found.append((number, value))
            else:
                self._skip(number, f"its {metric} is not a number")
        return found[::-1]

    def commits(self, numbers: Sequence[int]) -> dict[int, str | None]:
        """Return the commits of runs by id."""
        sql = "select id, git_commit from stepgrade_run where project = ? and id in"
        return dict(self._rows_for(sql, numbers, self.project))

    def cards(self, numbers: Sequence[int]) -> dict[int, Scorecard]:
        """Return scorecards by run id; a damaged one, or one beyond `max_memory`, is recorded in `damaged`.

        Raise NoSuchRun for an unknown id.
        """
        # Only this project's runs: an id must not give access to those of others.
        sql = (
            "select run_id, body from stepgrade_card join stepgrade_run on stepgrade_run.id = run_id "
            "where project = ? and run_id in"
        )
        try:
            bodies: dict[int, bytes] = dict(self._rows_for(sql, numbers, self.project))
        except DamagedHistory:  # one unreadable page fails the whole query
            bodies = {}
            for number in numbers:
                try:
                    bodies.update(self._rows_for(sql, [number], self.project))
                except DamagedHistory as error:
                    self._skip(number, error.problem)
        found = {}
        left_bytes = self._max_bytes
        for number in numbers:
            if number in self.damaged or number in found:
                continue
            if number not in bodies:
                raise NoSuchRun(f"has no run {number}", where=self.name, hint="stepgrade history list")
            try:
                inflate = zlib.decompressobj()
                text = inflate.decompress(bodies.pop(number), _LARGEST_CARD)
                if not inflate.eof:  # truncated, or larger than any we store
                    problem = f"its scorecard is damaged: it does not end within {_LARGEST_CARD} bytes"
                    self._skip(number, problem)
                    continue
                left_bytes -= len(text) * DECODED_BYTES
                if left_bytes < 0:
                    limit = show_bytes(self._max_bytes)
                    self._skip(number, f"with its scorecard the runs would take more memory than {limit}")
                    continue
                found[number] = Scorecard.from_json(text)
            except (zlib.error, msgspec.DecodeError, TypeError, UnicodeError) as error:
                self._skip(number, f"its scorecard is damaged: {error}")
        return found

    def _rows_for(self, sql: str, numbers: Sequence[int], *before: str) -> Iterator[Row]:
        """Yield the rows of runs, in as few queries as the database's limit allows."""
        for start in range(0, len(numbers), _MAX_VALUES):
            some = numbers[start : start + _MAX_VALUES]
            yield from self.database.execute(f"{sql} ({', '.join('?' * len(some))})", [*before, *some])

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of all runs by digest."""
        # One index lookup per fingerprint: PostgreSQL would turn "exists" into a join with all runs.
        rows = self.database.execute(
            "select digest, body from stepgrade_fingerprint where (select 1 from stepgrade_run "
            "where project = ? and stepgrade_run.digest = stepgrade_fingerprint.digest "
            "order by branch, added_at, id limit 1) is not null",
            (self.project,),
        )
        found = {}
        for digest, body in rows:
            with suppress(msgspec.DecodeError, TypeError, UnicodeError):
                found[str(digest)] = from_json(body, Fingerprint)
        return found

    def prunable(self, *, keep: int | None = None, older_than: dt.date | None = None) -> list[int]:
        """Return ids of runs older than a day, or beyond the newest `keep` of their branch and fingerprint.

        Runs labelled `pinned` and runs whose labels cannot be read are never included. Raise BadOption for
        `keep` below 1 or a future day, which would select every run.
        """
        if keep is not None and keep < 1:
            raise BadOption(f"must be 1 or more, not {keep}", field="keep")
        if older_than is not None and older_than > dt.datetime.now(dt.UTC).date():
            raise BadOption(f"{older_than} is in the future", field="older_than")
        newer: dict[tuple[str, str | None], int] = {}
        chosen = []
        columns = "id, digest, branch, added_at, labels"
        rows = self.database.execute(
            f"select {columns} from stepgrade_run where project = ? {NEWEST_FIRST}",
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
        """Remove runs, all or none."""
        with self.database.transaction():
            for number in numbers:
                mine = "(select id from stepgrade_run where id = ? and project = ?)"
                for table, column in (("finding", "run_id"), ("card", "run_id"), ("run", "id")):
                    sql = f"delete from stepgrade_{table} where {column} in {mine}"
                    self.database.execute(sql, (number, self.project))


def open_history(
    location: str | None = None,
    *,
    create: bool = True,
    max_memory: int | None = None,
    readable_by: str = "owner",
    project: str = DEFAULT_PROJECT,
) -> Runs:
    """Open the history at a path, a postgresql:// URL, or https://SERVER/PROJECT with STEPGRADE_TOKEN.

    The default is STEPGRADE_HISTORY, else .stepgrade/history.db in the working directory. `max_memory` limits
    the bytes of runs read at once (default: a quarter of the machine's memory). `readable_by` (owner, group,
    all) sets the mode of a new file, within the umask. `project` selects one in a team's file or database; a
    server's URL includes it.
    """
    named = location or os.environ.get(VARIABLE)
    if named and re.match(r"(?i)https?:", named):
        from stepgrade.store.remote import RemoteHistory  # needs ssl

        return RemoteHistory(named, max_memory)
    return open_store(
        location, create=create, max_memory=max_memory, readable_by=readable_by, project=project
    )


def open_store(
    location: str | None = None,
    *,
    create: bool = True,
    max_memory: int | None = None,
    readable_by: str = "owner",
    project: str = DEFAULT_PROJECT,
) -> History:
    """Open the history in a file or database, as `open_history` does; raise BadHistory for a server's URL."""
    if readable_by not in MODES:
        raise BadOption(f"must be one of {', '.join(MODES)}", field="readable_by")
    url, name = locate(location)
    database = connect(url, name, create=create, new_mode=MODES[readable_by])
    return History(database, max_memory, project)


def connect(url: str | None, name: str, **options: Any) -> Database:
    """Connect to the PostgreSQL URL, or without one to the SQLite file of that name with these options."""
    if url is not None:
        from stepgrade.store.postgres import PostgresDatabase  # an extra

        return PostgresDatabase(url, name)
    from stepgrade.store.sqlite import SqliteDatabase  # not needed for a server

    return SqliteDatabase(name, **options)


def conditions(which: Selection, project: str) -> tuple[str, list[Any]]:
    """Return the `where` clause of a selection in a project, and its values."""
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
        # The column holds JSON, so the quotes delimit names and values.
        encoded = [msgspec.json.encode(as_text(text)).decode() for text in (name, value)]
        parts.append("labels like ? escape '~'")
        values.append(f"%{_literal(':'.join(encoded))}%")
    return f"where {' and '.join(parts)}", values


def _literal(text: str) -> str:
    """Escape the wildcards of `like`."""
    for sign in "~%_":
        text = text.replace(sign, f"~{sign}")
    return text


def device_hours(card: Scorecard) -> float | None:
    """Return the device-hours that a card's source covers; None if unknown."""
    devices = card.fingerprint.world_size if card.fingerprint else None
    devices = devices or (card.device.count if card.device else None) or len(card.ranks) or 1
    if card.goodput is not None:
        return card.goodput.wall_s * devices / 3600.0
    count = card.steps.count if card.steps else None
    if not count or card.step_time_ms is None:
        return None
    return count * card.step_time_ms / 1000.0 * devices / 3600.0

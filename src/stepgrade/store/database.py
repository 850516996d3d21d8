"""Where a history is, the interface of its database, and the migrations of its tables."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from stepgrade.errors import BadHistory

Row = tuple[Any, ...]
_Kind = TypeVar("_Kind", bound=Struct)


class Database(ABC):
    """A connection to a store; errors are raised as BadHistory."""

    name: str
    words: ClassVar[dict[str, str]]  # column types of the migrations in this database's dialect

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement with `?` placeholders and return its rows."""

    @abstractmethod
    def insert(self, table: str, values: Mapping[str, object], conflict: str = "") -> int:
        """Add a row to a table with ids and return its id; 0 after a conflict on these columns."""

    @abstractmethod
    def transaction(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Run a transaction; once it ends, its changes are durable."""

    @abstractmethod
    def version(self) -> int:
        """Return the number of the last migration; 0 for an empty store."""

    @abstractmethod
    def set_version(self, number: int) -> None:
        """Store the number of the last migration."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def put(self, table: str, values: Mapping[str, object], conflict: str = "") -> None:
        """Add a row to a table; after a conflict on these columns the old row stays."""
        self.execute(insert_statement(table, values, conflict), [*values.values()])

    def select(self, kind: type[_Kind], rest: str, values: Sequence[Any] = ()) -> list[_Kind]:
        """Return rows of a table as `kind`, whose fields are its columns; `rest` starts with the table."""
        names = kind.__struct_fields__
        rows = self.execute(f"select {', '.join(names)} from stepgrade_{rest}", values)
        return [kind(**dict(zip(names, row, strict=True))) for row in rows]


def insert_statement(table: str, values: Mapping[str, object], conflict: str) -> str:
    """Return the statement that adds a row to one of stepgrade's tables."""
    ignored = f" on conflict ({conflict}) do nothing" if conflict else ""
    marks = ", ".join("?" * len(values))
    return f"insert into stepgrade_{table} ({', '.join(values)}) values ({marks}){ignored}"


# Applied in order. A released migration is never changed; a change of the schema is a new one at the end.
# `{id}`, `{real}` and `{blob}` are types that SQLite and PostgreSQL spell differently.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "create table stepgrade_fingerprint (digest text primary key, body text not null)",
        """create table stepgrade_run (
            id {id},
            added_at text not null,
            digest text not null references stepgrade_fingerprint (digest),
            git_commit text,
            branch text,
            labels text not null,
            source text not null,
            grade text not null,
            step_time_ms {real},
            step_sigma {real},
            throughput_tok_s {real},
            efficiency {real},
            mfu {real},
            wall_coverage {real},
            launches_per_step {real},
            peak_memory_bytes {real}
        )""",
        # The gate reads trends of these two metrics from the index alone.
        """create index stepgrade_run_by_place
            on stepgrade_run (digest, branch, id, step_time_ms, throughput_tok_s)""",
        """create table stepgrade_card (
            run_id bigint primary key references stepgrade_run (id) on delete cascade,
            body {blob} not null
        )""",
    ),
    ("alter table stepgrade_run add column samples_s {real}",),
    # A team's runs: several projects, idempotent uploads, cost of findings.
    (
        """create table stepgrade_project (
            name text primary key, created_at text not null, settings text not null
        )""",
        "insert into stepgrade_project (name, created_at, settings) values ('default', '', '{{}}')",
        "alter table stepgrade_run add column project text not null default 'default'",
        "alter table stepgrade_run add column upload_key text",
        "alter table stepgrade_run add column upload_digest text",
        "alter table stepgrade_run add column added_by text",
        "alter table stepgrade_run add column device_hours {real}",
        "alter table stepgrade_run add column has_findings integer not null default 0",
        "drop index stepgrade_run_by_place",
        """create index stepgrade_run_by_place
            on stepgrade_run (project, digest, branch, id, step_time_ms, throughput_tok_s)""",
        "create index stepgrade_run_by_branch on stepgrade_run (project, branch, id)",
        "create unique index stepgrade_run_by_key on stepgrade_run (project, upload_key)",
        # One per sort key of the table of runs.
        "create index stepgrade_run_by_number on stepgrade_run (project, id)",
        "create index stepgrade_run_by_step on stepgrade_run (project, step_time_ms, id)",
        "create index stepgrade_run_by_rate on stepgrade_run (project, throughput_tok_s, id)",
        "create index stepgrade_run_by_efficiency on stepgrade_run (project, efficiency, id)",
        """create table stepgrade_finding (
            run_id bigint not null references stepgrade_run (id) on delete cascade,
            rule text not null,
            severity text not null,
            claim text not null,
            gain_low {real} not null,
            gain_high {real} not null
        )""",
        "create index stepgrade_finding_by_run on stepgrade_finding (run_id)",
    ),
    # Tokens, sessions and the audit log.
    (
        """create table stepgrade_token (
            id {id},
            name text not null,
            shown text not null,
            digest text not null unique,
            project text,
            role text not null,
            created_at text not null,
            created_by text not null,
            expires_at text not null,
            used_at text,
            revoked_at text
        )""",
        """create table stepgrade_session (
            digest text primary key,
            token_id bigint not null references stepgrade_token (id) on delete cascade,
            form_key text not null,
            expires_at text not null
        )""",
        """create table stepgrade_audit (
            id {id},
            at text not null,
            who text not null,
            what text not null,
            project text,
            subject text not null
        )""",
    ),
    # Alerts and their channels.
    (
        """create table stepgrade_alert (
            id {id},
            project text not null,
            metric text not null,
            branch text,
            digest text not null,
            last_run bigint not null,
            first_run bigint not null,
            last_commit text,
            first_commit text,
            level_before {real} not null,
            level_after {real} not null,
            opened_at text not null,
            state text not null,
            reason text not null,
            changed_by text not null,
            changed_at text not null,
            waived_until text
        )""",
        "create index stepgrade_alert_by_place on stepgrade_alert (project, state, id)",
        """create table stepgrade_channel (
            id {id},
            project text not null,
            kind text not null,
            target text not null,
            secret text not null,
            settings text not null,
            created_at text not null
        )""",
        """create table stepgrade_message (
            id {id},
            channel_id bigint not null references stepgrade_channel (id) on delete cascade,
            alert_id bigint not null references stepgrade_alert (id) on delete cascade,
            event text not null,
            tries integer not null,
            next_at text not null,
            sent_at text,
            problem text
        )""",
        "create unique index stepgrade_message_once on stepgrade_message (channel_id, alert_id, event)",
        "create index stepgrade_message_due on stepgrade_message (sent_at, next_at)",
    ),
    # Find a rare grade among 100,000 runs quickly.
    ("create index stepgrade_run_by_grade on stepgrade_run (project, grade, branch, id)",),
    # Runs in the order in which they were made. Alerts say what changed.
    (
        "drop index stepgrade_run_by_place",
        "drop index stepgrade_run_by_branch",
        "drop index stepgrade_run_by_number",
        "drop index stepgrade_run_by_grade",
        """create index stepgrade_run_by_place
            on stepgrade_run (project, digest, branch, added_at, id, step_time_ms, throughput_tok_s)""",
        "create index stepgrade_run_by_branch on stepgrade_run (project, branch, added_at, id)",
        "create index stepgrade_run_by_time on stepgrade_run (project, added_at, id)",
        "create index stepgrade_run_by_grade on stepgrade_run (project, grade, branch, added_at, id)",
        "alter table stepgrade_alert add column details text not null default ''",
    ),
)


def migrate(database: Database) -> None:
    """Migrate the store to this program's schema; raise BadHistory if the store is newer."""
    if _checked_version(database) == len(MIGRATIONS):
        return
    with database.transaction(exclusive=True):
        # Another process may have migrated meanwhile: the number is only stable inside the transaction.
        version = _checked_version(database)
        for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
            for statement in statements:
                database.execute(statement.format(**database.words))
            database.set_version(number)


def _checked_version(database: Database) -> int:
    version, known = database.version(), len(MIGRATIONS)
    if version > known:
        problem = f"was written by a newer stepgrade (schema version {version}, this one supports {known})"
        raise BadHistory(problem, where=database.name, hint="pip install --upgrade stepgrade")
    return version


DEFAULT_PATH = ".stepgrade/history.db"
VARIABLE = "STEPGRADE_HISTORY"
_URL_HINT = (
    "leave the password out and put it into PGPASSWORD, ~/.pgpass or the file that PGPASSFILE names; "
    "in a URL write @ as %40, / as %2F, : as %3A, % as %25, a space as %20"
)
_WHICH = "give a file, or a database as postgresql://USER@HOST/NAME"
# What libpq parses as we do: no raw @, space or stray % before the host, and at most one @.
_USER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*"
_URL = rf"(?:{_USER}@)?[^@/?#%\s]*(?:/[^@?#\s]*)?(?:\?[^@#\s]*)?"


def locate(name: str | None) -> tuple[str | None, str]:
    """Return a history's PostgreSQL URL (None for a file), and its path or its URL without the password.

    An invalid location may contain a password, so no message repeats it: libpq would print the part of a
    password that it takes for a host.
    """
    name = name or os.environ.get(VARIABLE) or DEFAULT_PATH
    scheme, sign, rest = name.partition("://")
    if re.match(r"(?i)postgres(?:ql)?(?:\+\w*)?:", name):
        if not sign or not re.fullmatch(_URL, rest) or "%" in re.sub("%(?!00)[0-9A-Fa-f]{2}", "", rest):
            raise BadHistory("invalid PostgreSQL URL", hint=_URL_HINT)
        bare = re.sub(r"^([^:/@\s]*):[^@\s]*@", r"\1@", rest)
        return f"postgresql://{rest}", re.sub(
            r"(?i)((?:ssl)?password=)[^&\s]*", r"\1…", f"postgresql://{bare}"
        )
    settings = r"(?i)(?:^|[\s;&?])(?:host|hostaddr|server|dbname|database|user|uid|password|pwd|service)\s*="
    if re.search(settings, name):
        raise BadHistory("connection settings are not supported", hint=_WHICH)
    if scheme.lower() in ("http", "https"):
        raise BadHistory("not possible through a server: this needs the database itself", hint=_WHICH)
    path = name.removeprefix("sqlite:///")
    if sign and (scheme != "sqlite" or path == name):
        raise BadHistory("unsupported URL scheme", hint=_WHICH)
    # USER:PASSWORD@HOST is a URL without its scheme, unless it is clearly a path.
    if re.search(r"[:\uff1a][^/\\]*[@\uff20]", path) and not re.match(r"\.{0,2}/(?!/)|[A-Za-z]:[\\/]", path):
        raise BadHistory("neither a file name nor a URL", hint=f"{_WHICH}, or write ./ before the file name")
    if path == ":memory:" or not path:
        raise BadHistory("a history cannot be in memory", hint=_WHICH)
    return None, path

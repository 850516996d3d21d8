"""A history in a PostgreSQL database."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from stepgrade.errors import BadHistory, BadValue, DamagedHistory
from stepgrade.store.database import Database, Row, insert_statement

if TYPE_CHECKING:
    import psycopg

# Key of the advisory lock that keeps two processes from migrating at once.
_MIGRATION_LOCK = 0x73677264
_CONNECT_S = 10
# Detect a dead server within a minute, instead of after hours.
_KEEP_ALIVE = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
_VERSION_TABLE = "create table if not exists stepgrade_version (number integer not null)"


class PostgresDatabase(Database):
    """One connection to one database of a server."""

    words: ClassVar[dict[str, str]] = {
        "id": "bigint generated always as identity primary key",
        "real": "double precision",
        "blob": "bytea",
    }

    def __init__(self, url: str, name: str) -> None:
        self.name = name
        driver = _driver()
        try:
            self._connection: psycopg.Connection[Row] = driver.connect(
                url, autocommit=True, connect_timeout=_CONNECT_S, **_KEEP_ALIVE
            )
        except driver.Error as error:
            problem = f"no connection: {str(error).strip()}"
            raise BadHistory(problem, where=self.name) from error

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and return its rows."""
        with self._errors():
            statement: Any = sql.replace("?", "%s")  # psycopg's type is for literals only
            cursor = self._connection.execute(statement, tuple(values))
            return cursor.fetchall() if cursor.description else []

    def insert(self, table: str, values: Mapping[str, object], conflict: str = "") -> int:
        """Add a row to a table with ids and return its id; 0 after a conflict."""
        rows = self.execute(f"{insert_statement(table, values, conflict)} returning id", [*values.values()])
        return int(rows[0][0]) if rows else 0

    @contextmanager
    def transaction(self, *, exclusive: bool = False) -> Iterator[None]:
        """Run a transaction."""
        with self._errors(), self._connection.transaction():
            if exclusive:
                self._connection.execute("select pg_advisory_xact_lock(%s)", (_MIGRATION_LOCK,))
            yield

    def version(self) -> int:
        """Return the number in the version table; 0 if there is no such table."""
        # Not to_regclass: its cache may miss a table that another connection just created.
        there = "select 1 from pg_tables where tablename = ? and schemaname = any (current_schemas(false))"
        if not self.execute(there, ("stepgrade_version",)):
            return 0
        return int(self.execute("select coalesce(max(number), 0) from stepgrade_version")[0][0])

    def set_version(self, number: int) -> None:
        """Store the number of the last migration."""
        self.execute(_VERSION_TABLE)
        self.execute("delete from stepgrade_version")
        self.execute("insert into stepgrade_version (number) values (?)", (number,))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except _driver().DataError as error:  # a number out of range, a NUL in a text
            raise BadValue("a value is out of range or not text", where=self.name) from error
        except (_driver().Error, OSError) as error:
            is_damage = str(getattr(error, "sqlstate", "")).startswith("XX")  # an internal error
            kind = DamagedHistory if is_damage else BadHistory
            raise kind(f"PostgreSQL error: {str(error).strip()}", where=self.name) from error


@cache
def _driver() -> Any:
    try:
        import psycopg  # an extra, imported when used
    except ImportError as error:
        raise BadHistory(
            "a PostgreSQL history needs psycopg", hint="pip install 'stepgrade[postgres]'"
        ) from error
    # If a connection is lost in a transaction, it would also log that the rollback failed.
    logging.getLogger("psycopg").addHandler(logging.NullHandler())
    return psycopg

"""A history in one SQLite file.

The journal mode is SQLite's default, not WAL: the file alone is the whole history, so a CI cache can copy it
and it can be read from a read-only directory. `synchronous = extra` makes commits survive a power failure.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any, BinaryIO, ClassVar

from stepgrade.errors import BadHistory, BadValue, DamagedHistory, NoHistory
from stepgrade.files import MODES, write_by
from stepgrade.store.database import MIGRATIONS, Database, Row, insert_statement

# How long writers wait for each other; an insert takes milliseconds.
WAIT_S = 60.0
# A trend over a hundred thousand runs takes half a second.
_QUERY_S = 60.0
_FORMAT_AT, _WITHOUT_WAL = 18, b"\1\1"  # two bytes of the file header
_DEFENSIVE = 1010  # SQLITE_DBCONFIG_DEFENSIVE
_STEPS_BETWEEN_LOOKS = 100_000
_LARGEST_VALUE = 64 << 20
# Marks the file as stepgrade's ("sgrd"), so that other programs' databases are left alone.
APPLICATION_ID = 0x73677264
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")  # at the end of a journal that names a super-journal
_SCHEMA = "select type, name, tbl_name, sql from sqlite_master where name not like 'sqlite!_%' escape '!'"
_READ_ONLY_HINT = "use another location for the history, or make the directory writable"


class SqliteDatabase(Database):
    """A connection to a SQLite file."""

    words: ClassVar[dict[str, str]] = {
        "id": "integer primary key autoincrement",
        "real": "real",
        "blob": "blob",
    }

    def __init__(
        self, path: str, *, create: bool, new_mode: int = MODES["owner"], is_pooled: bool = False
    ) -> None:
        """Open the file; a pooled connection may be used by different threads in turn."""
        self.name = path
        if create:
            _make_file(path, new_mode)
        elif not os.path.isfile(path):
            raise NoHistory("no history found", where=path, hint="stepgrade history add creates one")
        _check_journal(path)
        try:
            self._connection = sqlite3.connect(
                path, timeout=WAIT_S, isolation_level=None, check_same_thread=not is_pooled
            )
        except sqlite3.Error as error:
            raise BadHistory(f"cannot be opened: {error}", where=path, hint=_READ_ONLY_HINT) from error
        # The file may come from an untrusted checkout: do not trust its schema, limit the size of values,
        # and limit the time of queries.
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
        if hasattr(self._connection, "setconfig"):  # Python 3.12+
            self._connection.setconfig(_DEFENSIVE, True)  # noqa: FBT003  as SQLite has it
        self._connection.set_progress_handler(lambda: time.monotonic() > self._deadline, _STEPS_BETWEEN_LOOKS)
        try:
            self._check_ours()
            if is_pooled:  # only after the check: this changes the file
                # Readers and the writer do not block each other; commits are still durable.
                with self._errors():
                    set_journal(self._connection, "wal", WAIT_S)
        except BadHistory:
            self._connection.close()
            raise

    def _check_ours(self) -> None:
        """Raise BadHistory if another program created or changed the file."""
        with self._errors():
            self._connection.execute("pragma trusted_schema = off")
            self._connection.execute("pragma cell_size_check = on")
            self._connection.execute("pragma synchronous = extra")
            self._connection.execute("pragma foreign_keys = on")
            # Read in one transaction, since another process may be creating the store right now.
            self._connection.execute("begin")
            schema = set(self._connection.execute(_SCHEMA))
            owner = int(self._connection.execute("pragma application_id").fetchone()[0])
            version = int(self._connection.execute("pragma user_version").fetchone()[0])
            self._connection.execute("commit")
        if owner != APPLICATION_ID and (owner or schema):
            raise BadHistory("belongs to another program", where=self.name)
        if version <= len(MIGRATIONS) and schema != _schema_of(version):
            problem = "was changed by another program: its schema is not stepgrade's"
            raise BadHistory(problem, where=self.name)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        with self._errors():
            return self._connection.execute(sql, tuple(values)).fetchall()

    def insert(self, table: str, values: Mapping[str, object], conflict: str = "") -> int:
        """Add a row to a table with ids and return its id; 0 after a conflict."""
        sql = insert_statement(table, values, conflict)
        with self._errors():
            cursor = self._connection.execute(sql, tuple(values.values()))
            return int(cursor.lastrowid or 0) if cursor.rowcount else 0

    @contextmanager
    def transaction(self, *, exclusive: bool = False) -> Iterator[None]:  # noqa: ARG002  immediate is both
        """Run a transaction; it takes the lock, and waits for it, at the start."""
        with self._errors():
            self._connection.execute("begin immediate")
        try:
            yield
            with self._errors():
                self._connection.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self._connection.execute("rollback")
            raise

    def version(self) -> int:
        """Return the file's user version."""
        return int(self.execute("pragma user_version")[0][0])

    def set_version(self, number: int) -> None:
        """Set the file's user version and application id."""
        self.execute(f"pragma application_id = {APPLICATION_ID}")
        self.execute(f"pragma user_version = {int(number)}")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        self._deadline = time.monotonic() + WAIT_S + _QUERY_S
        try:
            yield
        except (OverflowError, UnicodeError) as error:
            raise BadValue(f"invalid value: {error}", where=self.name) from error
        except MemoryError as error:  # SQLite also reports invalid sizes this way
            problem, hint = _PROBLEMS[sqlite3.SQLITE_NOMEM]
            raise DamagedHistory(problem, where=self.name, hint=hint) from error
        except sqlite3.Error as error:
            # The low byte is the primary result code; Python's own errors have none.
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            problem, hint = _PROBLEMS.get(code, (f"SQLite error: {error}", None))
            kind = DamagedHistory if code in _DAMAGE else BadHistory
            raise kind(problem, where=self.name, hint=hint) from error


def set_journal(connection: sqlite3.Connection, mode: str, wait_s: float) -> None:
    """Set the journal mode, waiting for other connections: SQLite's own timeout does not apply here."""
    end = time.monotonic() + wait_s
    while True:
        try:
            connection.execute(f"pragma journal_mode = {mode}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def leave_wal(path: str) -> None:
    """Merge the WAL into the file, unless another process has it open."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(path, timeout=1.0)) as connection:
        set_journal(connection, "delete", 0.0)


def copy_sqlite(source: str, target: str) -> None:
    """Copy a history that may be in use; raise BadHistory if either file is unusable."""
    SqliteDatabase(source, create=False).close()  # raises unless it is a valid history

    def copy(draft: BinaryIO) -> None:
        with closing(sqlite3.connect(source)) as before, closing(sqlite3.connect(draft.name)) as after:
            after.execute("pragma journal_mode = off")  # a failed copy is discarded
            before.backup(after)
        draft.seek(_FORMAT_AT)
        draft.write(_WITHOUT_WAL)  # a running server's store is in WAL mode

    taken = BadHistory("already exists", where=target, hint="choose a new file name")
    if os.path.lexists(target):
        raise taken
    try:
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        write_by(target, copy, new_mode=MODES["owner"], only_new=True)
    except FileExistsError as error:
        raise taken from error
    except sqlite3.Error as error:
        raise BadHistory(f"cannot be copied: {error}", where=source) from error
    except (OSError, ValueError) as error:
        problem = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise BadHistory(problem, where=target, hint=_READ_ONLY_HINT) from error


def _check_journal(path: str) -> None:
    """Raise BadHistory if the file's journal names a super-journal, which SQLite would delete.

    Only transactions over several files have one, and stepgrade's never do.
    """
    journal = os.path.realpath(path) + "-journal"
    end = b""
    with suppress(OSError, ValueError), open(journal, "rb") as stream:
        stream.seek(-len(_JOURNAL_MAGIC), os.SEEK_END)
        end = stream.read()
    if end == _JOURNAL_MAGIC:
        problem = "its journal names another file: stepgrade did not write it"
        raise BadHistory(problem, where=path, hint=f"remove {journal} unless you know where it comes from")


def _make_file(path: str, mode: int) -> bool:
    """Create the file with that mode, as far as the umask allows, and its folder; False if it exists.

    SQLite gives its journals the same mode. A dangling link is not followed.
    """
    folder = os.path.dirname(path) or "."
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        problem = f"cannot be created: {error.strerror or error}"
        raise BadHistory(problem, where=folder, hint=_READ_ONLY_HINT) from error
    except ValueError as error:
        raise BadHistory(f"not a valid file name: {error}", where=path) from error
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, mode))
    except FileExistsError as error:
        if not os.path.exists(path):
            raise BadHistory("is a dangling link", where=path) from error
        return False
    except OSError as error:
        problem = f"cannot be opened: {error.strerror or error}"
        raise BadHistory(problem, where=path, hint=_READ_ONLY_HINT) from error
    return True


@cache
def _schema_of(version: int) -> set[Row]:
    """Return the schema after the first `version` migrations."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                connection.execute(statement.format(**SqliteDatabase.words))
        return set(connection.execute(_SCHEMA))


_KEPT = "earlier runs are unaffected"
_LOCKED = (f"is locked by another process for more than {WAIT_S:.0f} s", "try again later")
_RESTORE = "restore a copy, or save what can be read with `sqlite3 FILE .recover`"
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_TOOBIG)
_PROBLEMS = {
    sqlite3.SQLITE_NOTADB: ("is not a SQLite file", "use another file"),
    sqlite3.SQLITE_CORRUPT: ("is damaged: parts of the file are invalid", _RESTORE),
    sqlite3.SQLITE_NOMEM: ("is damaged, or there is not enough memory", _RESTORE),
    sqlite3.SQLITE_FULL: ("the disk is full: the run was not saved", _KEPT),
    sqlite3.SQLITE_IOERR: ("cannot be written (disk full, quota or I/O error): the run was not saved", _KEPT),
    sqlite3.SQLITE_READONLY: ("cannot be written: the file or its directory is read-only", _READ_ONLY_HINT),
    sqlite3.SQLITE_CANTOPEN: ("cannot be opened: no access, or the directory is read-only", _READ_ONLY_HINT),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_INTERRUPT: (f"a query took more than {_QUERY_S:.0f} s", "use another file"),
    sqlite3.SQLITE_TOOBIG: (f"has a value of more than {_LARGEST_VALUE >> 20} MiB", None),
}

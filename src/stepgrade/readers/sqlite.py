"""A profiler's file of SQLite, read as data that a stranger wrote: never written to, in bounded time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import quote

import numpy as np

from stepgrade.errors import BadInput
from stepgrade.model.events import Longs
from stepgrade.readers.source import ByteSource

MAGIC = b"SQLite format 3\0"
_BLOCK_ROWS = 1 << 16
_LARGEST_VALUE = 1 << 24
_STEPS_BETWEEN_LOOKS = 1_000_000
# A query goes through a table once; the largest export that was seen takes seconds.
_QUERY_S = 600.0


class SqliteFile:
    """One file: which tables and columns it has, and their values by name.

    It is opened read-only and immutable: no journal beside it is looked at, nothing is created. Only plain
    tables are read, no views, so nothing in the file is run.
    """

    def __init__(self, path: str, name: str) -> None:
        self._name = name
        self._deadline = 0.0
        with self._errors():
            self._connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)
            # Names may be cut in the middle of a character.
            self._connection.text_factory = lambda text: text.decode("utf-8", "replace")
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
            self._connection.set_progress_handler(
                lambda: time.monotonic() > self._deadline, _STEPS_BETWEEN_LOOKS
            )
            self._connection.execute("pragma trusted_schema = off")
            self._connection.execute("pragma cell_size_check = on")
            plain = self._connection.execute(
                "select name from sqlite_master where type = 'table' and sql not like 'create virtual%'"
            ).fetchall()
            self.tables = {str(name): self._columns_of(str(name)) for (name,) in plain}

    @classmethod
    @contextmanager
    def opened(cls, source: ByteSource) -> Iterator[Self]:
        """Give the file that a source holds; raise BadInput where it is damaged."""
        with source.path() as path:
            file = cls(path, source.name)
            try:
                yield file
            finally:
                file._connection.close()

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether the file has the table with all of these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def whole_numbers(self, table: str, columns: Sequence[str], where: str = "") -> dict[str, Longs]:
        """Return columns of whole numbers; -1 where a value, or the whole column, is missing."""
        present = [name for name in columns if self.has(table, name)]
        blocks: list[Longs] = []
        if present:
            chosen = ", ".join(f"ifnull(cast({_quoted(name)} as integer), -1)" for name in present)
            sql = f"select {chosen} from {_quoted(table)} {where}"  # noqa: S608  quoted
            blocks = [np.array(rows, np.int64).T for rows in self._blocks(sql)]
        found = np.concatenate(blocks, axis=1) if blocks else np.empty((len(present), 0), np.int64)
        by_name = dict(zip(present, found, strict=True))
        count = found.shape[1] if present else 0
        return {name: by_name.get(name, np.full(count, -1, np.int64)) for name in columns}

    def rows(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield rows; None where the whole column is missing."""
        if table not in self.tables:
            return
        chosen = ", ".join(_quoted(name) if self.has(table, name) else "null" for name in columns)
        for block in self._blocks(f"select {chosen} from {_quoted(table)} {where}"):  # noqa: S608
            yield from block

    def _blocks(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        with self._errors():
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(_BLOCK_ROWS):
                yield rows

    def _columns_of(self, table: str) -> frozenset[str]:
        found = self._connection.execute(f"pragma table_info({_quoted(table)})")
        return frozenset(str(row[1]) for row in found)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        self._deadline = time.monotonic() + _QUERY_S
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # SQLite's own messages may hold damaged names
            hint = "is the file cut off? export it again"
            raise BadInput(f"cannot be read as SQLite: {error}", where=self._name, hint=hint) from error
        except OverflowError as error:
            raise BadInput("holds a number beyond 64 bits", where=self._name) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

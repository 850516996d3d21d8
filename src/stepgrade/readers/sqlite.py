"""A profiler's SQLite file, read as untrusted data: never written to, in bounded time."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, islice
from typing import Any, Self
from urllib.parse import quote

import msgspec
import numpy as np

from stepgrade.errors import BadInput
from stepgrade.memory import check
from stepgrade.model.columns import narrow
from stepgrade.model.events import Longs
from stepgrade.readers.source import ByteSource

MAGIC = b"SQLite format 3\0"
_BLOCK_ROWS = 1 << 16
_LARGEST_VALUE = 1 << 24
_DEFENSIVE = 1010  # SQLITE_DBCONFIG_DEFENSIVE
_STEPS_BETWEEN_LOOKS = 1_000_000
# A query goes through a table once; the largest export that was seen takes seconds.
_QUERY_S = 600.0
# From the file to the written result, measured on files of a million kernels and rounded up.
_NUMBER_BYTES = 40
_ROW_BYTES = 400


class SqliteFile:
    """One file: which tables and columns it has, and their values by name.

    It is opened read-only and immutable: no journal beside it is looked at, nothing is created. Only plain
    tables are read, no views, so nothing in the file is run.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._deadline = 0.0
        self._taken_bytes = 0
        self._connection: sqlite3.Connection
        self.tables: dict[str, frozenset[str]] = {}

    @classmethod
    @contextmanager
    def opened(cls, source: ByteSource) -> Iterator[Self]:
        """Yield the file in a source; raise BadInput if it is damaged."""
        file = cls(source)
        with source.path() as path, ExitStack() as stack:
            with file._errors():
                connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&immutable=1", uri=True)
                file._connection = stack.enter_context(closing(connection))
                # Names may be cut in the middle of a character.
                connection.text_factory = lambda text: text.decode("utf-8", "replace")
                connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LARGEST_VALUE)
                connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
                if hasattr(connection, "setconfig"):  # from Python 3.12 on
                    connection.setconfig(_DEFENSIVE, True)  # noqa: FBT003  as SQLite has it
                connection.set_progress_handler(
                    lambda: time.monotonic() > file._deadline, _STEPS_BETWEEN_LOOKS
                )
                connection.execute("pragma trusted_schema = off")
                connection.execute("pragma cell_size_check = on")
                plain = "select name from sqlite_master where type = 'table' and sql like 'create table%'"
                for (name,) in connection.execute(plain).fetchall():
                    columns = connection.execute(f"pragma table_info({_quoted(str(name))})")
                    file.tables[str(name)] = frozenset(str(row[1]) for row in columns)
            yield file

    def has(self, table: str, *columns: str) -> bool:
        """Tell whether the file has the table with all of these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    def whole_numbers(self, table: str, columns: Sequence[str], where: str = "") -> dict[str, Longs]:
        """Return columns of whole numbers; -1 where a value, or the whole column, is missing."""
        present = [name for name in columns if self.has(table, name)]
        blocks: list[list[Any]] = [[np.empty(0, np.int32)] for _ in present]
        if present:
            chosen = ", ".join(f"ifnull(cast({_quoted(name)} as integer), -1)" for name in present)
            with self._errors():
                rows = self._connection.execute(f"select {chosen} from {_quoted(table)} {where}")  # noqa: S608
                while len(
                    block := np.fromiter(chain.from_iterable(islice(rows, _BLOCK_ROWS)), np.int64).reshape(
                        -1, len(present)
                    )
                ):
                    self._take(block.size * _NUMBER_BYTES)
                    for column, values in zip(blocks, block.T, strict=True):
                        column.append(narrow(np.ascontiguousarray(values)))
        by_name = {name: np.concatenate(column) for name, column in zip(present, blocks, strict=True)}
        count = len(by_name[present[0]]) if present else 0
        return {name: by_name[name] if name in by_name else np.full(count, -1, np.int32) for name in columns}

    def rows(self, table: str, columns: Sequence[str], where: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield rows; None where the whole column is missing."""
        if table not in self.tables:
            return
        chosen = ", ".join(_quoted(name) if self.has(table, name) else "null" for name in columns)
        with self._errors():
            cursor = self._connection.execute(f"select {chosen} from {_quoted(table)} {where}")  # noqa: S608
            while rows := cursor.fetchmany(_BLOCK_ROWS):
                texts = sum(len(value) for row in rows for value in row if isinstance(value, str | bytes))
                self._take(len(rows) * _ROW_BYTES + texts)
                yield from rows

    def texts(self, table: str, columns: tuple[str, str], numbers: Longs) -> dict[int, str]:
        """Return the texts of these numbers and of no others."""
        wanted = set(numbers.tolist())
        low, high = min(wanted, default=0), max(wanted, default=-1)
        rows = self.rows(table, columns, f"where {_quoted(columns[0])} between {low} and {high}")
        return {number: text for number, text in rows if number in wanted and isinstance(text, str)}

    def _take(self, needed: int) -> None:
        self._taken_bytes += needed
        check(self._taken_bytes, self._source.memory_bytes, self._source.name)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        self._deadline = time.monotonic() + _QUERY_S
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:
            hint = "is the file cut off? Export it again"
            # SQLite's own messages may hold damaged names.
            text = re.sub(r"[^\x20-\x7e]+", "?", str(error))[:120]
            raise BadInput(f"cannot be read as SQLite: {text}", where=self._source.name, hint=hint) from error
        except MemoryError as error:  # SQLite reports invalid sizes this way too
            problem = "is damaged, or needs more memory than available"
            raise BadInput(problem, where=self._source.name) from error
        except OverflowError as error:
            raise BadInput("contains a number beyond 64 bits", where=self._source.name) from error


def has_table(source: ByteSource, sign: bytes, *tables: str) -> bool:
    """Tell whether a source is SQLite with one of these tables: by `sign` in its head, else by its schema."""
    if re.search(sign, source.head):
        return True
    # What can be read only once is known by its head alone.
    if not source.head.startswith(MAGIC) or not source.can_restart:
        return False
    found = False
    with suppress(BadInput), SqliteFile.opened(source) as file:  # a damaged file is not recognised
        found = any(table in file.tables for table in tables)
    source.restart()
    return found


def json_object(value: object) -> dict[str, Any]:
    """Return the JSON object in a text; empty if it is not one."""
    if not isinstance(value, str | bytes):
        return {}
    try:
        found = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

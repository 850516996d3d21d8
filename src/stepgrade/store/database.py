"""The interface of a database; implemented by sqlite.py and postgres.py."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

Row = tuple[Any, ...]


class Database(Protocol):
    """A connection to a store; errors are raised as BadHistory."""

    name: str
    words: ClassVar[dict[str, str]]  # column types of the migrations in this database's dialect

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement with `?` placeholders and return its rows."""
        ...

    def insert(self, sql: str, values: Sequence[Any]) -> int:
        """Insert a row and return its id; 0 after a conflict that was ignored."""
        ...

    def transaction(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Run a transaction; once it ends, its changes are durable."""
        ...

    def version(self) -> int:
        """Return the number of the last migration; 0 for an empty store."""
        ...

    def set_version(self, number: int) -> None:
        """Store the number of the last migration."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

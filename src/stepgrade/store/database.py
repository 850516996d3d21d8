"""The interface of a database; implemented by sqlite.py and postgres.py."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

Row = tuple[Any, ...]


class Database(Protocol):
    """A connection to a store; what goes wrong is raised as BadHistory."""

    name: str
    words: ClassVar[dict[str, str]]  # how this database spells the types of a migration

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run one statement with `?` for values, and return its rows."""
        ...

    def insert(self, sql: str, values: Sequence[Any]) -> int:
        """Run an insert into a table with an id, and return it; 0 when a conflict left nothing to do."""
        ...

    def transaction(self, *, exclusive: bool = False) -> AbstractContextManager[None]:
        """Do all or nothing; what is done when this ends survives the process and the machine."""
        ...

    def version(self) -> int:
        """Return the number of the last migration that ran; 0 for an empty store."""
        ...

    def set_version(self, number: int) -> None:
        """Write the number of the last migration that ran."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...

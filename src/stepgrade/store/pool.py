"""A small pool of connections to one store, shared by the server's threads."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager

from stepgrade.errors import BadHistory
from stepgrade.store.database import Database, locate
from stepgrade.store.history import History, connect

# How the store is named to clients.
SHOWN = "the history"
_WAIT_S = 30.0
_CLOSE_S = 2.0


class Pool:
    """At most `size` connections, opened when needed and kept until `close`."""

    def __init__(self, location: str | None, size: int = 12) -> None:
        self._url, self.name = locate(location)
        self._free: queue.LifoQueue[Database | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)
        self._size = size
        self._is_closing = False

    @property
    def is_file(self) -> bool:
        """Return whether the store is a SQLite file."""
        return self._url is None

    @contextmanager
    def history(self, project: str = "default") -> Iterator[History]:
        """Borrow a history; a connection that failed is closed, and the next caller opens a new one."""
        try:
            database = self._free.get(timeout=_WAIT_S)
        except queue.Empty:
            raise BadHistory("every connection is busy", where=SHOWN, hint="try again later") from None
        is_sound = False
        try:
            if database is None:
                database = connect(self._url, self.name, create=True, is_pooled=True)
                history = History(database, project=project)
                database.name = SHOWN  # from here on: what is said before concerns the location
            else:
                history = History(database, project=project, is_migrated=True)
            try:
                yield history
                is_sound = True
            except BadHistory:
                raise
            except BaseException:
                is_sound = True  # the connection is fine
                raise
        finally:
            if database is not None and (self._is_closing or not is_sound):
                database.close()
                database = None
            self._free.put(database)

    def close(self) -> None:
        """Close every connection; a SQLite file is then complete without its WAL.

        A connection that is still in use after a moment is closed by its borrower.
        """
        self._is_closing = True
        end = time.monotonic() + _CLOSE_S
        for _ in range(self._size):
            try:
                database = self._free.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return
            if database is not None:
                database.close()
        if self._url is None:
            from stepgrade.store.sqlite import leave_wal

            leave_wal(self.name)

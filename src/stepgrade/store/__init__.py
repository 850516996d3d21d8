"""History: runs kept over time, in a file of SQLite or on a PostgreSQL server."""

from stepgrade.store.history import History, NewRun, RunRow, Selection, open_history

__all__ = ["History", "NewRun", "RunRow", "Selection", "open_history"]

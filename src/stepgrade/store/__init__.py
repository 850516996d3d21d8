"""History: runs kept over time, in a file of SQLite or on a PostgreSQL server."""

from stepgrade.model.run import RunRow
from stepgrade.store.history import History, NewRun, Selection, open_history

__all__ = ["History", "NewRun", "RunRow", "Selection", "open_history"]

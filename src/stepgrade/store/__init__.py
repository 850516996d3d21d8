"""History: scored runs over time, in a SQLite file, a PostgreSQL database or on a stepgrade server."""

from stepgrade.model.comparison import RunRow
from stepgrade.store.history import History, open_history, open_store
from stepgrade.store.runs import NewRun, Runs, Selection

__all__ = ["History", "NewRun", "RunRow", "Runs", "Selection", "open_history", "open_store"]

"""MLflow's database: the metrics and settings of its last run; no other table is looked at."""

from __future__ import annotations

from math import nan

from stepgrade.errors import TooLarge
from stepgrade.readers.logs.names import meaning
from stepgrade.readers.logs.records import RecordLog
from stepgrade.readers.sqlite import SqliteFile

SIGN = rb"(?i)create table.{0,3}latest_metrics"
TABLE = "latest_metrics"
_MOST_STEPS = 1 << 20


def read_database(file: SqliteFile, name: str, log: RecordLog) -> int:
    """Add the run that began last, and return how many runs the database has."""
    started = [(start or 0, run) for run, start in file.rows("runs", ("run_uuid", "start_time")) if run]
    chosen = max(started, default=(0, None))[1]
    rows: dict[int, dict[str, object]] = {}
    columns = ("key", "value", "timestamp", "run_uuid", "step", "is_nan")
    for key, value, stamp, run, step, is_nan in file.rows("metrics", columns):
        if run == chosen and isinstance(key, str) and isinstance(step, int) and meaning(key) is not None:
            rows.setdefault(step, {"step": step, "timestamp": stamp})[key] = nan if is_nan else value
            if len(rows) > _MOST_STEPS:
                raise TooLarge(f"has metrics of more than {_MOST_STEPS:,} steps", where=name)
    for step in sorted(rows):
        log.add(rows[step])
    for key, value, run in file.rows("params", ("key", "value", "run_uuid")):
        if run == chosen and isinstance(key, str):
            log.set(key, value)
    return len(started)

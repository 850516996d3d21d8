"""Migrations of the history's tables: a store moves forward one step at a time, or not at all.

A step that was released is never changed; a new shape is a new step at the end. `{id}`, `{real}` and `{blob}`
are the words that SQLite and PostgreSQL spell differently.
"""

from __future__ import annotations

from stepgrade.errors import BadHistory
from stepgrade.store.database import Database

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "create table stepgrade_fingerprint (digest text primary key, body text not null)",
        """create table stepgrade_run (
            id {id},
            added_at text not null,
            digest text not null references stepgrade_fingerprint (digest),
            git_commit text,
            branch text,
            labels text not null,
            source text not null,
            grade text not null,
            step_time_ms {real},
            step_sigma {real},
            throughput_tok_s {real},
            efficiency {real},
            mfu {real},
            wall_coverage {real},
            launches_per_step {real},
            peak_memory_bytes {real}
        )""",
        # Trends of these two metrics, which the gate asks for, are read from the index alone.
        """create index stepgrade_run_by_place
            on stepgrade_run (digest, branch, id, step_time_ms, throughput_tok_s)""",
        """create table stepgrade_card (
            run_id bigint primary key references stepgrade_run (id) on delete cascade,
            body {blob} not null
        )""",
    ),
    ("alter table stepgrade_run add column samples_s {real}",),
)


def migrate(database: Database) -> None:
    """Bring the store to this program's shape; raise BadHistory when it is newer than that."""
    if _checked(database) == len(MIGRATIONS):
        return
    with database.transaction(exclusive=True):
        # Another process may have been here first: only inside the transaction the number stays.
        for number, statements in enumerate(MIGRATIONS[_checked(database) :], start=database.version() + 1):
            for statement in statements:
                database.execute(statement.format(**database.words))
            database.set_version(number)


def _checked(database: Database) -> int:
    version = database.version()
    if version > len(MIGRATIONS):
        raise BadHistory(
            f"was written by a newer stepgrade (version {version} of the history, this one knows "
            f"{len(MIGRATIONS)})",
            where=database.name,
            hint="pip install --upgrade stepgrade",
        )
    return version

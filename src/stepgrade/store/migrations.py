"""Migrations of the history's tables, applied in order.

A released migration is never changed; a change of the schema is a new one at the end. `{id}`, `{real}` and
`{blob}` are types that SQLite and PostgreSQL spell differently.
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
        # The gate reads trends of these two metrics from the index alone.
        """create index stepgrade_run_by_place
            on stepgrade_run (digest, branch, id, step_time_ms, throughput_tok_s)""",
        """create table stepgrade_card (
            run_id bigint primary key references stepgrade_run (id) on delete cascade,
            body {blob} not null
        )""",
    ),
    ("alter table stepgrade_run add column samples_s {real}",),
    # A team's runs: several projects, idempotent uploads, cost of findings.
    (
        """create table stepgrade_project (
            name text primary key, created_at text not null, settings text not null
        )""",
        "insert into stepgrade_project (name, created_at, settings) values ('default', '', '{{}}')",
        "alter table stepgrade_run add column project text not null default 'default'",
        "alter table stepgrade_run add column upload_key text",
        "alter table stepgrade_run add column upload_digest text",
        "alter table stepgrade_run add column added_by text",
        "alter table stepgrade_run add column device_hours {real}",
        "alter table stepgrade_run add column has_findings integer not null default 0",
        "drop index stepgrade_run_by_place",
        """create index stepgrade_run_by_place
            on stepgrade_run (project, digest, branch, id, step_time_ms, throughput_tok_s)""",
        "create index stepgrade_run_by_branch on stepgrade_run (project, branch, id)",
        "create unique index stepgrade_run_by_key on stepgrade_run (project, upload_key)",
        # One per sort key of the table of runs.
        "create index stepgrade_run_by_number on stepgrade_run (project, id)",
        "create index stepgrade_run_by_step on stepgrade_run (project, step_time_ms, id)",
        "create index stepgrade_run_by_rate on stepgrade_run (project, throughput_tok_s, id)",
        "create index stepgrade_run_by_efficiency on stepgrade_run (project, efficiency, id)",
        """create table stepgrade_finding (
            run_id bigint not null references stepgrade_run (id) on delete cascade,
            rule text not null,
            severity text not null,
            claim text not null,
            gain_low {real} not null,
            gain_high {real} not null
        )""",
        "create index stepgrade_finding_by_run on stepgrade_finding (run_id)",
    ),
    # Tokens, sessions and the audit log.
    (
        """create table stepgrade_token (
            id {id},
            name text not null,
            shown text not null,
            digest text not null unique,
            project text,
            role text not null,
            created_at text not null,
            created_by text not null,
            expires_at text not null,
            used_at text,
            revoked_at text
        )""",
        """create table stepgrade_session (
            digest text primary key,
            token_id bigint not null references stepgrade_token (id) on delete cascade,
            form_key text not null,
            expires_at text not null
        )""",
        """create table stepgrade_audit (
            id {id},
            at text not null,
            who text not null,
            what text not null,
            project text,
            subject text not null
        )""",
    ),
    # Alerts and their channels.
    (
        """create table stepgrade_alert (
            id {id},
            project text not null,
            metric text not null,
            branch text,
            digest text not null,
            last_run bigint not null,
            first_run bigint not null,
            last_commit text,
            first_commit text,
            level_before {real} not null,
            level_after {real} not null,
            opened_at text not null,
            state text not null,
            reason text not null,
            changed_by text not null,
            changed_at text not null,
            waived_until text
        )""",
        "create index stepgrade_alert_by_place on stepgrade_alert (project, state, id)",
        """create table stepgrade_channel (
            id {id},
            project text not null,
            kind text not null,
            target text not null,
            secret text not null,
            settings text not null,
            created_at text not null
        )""",
        """create table stepgrade_message (
            id {id},
            channel_id bigint not null references stepgrade_channel (id) on delete cascade,
            alert_id bigint not null references stepgrade_alert (id) on delete cascade,
            event text not null,
            tries integer not null,
            next_at text not null,
            sent_at text,
            problem text
        )""",
        "create unique index stepgrade_message_once on stepgrade_message (channel_id, alert_id, event)",
        "create index stepgrade_message_due on stepgrade_message (sent_at, next_at)",
    ),
    # Find a rare grade among 100,000 runs quickly.
    ("create index stepgrade_run_by_grade on stepgrade_run (project, grade, branch, id)",),
)


def migrate(database: Database) -> None:
    """Bring the store to this program's shape; raise BadHistory when it is newer than that."""
    if _checked(database) == len(MIGRATIONS):
        return
    with database.transaction(exclusive=True):
        # Another process may have migrated meanwhile: the number is only stable inside the transaction.
        for number, statements in enumerate(MIGRATIONS[_checked(database) :], start=database.version() + 1):
            for statement in statements:
                database.execute(statement.format(**database.words))
            database.set_version(number)


def _checked(database: Database) -> int:
    version = database.version()
    if version > len(MIGRATIONS):
        raise BadHistory(
            f"was written by a newer stepgrade (schema version {version}, this one supports "
            f"{len(MIGRATIONS)})",
            where=database.name,
            hint="pip install --upgrade stepgrade",
        )
    return version

"""A team's tables: projects, tokens (stored as hashes), sessions and the audit log."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import re
import secrets
from typing import Literal

import msgspec
from msgspec import Struct

from stepgrade.decoding import from_json
from stepgrade.errors import BadOption
from stepgrade.store.database import Database, Row

Role = Literal["reader", "uploader", "admin"]
ROLES: tuple[Role, ...] = ("reader", "uploader", "admin")  # each includes the ones before it
PROJECT_NAME = r"[a-z0-9][a-z0-9._-]{0,62}"
TOKEN_PREFIX = "sg_"  # noqa: S105  a marker for secret scanners, not a secret
SESSION_HOURS = 12
_SHOWN = 7
_MOST_TEXT = 200
# Resolution of `used_at`: a write per request would be too expensive.
_USED_EVERY_S = 300


class ProjectSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project's own settings."""

    price_per_device_hour: float | None = None
    currency: str = "USD"
    keep_runs: int | None = None  # the newest per branch and fingerprint
    keep_days: int | None = None
    commit_url: str | None = None  # such as https://github.com/team/model/commit/{commit}
    branches: tuple[str, ...] = ()  # that open alerts; empty means all
    default_branch: str | None = None  # the trend's; None is main, master or trunk, else the newest run's
    alert_from: dict[str, float] = {}  # by metric: smaller changes, as shares, open no alert


class Project(Struct, frozen=True, kw_only=True):
    """A project and its settings."""

    name: str
    created_at: str
    settings: ProjectSettings


class Token(Struct, frozen=True, kw_only=True):
    """A token without its secret; `project` None means every project."""

    id: int
    name: str
    shown: str
    project: str | None
    role: Role
    created_at: str
    created_by: str
    expires_at: str
    used_at: str | None
    revoked_at: str | None


class AuditEntry(Struct, frozen=True, kw_only=True):
    """An entry of the audit log."""

    id: int
    at: str
    who: str
    what: str
    project: str | None
    subject: str


def now() -> str:
    """Return the current time as it is stored."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def moment_after(*, days: float = 0.0, hours: float = 0.0, seconds: float = 0.0) -> str:
    """Return a time relative to now as it is stored."""
    later = dt.datetime.now(dt.UTC) + dt.timedelta(days=days, hours=hours, seconds=seconds)
    return later.isoformat(timespec="seconds")


def digest_of_secret(secret: str) -> str:
    """Return the hash of a secret; 32 random bytes need no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class Team:
    """Projects, tokens, sessions and the audit log, on a store's connection."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def projects(self) -> list[Project]:
        """Return every project by name."""
        rows = self._database.execute(
            "select name, created_at, settings from stepgrade_project order by name"
        )
        return [_project(row) for row in rows]

    def project(self, name: str) -> Project | None:
        """Return a project; None if it does not exist."""
        sql = "select name, created_at, settings from stepgrade_project where name = ?"
        return next((_project(row) for row in self._database.execute(sql, (name,))), None)

    def add_project(self, name: str) -> bool:
        """Create a project; return False if it exists. Raise BadOption for an invalid name."""
        if not re.fullmatch(PROJECT_NAME, name):
            hint = "use at most 63 lower-case letters, digits, dots, dashes and underscores"
            raise BadOption(f"{name[:80]!r} is not a valid project name", hint=hint)
        if self.project(name) is not None:
            return False
        self._database.put("project", {"name": name, "created_at": now(), "settings": "{}"}, "name")
        return True

    def set_project(self, name: str, settings: ProjectSettings) -> None:
        """Replace a project's settings."""
        body = msgspec.json.encode(settings).decode()
        self._database.execute("update stepgrade_project set settings = ? where name = ?", (body, name))

    def remove_project(self, name: str) -> None:
        """Delete a project with its runs, alerts, channels and tokens, all or nothing."""
        own_runs = "(select id from stepgrade_run where project = ?)"
        with self._database.transaction():
            for table, column, values in (
                ("channel", "project", "(?)"),
                ("alert", "project", "(?)"),
                ("token", "project", "(?)"),
                ("finding", "run_id", own_runs),
                ("card", "run_id", own_runs),
                ("run", "project", "(?)"),
                ("project", "name", "(?)"),
            ):
                self._database.execute(f"delete from stepgrade_{table} where {column} in {values}", (name,))

    def add_token(
        self, name: str, role: Role, *, project: str | None, days: int, created_by: str
    ) -> tuple[str, Token]:
        """Create a token; return its secret, which is not stored, and the token."""
        if role not in ROLES:
            raise BadOption(f"unknown role {role!r}", hint=f"one of {', '.join(ROLES)}")
        if not 1 <= days <= 3650:
            raise BadOption("must be from 1 to 3,650", field="days")
        if not 0 < len(name) <= _MOST_TEXT:
            raise BadOption(f"a token needs a name of at most {_MOST_TEXT} characters")
        if project is not None and self.project(project) is None:
            raise BadOption(f"unknown project {project[:80]!r}")
        secret = TOKEN_PREFIX + secrets.token_urlsafe(32)
        row = {"name": name, "shown": secret[:_SHOWN] + "…", "digest": digest_of_secret(secret)}
        row |= {"role": role, "created_at": now(), "created_by": created_by}
        row |= {"expires_at": moment_after(days=days)}
        number = self._database.insert("token", {**row, "project": project})
        return secret, self._database.select(Token, "token where id = ?", (number,))[0]

    def tokens(self) -> list[Token]:
        """Return all tokens, newest first."""
        return self._database.select(Token, "token order by id desc")

    def token_of(self, secret: str) -> Token | None:
        """Return the valid token with this secret, if any, and record its use."""
        valid = "token where digest = ? and revoked_at is null and expires_at > ?"
        tokens = self._database.select(Token, valid, (digest_of_secret(secret), now()))
        if not tokens:
            return None
        token = tokens[0]
        if token.used_at is None or token.used_at < moment_after(seconds=-_USED_EVERY_S):
            self._database.execute("update stepgrade_token set used_at = ? where id = ?", (now(), token.id))
        return token

    def revoke(self, number: int) -> bool:
        """Revoke a token and close its sessions; return False if it does not exist."""
        if not self._database.execute("select 1 from stepgrade_token where id = ?", (number,)):
            return False
        with self._database.transaction():
            self._database.execute(
                "update stepgrade_token set revoked_at = coalesce(revoked_at, ?) where id = ?",
                (now(), number),
            )
            self._database.execute("delete from stepgrade_session where token_id = ?", (number,))
        return True

    def open_session(self, token: Token) -> str:
        """Open a browser session and return its secret; it expires with its token or after half a day."""
        secret = secrets.token_urlsafe(32)
        ends = min(token.expires_at, moment_after(hours=SESSION_HOURS))
        with self._database.transaction():
            self._database.execute("delete from stepgrade_session where expires_at <= ?", (now(),))
            row = {"digest": digest_of_secret(secret), "token_id": token.id, "expires_at": ends}
            self._database.put("session", {**row, "form_key": secrets.token_urlsafe(24)})
        return secret

    def session_of(self, secret: str) -> tuple[Token, str] | None:
        """Return the token and form key of a valid browser session; None otherwise."""
        names = Token.__struct_fields__
        columns = ", ".join(f"stepgrade_token.{name}" for name in names)
        rows = self._database.execute(
            f"select {columns}, form_key from stepgrade_session "
            "join stepgrade_token on stepgrade_token.id = token_id "
            "where stepgrade_session.digest = ? and stepgrade_session.expires_at > ? "
            "and revoked_at is null and stepgrade_token.expires_at > ?",
            (digest_of_secret(secret), now(), now()),
        )
        return (Token(**dict(zip(names, rows[0], strict=False))), str(rows[0][-1])) if rows else None

    def close_session(self, secret: str) -> None:
        """Close a session."""
        self._database.execute("delete from stepgrade_session where digest = ?", (digest_of_secret(secret),))

    def note(self, who: str, what: str, *, project: str | None = None, subject: str = "") -> None:
        """Add an entry to the audit log."""
        row = {"at": now(), "who": who[:_MOST_TEXT], "what": what, "project": project}
        self._database.put("audit", {**row, "subject": subject[:_MOST_TEXT]})

    def audit(
        self, *, project: str | None = None, before: int | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Return audit entries, newest first."""
        own = ""
        values: list[object] = [before or 2**62]
        if project is not None:
            own = "and project = ? "
            values.append(project)
        rest = f"audit where id < ? {own}order by id desc limit ?"
        return self._database.select(AuditEntry, rest, [*values, limit])


def same_secret(first: str, second: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(first.encode("utf-8", "replace"), second.encode("utf-8", "replace"))


def _project(row: Row) -> Project:
    try:
        settings = from_json(row[2], ProjectSettings)
    except (msgspec.DecodeError, TypeError, UnicodeError):
        settings = ProjectSettings()  # invalid, or of a newer version: nothing is deleted
    return Project(name=row[0], created_at=row[1], settings=settings)

"""The location of a history: a SQLite file or a PostgreSQL URL.

An invalid location may contain a password, so no message repeats it: libpq would print the part of a password
that it takes for a host.
"""

from __future__ import annotations

import os
import re

from stepgrade.errors import BadHistory

DEFAULT_PATH = ".stepgrade/history.db"
VARIABLE = "STEPGRADE_HISTORY"
_URL_HINT = (
    "leave the password out and put it into PGPASSWORD, ~/.pgpass or the file that PGPASSFILE names; "
    "in a URL write @ as %40, / as %2F, : as %3A, % as %25, a space as %20"
)
_WHICH = "give a file, or a database as postgresql://USER@HOST/NAME"
# What libpq parses as we do: no raw @, space or stray % before the host, and at most one @.
_USER = r"(?:[A-Za-z0-9._~!$&'()*+,;=:-]|%[0-9A-Fa-f]{2})*"
_URL = rf"(?:{_USER}@)?[^@/?#%\s]*(?:/[^@?#\s]*)?(?:\?[^@#\s]*)?"


def locate(name: str | None) -> tuple[str | None, str]:
    """Return a history's PostgreSQL URL (None for a file), and its path or its URL without the password."""
    name = name or os.environ.get(VARIABLE) or DEFAULT_PATH
    scheme, sign, rest = name.partition("://")
    if re.match(r"(?i)postgres(?:ql)?(?:\+\w*)?:", name):
        if not sign or not re.fullmatch(_URL, rest) or "%" in re.sub("%(?!00)[0-9A-Fa-f]{2}", "", rest):
            raise BadHistory("invalid PostgreSQL URL", hint=_URL_HINT)
        return f"postgresql://{rest}", without_password(f"postgresql://{rest}")
    settings = r"(?i)(?:^|[\s;&?])(?:host|hostaddr|server|dbname|database|user|uid|password|pwd|service)\s*="
    if re.search(settings, name):
        raise BadHistory("connection settings are not supported", hint=_WHICH)
    if scheme.lower() in ("http", "https"):
        raise BadHistory("not possible through a server: this needs the database itself", hint=_WHICH)
    path = name.removeprefix("sqlite:///")
    if sign and (scheme != "sqlite" or path == name):
        raise BadHistory("unsupported URL scheme", hint=_WHICH)
    # USER:PASSWORD@HOST is a URL without its scheme, unless it is clearly a path.
    if re.search(r"[:\uff1a][^/\\]*[@\uff20]", path) and not re.match(r"\.{0,2}/(?!/)|[A-Za-z]:[\\/]", path):
        raise BadHistory("neither a file name nor a URL", hint=f"{_WHICH}, or write ./ before the file name")
    if path == ":memory:" or not path:
        raise BadHistory("a history cannot be in memory", hint=_WHICH)
    return None, path


def without_password(url: str) -> str:
    """Return a well-formed URL without its password."""
    bare = re.sub(r"(://[^:/@\s]*):[^@\s]*@", r"\1@", url)
    return re.sub(r"(?i)((?:ssl)?password=)[^&\s]*", r"\1…", bare)

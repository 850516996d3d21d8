"""Authentication: bearer tokens, browser sessions, a trusted proxy's headers."""

from __future__ import annotations

import ipaddress
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct
from starlette.requests import Request

from stepgrade.store.team import ROLES, Role, Team, Token, same_secret
from stepgrade.web.settings import ServerSettings

SESSION_COOKIE = "stepgrade_session"
FORM_COOKIE = "stepgrade_form"
FORM_FIELD = "form_key"
USER_HEADERS = ("x-forwarded-user", "x-forwarded-email")
GROUPS_HEADER = "x-forwarded-groups"
_MOST_NAME = 200
_MOST_COUNTED = 10_000
# Wrong tokens per address and minute before it has to wait.
WRONG_PER_MINUTE = 20


class Refused(Exception):
    """A request that is rejected with this status."""

    def __init__(self, status: int, problem: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(problem)
        self.status, self.problem, self.retry_after_s = status, problem, retry_after_s


class Identity(Struct, frozen=True, kw_only=True):
    """Who sent a request; `rights` are roles by project, None meaning every project."""

    name: str
    rights: Mapping[str | None, Role]
    by: Literal["localhost", "token", "session", "proxy", "nobody"]
    form_key: str = ""  # CSRF key that their forms must contain

    def may(self, role: Role, project: str | None) -> bool:
        """Return whether they have this role in a project, or in every project (None)."""
        held = [self.rights[name] for name in (None, project) if name in self.rights]
        return any(ROLES.index(own) >= ROLES.index(role) for own in held)

    @property
    def sees(self) -> frozenset[str] | None:
        """Return the projects that they may read; None means all."""
        return None if None in self.rights else frozenset(name for name in self.rights if name is not None)


NOBODY = Identity(name="nobody", rights={}, by="nobody")


class Limiter:
    """A rate limit per key: a token bucket that refills over a minute."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, key: str, *, at: float | None = None) -> float:
        """Count one event and return 0, or the seconds to wait if there were too many."""
        at = time.monotonic() if at is None else at
        with self._lock:
            left, since = self._left.pop(key, (float(self._per_minute), at))
            left = min(float(self._per_minute), left + (at - since) * self._per_minute / 60.0)
            waits = 0.0 if left >= 1.0 else (1.0 - left) * 60.0 / self._per_minute
            self._left[key] = (left - 1.0 if not waits else left, at)
            while len(self._left) > _MOST_COUNTED:
                self._left.popitem(last=False)
        return waits


class Door:
    """Identifies the sender of a request."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._networks = settings.networks
        self._wrong = Limiter(WRONG_PER_MINUTE)

    def identify(self, request: Request, team: Team) -> Identity:
        """Return the sender; raise Refused for a wrong token or contradictory proxy headers."""
        written = request.headers.getlist("authorization")
        if len(written) > 1:
            raise Refused(400, "more than one Authorization header")
        if written:
            kind, _, secret = written[0].partition(" ")
            if kind.lower() != "bearer":
                raise Refused(401, "a bearer token is required")
            token = self.token(secret.strip(), request, team)
            return Identity(name=token.name, rights={token.project: token.role}, by="token")
        if self._settings.access == "proxy" and (found := self._by_proxy(request)) is not None:
            return found
        cookie, is_local = request.cookies.get(SESSION_COOKIE), self._settings.access == "localhost"
        session = team.session_of(cookie) if cookie and not is_local else None
        if session is not None:
            token, form_key = session
            rights = {token.project: token.role}
            return Identity(name=token.name, rights=rights, by="session", form_key=form_key)
        form_key = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)
        if is_local:
            return Identity(name="localhost", rights={None: "admin"}, by="localhost", form_key=form_key)
        return Identity(name="nobody", rights={}, by="nobody", form_key=form_key)

    def token(self, secret: str, request: Request, team: Team) -> Token:
        """Return a valid token; raise Refused otherwise, with a delay after many wrong ones.

        A valid token is accepted even while others behind the same address are blocked.
        """
        token = team.token_of(secret)
        if token is not None:
            return token
        if waits := self._wrong.take(request.client.host if request.client else ""):
            raise Refused(429, "too many wrong tokens", retry_after_s=int(waits) + 1)
        raise Refused(401, "the token is unknown, expired or revoked")

    def _by_proxy(self, request: Request) -> Identity | None:
        """Return the user that a trusted proxy names; headers from others are ignored."""
        try:
            address = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return None
        if not any(address in network for network in self._networks):
            return None
        for header in (*USER_HEADERS, GROUPS_HEADER):
            if len(request.headers.getlist(header)) > 1:
                raise Refused(400, "duplicate proxy headers")
        names = [name for header in USER_HEADERS if (name := request.headers.get(header, "").strip())]
        if not names:
            return None
        groups = [text.strip() for text in request.headers.get(GROUPS_HEADER, "").split(",")]
        held = {*names, *filter(None, groups)}
        role: Role = "reader"
        if held & set(self._settings.proxy_uploaders):
            role = "uploader"
        if held & set(self._settings.proxy_admins):
            role = "admin"
        form_key = request.cookies.get(FORM_COOKIE) or secrets.token_urlsafe(24)
        return Identity(name=names[0][:_MOST_NAME], rights={None: role}, by="proxy", form_key=form_key)


def check_names(request: Request, settings: ServerSettings) -> None:
    """Raise Refused for an unknown Host header, as in DNS rebinding."""
    if "\0" in request.url.path or "%00" in str(request.url):
        raise Refused(400, "NUL is not allowed in a URL")
    if settings.hosts is None:
        return
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    if host not in settings.hosts:
        raise Refused(421, "this server is only available at localhost")


def check_origin(request: Request, settings: ServerSettings) -> None:
    """Raise Refused for a cross-site request; programs send no Origin."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        raise Refused(403, "cross-site request")
    origin = request.headers.get("origin")
    if origin is None:
        return
    host = request.headers.get("host", "")
    own = {*settings.origins, f"{request.url.scheme}://{host}"}
    if settings.is_secure:
        own.add(f"https://{host}")
    if origin not in own:
        raise Refused(403, "cross-site request")


def check_form(who: Identity, request: Request, given: str) -> None:
    """Raise Refused if a form lacks the key of its page (CSRF)."""
    expected = who.form_key
    if who.by != "session" and expected != request.cookies.get(FORM_COOKIE, ""):
        raise Refused(403, "invalid form key: reload the page")
    if not given or not same_secret(given, expected):
        raise Refused(403, "invalid form key: reload the page")

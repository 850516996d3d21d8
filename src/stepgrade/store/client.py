"""Typed requests to one project on a stepgrade server, each under one deadline."""

from __future__ import annotations

import http.client
import ipaddress
import os
import re
import selectors
import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from stepgrade.decoding import from_json
from stepgrade.errors import BadHistory, BadOption, NoSuchRun, NotLetIn, OddAnswer, Unreachable

_MOST_WAIT_S = 60.0
_TRIES = 3
_MOST_PROBLEM = 500
_URL_HINT = "write it like https://stepgrade.example.org/project"
# A stepgrade server rejects the request itself with these, so a retry would fail as well.
_REJECTED = (400, 409, 413, 415, 422)
_Kind = TypeVar("_Kind")


class _Problem(msgspec.Struct, frozen=True, kw_only=True):
    problem: str


class Address(NamedTuple):
    """Where a project's history is."""

    scheme: str
    host: str
    port: int
    prefix: str  # path of the project in the HTTP API
    name: str  # as shown to users

    @property
    def project(self) -> str:
        """Return the project's name."""
        return self.prefix.rsplit("/", 1)[1]


def parse_address(url: str) -> Address:
    """Return the parts of a project's URL; raise BadHistory if it is invalid, without repeating it."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
        path = parts.path.strip("/")
        base, _, project = path.rpartition("/")
        prefix = f"{'/' + base if base else ''}/api/v1/projects/{quote(project, safe='')}"
    except ValueError:
        raise BadHistory("the server's URL is invalid", hint=_URL_HINT) from None
    is_odd = "@" in parts.netloc or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", base or "-")
    if not host or not path or is_odd or not url.isprintable():
        raise BadHistory("not the URL of a project on a server", hint=_URL_HINT)
    scheme = parts.scheme.lower()
    if scheme == "http" and not is_loopback(host):
        raise BadHistory("the token would be sent over the network unencrypted", hint="use https://")
    return Address(
        scheme, host, port or (443 if scheme == "https" else 80), prefix, f"{scheme}://{parts.netloc}/{path}"
    )


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Client:
    """Sends requests to one project's HTTP API and decodes the responses."""

    def __init__(self, url: str, most_bytes: int) -> None:
        self.address = parse_address(url)
        self.token = token_from_environment()
        self._most_bytes = most_bytes  # of a response
        self._connection = Connection(self.address.scheme, self.address.host, self.address.port)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def request(
        self,
        kind: type[_Kind],
        method: str,
        path: str,
        fields: Sequence[tuple[str, object]] = (),
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Kind:
        """Return the response as `kind`; raise Unreachable, OddAnswer, NotLetIn, NoSuchRun or BadHistory."""
        name = self.address.name
        query = urlencode([pair for pair in fields if pair[1] is not None], errors="backslashreplace")
        target = f"{self.address.prefix}{path}{'?' + query if query else ''}"
        sent = {"accept": "application/json", "user-agent": "stepgrade", **(headers or {})}
        if self.token:
            sent["authorization"] = f"Bearer {self.token}"
        for attempt in range(_TRIES):
            try:
                status, wait, text = self._connection.ask(method, target, body, sent, self._most_bytes)
            except (OSError, http.client.HTTPException) as error:
                why = str(error) if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
                raise Unreachable(f"does not answer: {why or type(error).__name__}", where=name) from error
            if status != 429 or attempt + 1 == _TRIES:
                break
            time.sleep(min(float(wait) if re.fullmatch(r"[0-9]{1,9}", wait) else 1.0, _MOST_WAIT_S))
        if status in (408, 425, 429) or status >= 500:
            raise Unreachable(f"is busy or down: status {status}", where=name)
        if len(text) > self._most_bytes:
            raise OddAnswer("the response is too large", where=name, hint="select fewer runs")
        if self.token:  # a proxy may echo the request
            text = text.replace(self.token.encode(), b"...")
        return self._decode(kind, status, text)

    def _decode(self, kind: type[_Kind], status: int, text: bytes) -> _Kind:
        """Return a successful response as `kind`; raise the error that the status stands for."""
        name, invalid = self.address.name, (msgspec.DecodeError, UnicodeError, RecursionError)
        if status in (200, 201):
            try:
                return from_json(text, kind)
            except invalid as error:
                is_json = isinstance(error, msgspec.ValidationError)
                how = f"unexpected response: {error}" if is_json else f"status {status} without valid JSON"
                raise OddAnswer(f"is not a stepgrade server of this version: {how}", where=name) from None
        try:
            problem = from_json(text, _Problem).problem[:_MOST_PROBLEM]
        except invalid:
            problem = ""
        if status in (401, 403):
            hint = f"set {TOKEN} to a token" if status == 401 else "the token needs another role"
            raise NotLetIn(problem or f"status {status}", where=name, hint=hint)
        if problem and status == 404:
            raise NoSuchRun(problem, where=name)
        if problem and status in _REJECTED:
            raise BadHistory(problem, where=name)
        redirected = "use the URL that it redirects to" if 300 <= status < 400 else None
        raise OddAnswer(f"is not a stepgrade server: status {status}", where=name, hint=redirected)


TOKEN = "STEPGRADE_TOKEN"  # noqa: S105  a variable: command-line arguments are visible to everyone on the machine
_MOST_TOKEN = 4096
WHOLE_S = 120.0  # for a request and its response, however slowly the bytes arrive
_SILENCE_S = 30.0


def token_from_environment() -> str | None:
    """Return the token for the server; raise BadOption if it is invalid, without repeating it.

    Any RFC 6750 bearer token is valid, since a proxy in front of the server may have tokens of its own.
    """
    token = os.environ.get(TOKEN, "").strip()
    if len(token) > _MOST_TOKEN:
        raise BadOption(f"is longer than {_MOST_TOKEN:,} characters", where=TOKEN, hint="is it a token?")
    if token and not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        hint = "copy it again, without quotes, spaces and line breaks"
        raise BadOption("not a token: it contains characters not allowed in a token", where=TOKEN, hint=hint)
    return token or None


class ServerAnswer(NamedTuple):
    """A response."""

    status: int
    retry_after: str
    body: bytes


class Connection(http.client.HTTPConnection):
    """A connection to one server. It follows no redirects and reconnects when needed."""

    def __init__(self, scheme: str, host: str, port: int) -> None:
        super().__init__(host, port)
        self._ends = 0.0
        self._context = None
        if scheme == "https":
            self.default_port = 443
            self._context = ssl.create_default_context()
            self._context.sslsocket_class = _TimedTls

    def ask(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], most_bytes: int
    ) -> ServerAnswer:
        """Return the response; at most `most_bytes` + 1 bytes of its body are read.

        Raise OSError or HTTPException if there is none in time. If a kept-alive connection has been closed
        the request is sent again, so it must be idempotent.
        """
        self._ends = time.monotonic() + WHOLE_S
        if self.sock is not None:
            with selectors.DefaultSelector() as selector:
                selector.register(self.sock, selectors.EVENT_READ)
                is_readable = selector.select(0.0)
            if is_readable:  # the connection was closed, or the server sent a response to no request
                self.close()
        for is_fresh in (self.sock is None, True):
            try:
                if isinstance(self.sock, _Timed):
                    self.sock.ends = self._ends
                self.request(method, target, body, headers)
                answer = self.getresponse()
                text = answer.read(most_bytes + 1)
                if answer.length and len(text) <= most_bytes:  # read(n) does not check this
                    raise http.client.IncompleteRead(text, answer.length)
            except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
                self.close()
                if isinstance(error, ValueError | OverflowError):  # invalid lengths
                    raise http.client.HTTPException("the response is not valid HTTP") from error
                if is_fresh or time.monotonic() > self._ends:
                    raise
                continue
            if not answer.isclosed():  # the unread rest would be taken for the next response
                self.close()
            return ServerAnswer(answer.status, answer.getheader("retry-after") or "", text)
        raise AssertionError  # the second try has a fresh connection

    def close(self) -> None:
        """Close the connection; an error while closing changes nothing about what was answered."""
        with suppress(OSError):
            super().close()

    def connect(self) -> None:
        """Connect to the first address that answers."""
        problem: OSError = OSError("the host name has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            plain = _Timed(family, kind, protocol)
            plain.ends = self._ends
            try:
                plain.stay_in_time()
                plain.connect(address)
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is not None:
                    plain.stay_in_time()
                    plain = cast("_TimedTls", self._context.wrap_socket(plain, server_hostname=self.host))
                    plain.ends = self._ends
            except OSError as error:
                plain.close()
                problem = error
                continue
            self.sock = plain
            return
        raise problem


class _Timed(socket.socket):
    """A socket with a deadline for all of its operations together."""

    ends = 0.0

    def stay_in_time(self) -> None:
        """Limit the next operation to the time left."""
        left = self.ends - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("the response took too long")
        self.settimeout(min(left, _SILENCE_S))

    def recv_into(self, *arguments: Any) -> int:
        """Receive as socket.recv_into does."""
        self.stay_in_time()
        return super().recv_into(*arguments)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send as socket.sendall does."""
        left = memoryview(data)
        while left:
            self.stay_in_time()
            left = left[self.send(left, flags) :]


class _TimedTls(_Timed, ssl.SSLSocket):
    """The same over TLS."""

"""An HTTP request and its response under one deadline, and the token it carries."""

from __future__ import annotations

import http.client
import os
import re
import selectors
import socket
import ssl
import time
from contextlib import suppress
from typing import Any, NamedTuple, cast

from stepgrade.errors import BadOption

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

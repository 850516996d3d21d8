"""One request and its whole answer over HTTP by one deadline, and the token that goes with it."""

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

TOKEN = "STEPGRADE_TOKEN"  # noqa: S105  the variable's name: an argument could be seen by everyone on the machine
_MOST_TOKEN = 4096
WHOLE_S = 120.0  # for a request and its answer, however they drip
_SILENCE_S = 30.0


def token_from_environment() -> str | None:
    """Return the token that goes to the server; raise BadOption for what cannot be one, without repeating it.

    Any bearer token of RFC 6750 is one, for there may be a proxy with tokens of its own before the server.
    """
    token = os.environ.get(TOKEN, "").strip()
    if len(token) > _MOST_TOKEN:
        raise BadOption(f"is longer than {_MOST_TOKEN:,} characters", where=TOKEN, hint="is it a token?")
    if token and not re.fullmatch(r"[A-Za-z0-9._~+/-]+=*", token):
        hint = "copy it again, without quotes, spaces and line breaks"
        raise BadOption("is not a token: it contains characters that no token has", where=TOKEN, hint=hint)
    return token or None


class ServerAnswer(NamedTuple):
    """What came back."""

    status: int
    retry_after: str
    body: bytes


class Connection(http.client.HTTPConnection):
    """A connection to one server. It follows no redirect and opens again when it has ended."""

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
        """Return the answer, of whose body at most one byte more than `most_bytes` is read.

        Raise OSError or HTTPException when there is none in time. A request is sent twice where the
        connection was kept open and has ended: it must not matter.
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
                if answer.length and len(text) <= most_bytes:  # which a read of so many bytes does not check
                    raise http.client.IncompleteRead(text, answer.length)
            except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:
                self.close()
                if isinstance(error, ValueError | OverflowError):  # of odd lengths, from deep within
                    raise http.client.HTTPException("the answer is not HTTP") from error
                if is_fresh or time.monotonic() > self._ends:
                    raise
                continue
            if not answer.isclosed():  # more than was read would be taken for the next answer
                self.close()
            return ServerAnswer(answer.status, answer.getheader("retry-after") or "", text)
        raise AssertionError  # the second connection is a fresh one

    def close(self) -> None:
        """Close the connection; an error while closing changes nothing about what was answered."""
        with suppress(OSError):
            super().close()

    def connect(self) -> None:
        """Connect to the first address that answers."""
        problem: OSError = OSError("the host's name has no address")
        for family, kind, protocol, _, place in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            plain = _Timed(family, kind, protocol)
            plain.ends = self._ends
            try:
                plain.stay_in_time()
                plain.connect(place)
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
    """A socket with a moment at which all that is done with it ends, however slowly its peer drips."""

    ends = 0.0

    def stay_in_time(self) -> None:
        """Let the next operation take no longer than is left."""
        left = self.ends - time.monotonic()
        if left <= 0.0:
            raise TimeoutError("the answer took too long")
        self.settimeout(min(left, _SILENCE_S))

    def recv_into(self, *arguments: Any) -> int:
        """Receive as a socket does."""
        self.stay_in_time()
        return super().recv_into(*arguments)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all as a socket does."""
        left = memoryview(data)
        while left:
            self.stay_in_time()
            left = left[self.send(left, flags) :]


class _TimedTls(_Timed, ssl.SSLSocket):
    """The same with TLS."""

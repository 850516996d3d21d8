"""Limits on the number of connections, and deadlines for slow clients.

uvicorn waits indefinitely for the rest of a request, and does not count connections in their TLS handshake.
Here each connection is counted when it is accepted, per address and in total, and has a deadline whenever it
is the client's turn. At the limit, the oldest connection that waits for its client is closed for a new one; a
few slots are reserved for `/healthz`.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import h11
from msgspec import Struct
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from stepgrade.web.settings import Network
from stepgrade.web.worker import LOG

_LOOK_S = 0.5
_RESERVED = 64
_STOP_S = 2.0
_DRAINED_BYTES = 256 << 10
_BYTES_PER_S = 64 << 10  # minimum rate of a client
_HEALTH = "/healthz"
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 0.5  # less than asyncio waits until it accepts again
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Limits on connections, and the client's deadlines in seconds."""

    most: int = 1_000
    per_address: int = 200
    no_share: tuple[Network, ...] = ()  # proxies, whose address many clients share
    head_s: float = 10.0
    body_s: float = 60.0
    drain_s: float = 5.0  # to discard the rest of a rejected body
    write_s: float = 30.0


class Accepted(socket.socket):
    """An accepted socket; `protocol` is None until its TLS handshake is done."""

    gate: Gate | None = None
    key = ""
    since = 0.0
    protocol: GuardedProtocol | None = None
    is_reserved = False

    def close(self) -> None:
        """Close it and release its slot."""
        if self.gate is not None:
            self.gate.forget(self)
        super().close()


class Gate:
    """All connections of this process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.is_stopping = False
        self._all: dict[int, Accepted] = {}  # the oldest first, as in each of the next
        self._by_address: dict[str, dict[int, Accepted]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, accepted: Accepted, address: str) -> bool:
        """Count a new connection; return False if it exceeds the limits."""
        key = self._key(address)
        own = self._by_address.get(key, {})
        is_full = len(own) >= self.limits.per_address and bool(key)
        if (is_full and not self._make_room(own)) or (
            len(self._all) >= self.limits.most and not self._make_room(self._all)
        ):
            if (
                len(self._all) >= self.limits.most + _RESERVED
                or len(own) >= self.limits.per_address + _RESERVED
            ):
                return False
            accepted.is_reserved = True
        loop = asyncio.get_running_loop()
        accepted.gate, accepted.key, accepted.since = self, key, loop.time()
        self._all[accepted.fileno()] = accepted
        self._by_address.setdefault(key, {})[accepted.fileno()] = accepted
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look)
        return True

    def adopt(self, protocol: GuardedProtocol, number: int) -> Accepted | None:
        """Return the socket of a connection that is ready for requests, and attach its protocol."""
        accepted = self._all.get(number)
        if accepted is not None:
            accepted.protocol = protocol
        return accepted

    def forget(self, accepted: Accepted) -> None:
        """Stop counting a connection."""
        number, accepted.gate = accepted.fileno(), None
        self._all.pop(number, None)
        own = self._by_address.get(accepted.key, {})
        own.pop(number, None)
        if not own:
            self._by_address.pop(accepted.key, None)

    def _key(self, address: str) -> str:
        """Return the key that an address is counted under: for IPv6, its network."""
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return ""
        if any(found in network for network in self.limits.no_share):
            return ""
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
        return str(found)

    def _make_room(self, some: dict[int, Accepted]) -> bool:
        """Close the oldest of these connections that waits for its client."""
        now = asyncio.get_running_loop().time()
        for least_s, phases in ((0.0, ("head", "idle")), (self.limits.drain_s, ("body", "drain", "write"))):
            for accepted in some.values():
                protocol = accepted.protocol
                phase, since = ("head", accepted.since) if protocol is None else protocol.waits_for()
                if phase in phases and now - since >= least_s:
                    self._cut(accepted)
                    return True
        return False

    def _cut(self, accepted: Accepted) -> None:
        self.forget(accepted)
        if accepted.protocol is not None:
            accepted.protocol.transport.abort()
        else:
            with suppress(OSError):
                accepted.shutdown(socket.SHUT_RDWR)  # makes the handshake fail, so asyncio closes it

    def _look(self) -> None:
        """Close connections past their deadline."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for accepted in list(self._all.values()):
            protocol = accepted.protocol
            phase, since = ("head", accepted.since) if protocol is None else protocol.waits_for()
            if phase == "own":
                continue
            most_s: float = getattr(self.limits, f"{phase}_s", self.limits.head_s)
            if phase in ("body", "write") and protocol is not None:
                most_s += protocol.bytes / _BYTES_PER_S
            if now - since <= (min(most_s, _STOP_S) if self.is_stopping else most_s):
                continue
            if phase == "head" and protocol is not None:
                protocol.transport.write(_LATE)
            self._cut(accepted)
        self._timer = loop.call_later(_LOOK_S, self._look) if self._all else None


class GuardedProtocol(H11Protocol):
    """uvicorn's protocol, extended to know whose turn it is."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        assert isinstance(self.loop, GuardedLoop)  # noqa: S101  serving.py creates both
        self._gate = self.loop.gate
        self._phase, self._since = "head", self.loop.time()
        self.bytes = 0  # received in this phase; in `write`, to be sent

    def waits_for(self) -> tuple[str, float]:
        """Return what the client has to do next and since when; `own` if it is the server's turn."""
        theirs, ours = self.conn.their_state, self.conn.our_state
        unsent = self.transport.get_write_buffer_size()
        if unsent:
            phase = "write"
        elif theirs is h11.SEND_BODY:
            phase = "drain" if ours in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED) else "body"
        elif theirs is h11.IDLE:
            phase = "head" if self.conn.trailing_data[0] or self.cycle is None else "idle"
        else:
            phase = "own" if ours in (h11.SEND_RESPONSE, h11.SEND_BODY) else "idle"
        if phase != self._phase:
            self._phase, self._since, self.bytes = phase, self.loop.time(), unsent
        return self._phase, self._since

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Start waiting for a request."""
        super().connection_made(transport)
        accepted = self._gate.adopt(self, transport.get_extra_info("socket").fileno())
        if accepted is not None and accepted.is_reserved:
            self.app = _only_health(self.app)
        self._since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        super().data_received(data)
        phase, _ = self.waits_for()
        if phase in ("body", "drain"):
            self.bytes += len(data)
        if phase == "drain" and self.bytes > _DRAINED_BYTES:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP; a request whose response has begun gets no second one."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Start waiting for the next request."""
        super().on_response_complete()
        self.waits_for()

    def shutdown(self) -> None:
        """Finish running requests; clients get little time."""
        self._gate.is_stopping = True
        super().shutdown()


def _only_health(app: Any) -> Callable[..., Awaitable[None]]:
    """Return an application for the reserved slots."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope["path"] == _HEALTH else service_unavailable)(scope, receive, send)

    return answer


class GuardedListener(socket.socket):
    """A listening socket that accepts connections within the limits."""

    gate: Gate
    _paused_until = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; raise BlockingIOError if there is none, or if the system is exhausted.

        asyncio would go on at once, for as many connections as may wait, and log each and schedule a retry.
        """
        while True:
            if time.monotonic() < self._paused_until:
                raise BlockingIOError
            try:
                plain, address = super().accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._paused_until = time.monotonic() + _PAUSE_S
                raise
            accepted = Accepted(self.family, self.type, self.proto, fileno=plain.detach())
            if self.gate.admit(accepted, str(address[0])):
                return accepted, address
            accepted.close()


class GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop that listens through a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what the system refused in one line, and a bug with its traceback."""
        error = context.get("exception")
        if isinstance(error, OSError):
            LOG.error("%s: %s", context["message"], error.strerror or error)
        else:
            super().default_exception_handler(context)

    def _start_serving(self, protocol_factory: Any, sock: socket.socket, *args: Any) -> None:
        """Accept again after a pause; asyncio does so even when the socket was closed meanwhile."""
        if sock.fileno() >= 0:
            super()._start_serving(protocol_factory, sock, *args)  # type: ignore[misc]  # not in the stubs

    async def create_server(self, protocol_factory: Any, *args: Any, **named: Any) -> Any:
        """Listen on a socket, which is detached."""
        bound = named["sock"]
        guarded = GuardedListener(bound.family, bound.type, bound.proto, fileno=bound.detach())
        guarded.gate = self.gate
        return await super().create_server(protocol_factory, *args, **{**named, "sock": guarded})

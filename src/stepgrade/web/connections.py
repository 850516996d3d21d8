"""Connections of strangers: how many there may be, and how long each may keep us waiting.

uvicorn waits for the rest of a request for as long as the other side likes, and does not count connections
that are in their TLS handshake. Here each is counted when it is accepted, by address and in all, and has a
deadline whenever the other side is the one to act. Where there is no room, the oldest that keeps us waiting
makes room for a new one; a few places are left for `/healthz` alone.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import h11
from msgspec import Struct
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from stepgrade.web.settings import Network

_LOOK_S = 0.5
_RESERVED = 64
_STOP_S = 2.0
_DRAINED_BYTES = 256 << 10
_BYTES_PER_S = 64 << 10  # what the other side sends or takes at least
_HEALTH = "/healthz"
_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """How many connections there may be, and how long the other side may take, in seconds."""

    most: int = 1_000
    of_address: int = 200
    no_share: tuple[Network, ...] = ()  # proxies, whose address stands for everybody
    head_s: float = 10.0
    body_s: float = 60.0
    drain_s: float = 5.0  # of a body that nobody wants any more
    write_s: float = 30.0


class Accepted(socket.socket):
    """The socket of one connection; `protocol` is None until its TLS handshake is done."""

    gate: Gate | None = None
    key = ""
    since = 0.0
    protocol: GuardedProtocol | None = None
    is_reserved = False

    def close(self) -> None:
        """Close it, and make room for another."""
        if self.gate is not None:
            self.gate.forget(self)
        super().close()


class Gate:
    """All connections of this process."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self.is_stopping = False
        self._all: dict[int, Accepted] = {}  # the oldest first, as in each of the next
        self._of_address: dict[str, dict[int, Accepted]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def admit(self, accepted: Accepted, address: str) -> bool:
        """Count a new connection; return False when there is no room for it."""
        key = self._key(address)
        own = self._of_address.get(key, {})
        is_full = len(own) >= self.limits.of_address and bool(key)
        if (is_full and not self._make_room(own)) or (
            len(self._all) >= self.limits.most and not self._make_room(self._all)
        ):
            if (
                len(self._all) >= self.limits.most + _RESERVED
                or len(own) >= self.limits.of_address + _RESERVED
            ):
                return False
            accepted.is_reserved = True
        loop = asyncio.get_running_loop()
        accepted.gate, accepted.key, accepted.since = self, key, loop.time()
        self._all[accepted.fileno()] = accepted
        self._of_address.setdefault(key, {})[accepted.fileno()] = accepted
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look)
        return True

    def adopt(self, protocol: GuardedProtocol, number: int) -> Accepted | None:
        """Return the socket of a connection that is ready for requests."""
        accepted = self._all.get(number)
        if accepted is not None:
            accepted.protocol = protocol
        return accepted

    def forget(self, accepted: Accepted) -> None:
        """Count a connection no longer."""
        number, accepted.gate = accepted.fileno(), None
        self._all.pop(number, None)
        own = self._of_address.get(accepted.key, {})
        own.pop(number, None)
        if not own:
            self._of_address.pop(accepted.key, None)

    def _key(self, address: str) -> str:
        """Return what an address shares its connections with: of IPv6, its network."""
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
        """Close the oldest of some connections that keeps us waiting."""
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
                accepted.shutdown(socket.SHUT_RDWR)  # asyncio sees the handshake fail, and closes it

    def _look(self) -> None:
        """End the connections that kept us waiting for too long."""
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
    """uvicorn's protocol, which knows at any time whom a connection waits for."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        assert isinstance(self.loop, GuardedLoop)  # noqa: S101  serving.py makes both
        self._gate = self.loop.gate
        self._phase, self._since = "head", self.loop.time()
        self.bytes = 0  # taken in this phase; in `write`, those that were to be sent

    def waits_for(self) -> tuple[str, float]:
        """Return what the other side has to do next, since when: `own` when the turn is ours."""
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
        """Begin to wait for a request."""
        super().connection_made(transport)
        accepted = self._gate.adopt(self, transport.get_extra_info("socket").fileno())
        if accepted is not None and accepted.is_reserved:
            self.app = _only_health(self.app)
        self._since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        phase, _ = self.waits_for()
        if phase in ("body", "drain"):
            self.bytes += len(data)
        if phase == "drain" and self.bytes > _DRAINED_BYTES:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP; a request of which a part is under way gets no other answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self.waits_for()

    def shutdown(self) -> None:
        """Finish what is ours to finish; who keeps us waiting has little time left."""
        self._gate.is_stopping = True
        super().shutdown()


def _only_health(app: Any) -> Callable[..., Awaitable[None]]:
    """Return an application for places that are left when all others are taken."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await (app if scope["path"] == _HEALTH else service_unavailable)(scope, receive, send)

    return answer


class GuardedListener(socket.socket):
    """A listening socket that accepts what there is room for."""

    gate: Gate

    def accept(self) -> tuple[socket.socket, Any]:
        """Return the next connection; raise BlockingIOError when there is none."""
        while True:
            plain, address = super().accept()
            accepted = Accepted(self.family, self.type, self.proto, fileno=plain.detach())
            if self.gate.admit(accepted, str(address[0])):
                return accepted, address
            accepted.close()


class GuardedLoop(asyncio.SelectorEventLoop):
    """An event loop that listens through a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    async def create_server(self, protocol_factory: Any, *args: Any, **named: Any) -> Any:
        """Listen to a socket, which the gate takes over."""
        bound = named["sock"]
        guarded = GuardedListener(bound.family, bound.type, bound.proto, fileno=bound.detach())
        guarded.gate = self.gate
        return await super().create_server(protocol_factory, *args, **{**named, "sock": guarded})

"""MCP inside the server, at /mcp: a token gives access to the projects that it may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

import anyio
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepgrade.errors import BadOption, MissingExtra
from stepgrade.store.runs import Runs
from stepgrade.store.team import Team
from stepgrade.web import access, calls
from stepgrade.web.access import Identity, Refused
from stepgrade.web.assistant import Roots, make_assistant, opened_by_request
from stepgrade.web.calls import Server
from stepgrade.web.traces import read_body

_MOST_BODY = 1 << 20
_AT_ONCE = 2


class Mounted(Struct, frozen=True):
    """The route, and the context it has to be served in."""

    route: BaseRoute
    running: Callable[[], AbstractAsyncContextManager[None]]


class _Guarded:
    """Authenticates requests and opens the store for the tools with the caller's permissions."""

    def __init__(self, server: Server, inner: ASGIApp) -> None:
        self._server, self._inner = server, inner
        self._slots = anyio.CapacityLimiter(_AT_ONCE)  # so that pages always find a free connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        settings = self._server.settings
        try:
            access.check_names(request, settings)
            access.check_origin(request, settings)
            await calls.in_thread(self._server.limiter, self._identify, request)
            body = await read_body(request, _MOST_BODY)
            # A token may have been revoked while the body was being sent.
            who = await calls.in_thread(self._server.limiter, self._identify, request)
        except Refused as refused:
            answer = calls.problem(request, refused.status, refused.problem, is_page=False)
            await calls.with_headers(answer, settings)(scope, receive, send)
            return
        except ClientDisconnect:
            return
        parts = [body]

        async def replay() -> Message:
            if parts:
                return {"type": "http.request", "body": parts.pop(), "more_body": False}
            return await receive()

        @contextmanager
        def opens(project: str) -> Iterator[Runs]:
            if not who.may("reader", project):
                raise BadOption("project not found")
            with self._server.pool.history(project) as history:
                yield history

        token = opened_by_request.set(opens)
        try:
            async with self._slots:
                await self._inner(scope, replay, send)
        finally:
            opened_by_request.reset(token)

    def _identify(self, request: Request) -> Identity:
        with calls.refusals(), self._server.pool.history() as history:
            who = self._server.door.identify(request, Team(history.database))
        if who.by == "session" or not who.rights:
            raise Refused(401, "authentication required")
        return who


def mounted_assistant(server: Server) -> Mounted | None:
    """Return the MCP route; None if the SDK is not installed."""
    try:
        assistant = make_assistant(Roots([]), None, has_files=False)
        from mcp.server.transport_security import TransportSecuritySettings  # an extra
    except MissingExtra:
        return None
    # Host names and origins are checked above, for every access mode.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    inner = assistant.streamable_http_app(
        json_response=True,
        stateless_http=True,
        max_request_body_size=_MOST_BODY,
        transport_security=unchecked,
    )
    manager = assistant.session_manager
    # No GET: it would open an event stream that stays empty, and hold its connection forever.
    return Mounted(route=Route("/mcp", _Guarded(server, inner), methods=["POST"]), running=manager.run)

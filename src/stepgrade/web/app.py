"""The application: every endpoint in one table, health and metrics, and the life of the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepgrade._version import __version__
from stepgrade.store.migrations import MIGRATIONS
from stepgrade.web import api, calls, pages
from stepgrade.web.calls import Call, Endpoint, Server, json_answer
from stepgrade.web.mounted import mounted_assistant
from stepgrade.web.openapi import describe
from stepgrade.web.settings import ServerSettings, check
from stepgrade.web.worker import LOG


def healthz(_: object) -> Response:
    """Answer that the process lives."""
    return json_answer({"status": "ok", "version": __version__})


def readyz(call: Call) -> Response:
    """Answer whether the store answers and is of our shape, and the workers do their jobs."""
    version = call.history.database.version()
    states = {worker.name: worker.state() for worker in call.server.housekeeping.workers}
    is_ready = version == len(MIGRATIONS) and all(state.is_alive for state in states.values())
    shown = {
        name: {"alive": state.is_alive, "idle_s": round(state.idle_s, 1), "failing": state.failing}
        for name, state in states.items()
    }
    body = {"status": "ok" if is_ready else "not ready", "store": version, "workers": shown}
    return json_answer(body, 200 if is_ready else 503)


def metrics(call: Call) -> Response:
    """Answer with what Prometheus reads."""
    server = call.server
    lines = [
        "# HELP stepgrade_requests_total Requests by endpoint and status.",
        "# TYPE stepgrade_requests_total counter",
        *(
            f'stepgrade_requests_total{{method="{method}",path="{path}",status="{status}"}} {count}'
            for (method, path, status), count in sorted(server.counts.items())
        ),
        "# HELP stepgrade_request_seconds_total Seconds spent on requests by endpoint.",
        "# TYPE stepgrade_request_seconds_total counter",
        *(
            f'stepgrade_request_seconds_total{{path="{path}"}} {seconds:.6f}'
            for path, seconds in sorted(server.seconds.items())
        ),
        "# HELP stepgrade_uploads_total Runs kept since the start.",
        "# TYPE stepgrade_uploads_total counter",
        f"stepgrade_uploads_total {server.uploaded}",
        "# HELP stepgrade_start_time_seconds When this process began.",
        "# TYPE stepgrade_start_time_seconds gauge",
        f"stepgrade_start_time_seconds {server.started:.0f}",
    ]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8")


def openapi(_: Call) -> Response:
    """Answer with the description of this interface."""
    return json_answer(describe(ENDPOINTS))


_OPEN: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/healthz",
        handle=healthz,
        needs=None,
        summary="the process lives",
        answer=dict[str, str],
        is_direct=True,
    ),
    Endpoint(method="GET", path="/readyz", handle=readyz, needs=None, summary="the store answers"),
    Endpoint(
        method="GET",
        path="/metrics",
        handle=metrics,
        needs="reader",
        any_project=True,
        summary="figures for Prometheus",
    ),
    Endpoint(method="GET", path="/openapi.json", handle=openapi, needs=None, summary="this description"),
)
ENDPOINTS: tuple[Endpoint, ...] = (*_OPEN, *api.ENDPOINTS, *pages.ENDPOINTS)


def make_app(settings: ServerSettings) -> Starlette:
    """Return the application; raise BadOption for settings that are none of the three ways."""
    server = Server(check(settings))

    def route(endpoint: Endpoint) -> Route:
        async def handler(request: Request) -> Response:
            return await calls.answer(server, endpoint, request)

        return Route(
            endpoint.path, handler, methods=[endpoint.method], name=f"{endpoint.method} {endpoint.path}"
        )

    async def not_found(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        kind = "/api/" if request.url.path.startswith("/api/") else "/"
        nothing = Endpoint(method="GET", path=kind, handle=healthz, needs=None, summary="")
        words = "there is nothing here" if status == 404 else "not possible"
        return calls.with_headers(calls.problem(nothing, request, status, words), server.settings)

    async def failed(request: Request, error: Exception) -> Response:
        LOG.error("a bug in stepgrade %s, at %s", __version__, request.url.path, exc_info=error)
        nothing = Endpoint(method="GET", path="/api/", handle=healthz, needs=None, summary="")
        words = "a bug in stepgrade: its log says more"
        return calls.with_headers(calls.problem(nothing, request, 500, words), server.settings)

    @asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        await anyio.to_thread.run_sync(server.open)
        server.housekeeping.start()
        try:
            if assistant is None:
                yield
            else:
                async with assistant.running():
                    yield
        finally:
            server.scoring.stop()
            await anyio.to_thread.run_sync(server.housekeeping.stop)
            await anyio.to_thread.run_sync(server.pool.close)

    assistant = mounted_assistant(server)
    handlers: dict[Any, Callable[[Request, Exception], Coroutine[Any, Any, Response]]] = {
        HTTPException: not_found,
        Exception: failed,
    }
    app = Starlette(
        routes=[*(route(one) for one in ENDPOINTS), *([assistant.route] if assistant else [])],
        lifespan=life,
        exception_handlers=handlers,
    )
    app.state.server = server
    return app

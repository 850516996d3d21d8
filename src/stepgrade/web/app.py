"""The application: all endpoints, health and metrics, startup and shutdown."""

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
    """Return that the process is alive."""
    return json_answer({"status": "ok", "version": __version__})


def readyz(call: Call) -> Response:
    """Return whether the store is available and up to date, and the workers are running."""
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
    """Return metrics in Prometheus' text format."""
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
        "# HELP stepgrade_uploads_total Runs stored since the start.",
        "# TYPE stepgrade_uploads_total counter",
        f"stepgrade_uploads_total {server.uploaded}",
        "# HELP stepgrade_start_time_seconds When this process started.",
        "# TYPE stepgrade_start_time_seconds gauge",
        f"stepgrade_start_time_seconds {server.started:.0f}",
    ]
    return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8")


def openapi(_: Call) -> Response:
    """Return the OpenAPI description."""
    return json_answer(describe(ENDPOINTS))


_OPEN: tuple[Endpoint, ...] = (
    Endpoint(
        method="GET",
        path="/healthz",
        handle=healthz,
        needs=None,
        summary="Liveness",
        answer=dict[str, str],
        is_direct=True,
    ),
    Endpoint(method="GET", path="/readyz", handle=readyz, needs=None, summary="Readiness"),
    Endpoint(
        method="GET",
        path="/metrics",
        handle=metrics,
        needs="reader",
        any_project=True,
        summary="Metrics for Prometheus",
    ),
    Endpoint(method="GET", path="/openapi.json", handle=openapi, needs=None, summary="OpenAPI description"),
)
ENDPOINTS: tuple[Endpoint, ...] = (*_OPEN, *api.ENDPOINTS, *pages.ENDPOINTS)


def make_app(settings: ServerSettings) -> Starlette:
    """Return the application; raise BadOption for invalid settings."""
    server = Server(check(settings))

    def route(endpoint: Endpoint) -> Route:
        async def handler(request: Request) -> Response:
            return await calls.answer(server, endpoint, request)

        return Route(
            endpoint.path, handler, methods=[endpoint.method], name=f"{endpoint.method} {endpoint.path}"
        )

    async def not_found(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        words = {404: "not found", 405: "method not allowed"}.get(status, "not possible")
        is_page = not request.url.path.startswith("/api/")
        return calls.with_headers(calls.problem(request, status, words, is_page=is_page), server.settings)

    async def failed(request: Request, error: Exception) -> Response:
        LOG.error("a bug in stepgrade %s, at %s", __version__, request.url.path, exc_info=error)
        words = "internal error: see the server's log"
        return calls.with_headers(calls.problem(request, 500, words, is_page=False), server.settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
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
        routes=[*(route(endpoint) for endpoint in ENDPOINTS), *([assistant.route] if assistant else [])],
        lifespan=lifespan,
        exception_handlers=handlers,
    )
    app.state.server = server
    return app

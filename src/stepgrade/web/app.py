"""The application: all endpoints and their OpenAPI description, health and metrics, startup and shutdown."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepgrade._version import __version__
from stepgrade.store.database import MIGRATIONS
from stepgrade.web import api, calls, pages
from stepgrade.web.calls import Call, Endpoint, Endpoints, Server, json_answer
from stepgrade.web.mounted import mounted_assistant
from stepgrade.web.settings import ServerSettings, check
from stepgrade.web.worker import LOG

_PROBLEM = {
    "type": "object",
    "properties": {"problem": {"type": "string"}, "status": {"type": "integer"}},
    "required": ["problem", "status"],
}
_PATTERNS = {"number": {"type": "integer", "minimum": 0}, "project": {"type": "string"}}
_NUMBERS = ("limit", "a", "b", "before")


def describe(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the description."""
    shown = [endpoint for endpoint in endpoints if not endpoint.is_page]
    types = [kind for endpoint in shown for kind in (endpoint.body, endpoint.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(map(str, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in shown:
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": _PATTERNS.get(name, {"type": "string"})}
            for name in re.findall(r"\{(\w+)\}", endpoint.path)
        ]
        parameters += [
            {"name": name, "in": "query", "schema": {"type": "integer" if name in _NUMBERS else "string"}}
            for name in endpoint.query
        ]
        answer: dict[str, Any] = {"description": endpoint.summary}
        if endpoint.answer is not None:
            content: dict[str, Any] = {"application/json": {"schema": by_type[str(endpoint.answer)]}}
            if "format" in endpoint.query:
                content["text/csv"] = {"schema": {"type": "string"}}
            answer["content"] = content
        problem = {"description": "error", "content": {"application/json": {"schema": _PROBLEM}}}
        operation: dict[str, Any] = {
            "summary": endpoint.summary,
            "operationId": f"{endpoint.handle.__name__}",
            "parameters": parameters,
            "responses": {str(endpoint.status): answer, "default": problem},
        }
        if endpoint.status == 201:
            operation["responses"]["200"] = answer
        if endpoint.needs is not None:
            operation["security"] = [{"token": []}]
        if endpoint.body is not None:
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": by_type[str(endpoint.body)]}},
            }
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "stepgrade", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


routes = Endpoints()


@routes("GET", "/healthz", None, answer=dict[str, str], is_direct=True)
def healthz(_: object) -> Response:
    """Check liveness."""
    return json_answer({"status": "ok", "version": __version__})


@routes("GET", "/readyz", None)
def readyz(call: Call) -> Response:
    """Check readiness: the store is up to date and the workers are running."""
    version = call.history.database.version()
    states = {worker.name: worker.state() for worker in call.server.housekeeping.workers}
    is_ready = version == len(MIGRATIONS) and all(state.is_alive for state in states.values())
    shown = {
        name: {"alive": state.is_alive, "idle_s": round(state.idle_s, 1), "failing": state.failing}
        for name, state in states.items()
    }
    body = {"status": "ok" if is_ready else "not ready", "store": version, "workers": shown}
    return json_answer(body, 200 if is_ready else 503)


@routes("GET", "/metrics", "reader", any_project=True)
def metrics(call: Call) -> Response:
    """Get metrics for Prometheus."""
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


@routes("GET", "/openapi.json", None)
def openapi(_: Call) -> dict[str, Any]:
    """Get the OpenAPI description."""
    return describe(ENDPOINTS)


ENDPOINTS: tuple[Endpoint, ...] = (*routes, *api.routes, *pages.routes)


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

"""Run the server: bind, then serve until stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from stepgrade.decoding import from_json
from stepgrade.errors import BadOption, MissingExtra
from stepgrade.store.pool import Pool
from stepgrade.web.settings import ServerSettings, check

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from stepgrade.web.connections import GuardedLoop

# Given before the MCP SDK is imported, which would otherwise hide warnings and wrap lines.
_LOG_FORMAT = "stepgrade: %(message)s"
_VARIABLE = "STEPGRADE_SERVER_SETTINGS"  # passes the settings to worker processes
_STOP_S = 10
_BACKLOG = 1_000
_OTHER_FILES = 256  # the store, profiles, and slots reserved for /healthz
_LEAST_CONNECTIONS = 64


def serve(settings: ServerSettings, ready: Callable[[str], None]) -> None:
    """Serve until the process is stopped; `ready` is called with the URL once the port is bound.

    Requests under way are finished first. Raise BadOption for settings that are none of the three ways, or an
    address that is taken, and MissingExtra without the packages.
    """
    try:
        import uvicorn  # an extra
        from uvicorn.supervisors import Multiprocess

        from stepgrade.web.app import make_app
        from stepgrade.web.connections import GuardedProtocol
    except ImportError as error:
        hint = "pip install 'stepgrade[server]'"
        raise MissingExtra("the server needs more packages", hint=hint) from error
    logging.basicConfig(format=_LOG_FORMAT)
    check(settings)
    store = Pool(settings.location)
    with store.history():  # a store that cannot be opened is reported in one line, before any address
        pass
    store.close()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((settings.host, settings.port))
        listening.listen(_BACKLOG)  # clients wait from now on until the server is ready
    except OSError as error:
        listening.close()
        problem = f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}"
        raise BadOption(problem, supply="another {port}") from error
    listening.set_inheritable(True)
    settings = structs.replace(settings, port=listening.getsockname()[1])
    is_alone = settings.workers == 1
    app = make_app(settings)
    if not is_alone:
        os.environ[_VARIABLE] = msgspec.json.encode(settings).decode()
    config = uvicorn.Config(
        app if is_alone else "stepgrade.web.serving:app_of_process",
        factory=not is_alone,
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        proxy_headers=False,  # only access.py decides who sent a request
        server_header=False,
        access_log=False,
        log_level="error",  # warnings are about invalid requests
        ws="none",
        http=GuardedProtocol,
        loop="stepgrade.web.serving:loop_of_process",
        lifespan="off" if is_alone else "on",
        timeout_graceful_shutdown=_STOP_S,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
    )
    scheme = "https" if settings.tls_cert else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True  # also before uvicorn installs its signal handlers, and after it stopped

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    address = settings.public_url or f"{scheme}://{host}:{settings.port}"
    if not is_alone:
        ready(address)
        Multiprocess(config, sockets=[listening]).run()
        return

    async def run() -> None:
        async with app.router.lifespan_context(app):  # uvicorn would show its errors as tracebacks
            ready(address)
            await server.serve(sockets=[listening])

    with asyncio.Runner(loop_factory=partial(_guarded_loop, settings)) as runner:
        runner.run(run())


def app_of_process() -> Starlette:
    """Return the application of a worker process."""
    from stepgrade.web.app import make_app  # an extra

    logging.basicConfig(format=_LOG_FORMAT)
    return make_app(from_json(os.environ[_VARIABLE], ServerSettings))


def loop_of_process() -> GuardedLoop:
    """Return the event loop of a worker process."""
    return _guarded_loop(from_json(os.environ[_VARIABLE], ServerSettings))


def _guarded_loop(settings: ServerSettings) -> GuardedLoop:
    """Return an event loop that accepts as many connections as the settings and the system allow."""
    from stepgrade.web.connections import ConnectionLimits, Gate, GuardedLoop  # an extra

    most = settings.most_connections
    with suppress(ImportError):
        import resource  # not on every system

        # Raise the limit on open files if possible.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = most + _OTHER_FILES
        if soft != resource.RLIM_INFINITY and soft < needed:
            soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            most = max(_LEAST_CONNECTIONS, soft - _OTHER_FILES)
    # Behind a proxy all clients share its address.
    is_behind = settings.public_url is not None and settings.tls_cert is None
    limits = ConnectionLimits(
        most=most,
        per_address=settings.most_connections if is_behind else settings.connections_per_address,
        no_share=settings.networks,
    )
    return GuardedLoop(Gate(limits))

"""Serve one file from this machine to Perfetto's page in a local browser.

Any open page can send requests to 127.0.0.1. So the path is random, the Host header must name this machine
(which prevents DNS rebinding), and CORS allows only Perfetto's page to read the response.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO
from urllib.parse import quote

from stepgrade.errors import BadInput

PAGE = "https://ui.perfetto.dev"
ADDRESS = "127.0.0.1"
PORT = 9001  # the only port that Perfetto's content security policy allows
_SILENT_SECONDS = 30.0
_MOST_AT_ONCE = 8
_COPY_BYTES = 1 << 20


class TraceServer:
    """Serves one open file until it is closed."""

    def __init__(self, file: BinaryIO, name: str, *, port: int = PORT) -> None:
        self.path = f"/{secrets.token_urlsafe(16)}/{quote(os.path.basename(name), safe='')}"
        self.fetched = threading.Event()  # set once all of it was sent
        self._file, self.size_bytes = file, os.fstat(file.fileno()).st_size
        try:
            self._server = _Server((ADDRESS, port), self)
        except OSError as error:
            problem = f"cannot listen on port {port}: {error.strerror or error}"
            raise BadInput(problem, hint="Perfetto needs this port; stop the program that uses it") from error
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Return the URL of the file."""
        return f"http://{ADDRESS}:{self.port}{self.path}"

    def link(self, start_ns: int | None = None, end_ns: int | None = None) -> str:
        """Return the URL that opens the file in Perfetto, zoomed to a time range if given."""
        stretch = "" if start_ns is None else f"&visStart={start_ns}&visEnd={end_ns}"
        return f"{PAGE}/#!/?url={quote(self.address, safe='')}{stretch}"

    def send(self, into: Any) -> None:
        """Send the file as it was when it was opened; safe for concurrent requests."""
        at = 0
        while at < self.size_bytes:
            part = os.pread(self._file.fileno(), min(_COPY_BYTES, self.size_bytes - at), at)
            if not part:  # it was truncated meanwhile
                return
            into.write(part)
            at += len(part)
        self.fetched.set()

    def wait(self, seconds: float, *, once: bool) -> None:
        """Wait for so many seconds, or if `once` until the file has been fetched."""
        (self.fetched if once else threading.Event()).wait(seconds)

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], owner: TraceServer) -> None:
        self.owner = owner
        self._slots = threading.BoundedSemaphore(_MOST_AT_ONCE)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request if there is a free slot, else close the connection."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Respond, and release the slot."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnected."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SILENT_SECONDS
    server_version = "stepgrade"
    sys_version = ""
    protocol_version = "HTTP/1.0"  # one request per connection

    def do_GET(self) -> None:
        """Send the file."""
        if self._is_allowed():
            self._head(HTTPStatus.OK, self.server.owner.size_bytes)
            with suppress(ConnectionError, socket.timeout):
                self.server.owner.send(self.wfile)

    def do_HEAD(self) -> None:
        """Send the headers only."""
        if self._is_allowed():
            self._head(HTTPStatus.OK, self.server.owner.size_bytes)

    def _is_allowed(self) -> bool:
        owner = self.server.owner
        origin = self.headers.get("Origin")
        own_hosts = (f"{ADDRESS}:{owner.port}", f"localhost:{owner.port}")
        if self.headers.get("Host") not in own_hosts or origin not in (None, PAGE):
            self._head(HTTPStatus.FORBIDDEN)
            return False
        if not secrets.compare_digest(self.path.encode("utf-8", "replace"), owner.path.encode()):
            self._head(HTTPStatus.NOT_FOUND)
            return False
        return True

    def _head(self, status: HTTPStatus, size: int = 0) -> None:
        self.send_response(status)
        if status is HTTPStatus.OK:
            self.send_header("Access-Control-Allow-Origin", PAGE)
            self.send_header("Vary", "Origin")
            self.send_header("Content-Type", "application/octet-stream")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Reject an unknown method or an invalid request without a body."""
        del message, explain
        known = HTTPStatus(code)
        self._head(HTTPStatus.METHOD_NOT_ALLOWED if known is HTTPStatus.NOT_IMPLEMENTED else known)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  its name in the standard library
        """Log nothing: the path is a secret."""

"""The file that Perfetto's page fetches: from this machine, under one path, and by nobody else."""

from __future__ import annotations

import fcntl
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepgrade.errors import BadInput
from stepgrade.web.loopback import PAGE, PORT, TraceServer
from tests.conftest import ROOT
from tests.trace_processor import serve_page

TRACE = ROOT / "examples" / "traces" / "gpt_naive.json.gz"


@pytest.fixture
def server() -> Iterator[TraceServer]:
    with TRACE.open("rb") as file:
        serving = TraceServer(file, str(TRACE), port=0)
        yield serving
        serving.close()


def ask(
    server: TraceServer, path: str | None = None, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers and the body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    try:
        connection.putrequest(method, server.path if path is None else path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_page_of_perfetto_gets_the_file(server: TraceServer) -> None:
    status, headers, body = ask(server, Origin=PAGE)
    assert status == 200
    assert body == TRACE.read_bytes()
    assert headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert headers["Cache-Control"] == "no-store"
    assert server.fetched.wait(5)
    status, headers, body = ask(server, method="HEAD")
    assert (status, headers["Content-Length"], body) == (200, str(TRACE.stat().st_size), b"")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:9001", "127.0.0.1", "localhost", "", "127.0.0.1:80"]
)
def test_a_name_that_was_rebound_to_this_machine_gets_nothing(server: TraceServer, host: str) -> None:
    status, headers, body = ask(server, Host=host)
    assert (status, body) == (403, b"")
    assert "Access-Control-Allow-Origin" not in headers
    assert ask(server, Host=f"localhost:{server.port}")[0] == 200


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://ui.perfetto.dev", "https://ui.perfetto.dev.evil"]
)
def test_other_pages_get_nothing(server: TraceServer, origin: str) -> None:
    status, headers, body = ask(server, Origin=origin)
    assert (status, body) == (403, b"")
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "path", ["/", "/gpt_naive.json.gz", "/../../etc/passwd", "/x/gpt_naive.json.gz", "//", "/%2e"]
)
def test_there_is_one_path(server: TraceServer, path: str) -> None:
    assert ask(server, path)[::2] == (404, b"")
    assert ask(server, server.path + "/..")[0] == 404
    assert ask(server, server.path + "?x")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_it_can_only_be_read(server: TraceServer, method: str) -> None:
    status, headers, body = ask(server, method=method, Origin=PAGE)
    assert (status, body) == (405, b"")
    assert headers["Allow"] == "GET, HEAD"


def test_paths_cannot_be_guessed_and_only_this_machine_is_listened_to() -> None:
    paths = set()
    for _ in range(3):
        with TRACE.open("rb") as file:
            one = TraceServer(file, "a b/ü ?.json", port=0)
            paths.add(one.path)
            assert one.path.endswith("/%C3%BC%20%3F.json")
            assert one._server.socket.getsockname()[0] == "127.0.0.1"
            one.close()
    assert len(paths) == 3
    assert all(len(path.split("/")[1]) >= 20 for path in paths)


def test_those_who_connect_and_say_nothing_take_no_room_from_others(server: TraceServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
    time.sleep(0.2)
    for one in idle:
        one.close()
    for _ in range(3000):
        try:
            assert ask(server)[0] == 200
            break
        except (ConnectionError, http.client.HTTPException):
            time.sleep(0.1)
    else:
        pytest.fail("nobody is answered any more")


def test_a_port_that_is_taken_is_said(server: TraceServer) -> None:
    with TRACE.open("rb") as file, pytest.raises(BadInput, match="cannot listen on"):
        TraceServer(file, "x", port=server.port)


@contextmanager
def started(*argv: str) -> Iterator[subprocess.Popen[str]]:
    """Start `stepgrade open`, one at a time: there is one port. Skip where another program has it."""
    command = [sys.executable, "-m", "stepgrade", "open", *argv]
    with (Path(tempfile.gettempdir()) / f"stepgrade-tests-{os.getuid()}-{PORT}").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", PORT))
            except OSError:
                pytest.skip(f"port {PORT} is in use")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            try:
                yield running
            finally:
                running.kill()


def link_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    line = running.stdout.readline().strip()
    assert line, running.communicate()[1]
    return line


def test_the_command_serves_until_it_is_interrupted() -> None:
    with started(str(TRACE)) as running:
        link = link_of(running)
        host = r"http%3A%2F%2F127\.0\.0\.1%3A9001"
        address = re.fullmatch(
            rf"https://ui\.perfetto\.dev/#!/\?url={host}(%2F[\w-]{{20,}}%2F)gpt_naive\.json\.gz", link
        )
        assert address
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=600)
        connection.request("GET", address[1].replace("%2F", "/") + "gpt_naive.json.gz")
        assert connection.getresponse().read() == TRACE.read_bytes()
        connection.close()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=600)
        assert running.returncode == 0
        assert errors == (
            "stepgrade: served to this machine's browser only; stops with Ctrl-C, or after 60 minutes\n"
        )


def test_perfetto_itself_opens_an_annotated_trace(browser: Any) -> None:
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    with closing(context), started(str(TRACE), "--annotate", "--once") as running:
        link = link_of(running)
        assert "&visStart=" in link
        serve_page(context)
        context.grant_permissions(["local-network-access"], origin=PAGE)
        page = context.new_page()
        page.goto(link, timeout=600_000)
        page.get_by_text("stepgrade: the run").first.wait_for(timeout=600_000)
        assert running.wait(60) == 0

"""Clients that keep the server waiting: half-sent requests, slow bodies, idle connections, slow readers."""

from __future__ import annotations

import http.client
import itertools
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from stepgrade.store import NewRun, open_history
from tests.web.conftest import card
from tests.web.live import Live, live_server

pytest.importorskip("uvicorn", reason="uvicorn is not installed")

HOST = b"host: 127.0.0.1\r\n"
RUNS = b"/api/v1/projects/default/runs"
HALF_HEAD = b"GET /healthz HTTP/1.1\r\n" + HOST + b"x: "
SLOW_BODY = (
    b"POST "
    + RUNS
    + b" HTTP/1.1\r\n"
    + HOST
    + b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
)
CHUNKS = b"POST " + RUNS + b" HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n"
IDLE = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
READ = b"GET " + RUNS + b"?limit=20&cards=1 HTTP/1.1\r\n" + HOST + b"\r\n"
KINDS = {
    "nothing": b"",
    "half a head": HALF_HEAD,
    "slow body": SLOW_BODY,
    "chunks": CHUNKS,
    "idle": IDLE,
    "slow reader": READ * 20,
}
FEW = ("--max-connections", "40", "--connections-per-address", "20")


@contextmanager
def held(port: int, text: bytes, count: int, addresses: tuple[str, ...]) -> Iterator[list[socket.socket]]:
    """Hold connections open that sent this, from several addresses of this machine."""
    with ExitStack() as stack:
        found = []
        for address in itertools.islice(itertools.cycle(addresses), count):
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.bind((address, 0))
            one.settimeout(600.0)
            try:
                one.connect(("127.0.0.1", port))
                one.sendall(text)
            except OSError:
                continue  # no room, which is an answer too
            found.append(one)
        yield found


def asked(port: int, path: str = "/healthz", address: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600, source_address=(address, 0))
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def is_closed(one: socket.socket, most_s: float = 600.0) -> bool:
    """Wait until the server ends a connection."""
    one.settimeout(most_s)
    try:
        while one.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("store") / "history.db")
    with open_history(place) as history:
        history.add_all(
            [NewRun(card=card(), branch="main")] * 1 + [NewRun(card=card(1.0 + n)) for n in range(20)]
        )
    return place


@pytest.fixture(scope="module")
def few(place: str) -> Iterator[Live]:
    with live_server(place, *FEW) as server:
        yield server


@pytest.mark.parametrize(
    "addresses", [("127.0.0.1",), ("127.0.0.2",), tuple(f"127.0.0.{n}" for n in range(2, 12))]
)
@pytest.mark.parametrize("kind", KINDS)
def test_everybody_else_is_answered(few: Live, kind: str, addresses: tuple[str, ...]) -> None:
    with held(few.port, KINDS[kind], 150, addresses):
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.99"):
            assert asked(few.port, address=address) == 200
        assert asked(few.port, "/readyz", "127.0.0.98") in (200, 503)
    end = time.monotonic() + 600.0  # until the server has seen that they are gone
    while asked(few.port, "/readyz") != 200:
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_and_fifty_connections(place: str, kind: str) -> None:
    with live_server(place) as server:
        for addresses in (("127.0.0.1",), tuple(f"127.0.0.{n}" for n in range(2, 22))):
            with held(server.port, KINDS[kind], 1_050, addresses):
                assert asked(server.port) == 200
                assert asked(server.port, "/readyz", "127.0.0.99") == 200
        assert server.stop() == 0
        assert "Traceback" not in server.said


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "kind",
    ["nothing", "half a head", pytest.param("chunks", marks=SLOW), pytest.param("slow body", marks=SLOW)],
)
def test_who_keeps_us_waiting_is_cut_off(few: Live, kind: str) -> None:
    """Also with a byte now and then, and also where the request was answered before its body came."""
    stop = threading.Event()
    with held(few.port, KINDS[kind], 1, ("127.0.0.5",)) as (one,):

        def drip() -> None:
            while KINDS[kind] and not stop.wait(0.3):
                try:
                    one.send(b"1\r\n{\r\n" if kind == "chunks" else b"x")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert is_closed(one)
        finally:
            stop.set()
            thread.join()


def test_an_answer_is_sent_before_the_connection_is_cut(few: Live) -> None:
    with held(few.port, HALF_HEAD, 1, ("127.0.0.6",)) as (one,):
        one.settimeout(600.0)
        assert one.recv(100).startswith(b"HTTP/1.1 408 ")


def test_an_assistant_opens_no_stream_of_events(few: Live) -> None:
    """Nothing would ever come, and the connection would be kept for as long as one likes."""
    pytest.importorskip("mcp", reason="the SDK of the protocol is not installed")
    assert asked(few.port, "/mcp") == 405


def test_the_server_stops_whatever_its_clients_do(place: str) -> None:
    server = Live(place, *FEW)
    with ExitStack() as stack:
        for number, text in enumerate(KINDS.values()):
            stack.enter_context(held(server.port, text, 3, (f"127.0.1.{number + 1}",)))
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 40.0
    assert "Traceback" not in server.said


def test_handshakes_count_too(tmp_path: Path, place: str) -> None:
    """A connection that never begins TLS is not seen by the HTTP server, only by the gate."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-days",
        "1",
    ]
    try:
        subprocess.run([*made, "-out", cert, "-keyout", key], check=True, capture_output=True, timeout=600)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    context = ssl.create_default_context(cafile=str(cert))
    context.check_hostname = False
    with live_server(place, *FEW, "--tls-cert", str(cert), "--tls-key", str(key)) as server:

        def health() -> int:
            connection = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=600, context=context)
            try:
                connection.request("GET", "/healthz", headers={"host": "127.0.0.1"})
                return connection.getresponse().status
            finally:
                connection.close()

        with held(server.port, b"\x16\x03\x01", 150, ("127.0.0.1", "127.0.0.2", "127.0.0.3")) as some:
            assert health() == 200
            assert is_closed(some[-1])
        assert server.stop() == 0
        assert "Traceback" not in server.said


ODD: tuple[Callable[[], bytes], ...] = (
    lambda: b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"h%d: x\r\n" % n for n in range(50_000)) + b"\r\n",
    lambda: b"GET / HTTP/1.1\r\n" + HOST + b"x: " + b"y" * 200_000 + b"\r\n\r\n",
    lambda: b"GET / HTTP/1.1\r\n\r\n",
    lambda: b"GET / HTTP/9.9\r\n" + HOST + b"\r\n",
    lambda: b"GET / HTTP/1.1\r\n" + HOST + b"content-length: 1\r\ncontent-length: 2\r\n\r\nxx",
    lambda: (
        b"POST / HTTP/1.1\r\n" + HOST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    lambda: b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: chunked\r\n\r\n" + b"f" * 100 + b"\r\n",
    lambda: b"POST / HTTP/1.1\r\n" + HOST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    lambda: (
        b"POST "
        + RUNS
        + b" HTTP/1.1\r\n"
        + HOST
        + b"transfer-encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 100_000
    ),
    lambda: b"GET /healthz HTTP/1.1\r\n" + HOST + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n",
    lambda: b"GET /healthz HTTP/1.1\r\n" + HOST + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n",
    lambda: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    lambda: b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"HEAD / HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"CONNECT 127.0.0.1:1 HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"GET http://127.0.0.1:1/healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"GET //evil.example/ HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"GET /%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"GET /p/%00 HTTP/1.1\r\n" + HOST + b"\r\n",
    lambda: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    lambda: b"\r\n" * 10_000,
    lambda: (
        b"POST /mcp HTTP/1.1\r\n" + HOST + b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    ),
    lambda: b"POST /mcp HTTP/1.1\r\n" + HOST + b"content-length: 9999999\r\n\r\n" + b"x" * 9_999_999,
    lambda: IDLE * 2_000,
)


@pytest.mark.parametrize("number", range(len(ODD)))
def test_odd_requests_get_an_answer_or_the_door(few: Live, number: int) -> None:
    with held(few.port, b"", 1, ("127.0.0.7",)) as (one,):

        def send() -> None:
            try:
                one.sendall(ODD[number]())
                one.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the door

        thread = threading.Thread(target=send)
        thread.start()
        answer = b""
        try:
            one.settimeout(600.0)
            while more := one.recv(65536):
                answer = (answer + more)[:200]
        except ConnectionError:
            pass
        thread.join()
    assert b" 500 " not in answer[:20]
    assert asked(few.port) == 200
    assert "Traceback" not in few.said

"""Inputs that talk: the client against a hostile server, and the server against hostile clients."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import signal
import socket
import sqlite3
import struct
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from stepgrade.errors import StepgradeError
from stepgrade.store import open_history
from tests.fuzz.mutators import damaged
from tests.fuzz.outputs import check_output
from tests.fuzz.talk import ACCESS, HOOK, HOST, ask, hostile_answer, team_store, with_secrets

MOST_REQUESTS = 300  # that one command may make of a server
_CLIENT = ("stepgrade.store.client", "stepgrade.store.client")  # whose deadlines are shortened
SHORT_S = 0.4  # what the client waits for here, instead of half a minute
WAITS = "waits-4711"  # the label of a run that is in the outbox before the command


class HostileServer:
    """Listens at a port of this machine and answers by the dice; `kept` are bodies that it truly acknowledged."""

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/mine"
        self.requests = 0
        self.kept: list[bytes] = []
        self._is_ahead = False  # it sent an answer that nobody asked for
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Answer whoever comes; until then the port refuses."""
        self._socket.listen(16)
        self._socket.settimeout(0.05)
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            self._thread.join()

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()

    def _serve(self) -> None:
        while not self._ending.is_set():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            with closing(connection), suppress(OSError):
                connection.settimeout(0.05)
                while self.requests < MOST_REQUESTS and self._answer(connection):
                    pass

    def _answer(self, connection: socket.socket) -> bool:
        """Read one request and answer it; return whether the connection stays."""
        head, body = self._read(connection)
        if not head:
            return False
        self.requests += 1
        method, path, *_ = [*head.split(b"\r\n")[0].decode("latin-1").split(" "), "", ""]
        dice = random.Random(f"{self._seed}:{self.requests}")
        pieces = hostile_answer(dice, method, path, damaged)
        self._note(b"".join(piece for piece in pieces if isinstance(piece, bytes)), body, method)
        for piece in pieces:
            if piece == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            if piece == "wait":
                self._ending.wait(SHORT_S * 4)
                return False
            if piece == "close":
                return False
            assert isinstance(piece, bytes)
            connection.settimeout(5.0)
            connection.sendall(piece)
            connection.settimeout(0.05)
        return True

    def _read(self, connection: socket.socket) -> tuple[bytes, bytes]:
        data = b""
        while not self._ending.is_set():
            head, blank, body = data.partition(b"\r\n\r\n")
            if blank:
                size = re.search(rb"(?i)content-length: (\d+)", head)
                if len(body) >= (int(size[1]) if size else 0):
                    return head, body
            try:
                more = connection.recv(65536)
            except TimeoutError:
                continue
            if not more:
                break
            data += more
        return b"", b""

    def _note(self, sent: bytes, body: bytes, method: str) -> None:
        answer = re.search(rb"(?s)HTTP/1\.[01] 2\d\d .*?\r\n\r\n.*?({.*)", sent)
        is_ahead, self._is_ahead = self._is_ahead, len(re.findall(rb"HTTP/1\.[01] 2\d\d ", sent)) > 1
        if method == "POST" and is_ahead:  # it may be answered by what was sent before: a server that lies
            self.kept.append(gzip.decompress(body))
        if method != "POST" or answer is None:
            return
        with suppress(ValueError, TypeError, KeyError, OSError, EOFError, RecursionError, OverflowError):
            int(json.JSONDecoder().raw_decode(answer[1].decode("utf-8", "replace"))[0]["id"])
            self.kept.append(gzip.decompress(body))


@contextmanager
def impatient() -> Iterator[None]:
    """Let the client wait shortly: what is half a minute for people is half a second here."""
    before = [
        (module, name, getattr(module, name))
        for module in map(import_module, _CLIENT)
        for name in vars(module)
        if name.endswith("_S") and isinstance(getattr(module, name), float)
    ]
    sleep = time.sleep
    try:
        for module, name, _ in before:
            setattr(module, name, SHORT_S)
        time.sleep = lambda seconds: sleep(min(seconds, 0.01))
        yield
    finally:
        time.sleep = sleep
        for module, name, value in before:
            setattr(module, name, value)


def is_on_disk(folder: Path, label: str) -> bool:
    """Return whether a run with this label waits somewhere below a folder."""
    return any(path.is_file() and label.encode() in path.read_bytes() for path in folder.rglob("*"))


def ask_server(files: dict[str, bytes], folder: Path, access: str) -> tuple[int, list[str]]:
    """Ask the application what the files say, within this process; return 0 or 2, and what is wrong."""
    from stepgrade.web.app import make_app
    from stepgrade.web.settings import ServerSettings

    data, secrets = team_store()
    place = folder / "work" / "h.db"
    place.write_bytes(data)
    wrong: list[str] = []
    statuses: list[int] = []
    host = "localhost" if access == "localhost" else HOST

    async def talk() -> None:
        app = make_app(ServerSettings(location=str(place), **ACCESS[access]))
        async with app.router.lifespan_context(app):
            for name, raw in sorted(files.items()):
                try:
                    status, headers, body = await ask(
                        app, with_secrets(raw, secrets, host), is_cut=name.endswith("cut")
                    )
                except TimeoutError:
                    wrong.append("hang: no answer within ten minutes")
                    continue
                except Exception as error:  # noqa: BLE001  the application answers, it does not raise
                    at = traceback.extract_tb(error.__traceback__)[-1]
                    wrong.append(
                        f"exit code: {type(error).__name__} at {Path(at.filename).name}:{at.lineno}: {error!s:.120}"
                    )
                    continue
                statuses.append(status)
                is_gone = not status and name.endswith("cut")  # nobody is there to be answered
                wrong.extend([] if is_gone else check_answer(status, headers, body, str(folder)))
            for path in ("/healthz", "/readyz"):
                status, _, body = await ask(app, f"GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                if status != 200:
                    wrong.append(f"exit code: {path} answers {status} afterwards: {body[:100]!r}")

    asyncio.run(talk())
    return 0 if any(status < 400 for status in statuses) else 2, wrong + check_store(place)


def check_answer(status: int, headers: dict[str, str], body: bytes, folder: str) -> list[str]:
    """Return what is wrong with an answer: a bug, a refused body, or a word that only we may know."""
    wrong = []
    if status >= 500 or not status:
        wrong.append(f"exit code: the server answers {status}: {body[:150]!r}")
    text = body.decode("utf-8", "surrogateescape")
    if folder in text or HOOK in text or "a-signing-secret" in text:
        wrong.append("canary: an answer shows what only the server may know")
    kind = headers.get("content-type", "").partition(";")[0]
    try:
        if kind == "application/json" and body:
            check_output(text, "json")
        elif kind == "text/html":
            check_output(text, "html")
    except (ValueError, RecursionError) as error:
        wrong.append(f"refused output (an answer): {str(error)[:100]}")
    return wrong


def check_store(place: Path) -> list[str]:
    """Return what is wrong with a store that hostile clients used."""
    with closing(sqlite3.connect(place)) as file:
        if (found := file.execute("pragma integrity_check").fetchone()[0]) != "ok":
            return [f"store: {found[:100]}"]
    try:
        with open_history(str(place)) as history:
            history.fingerprints()
            mine = history.in_project("mine")
            mine.cards([run.id for run in mine.runs()])
            return [f"store: {mine.damage()[:100]}"] if mine.damaged else []
    except StepgradeError as error:
        return [f"store: {error.problem[:100]}"]


def serve_in_child(place: Path) -> tuple[int, int]:
    """Start a server in a forked process, as `stepgrade serve` does; return its port and its process."""
    from stepgrade.web.serving import serve
    from stepgrade.web.settings import ServerSettings

    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.close(read)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            for number in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
            serve(
                ServerSettings(location=str(place), access="tokens", port=0),
                lambda url: os.write(write, url.encode()) and os.close(write),
            )
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        url = pipe.read().decode()
    return int(url.rpartition(":")[2] or 0), child


def talk_http(files: dict[str, bytes], folder: Path) -> tuple[int, list[str]]:
    """Send the files to a real server over sockets; return 0 or 2, and what is wrong."""
    data, secrets = team_store()
    place = folder / "work" / "h.db"
    place.write_bytes(data)
    port, child = serve_in_child(place)
    wrong, statuses = [], []
    try:
        if not port:
            return 70, ["exit code: the server did not start"]
        for name, raw in files.items():
            answer = _sent(
                port, with_secrets(raw, secrets, "127.0.0.1"), 30.0 if name.endswith("whole") else 0.05
            )
            if match := re.match(rb"HTTP/1\.[01] (\d{3})", answer):
                statuses.append(int(match[1]))
                if statuses[-1] >= 500 and statuses[-1] != 503:
                    wrong.append(f"exit code: the server answers {statuses[-1]}: {answer[-150:]!r}")
        after = _sent(port, b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n", 30.0)
        if b" 200 " not in after[:20]:
            wrong.append(f"exit code: /healthz answers {after[:60]!r} afterwards")
    finally:
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
    if status != 0:
        wrong.append(f"exit code: the server ended with status {status}")
    return 0 if any(status < 400 for status in statuses) else 2, wrong + check_store(place)


def _sent(port: int, raw: bytes, patience_s: float) -> bytes:
    """Return the beginning of the answer to raw bytes, or nothing when none comes soon."""
    with (
        suppress(OSError),
        closing(socket.create_connection(("127.0.0.1", port), timeout=30.0)) as connection,
    ):
        connection.sendall(raw)
        connection.settimeout(patience_s)
        return connection.recv(65536)
    return b""


def forbid_the_network() -> None:
    """Refuse every connection and question of this process beyond this machine, from now on."""

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            address = arguments[1]
            if isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1", "localhost")):
                raise OSError("nothing here connects beyond this machine")
        elif event == "socket.getaddrinfo" and str(arguments[0]) not in (
            "127.0.0.1",
            "::1",
            "localhost",
            "None",
        ):
            raise socket.gaierror(socket.EAI_NONAME, "nothing here asks for names")

    sys.addaudithook(look)

"""What an operator sees of a server: why it did not start, its warnings, and a system that gives no more files."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stepgrade.store import open_history
from stepgrade.store.team import Team
from tests.web.conftest import Site, upload

pytest.importorskip("uvicorn", reason="uvicorn is not installed")

SERVE = """
import os, signal, sys
from stepgrade.cli import main
from stepgrade.web import calls, worker
{more}
sys.argv = ["stepgrade", "serve", "--no-browser", "--port", "0", "--history", {place!r}]
sys.exit(main())
"""
UNREADABLE = """
from stepgrade.errors import BadHistory
def unreadable(server):
    raise BadHistory("gone", where="the disk")
calls.Server.open = unreadable
"""
WARNING = """
def warn(server):
    worker.LOG.warning("a channel is slow, and this line is longer than a terminal of eighty columns is wide")
    os.kill(os.getpid(), signal.SIGTERM)
calls.Server.open = warn
"""


def served(place: Path, more: str) -> subprocess.CompletedProcess[str]:
    text = SERVE.format(place=str(place / "history.db"), more=more)
    return subprocess.run(
        [sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=600
    )


def test_a_store_that_is_lost_at_the_start_is_one_line(tmp_path: Path) -> None:
    ran = served(tmp_path, UNREADABLE)
    assert (ran.returncode, ran.stderr) == (2, "stepgrade: the disk: gone\n")


def test_warnings_are_shown_in_one_line(tmp_path: Path) -> None:
    ran = served(tmp_path, WARNING)
    assert ran.returncode == 0
    words = "a channel is slow, and this line is longer than a terminal of eighty columns is wide"
    assert ran.stderr.splitlines()[0] == f"stepgrade: {words}"


def test_a_token_that_is_revoked_while_the_body_is_sent_is_refused(site: Site) -> None:
    def body() -> Iterator[bytes]:
        with open_history(site.place) as history:
            team = Team(history.database)
            (number,) = [token.id for token in team.tokens() if token.name == "uploader"]
            assert team.revoke(number)
        yield msgspec.json.encode(upload())

    answer = site.client.post("/api/v1/projects/mine/runs", content=body(), headers=site.bearer("uploader"))
    assert answer.status_code == 401
    with open_history(site.place, project="mine") as history:
        assert len(history.runs()) == len(site.runs)


def test_a_system_without_files_is_asked_again_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a second, with one line each time, until it has some; not after the server has stopped."""
    from stepgrade.web.connections import ConnectionLimits, Gate, GuardedListener, GuardedLoop

    asked: list[float] = []

    def refuse(_: socket.socket) -> None:
        asked.append(time.monotonic())
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        greeted = asyncio.Event()

        class Greet(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                greeted.set()
                transport.close()

        server = await asyncio.get_running_loop().create_server(Greet, sock=listening, backlog=2048)
        with monkeypatch.context() as patched, socket.create_connection(("127.0.0.1", port)):
            patched.setattr(GuardedListener, "_accept", refuse)
            await asyncio.sleep(1.5)
            patched.undo()
            await asyncio.wait_for(greeted.wait(), 30.0)
            patched.setattr(GuardedListener, "_accept", refuse)
            with socket.create_connection(("127.0.0.1", port)):
                await asyncio.sleep(0.1)
                server.close()
                await asyncio.sleep(1.2)

    with (
        caplog.at_level(logging.WARNING),
        asyncio.Runner(loop_factory=lambda: GuardedLoop(Gate(ConnectionLimits()))) as runner,
    ):
        runner.run(run())
    assert 2 <= len(asked) <= 4
    assert [record.message.rpartition(": ")[2] for record in caplog.records] == ["Too many open files"] * len(
        asked
    )
    assert not any(record.exc_info for record in caplog.records)

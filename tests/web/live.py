"""A real server in a process of its own, on a free port of this machine."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import ROOT

_START_S = 600.0


class Live:
    """A server that can be stopped, killed and started again at the same port."""

    def __init__(self, place: str, *options: str, port: int = 0) -> None:
        self.place, self.options, self.port = place, options, port
        self.start()

    def start(self) -> None:
        """Start, and wait for its address."""
        pytest.importorskip("uvicorn", reason="uvicorn is not installed")
        command = [sys.executable, "-m", "stepgrade", "serve", "--no-browser", "--history", self.place]
        command += ["--port", str(self.port), *self.options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, cwd=ROOT, env=os.environ)
        assert self.process.stderr is not None
        said, end = b"", time.monotonic() + _START_S
        while b"Ctrl-C" not in said:
            ready, _, _ = select.select([self.process.stderr], [], [], max(0.0, end - time.monotonic()))
            more = os.read(self.process.stderr.fileno(), 4096) if ready else b""
            assert more, f"the server did not start: {said.decode()}"
            said += more
        found = re.search(rb"https?://[\w.\[\]:]+:(\d+)", said)
        assert found is not None
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        # What nobody reads would fill the pipe, and then the server would wait for a reader.
        self._said = [said]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def said(self) -> str:
        """Return what it wrote to standard error; all of it once it has ended."""
        return b"".join(self._said).decode()

    def _read(self) -> None:
        assert self.process.stderr is not None
        while more := self.process.stderr.read1(65536):  # type: ignore[attr-defined]  # buffered, as Popen's are
            self._said.append(more)

    def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=600)
        self._close()
        return code

    def kill(self) -> None:
        """Kill it without a word."""
        self.process.kill()
        self.process.wait(timeout=600)
        self._close()

    def _close(self) -> None:
        assert self.process.stderr is not None
        self._reader.join(timeout=600)
        self.process.stderr.close()


@contextmanager
def live_server(place: str | Path, *options: str) -> Iterator[Live]:
    """Start a server, and stop it at the end."""
    running = Live(str(place), *options)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()

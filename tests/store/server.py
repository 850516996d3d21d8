"""A PostgreSQL server of the tests' own: Debian's binaries, a free port, a folder that goes away."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_START_S = 30.0


def binaries() -> Path | None:
    """Return the folder with initdb and postgres, newest version first."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


class Server:
    """A server in a folder of its own, which can be killed and started again."""

    def __init__(self, place: Path, *, fsync: bool) -> None:
        folder = binaries()
        if folder is None or not (folder / "postgres").exists():
            pytest.skip("PostgreSQL's server is not installed")
        pytest.importorskip("psycopg", reason="psycopg is not installed")
        self._binary, self._place, self._fsync = folder / "postgres", place, fsync
        self._owner, self._port = _owner(place), _free_port()
        self._data = place / "data"
        self.url = f"postgresql://stepgrade@127.0.0.1:{self._port}/postgres"
        initdb = [
            folder / "initdb",
            "-D",
            self._data,
            "-U",
            "stepgrade",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(initdb, check=True, capture_output=True, timeout=120, **self._owner)  # type: ignore[call-overload]
        self.start()

    def start(self) -> None:
        """Start, and wait until it answers; what a killed one left behind may take a moment to go."""
        end = time.monotonic() + _START_S
        while True:
            self._process = self._started()
            if _answers(self.url, self._process):
                return
            if time.monotonic() > end:
                pytest.fail(f"the server did not start: {(self._place / 'log').read_text()[-2000:]}")
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the server as a crash of it would: without a word."""
        self._process.kill()
        self._process.wait(timeout=30)

    def processes(self) -> list[int]:
        """Return its processes, one for each connection among them."""
        found = [self._process.pid]
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # gone by now
                if int(path.read_text().rpartition(")")[2].split()[1]) == self._process.pid:
                    found.append(int(path.parent.name))
        return found

    def stop(self) -> None:
        """Stop this one process."""
        self._process.terminate()
        self._process.wait(timeout=30)

    def _started(self) -> subprocess.Popen[bytes]:
        options = ["-p", str(self._port), "-k", str(self._place), "-c", "listen_addresses=127.0.0.1"]
        options += ["-c", f"fsync={'on' if self._fsync else 'off'}"]
        with (self._place / "log").open("ab") as log:
            return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
                [self._binary, "-D", self._data, *options], stdout=log, stderr=log, **self._owner
            )


@contextmanager
def running_server(*, fsync: bool = False) -> Iterator[Server]:
    """Start a server and stop it at the end; where only clients are killed it need not wait for the disk."""
    with tempfile.TemporaryDirectory(prefix="stepgrade-pg-", ignore_cleanup_errors=True) as place:
        server = Server(Path(place), fsync=fsync)
        try:
            yield server
        finally:
            server.stop()


def _owner(place: Path) -> dict[str, object]:
    """Return how to run as an ordinary user: PostgreSQL refuses to be root."""
    if os.getuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    os.chown(place, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": place}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server answers; return False when it has ended instead."""
    import psycopg

    end = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < end:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return True
    return False

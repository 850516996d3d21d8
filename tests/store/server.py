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
from contextlib import contextmanager
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


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server, yield its URL, and stop that one process."""
    folder = binaries()
    if folder is None or not (folder / "postgres").exists():
        pytest.skip("PostgreSQL's server is not installed")
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with tempfile.TemporaryDirectory(prefix="stepgrade-pg-") as place:
        yield from _served(folder, Path(place))


def _served(folder: Path, place: Path) -> Iterator[str]:
    owner = _owner(place)
    data, port = place / "data", _free_port()
    initdb = [folder / "initdb", "-D", data, "-U", "stepgrade", "-A", "trust", "-E", "UTF8", "--no-sync"]
    subprocess.run(initdb, check=True, capture_output=True, timeout=120, **owner)  # type: ignore[call-overload]
    # The tests kill clients, never the server: it need not wait for the disk.
    options = ["-p", str(port), "-k", str(place), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    log = (place / "log").open("wb")
    server = subprocess.Popen([folder / "postgres", "-D", data, *options], stdout=log, stderr=log, **owner)  # type: ignore[call-overload]
    try:
        url = f"postgresql://stepgrade@127.0.0.1:{port}/postgres"
        _wait(url, server, place / "log")
        yield url
    finally:
        server.terminate()
        server.wait(timeout=30)
        log.close()


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


def _wait(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    import psycopg

    end = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > end:
                pytest.fail(f"the server did not start: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        else:
            return

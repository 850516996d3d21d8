"""Every test of the history runs on both databases."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def server(postgres: str) -> str:
    return postgres


def _file(tmp_path: Path) -> Iterator[str]:
    """Yield a file in memory where there is such a place: a thousand commits wait for no disk there."""
    memory = Path("/dev/shm")  # noqa: S108  a folder of our own in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield str(Path(folder) / "h" / "history.db")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Return an empty store: a file, or a database of its own on the tests' server."""
    if request.param == "sqlite":
        yield from _file(tmp_path)
        return
    url: str = request.getfixturevalue("server")
    import psycopg

    name = f"t{abs(hash(request.node.nodeid))}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')  # type: ignore[call-overload]  # our own name
    yield url.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'drop database "{name}" with (force)')  # type: ignore[call-overload]

"""No answer says where the store is: not its host, port, user, password, database or path."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from stepgrade.errors import BadHistory
from stepgrade.store import open_history
from stepgrade.store.history import History
from tests.store.server import running_server
from tests.web.conftest import Site, upload

pytest.importorskip("starlette", reason="starlette is not installed")
from stepgrade.web.app import ENDPOINTS
from stepgrade.web.assistant import Roots, make_assistant

pytest.importorskip("mcp", reason="the SDK of the protocol is not installed")

CANARIES = (
    "canary",
    "postgresql",
    "psycopg",
    "127.0.0.1",
    "history.db",
    "sqlite",
    "Traceback",
    "shm/",
    "tmp/",
)
FIELDS = {
    "{project}": "mine",
    "{number}": "1",
    "{metric}": "step_time_ms",
    "{name}": "style.css",
}


def asked(site: Site) -> Iterator[tuple[str, Any]]:
    """Yield every route's answer, as the one who may do everything."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    accept = site.bearer("admin") | {"accept": "application/json, text/event-stream"}
    for name, arguments in (
        ("history", {"project": "mine"}),
        ("history", {"project": "mine", "branch": "none"}),
        ("findings", {"project": "mine"}),
        ("compare", {"before": "1", "now": "99999", "project": "mine"}),
    ):
        body = call | {"params": {"name": name, "arguments": arguments}}
        yield f"mcp {name}", site.client.post("/mcp", json=body, headers=accept)
    # What removes things comes last, lest there be nothing left to ask for.
    order = {"GET": 0, "PUT": 1, "POST": 1, "DELETE": 3}
    for endpoint in sorted(ENDPOINTS, key=lambda one: order[one.method] + ("remove" in one.path)):
        path = endpoint.path
        for field, value in FIELDS.items():
            path = path.replace(field, value)
        headers = site.bearer("admin")
        if endpoint.method == "GET":
            for query in ("", "?a=1&b=2&branch=none&format=csv", "?after=~1&sort=step_time_ms"):
                yield path + query, site.client.get(path + query, headers=headers)
        elif endpoint.is_page:
            form = site.form("admin", {"state": "open", "token": "x"})
            yield path, site.client.request(endpoint.method, path, data=form, headers=site.cookies("admin"))
        else:
            body = upload() if path.endswith("/runs") else {"name": "x", "state": "open"}
            yield path, site.client.request(endpoint.method, path, json=body, headers=headers)


def check(site: Site, *more: str) -> set[int]:
    found = set()
    for path, answer in asked(site):
        found.add(answer.status_code)
        text = answer.text + str(answer.headers)
        for word in (*CANARIES, *more):
            assert word.lower() not in text.lower(), (path, word, answer.text[:500])
        if "healthz" in path:
            assert answer.status_code == 200
    return found


def test_a_store_that_answers(make_site: Callable[..., Site]) -> None:
    """Not even while all is well: a trend has the name of its history."""
    site = make_site()
    assert 200 in check(site)


@pytest.mark.parametrize("fault", ["gone", "damaged", "foreign", "empty"])
def test_a_file_that_is_not_there_any_more(make_site: Callable[..., Site], fault: str) -> None:
    site = make_site()
    pool = site.app.state.server.pool
    lent = [pool._free.get() for _ in range(pool._size)]
    for database in lent:
        if database is not None:
            database.close()
        pool._free.put(None)  # as after an error: the next one opens the file again
    file = Path(site.place)
    for other in file.parent.glob("history.db-*"):
        other.unlink()
    if fault == "gone":
        file.unlink()
        file.mkdir()
    elif fault == "damaged":
        whole = bytearray(file.read_bytes())
        whole[5000:] = b"\xa5" * (len(whole) - 5000)
        file.write_bytes(whole)
    else:
        file.write_bytes(b"canary" * 1000 if fault == "foreign" else b"")
    assert check(site) & {503, 401, 404, 200}
    if fault == "gone":
        file.rmdir()


def test_a_database_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    import psycopg

    with ExitStack() as stack, running_server() as database:
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("create role canary_user superuser login password 'canary-password'")
            connection.execute("create database canary_database")
        port = database.url.rsplit(":", 1)[1].split("/")[0]
        place = f"postgresql://canary_user:canary-password@127.0.0.1:{port}/canary_database"
        site = Site(place, stack)
        assert 200 in check(site, port)
        database.kill()
        assert check(site, port) >= {503}
        database.start()
        with psycopg.connect(database.url, autocommit=True) as connection:
            connection.execute("drop database canary_database with (force)")
        assert check(site, port) >= {503}


def tool(server: Any, name: str, arguments: dict[str, Any]) -> str:
    from mcp import Client

    async def ask() -> str:
        async with Client(server) as client:
            answer = await client.call_tool(name, arguments)
            assert answer.is_error
            return "".join(getattr(part, "text", "") for part in answer.content)

    # In a thread of its own, whatever loop another test has left in this one.
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(anyio.run(ask)))
    thread.start()
    thread.join()
    return found[0]


def test_an_assistant_over_a_pipe_does_not_learn_it_either(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    places = [
        f"postgresql://canary:canary@127.0.0.1:{port}/canary",
        str(tmp_path / "canary.db"),
        str(tmp_path / "none" / "canary.db"),
    ]
    (tmp_path / "canary.db").write_bytes(b"no database" * 500)
    for place in places:

        def opens(project: str, place: str = place) -> History:
            return open_history(place, create=False, project=project)

        server = make_assistant(Roots([]), opens, has_files=False)
        for name, arguments in (("history", {}), ("findings", {}), ("compare", {"before": "1", "now": "2"})):
            text = tool(server, name, arguments)
            for word in (*CANARIES, str(port), str(tmp_path)):
                assert word.lower() not in text.lower(), text


def test_a_bug_is_not_shown_to_an_assistant() -> None:
    def opens(_: str) -> History:
        raise RuntimeError("canary: postgresql://user@host")

    text = tool(make_assistant(Roots([]), opens, has_files=False), "history", {})
    assert "canary" not in text
    assert "internal error" in text


def test_errors_of_the_store_keep_their_place_for_operators(tmp_path: Path) -> None:
    (tmp_path / "canary.db").write_bytes(b"no database" * 500)
    with pytest.raises(BadHistory, match=r"canary\.db"):
        open_history(str(tmp_path / "canary.db"))

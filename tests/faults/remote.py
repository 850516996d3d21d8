"""What writes to servers: an outbox, a team's server and its clients, PostgreSQL."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import structs

from stepgrade.errors import BadHistory
from stepgrade.store import open_history
from stepgrade.store.pool import Pool
from stepgrade.store.remote import RemoteHistory
from stepgrade.store.team import Team
from tests.faults.harness import PAGE, Place, Scenario, private_environment
from tests.faults.scenarios import (
    STORE,
    called,
    command,
    file_runs,
    give_profiles,
    nothing,
    runs_of,
    some_runs,
    with_history,
)

_ADD = ("history", "add", "{given}/p.json", "--branch", "main", "--commit", "new", "--history")
_OUTBOX = ("tmp/*", ".stepgrade", ".stepgrade/*")
Stop = Callable[[], None]


def _plain_environment() -> dict[str, str]:
    """Return an environment in which nothing fails."""
    return {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", PAGE)}


def closed_port(facts: dict[str, Any]) -> Stop:
    """Take a port at which nobody listens."""
    import socket

    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    facts["url"] = f"http://127.0.0.1:{taken.getsockname()[1]}/default"
    return taken.close


def team_server(facts: dict[str, Any]) -> Stop:
    """Start a server of ours, in which nothing fails."""
    folder = tempfile.TemporaryDirectory(prefix="stepgrade-faults-")
    store = f"{folder.name}/server.db"
    words = [sys.executable, "-m", "stepgrade", "serve", "--no-browser", "--history", store, "--port", "0"]
    words += ["--open-to-localhost", "--uploads-per-minute", "1000000"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, env=_plain_environment())
    assert process.stderr is not None
    said = process.stderr.readline().decode()
    found = re.search(r"http://[\d.:]+", said)
    assert found, said
    facts.update(server=found[0], store=store)

    def stop() -> None:
        process.terminate()
        process.wait(60)
        assert process.stderr is not None
        process.stderr.close()
        folder.cleanup()

    return stop


def _project(place: Place) -> None:
    """Make a project of this run's own on the server."""
    with open_history(place.facts["store"]) as history:
        Team(history.database).add_project(f"p{place.facts['run']}")


def _waiting(place: Place, url: str) -> list[str]:
    os.chdir(place.here)
    os.environ.update(private_environment(place.here))
    found = RemoteHistory(url).outbox.waiting()
    return [json.loads(bytes(one.run.body))["commit"] for one in found if one.run and not one.problem]


def _in_outbox(place: Place) -> Any:
    return _waiting(place, place.facts["url"])


def _at_server(place: Place) -> Any:
    """Return what the server has and what waits; a run may be at both, for it has a key."""
    name = f"p{place.facts['run']}"
    kept = [row[0] for row in runs_of(place.facts["store"], name)]
    waits = [one for one in _waiting(place, f"{place.facts['server']}/{name}") if one not in kept]
    return sorted([*(f"{one} is there" for one in kept), *(f"{one} waits" for one in waits)])


def _local_and_server(place: Place) -> Any:
    return _at_server(place)


def _is_safe(after: list[str], now: Any) -> bool:
    """Tell whether each run is at the server, or waits."""
    return isinstance(now, list) and all(
        one in now or one.replace(" is there", " waits") in now for one in after
    )


def _is_some_there(_: list[str], after: list[str], now: Any) -> bool:
    """Tell whether nothing is lost: each run is at the server, or waits, or was not acknowledged."""
    allowed = {*after, *(one.replace(" is there", " waits") for one in after)}
    return isinstance(now, list) and all(one in allowed for one in now)


def clients() -> list[Scenario]:
    """Return what talks to a team's server."""
    url = "{server}/p{run}"
    where = ("127.0.0.1", "outbox", "history.db", "h: ")
    offline = Scenario(
        "outbox, the server is down",
        give_profiles,
        command(*_ADD, "{url}"),
        _in_outbox,
        _OUTBOX,
        says=where,
        start=closed_port,
    )
    online = Scenario(
        "history add to a server",
        give_profiles,
        command(*_ADD, url),
        _at_server,
        _OUTBOX,
        says=where,
        start=team_server,
        each=_project,
        between=_is_some_there,
        done=_is_safe,
    )
    push = Scenario(
        "history push",
        with_history,
        command("history", "push", "--to", url, "--history", "h/history.db"),
        _at_server,
        (*STORE, *_OUTBOX),
        says=where,
        start=team_server,
        each=_project,
        between=_is_some_there,
    )
    pull = Scenario(
        "history pull",
        nothing,
        command("history", "pull", "--from", "{server}/p1", "--history", "h/history.db"),
        file_runs(),
        (*STORE, *_OUTBOX),
        says=where,
        start=_filled_server,
        between=_is_subset,
    )
    return [offline, online, push, pull]


def _is_subset(_: list[Any], after: list[Any], now: Any) -> bool:
    return isinstance(now, list) and all(row in after for row in now)


def _filled_server(facts: dict[str, Any]) -> Stop:
    stop = team_server(facts)
    with open_history(facts["store"]) as history:
        Team(history.database).add_project("p1")
        history.in_project("p1").add_all(some_runs(3))
    return stop


def postgres(facts: dict[str, Any]) -> Stop:
    """Start PostgreSQL, with a database that is copied for each run."""
    from tests.store.server import running_server

    # Its processes are started without the shim, whose page is this process's.
    before = {name: os.environ.pop(name, "") for name in ("LD_PRELOAD", PAGE)}
    running = running_server()
    server = running.__enter__()
    os.environ.update(before)
    facts["pg"] = server.url.rsplit("/", 1)[0]
    with open_history(f"{facts['pg']}/postgres") as history:
        history.add_all(some_runs())
    return lambda: running.__exit__(None, None, None)


def _copy_database(place: Place) -> None:
    import psycopg

    run = place.facts["run"]
    with psycopg.connect(f"{place.facts['pg']}/template1", autocommit=True) as connection:
        connection.execute(f"drop database if exists f{run - 1} with (force)")
        connection.execute(f"create database f{run} template postgres")


def _empty_database(place: Place) -> None:
    import psycopg

    run = place.facts["run"]
    with psycopg.connect(f"{place.facts['pg']}/postgres", autocommit=True) as connection:
        connection.execute(f"drop database if exists f{run - 1} with (force)")
        connection.execute(f"create database f{run}")


def _in_database(place: Place) -> Any:
    return runs_of(f"{place.facts['pg']}/f{place.facts['run']}")


def _pooled(place: Place) -> int:
    """Take a connection, lose it perhaps, and take another one, as a server's requests do."""
    (place.given / "acknowledged").write_text("[]")
    pool, acknowledged, failed = Pool(f"{place.facts['pg']}/f{place.facts['run']}", size=2), [], []
    for number, run in enumerate(some_runs(3, key="pooled")):
        name = f"u{number}"
        try:
            with pool.history() as history:
                history.add(structs.replace(run, commit=name))
            acknowledged.append(name)
            (place.given / "acknowledged").write_text(json.dumps(acknowledged))
        except BadHistory as error:
            failed.append(error)
    with suppress(BadHistory):
        pool.close()
    if len(failed) > 1:  # the next one should have had a connection that works
        raise failed[0]
    return 0


def databases() -> list[Scenario]:
    """Return what writes to PostgreSQL."""
    place = "{pg}/f{run}"
    where = ("postgresql://",)
    made: dict[str, Any] = {"says": where, "start": postgres, "each": _copy_database, "needs": ("postgres",)}
    prune = command("history", "prune", "--keep", "2", "--yes", "--history", place)
    export = command("history", "export", "--history", place)
    return [
        Scenario("PostgreSQL, history add", give_profiles, command(*_ADD, place), _in_database, (), **made),
        Scenario(
            "PostgreSQL, the first run",
            give_profiles,
            command(*_ADD, place),
            _in_database,
            (),
            **{**made, "each": _empty_database},
        ),
        Scenario("PostgreSQL, history prune", give_profiles, prune, _in_database, (), **made),
        Scenario("PostgreSQL, history export", give_profiles, export, _in_database, (), **made),
        Scenario(
            "PostgreSQL, a pool of connections",
            nothing,
            called(_pooled),
            _acknowledged_is_kept(_in_database),
            (),
            # A pool is a server's: its messages may reach strangers, and do not name the database.
            **{**made, "says": ("the history", *where), "between": lambda *_: True, "done": lambda *_: True},
        ),
    ]


def _serve(place: str) -> Callable[[Place], int]:
    run = command("serve", "--no-browser", "--port", "0", "--history", place)

    def act(there: Place) -> int:
        (there.given / f"pid{there.facts['attempt']}").write_text(str(os.getpid()))
        return run(there)

    return act


def _visit(place: Place) -> None:
    """Send three runs to the server under test, see that it is well, and ask it to stop."""
    end, address, pid = time.monotonic() + 60.0, None, place.given / f"pid{place.facts['attempt']}"
    (place.given / "acknowledged").write_text("[]")
    while address is None and time.monotonic() < end:
        said = (place.here.parent / "err").read_text(errors="replace")
        found = re.search(r"serving at (http://[\d.:]+)", said)
        address = found[1] if found else None
        if address is None:
            if pid.exists() and pid.read_text() and not _runs(int(pid.read_text())):
                return
            time.sleep(0.01)
    assert address is not None, "the server says nothing"
    acknowledged, patience_s = [], 2.0 if place.facts["persists"] else 10.0
    for number, run in enumerate(some_runs(3)):
        body = json.dumps({"card": json.loads(run.card.to_json()), "branch": "main", "commit": f"u{number}"})
        if _ask(address, "POST", "/api/v1/projects/default/runs", body, timeout_s=patience_s) in (200, 201):
            acknowledged.append(f"u{number}")
    (place.given / "acknowledged").write_text(json.dumps(acknowledged))
    # A call that fails for good, such as accept, may keep a server from answering, not from stopping.
    is_well = place.facts["persists"] or any(_ask(address, "GET", "/healthz") == 200 for _ in range(5))
    number, end = int(pid.read_text()), time.monotonic() + 5.0
    while not is_well and _runs(number) and time.monotonic() < end:
        time.sleep(0.01)  # one that was killed takes a moment to end
    if _runs(number):
        os.kill(number, signal.SIGTERM)
        assert is_well, "the server no longer answers"


def _runs(number: int) -> bool:
    """Tell whether a process runs: it may have ended, and wait to be seen by the harness."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def _ask(
    address: str, method: str, path: str, body: str | None = None, *, timeout_s: float = 10.0
) -> int | None:
    """Return the status of an answer; None when none comes."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        answer.read()
    except (OSError, http.client.HTTPException):
        return None
    else:
        return answer.status
    finally:
        connection.close()


def _acknowledged_is_kept(read: Callable[[Place], Any]) -> Callable[[Place], Any]:
    def state(place: Place) -> list[str]:
        kept = [row[0] for row in read(place)]
        path = place.given / "acknowledged"
        lost = [one for one in json.loads(path.read_text() if path.exists() else "[]") if one not in kept]
        assert not lost, f"acknowledged and lost: {lost}"
        return sorted(kept)

    return state


def servers() -> list[Scenario]:
    """Return the team's server itself, with a client that sends it runs."""
    anywhere = ("127.0.0.1", "server", "more threads", "Too many open files")
    shared: dict[str, Any] = {
        "beside": _visit,
        "is_server": True,
        "says": ("history.db", "h: ", *anywhere),
        "between": lambda *_: True,
        "done": lambda *_: True,
    }
    files = (*STORE, "h/history.db-wal", "h/history.db-shm", "tmp/*")
    return [
        Scenario(
            "serve on SQLite",
            with_history,
            _serve("h/history.db"),
            _acknowledged_is_kept(file_runs()),
            files,
            **shared,
        ),
        Scenario(
            "serve on PostgreSQL",
            nothing,
            _serve("{pg}/f{run}"),
            _acknowledged_is_kept(_in_database),
            ("tmp/*",),
            **{**shared, "says": ("postgresql://", *anywhere)},
            start=postgres,
            each=_copy_database,
            needs=("postgres",),
        ),
    ]


def remote() -> list[Scenario]:
    """Return all of them."""
    return [*clients(), *databases(), *servers()]

"""Whatever answers in a server's place: an exit code of ours, one line, no hang, and nothing lost from the outbox."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepgrade.errors import Unreachable
from stepgrade.store import NewRun, client, open_history, remote
from stepgrade.store.client import Connection
from stepgrade.store.remote import RemoteHistory
from tests.conftest import ROOT, Ran
from tests.store.hostile_server import BODIES, ENTRY, SOUND, WIRES, Hostile, answer, hostile_server, mutations
from tests.web.conftest import card

Run = Callable[..., Ran]
TOKEN = "sg_canary0123456789"  # noqa: S105  of no server
PROFILE = (str(ROOT / "examples" / "runs" / "gpt_naive.json"), "--device", "gb10")
COMMANDS: dict[str, Callable[[str], list[str]]] = {
    "add": lambda url: ["history", "add", *PROFILE, "--branch", "main", "--history", url],
    "list": lambda url: ["history", "list", "--history", url],
    "show": lambda url: ["history", "show", "1", "--history", url],
    "trend": lambda url: ["history", "trend", "--history", url],
    "export": lambda url: ["history", "export", "--history", url],
    "gate": lambda url: [
        "gate",
        *PROFILE,
        "--against",
        "history:main",
        "--allow-different",
        "all",
        "--history",
        url,
    ],
    "push": lambda url: ["history", "push", "--to", url, "--history", "local.db"],
    "pull": lambda url: ["history", "pull", "--from", url, "--history", "pulled.db"],
}
# The command that shows best what a call's answer does.
SHOWS = {
    "POST /runs": "push",
    "GET /runs": "list",
    "GET /runs/N": "show",
    "GET /series": "trend",
    "GET /fingerprints": "gate",
}
PULLED = {"POST /runs": "add", "GET /runs": "pull", "GET /runs/N": "pull", "GET /series": "gate"}


@pytest.fixture(scope="module")
def server() -> Iterator[Hostile]:
    with hostile_server() as started:
        yield started


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPGRADE_TOKEN", TOKEN)
    monkeypatch.setattr(client, "WHOLE_S", 2.0)
    monkeypatch.setattr(client, "_SILENCE_S", 1.0)
    monkeypatch.setattr(client, "_MOST_WAIT_S", 0.01)
    monkeypatch.setattr(remote, "_MOST_ANSWER", 4 << 20)
    with open_history("local.db") as local:
        local.add(NewRun(card=card(), branch="main", key="local-1"))


def check(server: Hostile, name: str, stepgrade: Run) -> Ran:
    """Run a command against the server, and hold it to what every command promises."""
    with RemoteHistory(server.url) as one:
        kept = one.outbox.keep("waiting-1", json.dumps({"card": SOUND["GET /runs/N"]["card"]}).encode())
    content = kept.read_bytes()
    started = time.monotonic()
    ran = stepgrade(*COMMANDS[name](server.url))
    assert time.monotonic() - started < 60.0
    said = f"{name}: {ran.err}"
    assert ran.code in (0, 1, 2, 3), said
    assert "Traceback" not in ran.err, said
    assert all(line.startswith("stepgrade: ") and len(line) < 1200 for line in ran.err.splitlines()), said
    assert ran.code == 0 or ran.err.count("\n") == 1 or name in ("gate", "push"), said
    assert "canary" not in ran.err + ran.out
    left = [path for path in (kept, kept.with_name("refused-" + kept.name)) if path.exists()]
    if not left:  # only where the server has said that it has the run
        assert name in ("add", "push"), said
        assert is_acknowledged(server), said
    else:
        assert left[0].read_bytes() == content
        left[0].unlink()
    for path in kept.parent.glob("*.json"):
        path.unlink()
    return ran


def is_acknowledged(server: Hostile) -> bool:
    """Return whether the answer to an upload says that it is kept."""
    if server.call not in ("", "POST /runs"):
        return True
    if not isinstance(server.odd, bytes):
        return False
    head, _, body = server.odd.partition(b"\r\n\r\n")
    try:
        number = json.loads(body)["id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return b" 200 " in head and isinstance(number, int) and number is not True and number > 0


@pytest.mark.parametrize("name", ["push", "list", "gate"])
@pytest.mark.parametrize("odd", WIRES)
def test_odd_wires(
    odd: str, name: str, server: Hostile, stepgrade: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WHOLE_S", 0.3)  # no wire of these is sound, so none needs longer
    monkeypatch.setattr(client, "_SILENCE_S", 0.15)
    server.call, server.odd = "", WIRES[odd]
    ran = check(server, name, stepgrade)
    assert ran.code != 0


@pytest.mark.parametrize("call", SOUND)
def test_odd_bodies(call: str, server: Hostile, stepgrade: Run) -> None:
    for odd, body in BODIES.items():
        server.call, server.odd = call, answer(body)
        ran = check(server, SHOWS[call], stepgrade)
        is_sound = call == "GET /fingerprints" or (call == "POST /runs" and is_acknowledged(server))
        assert ran.code != 0 or is_sound, (odd, ran.out)
        if call in PULLED:
            check(server, PULLED[call], stepgrade)


@pytest.mark.parametrize("call", SOUND)
def test_odd_values(call: str, server: Hostile, stepgrade: Run) -> None:
    """Each value of a sound answer is missing, or replaced by each odd one; of a scorecard a sample of them."""
    found = list(mutations(call))
    for _, body in found[:: max(1, len(found) // 150)]:
        server.call, server.odd = call, answer(body)
        check(server, SHOWS[call], stepgrade)


@pytest.mark.parametrize("name", COMMANDS)
def test_sound_answers(name: str, server: Hostile, stepgrade: Run) -> None:
    """The server is one that commands work with: else nothing above would mean anything."""
    server.call, server.odd = "none", b""
    ran = check(server, name, stepgrade)
    assert ran.code in ((0, 1, 3) if name == "gate" else (0,)), ran.err


@pytest.mark.parametrize("next_page", ["same", "another"])
@pytest.mark.parametrize("name", ["list", "pull", "export", "push"])
def test_pages_without_an_end(
    name: str, next_page: str, server: Hostile, stepgrade: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that leads to itself, and pages that go on and on, with runs or without."""
    monkeypatch.setattr(remote, "_MOST_PAGES", 20)
    for runs in ([ENTRY], []):
        count = 0

        def page(peer: Any, runs: list[Any] = runs) -> None:
            nonlocal count
            count += 1
            after = "x" if next_page == "same" else f"x{count}"
            peer.sendall(answer(json.dumps({"runs": runs, "next": after}).encode()))

        server.call, server.odd = "GET /runs", page
        ran = check(server, name, stepgrade)
        assert count <= 21
        assert ran.code in (0, 2)


def test_runs_in_no_order_are_refused(server: Hostile, stepgrade: Run) -> None:
    for numbers in ((1, 2), (2, 2), (0,), (-1,), (2**70,)):
        runs = [{**ENTRY, "run": {**ENTRY["run"], "id": number}} for number in numbers]
        server.call, server.odd = "GET /runs", answer(json.dumps({"runs": runs, "next": None}).encode())
        assert check(server, "list", stepgrade).code == 2


def test_the_token_goes_to_no_other_host(server: Hostile, stepgrade: Run) -> None:
    with hostile_server() as other:
        for status in (301, 302, 303, 307, 308):
            place = f"{other.url.replace('/llm', '')}/api/v1/projects/llm/runs"
            server.call, server.odd = "", answer(b"", f"{status} Moved", f"Location: {place}\r\n")
            ran = check(server, "list", stepgrade)
            assert (ran.code, "redirects to" in ran.err) == (2, True), ran.err
        assert other.seen == []


def test_a_server_that_shows_the_token(server: Hostile, stepgrade: Run) -> None:
    echoed = json.dumps({"problem": f"bad token {TOKEN}, Authorization: Bearer {TOKEN}"}).encode()
    for status in ("400 Bad Request", "401 Unauthorized", "403 Forbidden", "404 Not Found"):
        server.call, server.odd = "", answer(echoed, status)
        for name in ("list", "add", "gate"):
            check(server, name, stepgrade)
    page = {"runs": [{**ENTRY, "run": {**ENTRY["run"], "branch": TOKEN, "source": TOKEN}}], "next": None}
    server.call, server.odd = "GET /runs", answer(json.dumps(page).encode())
    assert check(server, "list", stepgrade).code == 0


def test_a_run_that_meets_a_login_page_waits(server: Hostile, stepgrade: Run) -> None:
    server.call, server.odd = "POST /runs", WIRES["a login page"]
    ran = stepgrade(*COMMANDS["add"](server.url))
    assert ran.code == 2
    assert "the run waits in the outbox" in ran.err
    with RemoteHistory(server.url) as one:
        assert len(one.outbox.waiting()) == 1


def test_an_answer_that_is_cut_off_is_none(server: Hostile) -> None:
    """A server that dies after its status line has not acknowledged the run: it is sent again."""
    server.call, server.odd = "", b"HTTP/1.1 201 Created\r\ncontent-length: 50\r\n\r\n"
    with RemoteHistory(server.url) as one, pytest.raises(Unreachable):
        one.send_now(NewRun(card=card(), key="cut-off"))


def test_an_answer_nobody_asked_for_acknowledges_nothing() -> None:
    """The bytes of a stray answer on a kept connection are not taken for the answer to the next request."""
    good = b"HTTP/1.1 201 Created\r\ncontent-length: 1\r\n\r\n%d"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = Connection("http", *listener.getsockname())
        peers: list[socket.socket] = []

        def serve() -> None:
            for number in (1, 2):
                peers.append(listener.accept()[0])
                peers[-1].recv(65536)
                peers[-1].sendall(good % number)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert connection.ask("POST", "/runs", b"first", {}, 100).body == b"1"
        peers[0].sendall(good % 1)
        select.select([connection.sock], [], [], 30.0)  # it has arrived
        assert connection.ask("POST", "/runs", b"second", {}, 100).body == b"2"
        thread.join(30.0)
        connection.close()
        for peer in peers:
            peer.close()

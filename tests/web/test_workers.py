"""The server's own jobs: one may fail in any way and a peer may do what it likes, the others are done."""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from stepgrade.errors import BadOption
from stepgrade.store import NewRun, open_history
from stepgrade.store.alerts import RETRIES_S, Alerts, QuietHours
from tests.store.server import running_server
from tests.web.conftest import Site, card
from tests.web.live import Live
from tests.web.test_notifications import HOSTILE, OPEN, STEPS, Receiver, add, channel, receiver, send_due

pytest.importorskip("starlette", reason="starlette is not installed")
from stepgrade.store.alerts import Message
from stepgrade.web.outgoing import BoundedExchange, NotSent, check_channel, send
from stepgrade.web.settings import Mail, ServerSettings
from stepgrade.web.worker import JobWorker, ServerJob

__all__ = ["receiver"]
MESSAGE = Message(id=1, channel_id=1, alert_id=1, event="opened", tries=0)
LONG = "x" * 64
# Rows that an older version took, or that somebody else wrote.
BAD_CHANNELS = (
    ("webhook", "https://hooks..slack.com/x", "", "{}"),
    ("slack", f"https://{LONG}.example/x", "", "{}"),
    ("slack", "https://h\u00f6\u00f6ks.example/\u2026", "", "{}"),
    ("slack", "https://" + "a." * 130 + "example/x", "", "{}"),
    ("gitlab", "http://127.0.0.1:1/api", "gl\u20acpat", "{}"),
    ("github", "http://127.0.0.1:1/api", "ghp_key\r\nx: y", "{}"),
    ("webhook", "http://127.0.0.1:1/x", "", "no json"),
    ("webhook", "http://127.0.0.1:1/x", "", '{"begin": 99}'),
    ("webhook", "http://[::1%25nowhere]/x", "", "{}"),
    ("nothing", "\x00", "", "{}"),
    ("email", "a@b@c", "", "{}"),
)


def until(is_done: Callable[[], Any], most_s: float = 600.0) -> Any:
    """Wait for something that a thread of the server does."""
    end = time.monotonic() + most_s
    while not (found := is_done()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def add_row(history: Any, kind: str, target: str, secret: str, settings: str) -> None:
    if "postgres" in history.name:
        target = target.replace("\0", "")
    history.database.execute(
        "insert into stepgrade_channel (project, kind, target, secret, settings, created_at) "
        "values (?, ?, ?, ?, ?, '')",
        (history.project, kind, target, secret, settings),
    )


@pytest.mark.parametrize("target", [row[1] for row in BAD_CHANNELS[:4]])
def test_a_mistyped_target_is_refused_when_it_is_saved(target: str) -> None:
    with pytest.raises(BadOption):
        check_channel("webhook", target, "", OPEN)


@pytest.mark.parametrize("secret", ["gl\u20acpat", "a b", "a\nb", "\x7f", "\u00fc"])
def test_a_secret_that_no_header_takes_is_refused(secret: str) -> None:
    for kind in ("github", "gitlab"):
        with pytest.raises(BadOption):
            check_channel(kind, "https://git.example/api", secret, OPEN)
    check_channel("gitlab", "https://git.example/api", "glpat-1234", OPEN)
    check_channel("webhook", "https://hooks.example/x", "\u00fcber", OPEN)  # a key for HMAC may be any text


def test_bad_channels_keep_nothing_else_from_being_done(
    site_on_both: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every bad row there, messages go out, waivers end, and the server is ready."""
    housekeeping = site_on_both.app.state.server.housekeeping
    monkeypatch.setattr(housekeeping._postman, "_settings", OPEN)
    with open_history(site_on_both.place, project="mine") as history:
        Alerts(history).remove_channel(site_on_both.channel)
        for row in BAD_CHANNELS:
            add_row(history, *row)
        alerts = Alerts(history)
        good = alerts.add_channel("webhook", f"{receiver.url}/good", "", QuietHours())
        history.database.execute("update stepgrade_project set settings = '[' where name = 'other'")
        number = site_on_both.alerts[0]
        today = dt.datetime.now(dt.UTC).date()
        alerts.change(number, "waived", reason="x", who="me", until=today)
        history.database.execute("update stepgrade_alert set waived_until = '2020-01-01'")
    for worker in housekeeping.workers:
        worker._due.clear()  # as if the time had come
        worker.wake.set()
    until(lambda: receiver.got)
    assert json.loads(receiver.got[0][2])["event"] == "waiver ended"
    headers = site_on_both.bearer("owner")

    def failed() -> dict[int, Any]:
        found = site_on_both.client.get("/api/v1/projects/mine/channels", headers=headers).json()
        return {one["id"]: one["state"] for one in found}

    until(lambda: sum(bool(state["problem"]) for state in failed().values()) == len(BAD_CHANNELS))
    assert failed()[good]["problem"] is None
    assert failed()[good]["sent_at"]
    page = site_on_both.client.get("/p/mine/settings", headers=site_on_both.cookies("owner")).text
    assert "next try" in page
    assert "ghp_key" not in page
    ready = site_on_both.client.get("/readyz")
    assert (ready.status_code, ready.json()["workers"]["messages"]["alive"]) == (200, True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # which is the point
def test_a_dead_worker_is_not_ready(site: Site) -> None:
    """The process lives, but what it should do by itself is not done."""

    def end() -> bool:
        raise SystemExit

    keeper = site.app.state.server.housekeeping.workers[0]
    assert site.client.get("/readyz").status_code == 200
    keeper._jobs = lambda: [ServerJob("end", 0.0, end)]
    keeper.wake.set()
    until(lambda: not keeper._thread.is_alive())
    answer = site.client.get("/readyz")
    assert (answer.status_code, answer.json()["workers"]["housekeeping"]["alive"]) == (503, False)
    assert site.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    "error", [UnicodeError("x"), RecursionError(), MemoryError(), KeyError(1), BadOption("secret")]
)
def test_a_worker_survives_any_error_and_the_job_waits_longer(error: Exception) -> None:
    done: list[str] = []

    def fail() -> bool:
        done.append("fail")
        raise error

    worker = JobWorker(
        "test", lambda: [ServerJob("bad", 0.0, fail), ServerJob("good", 0.0, lambda: done.append("good"))]
    )
    for _ in range(4):
        worker.round()
    assert done.count("good") == 4
    assert done.count("fail") == 1
    waits = []
    for _ in range(12):
        waits.append(worker._due["bad"] - time.monotonic())
        worker._due["bad"] = 0.0
        worker.round()
    assert waits[1] > waits[0] * 1.5
    assert waits[-1] <= 60.0
    assert worker.failing["bad"] == 13
    worker._jobs = list
    worker.round()
    assert not worker.failing


class Drip(socketserver.ThreadingTCPServer):
    """A peer that says something now and then, and never ends."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, greeting: bytes, drop: bytes) -> None:
        self.greeting, self.drop = greeting, drop
        self.over, self.met = threading.Event(), threading.Event()
        super().__init__(("127.0.0.1", 0), _Dripping)


class _Dripping(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Drip)
        self.server.met.set()
        try:
            self.request.sendall(self.server.greeting)
            while not self.server.over.wait(0.05):
                self.request.sendall(self.server.drop)
        except OSError:
            pass


@contextmanager
def dripping(greeting: bytes = b"", drop: bytes = b"") -> Iterator[Drip]:
    with Drip(greeting, drop) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


DRIPS = {
    "silence": ("http", b"", b""),
    "status line": ("http", b"HTTP/1.1 ", b"2"),
    "headers": ("http", b"HTTP/1.1 200 OK\r\nx: ", b"y"),
    "interim answers": ("http", b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "tls": ("https", b"\x16\x03\x03\x40\x00", b"\x02"),
    "tls silence": ("https", b"", b""),
    "smtp": ("smtp", b"220", b"-x\r\n220"),
    "smtp silence": ("smtp", b"", b""),
}


@pytest.mark.parametrize("kind", DRIPS)
def test_every_exchange_has_one_deadline(kind: str) -> None:
    scheme, greeting, drop = DRIPS[kind]
    with dripping(greeting, drop) as peer:
        port = peer.server_address[1]
        mail = Mail(host="127.0.0.1", port=port, starttls=False)
        settings = ServerSettings(private_webhooks=True, mail=mail)
        to = (
            channel("email", "a@b.example")
            if scheme == "smtp"
            else channel("webhook", f"{scheme}://127.0.0.1:{port}/x")
        )
        with pytest.raises(NotSent, match="no complete response"):
            send(MESSAGE, to, HOSTILE, settings, BoundedExchange(0.5))
        assert peer.met.is_set()


def test_a_body_that_never_ends_is_still_an_answer() -> None:
    """The status says that the message was taken."""
    with dripping(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", b"x") as peer:
        to = channel("webhook", f"http://127.0.0.1:{peer.server_address[1]}/x")
        send(MESSAGE, to, HOSTILE, OPEN, BoundedExchange(0.5))


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def hang(*_: object, **__: object) -> list[Any]:
        over.wait(600.0)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    before = threading.active_count()
    try:
        for number in range(20):  # no more look-ups are left behind than a few
            with pytest.raises(NotSent, match="no complete response" if number < 16 else "no connection"):
                send(MESSAGE, channel("webhook"), HOSTILE, OPEN, BoundedExchange(0.05))
        assert sum(one.name == "stepgrade-look-up" for one in threading.enumerate()) <= 16
    finally:
        over.set()
    until(lambda: threading.active_count() <= before)


def test_a_name_that_no_resolver_takes_is_a_message_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(*_: object, **__: object) -> list[Any]:
        return "hooks..slack.com".encode("idna")  # type: ignore[return-value]  # raises, as getaddrinfo does

    monkeypatch.setattr(socket, "getaddrinfo", odd)
    with pytest.raises(NotSent, match="not found"):
        send(MESSAGE, channel("webhook"), HOSTILE, OPEN, BoundedExchange(5.0))


def test_a_slow_channel_keeps_no_other_waiting(
    site: Site, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight channels that never answer, then one that does: it is told while they are still waited for."""
    monkeypatch.setattr(site.app.state.server.housekeeping._postman, "_settings", OPEN)
    with (
        dripping(b"HTTP/1.1 200 OK\r\nx: ", b"y") as peer,
        open_history(site.place, project="mine") as history,
    ):
        alerts = Alerts(history)
        alerts.remove_channel(site.channel)
        for _ in range(8):
            alerts.add_channel("webhook", f"http://127.0.0.1:{peer.server_address[1]}/x", "", QuietHours())
        other = history.in_project("other")
        Alerts(other).add_channel("webhook", f"{receiver.url}/good", "", QuietHours())
        add(other, STEPS)
        for alert in alerts.listed():
            alerts.announce(alert, "opened")
        site.app.state.server.housekeeping.workers[1].wake.set()
        until(lambda: receiver.got)
        assert peer.met.wait(600.0)


def test_a_failing_channel_waits_as_a_whole(place: str, receiver: Receiver) -> None:
    """All its messages wait as long as it has failed for; what others are sent does not."""
    receiver.statuses = [500] * 3
    with open_history(place, project="mine") as history:
        alerts = Alerts(history)
        alerts.add_channel("webhook", f"{receiver.url}/bad", "", QuietHours())
        alerts.add_channel("webhook", f"{receiver.url}/other", "", QuietHours())
        (alert,) = add(history, STEPS)
        alerts.announce(alert, "test")
        history.database.execute(
            "update stepgrade_message set sent_at = '2026' where channel_id = 2 and event = 'test'"
        )
        history.database.execute("update stepgrade_message set next_at = '2099' where channel_id = 2")

        def waits() -> list[float]:
            now = dt.datetime.now(dt.UTC)
            sql = "select next_at from stepgrade_message where channel_id = 1 order by id"
            return [
                (dt.datetime.fromisoformat(row[0]) - now).total_seconds()
                for row in history.database.execute(sql)
            ]

        for number in range(3):
            history.database.execute("update stepgrade_message set next_at = '2020' where channel_id = 1")
            send_due(place)
            assert len(receiver.got) == number + 1  # one message, not both
            assert all(RETRIES_S[number] - 60 < wait <= RETRIES_S[number] for wait in waits())
        state = alerts.channel_states()[1]
        assert (state.problem, state.sent_at) == ("status 500", None)
        assert state.retry_at is not None
        history.database.execute("update stepgrade_message set next_at = '2020' where channel_id = 1")
        send_due(place)
        assert alerts.channel_states()[1].sent_at is not None


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_server_stops_whatever_a_webhook_does(tmp_path: Any, scheme: str) -> None:
    place = str(tmp_path / "history.db")
    with dripping(
        b"HTTP/1.1 200 OK\r\nx: " if scheme == "http" else b"", b"y" if scheme == "http" else b""
    ) as peer:
        with open_history(place, project="default") as history:
            target = f"{scheme}://127.0.0.1:{peer.server_address[1]}/x"
            Alerts(history).add_channel("webhook", target, "", QuietHours())
            add(history, STEPS)
        server = Live(place, "--private-webhooks")
        try:
            assert peer.met.wait(600.0)
            asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
            asked.request("GET", "/readyz")
            assert asked.getresponse().status == 200
            asked.close()
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 40.0  # once it was 45
            assert "Traceback" not in server.said
        finally:
            if server.process.poll() is None:
                server.kill()


@pytest.mark.slow
def test_a_database_that_hangs() -> None:
    """It neither answers nor goes away: the process lives, says so, and can be stopped."""

    def status(path: str) -> int:
        asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
        try:
            asked.request("GET", path)
            return asked.getresponse().status
        except ConnectionError:
            return 0  # it came too late
        finally:
            asked.close()

    with running_server() as database:
        server = Live(database.url)
        assert status("/readyz") == 200
        processes = database.processes()
        for number in processes:
            os.kill(number, signal.SIGSTOP)
        try:
            with ThreadPoolExecutor(12) as pool:
                pages = [pool.submit(status, "/p/default/runs") for _ in range(12)]
                assert status("/healthz") == 200
                begun = time.monotonic()
                assert server.stop() == 0
                assert time.monotonic() - begun < 40.0
                assert {page.result() for page in pages} <= {503, 0}
            assert "Traceback" not in server.said
        finally:
            for number in processes:
                os.kill(number, signal.SIGCONT)
            if server.process.poll() is None:
                server.kill()


def test_messages_of_a_removed_channel_or_alert_go_nowhere(place: str) -> None:
    with open_history(place, project="mine") as history:
        Alerts(history).add_channel("webhook", "http://127.0.0.1:1/x", "", QuietHours())
        add(history, STEPS)
        history.add(NewRun(card=card()))
        Alerts(history).remove_channel(1)
        assert Alerts(history).projects_with_due() == []

"""Alerts reach people: one message a change, signed, tried again, at the right hour, in each channel's format."""

from __future__ import annotations

import datetime as dt
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from stepgrade.store import NewRun, open_history
from stepgrade.store.alerts import RETRIES_S, Alert, Alerts, Channel, Message, QuietHours
from stepgrade.store.pool import Pool
from tests.web.conftest import card

pytest.importorskip("starlette", reason="starlette is not installed")
from stepgrade.web.housekeeping import Postman
from stepgrade.web.outgoing import BoundedExchange, NotSent, payload, send, signature
from stepgrade.web.settings import Mail, ServerSettings

OPEN = ServerSettings(private_webhooks=True, public_url="https://team.example")
HOSTILE = Alert(
    id=7,
    project="mine",
    metric="step_time_ms",
    branch="<!channel> @everyone `x` [a](http://evil)",
    digest="d",
    last_run=8,
    first_run=9,
    last_commit="c8",
    first_commit="c9",
    level_before=100.0,
    level_after=130.0,
    opened_at="2026-01-01T00:00:00+00:00",
    state="open",
    reason="",
    changed_by="stepgrade",
    changed_at="2026-01-01T00:00:00+00:00",
    waived_until=None,
)


class Receiver(HTTPServer):
    """Somebody's webhook: answers with the next of `statuses`, then with 200."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.statuses: list[int] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Receiver)
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(
            (self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        )
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("location", f"{self.server.url}/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def send_due(place: str, settings: ServerSettings = OPEN) -> None:
    """Send one message of each channel that is due, and wait until it is written down how each ended."""
    pool = Pool(place)
    postman = Postman(pool, settings)
    postman.start_due("mine")
    while postman.under_way:
        assert postman.ended.wait(60.0)
        postman.ended.clear()
        postman.settle()
    pool.close()


def add(history: Any, steps: list[float], branch: str = "main") -> list[Alert]:
    opened = []
    for ms in steps:
        history.add(NewRun(card=card(ms), branch=branch, commit=f"c{ms}"))
        (run,) = history.runs()[-1:]
        found = Alerts(history).look(run.branch, run.digest)
        for alert, event in found:
            Alerts(history).announce(alert, event)
        opened += [alert for alert, event in found if event == "opened"]
    return opened


STEPS = [100.0 + n % 3 for n in range(8)] + [130.0 + n % 3 for n in range(8)]


def test_one_message_a_change_not_one_a_run(place: str, receiver: Receiver) -> None:
    with open_history(place, project="mine") as history:
        Alerts(history).add_channel("webhook", f"{receiver.url}/hook", "key", QuietHours())
        opened = add(history, STEPS)
        assert len(opened) == 1
        assert opened[0].change == pytest.approx(0.3, abs=0.02)
        for _ in range(3):
            send_due(place)
        ((path, headers, body),) = receiver.got
        assert path == "/hook"
        assert headers["x-stepgrade-signature"] == signature("key", headers["x-stepgrade-timestamp"], body)
        sent = json.loads(body)
        assert (sent["event"], sent["alert"]["id"]) == ("opened", opened[0].id)
        assert sent["link"].startswith("https://team.example/p/mine/alerts#")
        assert (
            add(history, [100.0 + n % 3 for n in range(8)]) == []
        )  # better: no alert, and the old one is over
        assert [one.state for one in Alerts(history).listed()] == ["resolved"]
        assert len(add(history, [140.0 + n % 3 for n in range(8)])) == 1


def test_what_fails_is_tried_again_and_not_for_ever(place: str, receiver: Receiver) -> None:
    receiver.statuses = [500, 302, 200]
    with open_history(place, project="mine") as history:
        Alerts(history).add_channel("slack", f"{receiver.url}/hook", "", QuietHours())
        add(history, STEPS)
        for expected in (1, 2, 3, 3):
            history.database.execute("update stepgrade_message set next_at = '2020-01-01T00:00:00+00:00'")
            send_due(place)
            assert len(receiver.got) == expected
        assert {path for path, _, _ in receiver.got} == {"/hook"}  # where a redirect leads is not asked
        history.database.execute(
            "update stepgrade_message set sent_at = null, tries = ?", (len(RETRIES_S) + 1,)
        )
        send_due(place)
        assert len(receiver.got) == 3
    assert list(RETRIES_S) == sorted(RETRIES_S)


def test_a_message_waits_for_the_end_of_the_quiet_hours() -> None:
    def at(hour: int) -> dt.datetime:
        return dt.datetime(2026, 3, 1, hour, 30, tzinfo=dt.UTC)

    night = QuietHours(begin=22, end=7)
    assert night.next_moment(at(23)) == dt.datetime(2026, 3, 2, 7, tzinfo=dt.UTC)
    assert night.next_moment(at(3)) == dt.datetime(2026, 3, 1, 7, tzinfo=dt.UTC)
    assert night.next_moment(at(12)) == at(12)
    assert night.next_moment(at(7)) == at(7)
    assert QuietHours().next_moment(at(0)) == at(0)


def test_the_queue_holds_a_message_back(place: str, receiver: Receiver) -> None:
    with open_history(place, project="mine") as history:
        now = dt.datetime.now(dt.UTC).hour
        quiet = QuietHours(begin=now, end=(now + 2) % 24)
        Alerts(history).add_channel("webhook", receiver.url, "", quiet)
        add(history, STEPS)
        send_due(place)
        assert receiver.got == []


def channel(kind: str, target: str = "https://hooks.example/x") -> Channel:
    return Channel(
        id=1, project="mine", kind=kind, target=target, secret="", quiet=QuietHours(), created_at=""
    )


@pytest.mark.parametrize("kind", ["slack", "discord", "teams", "github", "gitlab", "webhook"])
def test_no_name_commands_a_chat(kind: str) -> None:
    sent = payload(channel(kind), HOSTILE, "opened", OPEN)
    text = json.dumps(sent)
    assert "+30.0 %" in text
    if kind in ("slack", "discord", "teams"):
        assert "@everyone" not in text
        assert "<!channel>" not in text
    if kind in ("github", "gitlab"):
        assert "[a](http://evil)" not in text
    if kind == "discord":
        assert sent["allowed_mentions"] == {"parse": []}


def test_a_commit_gets_its_comment(place: str, receiver: Receiver) -> None:
    with open_history(place, project="mine") as history:
        alerts = Alerts(history)
        alerts.add_channel("github", f"{receiver.url}/repos/team/model", "ghp_secret", QuietHours())
        alerts.add_channel("gitlab", f"{receiver.url}/api/v4/projects/7", "glpat", QuietHours())
        add(history, STEPS)
        send_due(place)
    lab, hub = sorted(receiver.got)
    assert hub[0] == "/repos/team/model/commits/c130.0/comments"
    assert hub[1]["authorization"] == "Bearer ghp_secret"
    assert json.loads(hub[2])["body"].startswith("## ")
    assert lab[0] == "/api/v4/projects/7/repository/commits/c130.0/comments"
    assert lab[1]["private-token"] == "glpat"


class _Mail(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        lines, is_text = [], False
        for line in self.rfile:
            lines.append(line)
            if is_text and line == b".\r\n":
                is_text = False
                self.wfile.write(b"250 ok\r\n")
            elif not is_text and line.upper().startswith(b"DATA"):
                is_text = True
                self.wfile.write(b"354 go on\r\n")
            elif not is_text and line.upper().startswith(b"QUIT"):
                self.wfile.write(b"221 bye\r\n")
                break
            elif not is_text:
                self.wfile.write(b"250 ok\r\n")
        self.server.got = b"".join(lines)  # type: ignore[attr-defined]  # for the test


def test_a_letter_arrives() -> None:
    message = Message(id=1, channel_id=1, alert_id=1, event="opened", tries=0)
    with socketserver.TCPServer(("127.0.0.1", 0), _Mail) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        mail = Mail(
            host="127.0.0.1", port=server.server_address[1], sender="stepgrade@team.example", starttls=False
        )
        settings = ServerSettings(mail=mail, public_url="https://team.example")
        send(message, channel("email", "a@team.example"), HOSTILE, settings, BoundedExchange())
        thread.join()
        text = server.got.decode()  # type: ignore[attr-defined]  # set above
    assert "TO:<a@team.example>" in text
    assert "https://team.example/p/mine/alerts#alert-7" in text
    with pytest.raises(NotSent, match="no connection"):
        send(message, channel("email", "a@team.example"), HOSTILE, settings, BoundedExchange())

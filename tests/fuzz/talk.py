"""What hostile clients ask a server, and what a hostile server answers: sound requests and answers, then damaged.

Requests are kept as HTTP/1.1 text, in which {admin} stands for a token of that role and {session} for a session.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

import stepgrade as sg
from stepgrade.store import NewRun, open_history
from stepgrade.store.alerts import Alerts, QuietHours
from stepgrade.store.team import Team
from tests.builders import make_profile
from tests.fuzz.mutators.havoc import CANARY, damaged_text
from tests.fuzz.samples import profiles

HOST = "team.example"
TOKEN = f"sg_{CANARY.decode()}"
HOOK = "https://hooks.example/not-for-everybody"
ROLES = {
    "reader": ("reader", "mine"),
    "uploader": ("uploader", "mine"),
    "owner": ("admin", "mine"),
    "admin": ("admin", None),
}
ODD_TEXTS = (
    "", "0", "1", "-1", "3", "99999999999999999999", "9" * 400, "nan", "x", "default", "..", "../..", "%2e%2e%2f", "a/b", "é", "\u202e",
    "x" * 5000, "' or 1=1 --", "<script>", "{{7*7}}", "\n", "a\r\nset-cookie: x=1", "null", "main", "2026-01-01", "0001-01-01",
    "9999-12-31T23:59:59+14:00", "0001-01-01T00:00:00+14:00", "2026-02-30", "rising", "csv", "json", "step_time_ms", "id", "a=b", "=",
)  # fmt: skip


def a_card(step_ms: float = 100.0) -> sg.Scorecard:
    """Return the scorecard of a small run."""
    return sg.score(make_profile(mean_step_ms=step_ms), tokens_per_step=1000.0)


@cache
def team_store() -> tuple[bytes, dict[str, str]]:
    """Return the store of a team with two projects, runs, an alert and a channel, and the secrets of its tokens."""
    secrets = {}
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/team.db"
        with open_history(path) as history:
            team = Team(history.database)
            for project in ("mine", "other"):
                team.add_project(project)
            mine = history.in_project("mine")
            steps = [100.0 + n % 3 for n in range(8)] + [130.0 + n % 3 for n in range(6)]
            cards = {ms: a_card(ms) for ms in set(steps)}
            mine.add_all(NewRun(card=cards[ms], branch="main", commit=f"c{n}") for n, ms in enumerate(steps))
            alerts = Alerts(mine)
            alerts.look("main", mine.runs()[0].digest)
            alerts.add_channel("webhook", HOOK, "a-signing-secret", QuietHours())
            for who, (role, project) in ROLES.items():
                secret, token = team.add_token(who, role, project=project, days=3, created_by="test")  # type: ignore[arg-type]
                session = team.open_session(token)
                found = team.session_of(session)
                secrets |= {
                    who: secret,
                    f"session of {who}": session,
                    f"form of {who}": found[1] if found else "",
                }
        with closing(sqlite3.connect(path)) as file:
            file.execute("pragma wal_checkpoint(truncate)")
        return Path(path).read_bytes(), secrets


@cache
def bodies() -> dict[str, Any]:
    """Return a sound JSON body for each type that the server reads."""
    card = msgspec.json.decode(a_card().to_json())
    return {
        "RunUpload": {"card": card, "branch": "main", "commit": "abc", "labels": {"machine": "a"}, "device_hours": 1.5,
                      "added_at": "2026-03-01T12:00:00+00:00"},
        "ProjectName": {"name": "third"},
        "ProjectSettings": {"price_per_device_hour": 2.5, "currency": "EUR", "keep_runs": 100, "keep_days": 30,
                            "commit_url": "https://git.example/{commit}", "branches": ["main"]},
        "NewToken": {"name": "ci", "role": "uploader", "project": "mine", "days": 30},
        "AlertChange": {"state": "waived", "reason": "known", "until": "2030-01-01"},
        "NewChannel": {"kind": "slack", "target": "https://hooks.example/x", "secret": "y", "quiet": {"begin": 22, "end": 6}},
        "mcp": {"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": "history", "arguments": {"project": "mine", "branch": "main"}}},
    }  # fmt: skip


FORMS = {
    "form_key": "{form}", "name": "third", "role": "reader", "project": "mine", "days": "30", "state": "acknowledged", "reason": "known",
    "until": "2030-01-01", "kind": "slack", "target": "https://hooks.example/x", "currency": "EUR", "keep_runs": "5", "token": "{reader}",
    "price_per_device_hour": "2.5", "begin": "22", "end": "6", "secret": "s",
}  # fmt: skip


def a_request(dice: random.Random, damaged: Callable[[bytes, random.Random], bytes]) -> bytes:
    """Return a request to one of the server's endpoints, of which something is odd."""
    from stepgrade.web.app import ENDPOINTS

    endpoint = dice.choice((*ENDPOINTS, None))
    method, path = (endpoint.method, endpoint.path) if endpoint else ("POST", "/mcp")
    is_odd = dice.random() < 0.6
    for name in re.findall(r"{(\w+)}", path):
        good = {"project": "mine", "number": str(dice.randrange(1, 15)), "metric": "step_time_ms"}.get(
            name, "1"
        )
        text = dice.choice(ODD_TEXTS) if is_odd and dice.random() < 0.3 else good
        path = path.replace(f"{{{name}}}", quote(text, safe=dice.choice(("", "/.%"))))
    names = [
        *(endpoint.query if endpoint else ()),
        "limit",
        "after",
        "branch",
        "format",
        "sort",
        "order",
        "a",
        "b",
        "state",
        "label",
    ]
    given = [
        (dice.choice(names), dice.choice((*ODD_TEXTS, "1", "2", "5")))
        for _ in range(dice.choice((0, 0, 1, 2, 5)))
    ]
    if given:
        path += "?" + urlencode(given)
    if is_odd and dice.random() < 0.05:
        path = dice.choice(
            (
                path + "/",
                path.upper(),
                "//" + path,
                path + "%00",
                path + "?" + "&" * 3000,
                "/" + dice.choice(ODD_TEXTS),
            )
        )
        path = quote(path, safe="/%?&=")
    if is_odd and dice.random() < 0.1:
        method = dice.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "X" * 40))
    headers, body = _headers_and_body(endpoint, dice, damaged)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def _headers_and_body(
    endpoint: Any, dice: random.Random, damaged: Callable[[bytes, random.Random], bytes]
) -> tuple[list[tuple[str, str]], bytes]:
    who = dice.choice(("reader", "uploader", "owner", "admin", "admin", "owner", "nobody"))
    headers, body = [("host", "{host}")], b""
    is_page = endpoint is not None and endpoint.is_page
    if is_page and who != "nobody":
        headers.append(("cookie", f"stepgrade_session={{session of {who}}}; x={dice.choice(('', 'a', '%'))}"))
    elif who != "nobody":
        headers.append(("authorization", f"Bearer {{{who}}}"))
    if endpoint is None or endpoint.method != "GET":
        if is_page:
            fields = {name: value for name, value in FORMS.items() if dice.random() < 0.8}
            fields["form_key"] = f"{{form of {who}}}"
            for _ in range(dice.choice((0, 1, 2))):
                fields[dice.choice([*FORMS])] = dice.choice(ODD_TEXTS)
            body = "&".join(f"{name}={quote(value, safe='{} ')}" for name, value in fields.items()).encode()
            headers.append(("content-type", "application/x-www-form-urlencoded"))
        else:
            kind = "mcp" if endpoint is None else getattr(endpoint.body, "__name__", "profile")
            sound = json.dumps(bodies()[kind]).encode() if kind in bodies() else profiles()[1]
            body = damaged(sound, dice)
            headers += [
                ("content-type", "application/json"),
                ("accept", "application/json, text/event-stream"),
            ]
        if dice.random() < 0.2:
            body = gzip.compress(body, 1, mtime=0)
            body = body if dice.random() < 0.6 else body[: dice.randrange(len(body))]
            headers.append(("content-encoding", "gzip"))
        if dice.random() < 0.4:
            key = dice.choice(("k1", "k2", "x" * 128, *ODD_TEXTS))
            headers.append(("idempotency-key", key))
        headers.append(("content-length", str(len(body))))
    if dice.random() < 0.3:
        odd = dice.choice(
            ("authorization", "cookie", "content-encoding", "content-type", "origin", "sec-fetch-site", "host", "accept", "content-length",
             "x-forwarded-user", "x-forwarded-for", "expect", "range", "if-none-match", "transfer-encoding", "upgrade", "mcp-protocol-version")
        )  # fmt: skip
        headers.append(
            (
                odd,
                re.sub(
                    r"[\r\n]",
                    " ",
                    dice.choice((*ODD_TEXTS, "gzip, gzip", "Bearer x", "stepgrade_session=é", "br")),
                ),
            )
        )
    return headers, body


def damaged_request(raw: bytes, dice: random.Random) -> bytes:
    """Return a request that is no good HTTP any longer: what the parser of the server is for."""
    head, blank, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    match dice.randrange(12):
        case 0:
            return raw[: dice.randrange(len(raw))]
        case 1:
            return damaged_text(head, dice) + blank + body
        case 2:
            lines[0] = dice.choice(
                (
                    b"GET",
                    b"GET /",
                    b"GET / HTTP/9.9",
                    b"PRI * HTTP/2.0",
                    b"\x16\x03\x01\x02\x00",
                    b"GET http://x/ HTTP/1.1",
                    b"GET  /  HTTP/1.1",
                    b"",
                )
            )
        case 3:
            lines += [
                b"x-%d: %s" % (n, b"y" * dice.choice((1, 900))) for n in range(dice.choice((10, 200, 3000)))
            ]
        case 4:
            lines += [
                b"content-length: "
                + dice.choice((b"0", b"-1", b"1e3", b"99999999999999999999", b"5, 6", b"+5", b"0x5"))
            ]
        case 5:
            lines += [
                b"transfer-encoding: "
                + dice.choice((b"chunked", b"gzip", b"chunked, chunked", b"\x0bchunked"))
            ]
            body = dice.choice(
                (
                    b"5\r\nabcde\r\n0\r\n\r\n",
                    b"FFFFFFFFFFFFFFFFF\r\n",
                    b"-5\r\n",
                    b"5;x=y\r\nabc",
                    b"0\r\n" + b"x: y\r\n" * 99,
                )
            )
        case 6:
            lines += [
                dice.choice(
                    (
                        b"nothing",
                        b": x",
                        b" folded",
                        b"x\0y: z",
                        b"x y: z",
                        b"\xff\xfe: z",
                        b"x:" + b"\t" * 9000,
                    )
                )
            ]
        case 7:
            return raw * dice.choice((2, 20))
        case 8:
            lines[0] = lines[0].replace(b" HTTP", b"a" * 70_000 + b" HTTP")
        case 9:
            lines += [
                b"expect: 100-continue",
                b"connection: upgrade",
                b"upgrade: websocket",
                b"sec-websocket-key: x",
            ]
        case 10:
            return dice.randbytes(dice.choice((1, 40, 4000)))
        case _:
            lines += [b"host: other.example"] * dice.choice((1, 3))
    return b"\r\n".join(lines) + blank + body


# The ways to be reached, of which each lets others in; the last scores profiles, in processes of its own.
ACCESS: dict[str, dict[str, Any]] = {
    "tokens": {"access": "tokens", "public_url": f"https://{HOST}"},
    "localhost": {"access": "localhost"},
    "proxy": {
        "access": "proxy",
        "public_url": f"https://{HOST}",
        "trusted_proxies": ("203.0.113.0/24",),
        "proxy_admins": ("x",),
    },
    "traces": {"access": "tokens", "public_url": f"https://{HOST}", "accepts_traces": True},
}


def with_secrets(raw: bytes, secrets: dict[str, str], host: str = HOST) -> bytes:
    """Return a request with tokens, sessions and the server's name in their places."""
    raw = raw.replace(b"{host}", host.encode())
    for name, secret in secrets.items():
        raw = raw.replace(b"{%s}" % name.encode(), secret.encode())
    return raw


async def ask(app: Any, raw: bytes, *, is_cut: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Return the application's answer to a request; `is_cut` is one whose sender goes away."""
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.split(b"\r\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.rpartition(b" ")[0].partition(b"?")
    pairs = [line.partition(b":")[::2] for line in rest]
    parts = [body[: len(body) // 2], body[len(body) // 2 :]] if is_cut else [body]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        if is_cut and not parts:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    from urllib.parse import unquote

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": method.decode("latin-1"),
        "scheme": "https", "path": unquote(path.decode("latin-1")), "raw_path": path, "query_string": query, "root_path": "",
        "headers": [(name.strip().lower(), value.strip()) for name, value in pairs], "client": ("203.0.113.9", 4711), "server": (HOST, 443),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 600)
    begun = [message for message in sent if message["type"] == "http.response.start"]
    if not begun:
        return 0, {}, b""
    headers = {
        name.decode("latin-1").lower(): value.decode("latin-1") for name, value in begun[0].get("headers", ())
    }
    return begun[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)


@cache
def good_answers() -> dict[str, bytes]:
    """Return what a real server answers to our client, by the kind of request."""
    from stepgrade.web.app import make_app
    from stepgrade.web.settings import ServerSettings

    data, secrets = team_store()
    base = "/api/v1/projects/mine"
    wanted = {"page": f"{base}/runs?limit=5", "run": f"{base}/runs/3", "series": f"{base}/series/step_time_ms",
              "fingerprints": f"{base}/fingerprints"}  # fmt: skip

    async def collect(place: str) -> dict[str, bytes]:
        app = make_app(ServerSettings(location=place, access="tokens", public_url=f"https://{HOST}"))
        found = {}
        async with app.router.lifespan_context(app):
            for name, path in wanted.items():
                raw = f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\nauthorization: Bearer {secrets['admin']}\r\n\r\n".encode()
                status, _, body = await ask(app, raw)
                assert status == 200, (path, status, body[:300])
                found[name] = body
        return found

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "team.db").write_bytes(data)
        found = asyncio.run(collect(f"{folder}/team.db"))
    page = json.loads(found["page"])
    page["next"] = None
    return found | {"page": json.dumps(page).encode(), "kept": b'{"id": 15, "is_new": true, "alerts": []}'}


def answer_to(method: str, path: str) -> bytes:
    """Return the good answer to a request of our client."""
    bare = path.partition("?")[0]
    for pattern, name in (
        (r"/runs$", "page"),
        (r"/runs/\d+$", "run"),
        (r"/series/", "series"),
        (r"/fingerprints$", "fingerprints"),
    ):
        if re.search(pattern, bare):
            return good_answers()["kept" if method == "POST" else name]
    return b'{"problem": "not found", "status": 404}'


PROXIES = (
    b'{"error": {"code": 502, "message": "upstream"}}', b"<html><body>Sign in to the network</body></html>", b"[]", b"null", b'"ok"', b"1e999",
    b'{"problem": ["a", {"b": 1}]}', b'{"problem": null}', b'{"detail": "Not Found"}', b"", b"{", b"[" * 3000, b'{"a":' * 3000, b"\xff\xfe",
    b'{"id": null}', b'{"id": 1e400}', b'{"id": [1]}', b'{"runs": {}}', b'{"runs": [], "next": "x"}', b'{"problem": "' + b"x" * 20_000 + b'"}',
    b'{"problem": "a\\u001b[31m\\nb\\u202e"}', b'{"problem": "' + TOKEN.encode() + b'"}', b" " * 100_000, b"NaN", b'{"id": 99999999999999999999}',
)  # fmt: skip


def hostile_answer(
    dice: random.Random, method: str, path: str, damaged: Callable[[bytes, random.Random], bytes]
) -> list[bytes | str]:
    """Return the answer to a request in pieces; a word among them is what the connection does: close, reset or wait."""
    good = answer_to(method, path)
    chance = dice.random()
    if chance < 0.15:
        return [_framed(201 if method == "POST" else 200, good)]
    if chance < 0.55:
        return [_framed(dice.choice((200, 200, 201)), damaged(good, dice))]
    if chance < 0.65:
        return [_framed(200, dice.choice(PROXIES))]
    if chance < 0.8:
        status = dice.choice(
            (
                100,
                101,
                199,
                204,
                206,
                226,
                300,
                301,
                302,
                304,
                307,
                400,
                401,
                403,
                404,
                405,
                409,
                413,
                418,
                429,
                429,
                500,
                502,
                503,
                504,
                599,
                999,
            )
        )
        odd = dice.choice((("location", "http://127.0.0.1:9/x"), ("location", "/" + "x" * 900), ("retry-after", "1"), ("retry-after", "9" * 40),
                           ("retry-after", "-1"), ("retry-after", "²"), ("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), ("x", "y")))  # fmt: skip
        return [_framed(status, dice.choice((*PROXIES, good)), odd)]
    return _broken_answer(dice, _framed(200, good))


def _framed(status: int, body: bytes, *headers: tuple[str, str]) -> bytes:
    given = (("content-type", "application/json"), ("content-length", str(len(body))), *headers)
    return (
        f"HTTP/1.1 {status} Odd\r\n".encode()
        + "".join(f"{n}: {v}\r\n" for n, v in given).encode()
        + b"\r\n"
        + body
    )


def _broken_answer(dice: random.Random, good: bytes) -> list[bytes | str]:
    """Return an answer that breaks the protocol."""
    head, _, body = good.partition(b"\r\n\r\n")
    bare = b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(b"content-length"))
    cut = dice.randrange(len(good))
    choices: tuple[Callable[[], list[bytes | str]], ...] = (
        lambda: ["close"],
        lambda: ["reset"],
        lambda: [good[:cut], "close"],
        lambda: [good[:cut], "reset"],
        lambda: [bare + b"\r\n\r\n" + body, "close"],
        lambda: [bare + b"\r\ncontent-length: " + dice.choice((b"-1", b"x", b"1e3", b"999999999999", b"3", b"0")) + b"\r\n\r\n" + body, "close"],
        lambda: [bare + b"\r\ntransfer-encoding: chunked\r\n\r\n" + dice.choice((b"zz\r\n", b"5\r\nab", b"-1\r\n", b"FFFFFFFFFFFFFFFFFFF\r\n", b"")), "close"],
        lambda: [bare + b"\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)],
        lambda: [bare + b"\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body],
        lambda: [b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"\r\n", "close"],
        lambda: [b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000 + b"\r\n\r\n", "close"],
        lambda: [dice.choice((b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", b"ICY 200 OK\r\n\r\n", b"HTTP/9.9 200 OK\r\n\r\n", b"\0" * 500, b"SSH-2.0-x\r\n",
                              b"HTTP/1.1 99999 x\r\n\r\n", b"HTTP/1.1 -20 x\r\n\r\n", b"\r\n\r\n\r\n", b"HTTP/1.1 200 \xff\xfe\r\n\r\n")), "close"],
        lambda: [b"HTTP/1.1 100 Continue\r\n\r\n" * dice.choice((1, 150)), good],
        lambda: [damaged_text(head, dice) + b"\r\n\r\n" + body, "close"],
        lambda: [good, good],  # one that nobody asked for
        lambda: [good[:60], "wait"] if dice.random() < 0.3 else [good[:9], good[9:60], good[60:]],
    )  # fmt: skip
    return dice.choice(choices)()

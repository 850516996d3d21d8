"""Attacks on the server: forged forms, stolen sessions, smuggled names, bombs, hostile text, other networks."""

from __future__ import annotations

import gzip
import logging
import re
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stepgrade.errors import BadOption
from stepgrade.store import NewRun, open_history
from stepgrade.store.team import Team
from tests.web.conftest import BASE, Site, card, upload

pytest.importorskip("starlette", reason="starlette is not installed")
from stepgrade.web.access import WRONG_PER_MINUTE, Limiter
from stepgrade.web.outgoing import BoundedExchange, NotSent, addresses_of, check_channel
from stepgrade.web.settings import ServerSettings, check

ANYWHERE = "0.0.0.0"  # noqa: S104  what is refused
MakeSite = Callable[..., Site]
RUNS = "/api/v1/projects/mine/runs"
XSS = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


@pytest.mark.parametrize(
    "settings",
    [
        {"host": ANYWHERE},
        {"host": "192.0.2.1"},
        {"access": "tokens", "host": ANYWHERE},
        {"access": "proxy", "host": ANYWHERE},
        {"access": "proxy", "trusted_proxies": ("0.0.0.0/0",)},
        {"access": "proxy", "trusted_proxies": ("proxy.example",)},
        {"trusted_proxies": ("10.0.0.1",)},
        {"access": "tokens", "trusted_proxies": ("10.0.0.1",)},
        {"tls_cert": "cert.pem"},
        {"public_url": "https://user:password@host"},
        {"public_url": "javascript:alert(1)"},
        {"workers": 0},
    ],
)
def test_any_other_way_to_be_reached_refuses_to_start(settings: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        check(ServerSettings(**settings))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"host": "::1"},
        {"access": "tokens"},
        {"access": "tokens", "host": ANYWHERE, "public_url": "https://x.example"},
        {"access": "tokens", "host": ANYWHERE, "tls_cert": "c", "tls_key": "k"},
        {"access": "proxy", "host": ANYWHERE, "trusted_proxies": ("10.0.0.1", "fd00::/8")},
    ],
)
def test_the_three_ways_start(settings: dict[str, Any]) -> None:
    assert check(ServerSettings(**settings))


def sign_in(site: Site, secret: str, **headers: str) -> Any:
    page = site.client.get("/login", headers=headers)
    key = re.search(r'name="form_key" value="([^"]+)"', page.text)
    assert key is not None
    cookie = headers.get("cookie", "") + f"; stepgrade_form={page.cookies['stepgrade_form']}"
    site.client.cookies.clear()
    return site.client.post(
        "/login", data={"token": secret, "form_key": key[1]}, headers={"cookie": cookie.strip("; ")}
    )


def test_a_browser_signs_in_and_out(site: Site) -> None:
    answer = sign_in(site, site.tokens["reader"])
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    for word in ("httponly", "secure", "samesite=lax", "path=/"):
        assert word in cookie
    session = answer.cookies["stepgrade_session"]
    headers = {"cookie": f"stepgrade_session={session}"}
    site.client.cookies.clear()
    assert "mine" in site.client.get("/", headers=headers).text
    assert "other" not in site.client.get("/", headers=headers).text
    with open_history(site.place) as history:
        found = Team(history.database).session_of(session)
        rows = history.database.execute("select digest from stepgrade_session")
        assert session not in str(rows)
        tokens = history.database.execute("select * from stepgrade_token")
        assert site.tokens["reader"] not in str(tokens)
    assert found is not None
    out = site.client.post("/logout", data={"form_key": found[1]}, headers=headers)
    assert out.status_code == 303
    assert site.client.get("/", headers=headers).headers["location"] == "/login"


def test_a_session_is_never_taken_over(site: Site) -> None:
    """Fixation: a cookie that somebody planted is not the session afterwards."""
    planted = "stepgrade_session=planted-by-somebody-else"
    answer = sign_in(site, site.tokens["admin"], cookie=planted)
    assert answer.cookies["stepgrade_session"] != "planted-by-somebody-else"
    site.client.cookies.clear()
    assert site.client.get("/", headers={"cookie": planted}).status_code == 303


def test_a_revoked_token_ends_its_sessions(site: Site) -> None:
    with open_history(site.place) as history:
        team = Team(history.database)
        team.revoke(next(token.id for token in team.tokens() if token.name == "reader"))
    assert site.client.get("/", headers=site.cookies("reader")).status_code == 303
    assert site.client.get(RUNS, headers=site.bearer("reader")).status_code == 401


def test_an_expired_token_is_none(site: Site) -> None:
    with open_history(site.place) as history:
        history.database.execute("update stepgrade_token set expires_at = '2020-01-01T00:00:00+00:00'")
    assert site.client.get(RUNS, headers=site.bearer("reader")).status_code == 401
    assert site.client.get("/", headers=site.cookies("reader")).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_another_site_cannot_send_our_forms(site: Site, headers: dict[str, str]) -> None:
    form = site.form("owner", {"price": "9"})
    answer = site.client.post("/p/mine/settings", data=form, headers=site.cookies("owner") | headers)
    assert answer.status_code == 403


@pytest.mark.parametrize("key", ["", "x", None])
def test_a_form_needs_the_key_of_its_page(site: Site, key: str | None) -> None:
    fields = {"price": "9"} if key is None else {"price": "9", "form_key": key}
    answer = site.client.post("/p/mine/settings", data=fields, headers=site.cookies("owner"))
    assert answer.status_code == 403
    other = site.form("reader", {"price": "9"})
    assert site.client.post("/p/mine/settings", data=other, headers=site.cookies("owner")).status_code == 403


def test_a_session_is_not_for_programs(site: Site) -> None:
    answer = site.client.post(RUNS, json=upload(), headers=site.cookies("owner"))
    assert answer.status_code == 403


def test_localhost_answers_to_its_own_name_alone(make_site: MakeSite) -> None:
    """A page that rebinds its own name to 127.0.0.1 sends that name along."""
    site = make_site(access="localhost", public_url=None)
    assert site.client.get("/healthz", headers={"host": "evil.example"}).status_code == 421
    assert site.client.get("/", headers={"host": "localhost:8765"}).status_code == 200
    text = {"host": "localhost:8765", "content-type": "text/plain"}
    assert site.client.post("/api/v1/projects", content=b'{"name":"x"}', headers=text).status_code == 415
    json = {"host": "localhost:8765"}
    assert site.client.post("/api/v1/projects", json={"name": "x"}, headers=json).status_code == 201
    evil = json | {"origin": "https://evil.example"}
    assert site.client.post("/api/v1/projects", json={"name": "y"}, headers=evil).status_code == 403


def test_only_the_proxy_says_who_is_asking(make_site: MakeSite) -> None:
    site = make_site(
        access="proxy", trusted_proxies=("10.1.0.0/16",), proxy_admins=("ops",), proxy_uploaders=("ml",)
    )
    claims = {"x-forwarded-user": "mallory", "x-forwarded-groups": "ops"}
    for address in ("203.0.113.9", "10.2.0.1", "::1"):
        client = site.from_address(address)
        assert client.get("/admin", headers=claims).status_code == 303, address
        assert client.get(RUNS, headers=claims | {"x-forwarded-for": "10.1.0.1"}).status_code == 401
    proxy = site.from_address("10.1.2.3")
    assert proxy.get("/admin", headers=claims).status_code == 200
    assert proxy.get(RUNS).status_code == 401
    user = {"x-forwarded-user": "carol", "x-forwarded-groups": "ml, other"}
    assert proxy.get(RUNS, headers=user).status_code == 200
    assert proxy.get("/api/v1/tokens", headers=user).status_code == 403
    assert proxy.post(RUNS, json=upload(), headers=user).status_code == 201
    assert (
        proxy.get(
            "/api/v1/tokens", headers={"x-forwarded-user": "dave", "x_forwarded_groups": "ops"}
        ).status_code
        == 403
    )
    twice = [("x-forwarded-user", "carol"), ("x-forwarded-user", "ops")]
    assert proxy.get(RUNS, headers=twice).status_code == 400
    assert proxy.get(RUNS, headers=site.bearer("reader")).status_code == 200  # CI comes with a token


@pytest.mark.parametrize(
    "path",
    [
        "/static/../../../../etc/passwd",
        "/static/%2e%2e/%2e%2e/etc/passwd",
        "/static/..%2f..%2fapp.py",
        "/p/..%2f..%2fetc/runs",
        "/p/%2e%2e/runs",
        "/p/mine/runs/..%2f1",
        "/p/mine/runs/1%00",
        "/api/v1/projects/mine%00/runs",
        "/api/v1/projects/mine/runs/-1",
        "/api/v1/projects/mine/runs/99999999999999999999",
        "/api/v1/projects/mine/series/id;drop",
    ],
)
def test_paths_lead_nowhere_else(site: Site, path: str) -> None:
    answer = site.client.get(path, headers=site.bearer("admin"))
    assert answer.status_code in (400, 404), answer.text[:200]
    assert "root:" not in answer.text


INJECTIONS = (
    "' or 1=1 --",
    '"; drop table stepgrade_run; --',
    "%",
    "_",
    "\\",
    "1) or (1=1",
    "\u0000",
    "' union select 1 --",
)


def test_texts_are_data_in_every_query(site_on_both: Site) -> None:
    site = site_on_both
    names = (
        "branch",
        "grade",
        "commit",
        "by",
        "fingerprint",
        "device",
        "label",
        "since",
        "until",
        "sort",
        "after",
    )
    for name, text in ((name, text) for name in names for text in INJECTIONS):
        value = f"a={text}" if name == "label" else text
        answer = site.client.get(RUNS, params={name: value, "limit": "5"}, headers=site.bearer("reader"))
        assert answer.status_code in (200, 400), (name, answer.text)
        if name not in ("sort", "after", "since", "until") and answer.status_code == 200:
            assert answer.json()["runs"] == [], name
    assert site.client.get("/api/v1/projects/mine/count", headers=site.bearer("reader")).json() == {
        "runs": len(site.runs)
    }


def test_names_run_nothing_on_any_page(site: Site) -> None:
    """Stored XSS: through the branch, the commit, labels, the source, findings, tokens, projects and reasons."""
    hostile = msgspec.structs.replace(card(), source=msgspec.structs.replace(card().source, files=(XSS,)))
    with open_history(site.place) as history:
        mine = history.in_project("mine")
        fingerprint = msgspec.structs.replace(
            hostile.fingerprint or card().fingerprint, device=XSS, model=XSS
        )  # type: ignore[type-var]
        bad = msgspec.structs.replace(hostile, fingerprint=fingerprint, grade=XSS)
        number = mine.add(NewRun(card=bad, branch=XSS, commit=XSS, labels={XSS: XSS}, added_by=XSS))
        team = Team(history.database)
        team.add_token(XSS, "reader", project=None, days=1, created_by=XSS)
        team.note(XSS, "x", subject=XSS)
        history.database.execute(
            "update stepgrade_alert set reason = ?, branch = ?, last_commit = ?, first_commit = ?, changed_by = ?",
            [XSS] * 5,
        )
    pages = ["/", "/admin", "/p/mine/alerts", "/p/mine/findings", "/p/mine/settings", "/p/mine/runs"]
    pages += [f"/p/mine/runs/{number}", f"/p/mine/compare?a={site.runs[0]}&b={number}", "/p/mine/trend"]
    pages += ["/p/mine/trend?branch=" + XSS, "/p/mine/runs?device=" + XSS, "/p/" + XSS]
    for page in pages:
        answer = site.client.get(page, headers=site.cookies("admin"))
        assert "<script>alert" not in answer.text, page
        assert "<img src=x" not in answer.text, page
        policy = answer.headers["content-security-policy"]
        assert "'unsafe-inline'" not in policy
        assert "default-src 'none'" in policy
    csv = site.client.get("/p/mine/runs?format=csv", headers=site.cookies("admin"))
    assert csv.headers["content-disposition"].startswith("attachment")


def test_spreadsheets_take_no_name_for_a_formula(site: Site) -> None:
    with open_history(site.place) as history:
        history.in_project("mine").add(NewRun(card=card(), branch="=1+1", commit="@x"))
    text = site.client.get(f"{RUNS}?format=csv", headers=site.bearer("reader")).text
    assert ",=1+1," not in text
    assert ",'=1+1," in text


def test_bombs_are_refused_before_they_are_unpacked(site: Site) -> None:
    headers = site.bearer("uploader") | {"content-type": "application/json"}
    zeros = gzip.compress(b" " * (300 << 20))
    packed = site.client.post(RUNS, content=zeros, headers=headers | {"content-encoding": "gzip"})
    assert packed.status_code == 413
    assert site.client.post(RUNS, content=b" " * (3 << 20), headers=headers).status_code == 413
    twice = gzip.compress(zeros)
    assert site.client.post(
        RUNS, content=twice, headers=headers | {"content-encoding": "gzip"}
    ).status_code in (400, 413)
    assert (
        site.client.post(RUNS, content=b"x", headers=headers | {"content-encoding": "br"}).status_code == 415
    )
    assert (
        site.client.post(RUNS, content=b"x", headers=headers | {"content-encoding": "gzip"}).status_code
        == 400
    )
    cut = gzip.compress(msgspec.json.encode(upload()))[:-20]
    assert (
        site.client.post(RUNS, content=cut, headers=headers | {"content-encoding": "gzip"}).status_code == 400
    )
    deep = b'{"card":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert site.client.post(RUNS, content=deep, headers=headers).status_code == 400
    good = gzip.compress(msgspec.json.encode(upload()))
    assert (
        site.client.post(RUNS, content=good, headers=headers | {"content-encoding": "gzip"}).status_code
        == 201
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"card": {}}',
        b'{"card": 1}',
        b'{"card": {"grade": 5}}',
        b'{"unknown": 1, "card": {}}',
        b"\xff\xfe",
        b'{"card": null, "labels": []}',
    ],
)
def test_what_is_no_scorecard_is_refused(site: Site, body: bytes) -> None:
    headers = site.bearer("uploader") | {"content-type": "application/json"}
    answer = site.client.post(RUNS, content=body, headers=headers)
    assert answer.status_code == 400
    assert "Traceback" not in answer.text


def test_too_many_uploads_have_to_wait(make_site: MakeSite) -> None:
    site = make_site(uploads_per_minute=3)
    codes = [site.client.post(RUNS, json=upload(), headers=site.bearer("uploader")) for _ in range(5)]
    assert [one.status_code for one in codes[:3]] == [201] * 3
    assert codes[4].status_code == 429
    assert int(codes[4].headers["retry-after"]) >= 1


def test_tokens_cannot_be_guessed(site: Site) -> None:
    wrong = {"authorization": "Bearer sg_" + "A" * 43}
    codes = [site.client.get(RUNS, headers=wrong).status_code for _ in range(WRONG_PER_MINUTE + 5)]
    assert codes[0] == 401
    assert codes[-1] == 429
    assert site.client.get(RUNS, headers=site.bearer("reader")).status_code == 200  # behind the same address


def test_a_limiter_fills_again() -> None:
    limiter = Limiter(60)
    assert [limiter.take("k", at=0.0) > 0 for _ in range(61)] == [False] * 60 + [True]
    assert limiter.take("k", at=1.1) == 0.0
    assert limiter.take("k", at=1.1) > 0.0
    assert limiter.take("other", at=1.1) == 0.0


def test_no_secret_is_logged(
    site: Site, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    site.client.get(RUNS, headers=site.bearer("reader"))
    site.client.get(RUNS, headers={"authorization": "Bearer sg_wrong-secret-1234"})
    sign_in(site, site.tokens["admin"])
    site.client.get("/admin", headers=site.cookies("admin"))
    audit = site.client.get("/api/v1/audit", headers=site.bearer("admin")).text
    channels = site.client.get("/api/v1/projects/mine/channels", headers=site.bearer("owner")).text
    out = capfd.readouterr()
    said = caplog.text + out.out + out.err + audit + channels
    for secret in (
        *site.tokens.values(),
        *(session for session, _ in site.sessions.values()),
        "sg_wrong-secret-1234",
    ):
        assert secret not in said
    assert "secret-path" not in channels
    assert "s3cret" not in channels


# Ranges that are not for hosts of the internet, and IPv4 addresses in each wrapping: the address inside may be
# anybody's, or the server's own.
NOT_PUBLIC = (
    "0.0.0.0",  # noqa: S104
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "127.0.0.2",
    "169.254.169.254",
    "172.16.0.1",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.1.2.3",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::7f00:1",
    "::8.8.8.8",
    "::ffff:10.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:10.0.0.1",
    "64:ff9b::a00:1",
    "64:ff9b::808:808",
    "64:ff9b:1::a00:1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "2001:db8::1",
    "2002:a00:1::1",
    "2002:808:808::1",
    "3fff::1",
    "5f00::1",
    "2a00:1450::5efe:a00:1",
    "2a00:1450::200:5efe:a00:1",
    "fc00::1",
    "fd00::1",
    "fe80::1",
    "fe80::1%eth0",
    "2a00:1450::1%eth0",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as it is written, nor when a name leads there; nothing is connected to."""
    shown = f"[{address.replace('%', '%25')}]" if ":" in address else address
    with pytest.raises(BadOption):
        check_channel("webhook", f"https://{shown}/x", "", ServerSettings())
    row = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [row])
    with pytest.raises(NotSent, match="own network"):
        addresses_of("name.example", 443, ServerSettings(), BoundedExchange())


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2a00:1450:4001::1", "2606:4700::1111"])
def test_an_address_that_is_public(address: str) -> None:
    check_channel(
        "webhook", f"https://{f'[{address}]' if ':' in address else address}/x", "", ServerSettings()
    )


INSIDE = (
    "http://127.0.0.1/x",
    "https://127.0.0.1/x",
    "https://localhost/x",
    "https://10.0.0.8/x",
    "https://169.254.169.254/latest/meta-data",
    "https://[::1]/x",
    "https://[::ffff:127.0.0.1]/x",
    "https://[fd00::1]/x",
    "https://0x7f.1/x",
    "https://2130706433/x",
    "https://0177.0.0.1/x",
    "https://intranet/x",
    "https://user:password@hooks.example/x",
    "file:///etc/passwd",
    "gopher://hooks.example/x",
    "https://hooks.example/x\r\nhost: evil",
    "https:///x",
)


@pytest.mark.parametrize("target", INSIDE)
def test_webhooks_do_not_reach_into_the_own_network(site: Site, target: str) -> None:
    answer = site.client.post(
        "/api/v1/projects/mine/channels",
        json={"kind": "webhook", "target": target},
        headers=site.bearer("owner"),
    )
    assert answer.status_code == 400
    assert target not in answer.text


def test_a_name_that_leads_inside_is_seen_when_it_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: the name was fine when the channel was added."""
    settings = ServerSettings()
    check_channel("webhook", "https://rebind.example/x", "", settings)
    row = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 443))
    outside = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [outside, row])
    with pytest.raises(NotSent, match="own network"):
        addresses_of("rebind.example", 443, settings, BoundedExchange())
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [outside])
    assert addresses_of("rebind.example", 443, settings, BoundedExchange()) == ["93.184.216.34"]


def test_a_project_of_others_looks_like_none(site: Site) -> None:
    theirs = site.client.get("/api/v1/projects/mine", headers=site.bearer("stranger"))
    none = site.client.get("/api/v1/projects/nothing", headers=site.bearer("stranger"))
    assert (theirs.status_code, theirs.json()) == (none.status_code, none.json())
    assert BASE


def test_a_run_of_others_looks_like_none(site: Site) -> None:
    answer = site.client.get(f"/api/v1/projects/other/runs/{site.runs[0]}", headers=site.bearer("stranger"))
    assert answer.status_code == 404

"""What a client may send: labels, moments, keys, numbers; and profiles that keep nobody else waiting."""

from __future__ import annotations

import datetime as dt
import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from stepgrade.store import open_history
from tests.conftest import ROOT
from tests.web.conftest import Site, upload
from tests.web.live import live_server

pytest.importorskip("starlette", reason="starlette is not installed")
from stepgrade.web.access import Refused
from stepgrade.web.settings import ServerSettings
from stepgrade.web.traces import ReceivedTrace, Scoring

MINE = "/api/v1/projects/mine"
TRACE = ROOT / "examples" / "traces" / "gpt_naive.json.gz"
MakeSite = Callable[..., Site]


def sent(site: Site, body: dict[str, Any], **headers: str) -> Any:
    return site.client.post(f"{MINE}/runs", json=body, headers=site.bearer("uploader") | headers)


LABELS: tuple[tuple[dict[str, str], int], ...] = (
    ({f"l{n}": "x" for n in range(64)}, 201),
    ({f"l{n}": "x" for n in range(65)}, 400),
    ({f"l{n}": "x" for n in range(100_000)}, 400),
    ({"": "x"}, 400),
    ({"k" * 100: "v" * 300}, 201),
    ({"k" * 101: "v"}, 400),
    ({"k": "v" * 301}, 400),
    ({f"l{n}": "v" * 200 for n in range(60)}, 400),
    ({"a\x00": "\x00"}, 201),
)


@pytest.mark.parametrize("number", range(len(LABELS)))
def test_labels_are_few_and_short(site: Site, number: int) -> None:
    labels, status = LABELS[number]
    answer = sent(site, upload(labels=labels))
    assert answer.status_code == status, answer.text
    if status == 201:
        shown = site.client.get(f"{MINE}/runs/{answer.json()['id']}", headers=site.bearer("reader")).json()
        assert shown["run"]["labels"] == labels


MOMENTS = {
    "0001-01-01T00:00:00+14:00": 400,
    "9999-12-31T23:59:59-14:00": 400,
    "1969-12-31T23:59:59+00:00": 400,
    "1970-01-01T00:00:00+00:00": 201,
    "2026-03-01T12:00:00": 400,
    "2026-03-01T12:00:60+00:00": 400,
    "2026-02-30T12:00:00+00:00": 400,
    "2026-03-01T12:00:00+99:00": 400,
    "2026-03-01T12:00:00+23:59:59.999999": 201,
    "2026-03-01": 400,
    "2026-03-01T12:00:00Z": 201,
    "20260301T120000Z": 201,
    "2999-01-01T00:00:00+00:00": 400,
    "yesterday": 400,
    "": 400,
    "\u0662\u0660\u0662\u0666-03-01T12:00:00+00:00": 400,
}


@pytest.mark.parametrize("text", MOMENTS)
def test_a_run_was_added_at_a_moment_that_a_clock_says(site: Site, text: str) -> None:
    answer = sent(site, upload(added_at=text))
    assert answer.status_code == MOMENTS[text], answer.text
    if answer.status_code == 201:
        shown = site.client.get(f"{MINE}/runs/{answer.json()['id']}", headers=site.bearer("reader")).json()
        at = dt.datetime.fromisoformat(shown["run"]["added_at"])
        assert at.utcoffset() == dt.timedelta(0)


@pytest.mark.parametrize("name", ["since", "until"])
@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("2026-03-01", 200),
        ("2026-03-01T12:00:00", 200),
        ("2026-03-01T12:00:00+02:00", 200),
        ("2026-03-01T12:00:00 02:00", 200),
        ("0001-01-01T00:00:00+14:00", 400),
        ("9999-12-31T23:59:59-14:00", 400),
        ("soon", 400),
        ("2026-13-01", 400),
        ("x" * 5000, 400),
    ],
)
def test_runs_between_moments(site: Site, name: str, text: str, status: int) -> None:
    for path in ("runs", "series/step_time_ms", "trend/step_time_ms", "findings"):
        answer = site.client.get(f"{MINE}/{path}", params={name: text}, headers=site.bearer("reader"))
        assert answer.status_code in ((200, 404) if status == 200 else (400,)), answer.text
    for path in ("runs", "trend", "findings"):
        page = site.client.get(f"/p/mine/{path}", params={name: text}, headers=site.cookies("reader"))
        assert page.status_code < 500


def test_an_address_asks_for_few_things_at_once(site_on_both: Site) -> None:
    site = site_on_both
    labels = "&".join(f"label=l{n}=1" for n in range(1_200))
    states = "&".join(f"state=s{n}" for n in range(1_200))
    prints = "&".join(f"fingerprint=f{n}" for n in range(1_200))
    for path in (f"{MINE}/runs?{labels}", f"{MINE}/alerts?{states}", f"{MINE}/runs?{prints}"):
        assert site.client.get(path, headers=site.bearer("reader")).status_code in (200, 400), path
    assert site.client.get(f"/p/mine/runs?{labels}", headers=site.cookies("reader")).status_code == 400


def test_a_moment_of_another_zone_means_the_same(site: Site) -> None:
    number = sent(site, upload(added_at="2026-03-01T12:00:00+00:00")).json()["id"]

    def found(**params: str) -> bool:
        answer = site.client.get(f"{MINE}/runs", params=params, headers=site.bearer("reader")).json()
        return number in [entry["run"]["id"] for entry in answer["runs"]]

    assert found(since="2026-03-01T14:00:00+02:00")
    assert not found(since="2026-03-01T14:00:01+02:00")
    assert found(until="2026-03-01T14:00:01+02:00")
    assert found(since="2026-03-01", until="2026-03-02")


def test_values_that_a_store_cannot_hold_are_the_senders_fault(site_on_both: Site) -> None:
    site = site_on_both
    reader = site.bearer("reader")
    for path in (
        f"{MINE}/runs?after=~99999999999999999999999",
        f"{MINE}/runs?sort=step_time_ms&after=1e999~1",
        f"{MINE}/runs?sort=step_time_ms&after=nan~1",
        f"{MINE}/runs/9999999999999999999",
        f"{MINE}/compare?a=4611686018427387904&b=1",
        f"{MINE}/runs?commit=%C3%BC%F0%9F%98%80",
    ):
        assert site.client.get(path, headers=reader).status_code in (200, 400, 404), path
    for body in (upload(branch="a\x00b"), upload(commit="\x00"), upload(device_hours=1e308)):
        assert sent(site, body).status_code in (201, 400)
    owner = site.bearer("owner")
    channel = {"kind": "webhook", "target": "https://hooks.example/x", "secret": "\x00"}
    assert site.client.post(f"{MINE}/channels", json=channel, headers=owner).status_code == 400
    for days in (36_501, 10**7, 10**30):
        assert site.client.put(MINE, json={"keep_days": days}, headers=owner).status_code == 400
    assert site.client.put(MINE, json={"branches": ["x"] * 101}, headers=owner).status_code == 400
    assert site.client.get("/readyz").status_code == 200


def trace(site: Site, key: str | None, body: bytes | None = None, query: str = "?branch=main") -> Any:
    headers = site.bearer("uploader") | {"content-type": "application/octet-stream"}
    headers |= {} if key is None else {"idempotency-key": key}
    return site.client.post(
        f"{MINE}/traces{query}", content=TRACE.read_bytes() if body is None else body, headers=headers
    )


def test_a_profile_is_kept_once_for_its_key(make_site: MakeSite) -> None:
    site = make_site(accepts_traces=True)
    first = trace(site, "k1")
    assert first.status_code == 201, first.text
    again = trace(site, "k1")
    assert (again.status_code, again.json()["id"], again.json()["is_new"]) == (200, first.json()["id"], False)
    assert trace(site, "k1", query="?branch=other").status_code == 409
    assert trace(site, "k1", body=gzip.compress(b"{}")).status_code == 409
    for odd in ("", "x" * 129, "a b"):
        assert trace(site, odd).status_code == 400, odd
    assert trace(site, "k2").json()["id"] != first.json()["id"]
    shown = site.client.get(f"{MINE}/runs/{first.json()['id']}", headers=site.bearer("reader")).text
    assert "/tmp" not in shown  # noqa: S108  no path of the server


def test_a_key_of_a_scorecard_is_bounded_too(site: Site) -> None:
    assert sent(site, upload(), **{"idempotency-key": "k"}).status_code == 201
    assert sent(site, upload(), **{"idempotency-key": "k"}).status_code == 200
    assert sent(site, upload(90.0), **{"idempotency-key": "k"}).status_code == 409
    assert sent(site, upload(), **{"idempotency-key": "k" * 129}).status_code == 400


def test_a_token_has_a_share_of_the_queue() -> None:
    scoring = Scoring(ServerSettings(accepts_traces=True))
    with scoring.slot("a"), scoring.slot("a"):
        with pytest.raises(Refused) as refused, scoring.slot("a"):
            pass
        assert (refused.value.status, refused.value.retry_after_s) == (429, 15)
        with scoring.slot("b"), scoring.slot("b"), scoring.slot("c"), scoring.slot("c"):
            with pytest.raises(Refused) as refused, scoring.slot("d"):
                pass
            assert refused.value.status == 503
    with scoring.slot("d"), scoring.slot("a"):
        pass


def test_memory_is_shared_among_all_processes() -> None:
    for total, workers in ((4 << 30, 1), (1 << 30, 1), (8 << 30, 4)):
        scoring = Scoring(ServerSettings(accepts_traces=True, trace_memory=total, workers=workers))
        assert scoring._memory * scoring._size * workers <= total


def test_scoring_ends_at_its_time_and_with_the_server(tmp_path: Path) -> None:
    """A profile that takes for ever: here, one that the child waits for."""
    import os

    os.mkfifo(tmp_path / "profile")
    scoring = Scoring(ServerSettings(accepts_traces=True, most_trace_s=2.0))
    waiting = ReceivedTrace(folder=str(tmp_path), digest="")
    with pytest.raises(Refused, match="more than 2 s"):
        scoring.score(waiting, None)
    slow = Scoring(ServerSettings(accepts_traces=True, most_trace_s=300.0))
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(slow.score, waiting, None)
        while not slow._running:
            time.sleep(0.01)
        slow.stop()
        with pytest.raises(Refused, match="shutting down"):
            ended.result(60)


def test_eight_profiles_of_one_token_keep_nobody_waiting(tmp_path: Path) -> None:
    """Whatever is scored, pages and health have threads and connections of their own."""
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"k{n % 50}",
            "pid": 0,
            "tid": 7,
            "ts": n * 10,
            "dur": 5,
            "args": {},
        }
        for n in range(60_000)
    ]
    big = gzip.compress(json.dumps({"traceEvents": events}).encode())
    place = str(tmp_path / "history.db")
    codes: list[int] = []
    with live_server(place, "--accept-traces") as server:

        def send() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
            # Sent as the localhost admin, so as JSON; what it holds is looked at by the scorer alone.
            headers = {"content-type": "application/json"}
            connection.request("POST", "/api/v1/projects/default/traces", big, headers)
            codes.append(connection.getresponse().status)
            connection.close()

        threads = [threading.Thread(target=send) for _ in range(8)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            for path in ("/healthz", "/readyz", "/p/default/runs"):
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
                connection.request("GET", path)
                assert connection.getresponse().status == 200
                connection.close()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
        assert server.stop() == 0
    assert len(codes) == 8
    assert set(codes) <= {201, 422, 429}
    assert codes.count(429) >= 1
    with open_history(place) as history:
        assert len(history.runs()) == codes.count(201)

"""What programs and pages get: uploads once, pages of runs, costs of findings, retention, traces, figures to watch."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.errors import BadOption
from stepgrade.model.scorecard import Finding, Scorecard
from stepgrade.store import NewRun, Selection, open_history
from stepgrade.store.alerts import Alerts
from stepgrade.store.tables import branches_of, configurations, finding_costs, page_of_runs
from stepgrade.store.team import ProjectSettings, Team
from stepgrade.web.access import Door
from tests.conftest import ROOT
from tests.web.conftest import Site, card, upload

MINE = "/api/v1/projects/mine"


def test_an_upload_is_kept_once_by_its_key(site_on_both: Site) -> None:
    site = site_on_both
    headers = site.bearer("uploader") | {"idempotency-key": "ci-1"}
    first = site.client.post(f"{MINE}/runs", json=upload(commit="abc"), headers=headers)
    again = site.client.post(f"{MINE}/runs", json=upload(commit="abc"), headers=headers)
    other = site.client.post(f"{MINE}/runs", json=upload(commit="def"), headers=headers)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert first.json()["id"] == again.json()["id"]
    assert (first.json()["is_new"], again.json()["is_new"]) == (True, False)
    shown = site.client.get(f"{MINE}/runs/{first.json()['id']}", headers=site.bearer("reader")).json()
    assert shown["origin"]["added_by"] == "uploader"
    assert shown["card"]["step_time_ms"] == 100.0
    for moment in ("yesterday", "2026-01-01T00:00:00"):
        bad = site.client.post(f"{MINE}/runs", json=upload(added_at=moment), headers=site.bearer("uploader"))
        assert bad.status_code == 400


def test_pages_of_runs_hold_each_run_once(site_on_both: Site) -> None:
    site = site_on_both
    for sort, order in (
        ("added", ""),
        ("added", "rising"),
        ("step_time_ms", "rising"),
        ("throughput_tok_s", ""),
    ):
        seen, after = [], None
        while True:
            fields = {"limit": 5, "sort": sort, "order": order} | ({"after": after} if after else {})
            page = site.client.get(f"{MINE}/runs", params=fields, headers=site.bearer("reader")).json()
            seen += [entry["run"] for entry in page["runs"]]
            after = page["next"]
            if after is None:
                break
        assert sorted(run["id"] for run in seen) == site.runs, (sort, order)
        key = [run["id"] if sort == "added" else run["metrics"][sort] for run in seen]
        assert key == sorted(key, reverse=order != "rising")
    rows = list(
        csv.DictReader(
            io.StringIO(
                site.client.get(f"{MINE}/runs?format=csv&limit=3", headers=site.bearer("reader")).text
            )
        )
    )
    assert [row["id"] for row in rows] == [str(number) for number in site.runs[:-4:-1]]
    assert rows[0]["step_time_ms"] == "132.0"


def test_what_findings_cost(place: str) -> None:
    def finding(rule: str, low: float, high: float) -> Finding:
        return Finding(
            rule=rule,
            severity="warning",
            claim=f"{rule}!",
            evidence={},
            remedy="",
            gain_low=low,
            gain_high=high,
            check="",
        )

    with open_history(place, project="mine") as history:
        for hours, found in (
            (10.0, [finding("a", 0.1, 0.2)]),
            (100.0, [finding("a", 0.1, 0.2), finding("b", 0.5, 0.5)]),
        ):
            run = msgspec.structs.replace(card(), findings=tuple(found))
            history.add(NewRun(card=run, device_hours=hours, branch="main"))
        history.in_project("other").add(
            NewRun(card=msgspec.structs.replace(card(), findings=(finding("c", 1, 1),)))
        )
        costs = finding_costs(history, Selection())
        assert [cost.rule for cost in costs] == ["b", "a"]
        assert (costs[0].hours_low, costs[0].hours_high, costs[0].runs) == (50.0, 50.0, 1)
        assert (costs[1].hours_low, costs[1].hours_high, costs[1].runs) == (
            pytest.approx(11.0),
            pytest.approx(22.0),
            2,
        )
        assert costs[1].claim == "a!"
        assert [one.rule for one in finding_costs(history, Selection(limit=1))] == ["b", "a"]
        assert finding_costs(history, Selection(branch="none")) == []
        (configuration,) = configurations(history, Selection())
        assert configuration.runs == 2
        assert branches_of(history) == ["main"]
        with pytest.raises(BadOption, match="cannot be sorted"):
            page_of_runs(history, Selection(), sort="id; drop table stepgrade_run")


def test_an_upload_is_identified_before_and_after_its_body_and_decoded_and_encoded_once(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()

    def count(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def counted(*args: Any, **fields: Any) -> Any:
            counts[name] += 1
            return function(*args, **fields)

        monkeypatch.setattr(owner, name, counted)

    body = msgspec.json.encode(upload(99.0))
    for owner, name in ((Door, "identify"), (Scorecard, "from_json"), (Scorecard, "to_json")):
        count(owner, name)
    answer = site.client.post("/api/v1/projects/mine/runs", content=body, headers=site.bearer("uploader"))
    assert answer.status_code == 201
    assert counts == {"identify": 2, "from_json": 1, "to_json": 1}
    counts.clear()
    assert site.client.get("/api/v1/projects/mine", headers=site.bearer("reader")).status_code == 200
    assert counts == {"identify": 1}


def test_a_project_keeps_what_its_settings_say(site_on_both: Site) -> None:
    from stepgrade.web.housekeeping import Keeper

    site = site_on_both
    server = site.app.state.server
    with open_history(site.place) as history:
        mine = history.in_project("mine")
        pinned = mine.add(
            NewRun(card=card(), branch="main", labels={"pinned": "yes"}, added_at="2020-01-01T00:00:00+00:00")
        )
        old = mine.add(NewRun(card=card(), branch="main", added_at="2020-01-01T00:00:00+00:00"))
        Team(history.database).set_project("mine", ProjectSettings(keep_days=30))
        project = Team(history.database).project("mine")
        assert project is not None
    Keeper(server.pool).prune(project)
    with open_history(site.place, project="mine") as history:
        numbers = [run.id for run in history.runs()]
        assert pinned in numbers
        assert old not in numbers
        assert set(site.runs) <= set(numbers)
        entries = Team(history.database).audit(project="mine")
        assert [(one.what, one.subject) for one in entries] == [
            ("runs removed", "1 by the project's settings")
        ]


def test_a_waiver_ends(site_on_both: Site) -> None:
    site = site_on_both
    today = dt.datetime.now(dt.UTC).date()
    with open_history(site.place, project="mine") as history:
        alerts = Alerts(history)
        (number,) = site.alerts
        for reason, until in (
            ("", today),
            ("x", None),
            ("x", today - dt.timedelta(days=1)),
            ("x" * 501, today),
        ):
            with pytest.raises(BadOption):
                alerts.change(number, "waived", reason=reason, who="a", until=until)
        alerts.change(number, "waived", reason="known", who="a", until=today)
        assert alerts.count_open() == 0
        assert alerts.reopen_expired(today) == []
        assert [one.id for one in alerts.reopen_expired(today + dt.timedelta(days=1))] == [number]
        assert alerts.count_open() == 1


@pytest.mark.slow
def test_a_trace_is_scored_on_the_server_when_it_may_be(make_site: Callable[..., Site]) -> None:
    site = make_site(accepts_traces=True, most_trace_s=60.0)
    headers = site.bearer("uploader") | {"content-type": "application/octet-stream"}
    body = Path(ROOT / "examples" / "traces" / "gpt_naive.json.gz").read_bytes()
    kept = site.client.post(f"{MINE}/traces?branch=main", content=body, headers=headers)
    assert kept.status_code == 201, kept.text
    shown = site.client.get(f"{MINE}/runs/{kept.json()['id']}", headers=site.bearer("reader")).json()
    assert shown["card"]["operations"]
    for nonsense in (b"", b"no profile", b"\x1f\x8b" + b"0" * 100):
        assert site.client.post(f"{MINE}/traces", content=nonsense, headers=headers).status_code == 422
    odd = site.client.post(f"{MINE}/traces?device=../../etc", content=body, headers=headers)
    assert odd.status_code == 400


def test_what_operators_watch(site: Site) -> None:
    site.client.get(f"{MINE}/count", headers=site.bearer("reader"))
    text = site.client.get("/metrics", headers=site.bearer("reader")).text
    assert (
        f'stepgrade_requests_total{{method="GET",path="{MINE.replace("mine", "{project}")}/count",status="200"}} 1'
        in text
    )
    assert site.client.get("/readyz").json()["status"] == "ok"
    described = site.client.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    assert "/api/v1/projects/{project}/runs" in described["paths"]
    missing = site.client.get("/nothing", headers={"accept": "text/html"})
    assert (missing.status_code, "x-frame-options" in missing.headers) == (404, True)


def test_settings_that_make_no_sense_are_refused(site: Site) -> None:
    bad: list[dict[str, Any]] = [
        {"price_per_device_hour": -1},
        {"price_per_device_hour": 1e300},
        {"currency": "<b>"},
        {"keep_runs": 0},
        {"keep_days": -5},
        {"commit_url": "javascript:alert('{commit}')"},
        {"commit_url": "https://x/{other}"},
        {"unknown": 1},
    ]
    for body in bad:
        assert site.client.put(MINE, json=body, headers=site.bearer("owner")).status_code == 400, body
    good = {"price_per_device_hour": 2.5, "currency": "EUR", "commit_url": "https://git.example/c/{commit}"}
    assert (
        site.client.put(MINE, json=good, headers=site.bearer("owner")).json()["settings"]["currency"] == "EUR"
    )


def test_two_runtimes_meet_by_the_kind_of_work(site: Site) -> None:
    """Kept cards name operations and their kinds: what one runtime calls otherwise is compared all the same."""
    numbers, cards = [], []
    for name in ("gpt_naive", "gpt_fused"):
        cards.append(sg.score(str(ROOT / "examples" / "traces" / f"{name}.json.gz")))
        body = {"card": msgspec.json.decode(cards[-1].to_json()), "branch": "main"}
        sent = site.client.post(f"{MINE}/runs", json=body, headers=site.bearer("uploader"))
        numbers.append(sent.json()["id"])
    which = f"compare?a={numbers[0]}&b={numbers[1]}"
    found = site.client.get(f"{MINE}/{which}", headers=site.bearer("reader")).json()
    kinds = {row["name"]: row for row in found["kinds"]}
    assert kinds["attention"]["before_ms"] is None  # the naive model has its attention in matrix products
    assert kinds["gemm"]["ratio"] < 1.0
    for one, side in zip(cards, ("before_ms", "now_ms"), strict=True):
        total = sum(operation.ms or 0.0 for operation in one.operations)
        assert sum(row[side] or 0.0 for row in found["kinds"]) == pytest.approx(total)
    names = {row["name"]: row for row in found["operations"]}
    assert names["aten::mm"]["before_calls"] == cards[0].operations[0].calls
    assert 0.5 < found["matched_share"] < 1.0
    page = site.client.get(f"/p/mine/{which}", headers=site.bearer("reader")).text
    assert "By kind of work" in page
    assert (
        "of the operations&#39; time has the same name" in page
        or "operations' time has the same name" in page
    )
    assert '<h2 id="operations">' in page

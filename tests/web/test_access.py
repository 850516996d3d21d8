"""Every route and every role, in one table: who may do what, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.web.conftest import ROLES, Site, upload

pytest.importorskip("starlette", reason="starlette is not installed")
from stepgrade.web.app import ENDPOINTS

# The least role in the project `mine` (owner is its admin, admin that of every project; "any" is any token), and what
# to send. What destroys comes last.
JSON, FORM = "json", "form"
TABLE: dict[tuple[str, str], tuple[str, tuple[str, dict[str, Any]] | None, int]] = {
    ("GET", "/healthz"): ("anonymous", None, 200),
    ("GET", "/readyz"): ("anonymous", None, 200),
    ("GET", "/metrics"): ("any", None, 200),
    ("GET", "/openapi.json"): ("anonymous", None, 200),
    ("GET", "/static/style.css"): ("anonymous", None, 200),
    ("GET", "/favicon.ico"): ("anonymous", None, 204),
    ("GET", "/login"): ("anonymous", None, 200),
    ("GET", "/"): ("any", None, 200),
    ("GET", "/admin"): ("admin", None, 200),
    ("GET", "/p/{project}"): ("reader", None, 303),
    ("GET", "/p/{project}/trend"): ("reader", None, 200),
    ("GET", "/p/{project}/runs"): ("reader", None, 200),
    ("GET", "/p/{project}/runs/{run}"): ("reader", None, 200),
    ("GET", "/p/{project}/compare"): ("reader", None, 200),
    ("GET", "/p/{project}/findings"): ("reader", None, 200),
    ("GET", "/p/{project}/alerts"): ("reader", None, 200),
    ("GET", "/p/{project}/settings"): ("owner", None, 200),
    ("GET", "/api/v1/projects"): ("any", None, 200),
    ("GET", "/api/v1/projects/{project}"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/runs"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/runs/{run}"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/count"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/series/{metric}"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/trend/{metric}"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/fingerprints"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/compare"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/findings"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/alerts"): ("reader", None, 200),
    ("GET", "/api/v1/projects/{project}/channels"): ("owner", None, 200),
    ("GET", "/api/v1/tokens"): ("admin", None, 200),
    ("GET", "/api/v1/audit"): ("admin", None, 200),
    ("POST", "/api/v1/projects/{project}/runs"): ("uploader", (JSON, upload()), 201),
    ("POST", "/api/v1/projects/{project}/traces"): (
        "uploader",
        (JSON, {}),
        403,
    ),  # not accepted unless asked for
    ("POST", "/api/v1/projects/{project}/alerts/{alert}"): (
        "uploader",
        (JSON, {"state": "acknowledged", "reason": "x"}),
        200,
    ),
    ("POST", "/p/{project}/alerts/{alert}"): ("uploader", (FORM, {"state": "open"}), 303),
    ("POST", "/api/v1/projects/{project}/channels"): (
        "owner",
        (JSON, {"kind": "slack", "target": "https://hooks.example/x"}),
        201,
    ),
    ("POST", "/p/{project}/channels"): (
        "owner",
        (FORM, {"kind": "slack", "target": "https://hooks.example/x"}),
        303,
    ),
    ("PUT", "/api/v1/projects/{project}"): ("owner", (JSON, {"price_per_device_hour": 2.5}), 200),
    ("POST", "/p/{project}/settings"): ("owner", (FORM, {"price": "3", "currency": "EUR"}), 303),
    ("POST", "/api/v1/projects"): ("admin", (JSON, {"name": "third"}), 201),
    ("POST", "/projects"): ("admin", (FORM, {"name": "fourth"}), 303),
    ("POST", "/api/v1/tokens"): ("admin", (JSON, {"name": "n", "role": "reader"}), 201),
    ("POST", "/admin/tokens"): ("admin", (FORM, {"name": "n", "role": "reader"}), 200),
    ("POST", "/login"): ("anonymous", (FORM, {"token": "sg_wrong"}), 401),
    ("POST", "/admin/tokens/{token}/revoke"): ("admin", (FORM, {}), 303),
    ("DELETE", "/api/v1/tokens/{token}"): ("admin", None, 204),
    ("POST", "/p/{project}/channels/{channel}/remove"): ("owner", (FORM, {}), 303),
    ("DELETE", "/api/v1/projects/{project}/channels/{channel}"): ("owner", None, 204),
    ("DELETE", "/api/v1/projects/{project}/runs/{run}"): ("owner", None, 204),
    ("POST", "/logout"): ("any", (FORM, {}), 303),
    ("DELETE", "/api/v1/projects/{project}"): ("owner", None, 204),
}
PLACES = ("/runs/", "/alerts/", "/channels/", "/tokens/")
NAMES = {"/runs/": "{run}", "/alerts/": "{alert}", "/channels/": "{channel}", "/tokens/": "{token}"}


def test_the_table_has_every_route() -> None:
    there = set()
    for one in ENDPOINTS:
        path = one.path
        for place in PLACES:
            path = path.replace(f"{place}{{number}}", place + NAMES[place])
        there.add((one.method, path))
    assert set(TABLE) == there


def expected(who: str, least: str, path: str, *, is_page: bool, method: str, status: int) -> int:
    """Return the status of a role's request."""
    if least == "anonymous":
        return status
    if who == "anonymous":
        return 303 if is_page and method == "GET" else 401
    if least == "any":
        return status
    if "{project}" in path and who == "stranger":
        return 404
    return status if ROLES.index(who) >= ROLES.index(least) else 403


@pytest.mark.parametrize("who", ROLES)
def test_every_route_for_every_role(site_on_both: Site, who: str) -> None:
    site = site_on_both
    fills = {
        "{project}": "mine",
        "{run}": site.runs[2],
        "{metric}": "step_time_ms",
        "{alert}": site.alerts[0],
    }
    fills |= {"{channel}": site.channel, "{token}": site.spare}
    for (method, path, *_), (least, sent, status) in TABLE.items():
        is_page = not path.startswith(("/api/", "/healthz", "/readyz", "/metrics", "/openapi.json"))
        address = path
        for mark, value in fills.items():
            address = address.replace(mark, str(value))
        if path.endswith("/compare"):
            address += f"?a={site.runs[0]}&b={site.runs[-1]}"
        headers = site.cookies(who) if is_page else site.bearer(who)
        options: dict[str, Any] = {}
        if sent is not None:
            kind, fields = sent
            options = {"json": fields} if kind == JSON else {"data": site.form(who, fields)}
        if (method, path) == ("POST", "/login") and who != "anonymous":
            continue  # its form is of nobody yet; tests/web/test_security.py signs in
        if (method, path) == ("POST", "/login"):
            headers, options = (
                {"cookie": "stepgrade_form=x"},
                {"data": {"token": "sg_wrong", "form_key": "x"}},
            )
        answer = site.client.request(
            method, address, headers=headers | {"accept": "application/json"}, **options
        )
        wanted = expected(who, least, path, is_page=is_page, method=method, status=status)
        assert answer.status_code == wanted, (method, path, who, answer.text[:300])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "content-security-policy" in answer.headers
        if wanted == 303 and who == "anonymous" and least != "anonymous":
            assert answer.headers["location"] == "/login"
        if wanted in (401, 403, 404):
            assert "s3cret" not in answer.text

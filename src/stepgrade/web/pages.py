"""The pages: each answers one question, works without scripts, and offers its table as CSV."""

from __future__ import annotations

import datetime as dt
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from msgspec import structs
from starlette.responses import RedirectResponse, Response

from stepgrade.errors import NotMeasured
from stepgrade.model.scorecard import Fingerprint
from stepgrade.report.content.comparison import show_metric, title_of
from stepgrade.report.content.gate import side_by_side
from stepgrade.report.html.page import PageFrame, framed_page, write
from stepgrade.report.names import shortened
from stepgrade.store.alerts import ACTIVE, CHANNELS, STATES, WATCHED, Alerts, QuietHours
from stepgrade.store.runs import KEPT_METRICS, Selection
from stepgrade.store.tables import (
    FINDINGS_RUNS,
    GROUPED_RUNS,
    SORTS,
    Configuration,
    branches_of,
    configurations,
    count_runs,
    default_branch,
    finding_costs,
    is_better,
    newest_series,
    trend_of,
)
from stepgrade.store.team import ROLES, ProjectSettings
from stepgrade.units import show_count, show_delta, show_number, show_share
from stepgrade.web import api
from stepgrade.web.access import SESSION_COOKIE, Refused
from stepgrade.web.bodies import AlertChange, NewChannel, NewToken, ProjectName
from stepgrade.web.calls import Call, Endpoints, ProjectCall, set_cookie, table_answer
from stepgrade.web.charts import spark, trend_view
from stepgrade.web.comparing import compare_runs
from stepgrade.web.page import fill, style

_PROJECT = "/p/{project}"
_LISTED = 50
_TREND_RUNS = 300
_SPARK_RUNS = 30
_GROUPS = ("device", "model", "batch", "precision")
routes = Endpoints()


def _page(call: Call, template: str, view: dict[str, Any], status: int = 200) -> Response:
    around = {
        "who": call.who,
        "is_open": call.server.settings.access == "localhost",
        "project": call.project.name if call.project else None,
        "form_key": call.who.form_key,
        "is_admin": call.who.may("admin", call.project.name if call.project else None),
        "may_change": call.who.may("uploader", call.project.name if call.project else None),
        "csv": _address(call, format="csv"),
        "json": _address(call, format="json"),
        "show": show_metric,
    }
    return Response(fill(template, around | view), status, media_type="text/html; charset=utf-8")


def _address(call: Call, **changed: object) -> str:
    """Return the URL of this page with some query parameters changed; None removes one."""
    fields = [(name, value) for name, value in call.request.query_params.multi_items() if name not in changed]
    fields += [(name, str(value)) for name, value in changed.items() if value is not None]
    return f"{call.request.url.path}?{urlencode(fields)}" if fields else call.request.url.path


def _back(path: str) -> Response:
    return RedirectResponse(path, 303)


@routes("GET", "/", "reader", any_project=True)
def home(call: Call) -> Response:
    """Show every project with its grade, trend and open alerts."""
    sees, rows = call.who.sees, []
    for project in call.team.projects():
        if sees is not None and project.name not in sees:
            continue
        history = call.history.in_project(project.name)
        recent = history.runs(Selection(limit=_SPARK_RUNS))
        # Prefer the main branch over feature branches.
        branch = project.settings.default_branch or default_branch(history, Selection())
        newest = [run for run in recent if run.branch == branch][-1:] or recent[-1:]
        row: dict[str, Any] = {"project": project.name, "open_alerts": Alerts(history).count_open()}
        row |= {"_spark": None, "runs": count_runs(history)}
        row |= dict.fromkeys(("grade", "added_at", "branch", "step_time_ms", "change"))
        if newest:
            run = newest[0]
            values = newest_series(history, "step_time_ms", run.digest, run.branch, _SPARK_RUNS)
            row |= {"grade": run.grade, "added_at": run.added_at, "branch": run.branch, "id": run.id}
            row |= {"step_time_ms": run.metrics.get("step_time_ms"), "_spark": spark(values)}
            if len(values) > 1 and values[0]:
                row["change"] = values[-1] / values[0] - 1.0
                row["_look"] = "faster" if is_better("step_time_ms", row["change"]) else "slower"
        rows.append(row)
    public = [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]
    if (table := table_answer(call, public, "projects")) is not None:
        return table
    for row in rows:
        row["shown_step"] = show_metric("step_time_ms", row["step_time_ms"])
        row["shown_change"] = "" if row["change"] is None else show_delta(row["change"])
    address = call.server.settings.public_url or str(call.request.base_url).rstrip("/")
    return _page(call, "projects.html", {"title": "Projects", "rows": rows, "address": address})


@routes("GET", _PROJECT, "reader")
def open_project(call: ProjectCall) -> Response:
    """Redirect to the trend page."""
    return _back(f"/p/{quote(call.project.name)}/trend")


@routes("GET", f"{_PROJECT}/trend", "reader")
def trend(call: ProjectCall) -> Response:
    """Show a metric over the runs of a branch, with its levels, noise and commits."""
    metric = call.query("metric") or "step_time_ms"
    which = structs.replace(api.selection(call), limit=call.number("limit", _TREND_RUNS, 5000))
    which = api.on_a_branch(call, which)
    view: dict[str, Any] = {
        "title": f"Trend of {title_of(metric)}",
        "metric": metric,
        "metrics": [(name, title_of(name)) for name in KEPT_METRICS],
        "branches": branches_of(call.history),
        "branch": which.branch,
        "fingerprints": [
            (digest, setup_line(print_))
            for digest, print_ in sorted(call.history.fingerprints().items())[:200]
        ],
        "fingerprint": call.query("fingerprint"),
        "limit": which.limit,
        "chart": None,
    }
    if metric not in KEPT_METRICS:
        raise Refused(404, "unknown metric")
    try:
        found = trend_of(call.history, metric, which)
    except NotMeasured as error:
        return _page(call, "trend.html", view | {"why": error.problem})
    view["branch"] = found.branch
    commits = call.history.commits([point.id for point in found.points])
    rows: list[dict[str, Any]] = [
        {"run": point.id, "commit": commits.get(point.id), metric: point.value}
        for point in reversed(found.points)
    ]
    if (table := table_answer(call, rows, f"trend-{metric}")) is not None:
        return table
    cells = [(row["run"], (row["commit"] or "")[:12], show_metric(metric, row[metric])) for row in rows]
    view |= {
        "chart": trend_view(found, commits),
        "where": setup_line(call.history.fingerprints().get(found.digest, Fingerprint())),
        "count": len(found.points),
        "rows": cells,
        "commit_url": call.project.settings.commit_url,
    }
    return _page(call, "trend.html", view)


def setup_line(fingerprint: Fingerprint) -> str:
    """Return a fingerprint in one line."""
    parts = [
        fingerprint.device,
        fingerprint.model,
        f"batch {fingerprint.batch}" if fingerprint.batch else None,
        f"seq {fingerprint.seq}" if fingerprint.seq else None,
        fingerprint.precision,
        f"{fingerprint.world_size} ranks" if fingerprint.world_size else None,
    ]
    return shortened(" · ".join(part for part in parts if part) or "unknown setup", 120)


@routes("GET", f"{_PROJECT}/runs", "reader")
def runs(call: Call) -> Response:
    """Show runs, filtered and sorted, and the fastest configuration of each model."""
    entries, after = api.entries_page(call, _LISTED, 500)
    if (table := api.runs_table(call, entries)) is not None:
        return table
    sort, is_rising = call.query("sort") or "added", call.query("order") == "rising"
    heads = []
    for name, title in (("added", "added"), *((name, title_of(name)) for name in SORTS[1:])):
        turned = {"sort": name, "order": "rising" if name == "step_time_ms" else None}
        if sort == name:
            turned["order"] = "falling" if is_rising else "rising"
        state = ("ascending" if is_rising else "descending") if sort == name else None
        heads.append({"title": title, "href": _address(call, **turned, after=None), "sorted": state})
    group = call.query("group") if call.query("group") in _GROUPS else None
    prints = call.history.fingerprints()
    # The best configuration of each model, or of each group, by throughput, else by step time.
    best: dict[str, Configuration] = {}
    for one in configurations(call.history, api.selection(call)):
        key = str(getattr(prints.get(one.digest), group or "model", None) or "not known")
        best[key] = max(best.get(key, one), one, key=lambda each: each.speed)
    view = {
        "title": "Which is fastest?",
        "heads": heads,
        "rows": [
            (
                entry.run,
                setup_line(entry.fingerprint),
                ", ".join(f"{name}={value}" for name, value in sorted(entry.run.labels.items())),
            )
            for entry in entries
        ],
        "sorts": SORTS[1:],
        "next": None if after is None else _address(call, after=after),
        "first": _address(call, after=None) if call.query("after") else None,
        "branches": branches_of(call.history),
        "given": {
            name: call.query(name) or "" for name in ("branch", "grade", "commit", "device", "model", "by")
        },
        "label": call.query("label") or "",
        "groups": _GROUPS,
        "group": group,
        "best": [
            (shortened(key, 80), setup_line(prints.get(one.digest, Fingerprint())), one)
            for key, one in sorted(best.items())[:100]
        ],
        "grouped": GROUPED_RUNS,
        "count": count_runs(call.history),
    }
    return _page(call, "runs.html", view)


@routes("GET", f"{_PROJECT}/runs/{{number}}", "reader")
def run(call: ProjectCall) -> Response:
    """Show the report of a run, with links to its project."""
    row, name = call.run(), quote(call.project.name)
    number = row.id
    earlier = call.history.runs(Selection(before=number, digests=(row.digest,), branch=row.branch, limit=1))
    links = [("Projects", "/"), (call.project.name, f"/p/{name}/trend"), ("Runs", f"/p/{name}/runs")]
    if earlier:
        links.append((f"Compare with run {earlier[0].id}", f"/p/{name}/compare?a={earlier[0].id}&b={number}"))
    origin = call.history.origins([number]).get(number)
    facts = [("run", str(number)), ("added", row.added_at), ("branch", row.branch), ("commit", row.commit)]
    facts += [("by", origin.added_by if origin else None), *sorted(row.labels.items())]
    frame = PageFrame(
        links=tuple(links), facts=tuple((key, shortened(value, 80)) for key, value in facts if value)
    )
    page, policy = framed_page("scorecard", call.history.card(number), frame)
    headers = {"content-security-policy": f"{policy}; frame-ancestors 'none'"}
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


@routes("GET", f"{_PROJECT}/compare", "reader")
def compare(call: ProjectCall) -> Response:
    """Show what changed between two runs, by account and by operation."""
    choices = []
    for one in reversed(call.history.runs(Selection(limit=200))):
        step = show_metric("step_time_ms", one.metrics.get("step_time_ms"))
        parts = [f"run {one.id}", one.branch, (one.commit or "")[:10], step]
        choices.append((one.id, shortened(" · ".join(part for part in parts if part), 100)))
    view: dict[str, Any] = {
        "title": "Compare two runs",
        "choices": choices,
        "a": call.query("a"),
        "b": call.query("b"),
        "found": None,
    }
    if call.query("a") is None or call.query("b") is None:
        return _page(call, "compare.html", view)
    a, b = call.number("a", 0, 2**62), call.number("b", 0, 2**62)
    report, pairs = compare_runs(call.history, a, b)
    if (table := table_answer(call, pairs.operations, f"runs-{a}-{b}")) is not None:
        return table
    view |= {"found": side_by_side(report), "write": write, "a": str(a), "b": str(b)}
    for name, some in (("pairs", pairs.operations), ("kinds", pairs.kinds)):
        rows = []
        for pair in some:
            calls = dict.fromkeys(show_count(count) for count in (pair.before_calls, pair.now_calls))
            rows.append((pair, " → ".join(calls)))  # one number if both are the same
        view[name] = rows
    return _page(call, "compare.html", view | {"matched": pairs.matched_share})


@routes("GET", f"{_PROJECT}/findings", "reader")
def findings(call: ProjectCall) -> Response:
    """Show the findings of the newest runs by cost."""
    costs = finding_costs(
        call.history, api.selection(call, call.number("limit", FINDINGS_RUNS, FINDINGS_RUNS))
    )
    settings = call.project.settings
    price = settings.price_per_device_hour
    rows = []
    for cost in costs:
        row = msgspec.to_builtins(cost)
        row["cost_low"] = None if price is None or cost.hours_low is None else cost.hours_low * price
        row["cost_high"] = None if price is None or cost.hours_high is None else cost.hours_high * price
        rows.append(row)
    if (table := table_answer(call, rows, "findings")) is not None:
        return table
    most = max((row["hours_high"] or 0.0 for row in rows), default=0.0)
    for row in rows:
        row["width"] = (row["hours_high"] or 0.0) / most * 100.0 if most else row["gain_high"] * 100.0
        row["gain"] = f"{show_share(row['gain_low'])} to {show_share(row['gain_high'])}"
        row["hours"] = (
            "not known" if row["hours_high"] is None else _range(row["hours_low"], row["hours_high"])
        )
        row["money"] = None if row["cost_high"] is None else _range(row["cost_low"], row["cost_high"])
    view = {
        "title": "Findings by cost",
        "rows": rows,
        "price": price,
        "currency": settings.currency,
        "most": FINDINGS_RUNS,
        "branches": branches_of(call.history),
        "branch": call.query("branch"),
    }
    return _page(call, "findings.html", view)


def _range(low: float, high: float) -> str:
    texts = [show_number(value) for value in (low, high)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


@routes("GET", f"{_PROJECT}/alerts", "reader")
def alerts(call: Call) -> Response:
    """Show alerts and their state."""
    states = [state for state in call.request.query_params.getlist("state") if state in STATES]
    found = Alerts(call.history).listed(states) if states else Alerts(call.history).listed()
    today = dt.datetime.now(dt.UTC).date()
    view = {
        "title": "Alerts",
        "groups": [
            (state, [one for one in found if one.state == state])
            for state in STATES
            if not states or state in states
        ],
        "found": found,
        "active": ACTIVE,
        "show_delta": show_delta,
        "title_of": title_of,
        "today": today.isoformat(),
        "soon": (today + dt.timedelta(days=14)).isoformat(),
        "last_day": (today + dt.timedelta(days=366)).isoformat(),
    }
    return table_answer(call, found, "alerts") or _page(call, "alerts.html", view)


@routes("POST", f"{_PROJECT}/alerts/{{number}}", "uploader")
def change_alert(call: ProjectCall) -> Response:
    """Acknowledge, waive or reopen an alert."""
    fields = call.form()
    until = None
    if fields.get("until") and fields.get("state") == "waived":
        try:
            until = dt.date.fromisoformat(fields["until"])
        except ValueError:
            raise Refused(400, "not a date; write it like 2026-03-01") from None
    change = AlertChange(state=fields.get("state", ""), reason=fields.get("reason", ""), until=until)
    api.change_alert(call, change)
    return _back(f"/p/{quote(call.project.name)}/alerts#alert-{call.path_id()}")


@routes("GET", f"{_PROJECT}/settings", "admin")
def settings(call: ProjectCall) -> Response:
    """Show the project's settings: price, retention and alert channels."""
    channels = api.list_channels(call)
    view = {"title": "Settings", "settings": call.project.settings, "channels": channels, "kinds": CHANNELS}
    view["watched"] = [(name, title_of(name)) for name in WATCHED]
    return _page(call, "settings.html", view)


@routes("POST", f"{_PROJECT}/settings", "admin")
def change_settings(call: ProjectCall) -> Response:
    """Change the project's settings."""
    fields = call.form()
    try:
        new = ProjectSettings(
            price_per_device_hour=float(text) if (text := fields.get("price")) else None,
            currency=fields.get("currency") or "USD",
            keep_runs=int(text) if (text := fields.get("keep_runs")) else None,
            keep_days=int(text) if (text := fields.get("keep_days")) else None,
            commit_url=fields.get("commit_url") or None,
            branches=tuple(name for name in (fields.get("branches") or "").split() if name),
            default_branch=fields.get("default_branch") or None,
            alert_from={
                name: float(text) / 100.0 for name in WATCHED if (text := fields.get(f"alert_from_{name}"))
            },
        )
    except ValueError:
        raise Refused(400, "not a number") from None
    api.change_project(call, new)
    return _back(f"/p/{quote(call.project.name)}/settings")


@routes("POST", f"{_PROJECT}/channels", "admin")
def add_channel(call: ProjectCall) -> Response:
    """Add an alert channel."""
    fields = call.form()
    hours = [fields.get(name, "0") or "0" for name in ("quiet_begin", "quiet_end")]
    if not all(text.isascii() and text.isdecimal() and len(text) < 3 for text in hours):
        raise Refused(400, "quiet hours must be from 0 to 23")
    quiet = QuietHours(begin=int(hours[0]), end=int(hours[1]))
    new = NewChannel(
        kind=fields.get("kind", ""),
        target=fields.get("target", ""),
        secret=fields.get("secret", ""),
        quiet=quiet,
    )
    api.add_channel(call, new)
    return _back(f"/p/{quote(call.project.name)}/settings")


@routes("POST", f"{_PROJECT}/channels/{{number}}/remove", "admin")
def remove_channel(call: ProjectCall) -> Response:
    """Remove an alert channel."""
    api.remove_channel(call)
    return _back(f"/p/{quote(call.project.name)}/settings")


@routes("GET", "/admin", "admin")
def admin(call: Call, secret: str | None = None) -> Response:
    """Show tokens, the audit log, and the secret of a new token."""
    entries = call.team.audit(limit=call.number("limit", 100, 1000))
    if secret is None and (table := table_answer(call, entries, "audit")) is not None:
        return table
    view = {
        "title": "Tokens and audit log",
        "tokens": call.team.tokens(),
        "audit": entries,
        "roles": ROLES,
        "projects": [one.name for one in call.team.projects()],
        "secret": secret,
    }
    return _page(call, "admin.html", view)


@routes("POST", "/admin/tokens", "admin")
def add_token(call: Call) -> Response:
    """Create a token and show its secret once."""
    fields = call.form()
    days = fields.get("days", "90")
    role = next((one for one in ROLES if one == fields.get("role")), None)
    if role is None or not (days.isascii() and days.isdecimal() and len(days) < 5):
        raise Refused(400, "a token needs a role and a lifetime from 1 to 3,650 days")
    new = NewToken(
        name=fields.get("name", ""), role=role, project=fields.get("project") or None, days=int(days)
    )
    return admin(call, api.add_token(call, new).secret)


@routes("POST", "/admin/tokens/{number}/revoke", "admin")
def revoke_token(call: Call) -> Response:
    """Revoke a token."""
    api.revoke_token(call)
    return _back("/admin")


@routes("POST", "/projects", "admin")
def add_project(call: Call) -> Response:
    """Create a project and redirect to it."""
    new = ProjectName(name=call.form().get("name", "").strip())
    api.add_project(call, new)
    return _back(f"/p/{quote(new.name)}/trend")


@routes("GET", "/login", None)
def login(call: Call) -> Response:
    """Show the sign-in form."""
    return _page(call, "login.html", {"title": "Sign in"})


@routes("POST", "/login", None)
def sign_in(call: Call) -> Response:
    """Open a session for a token; a session that the browser already has is closed, never reused."""
    old = call.request.cookies.get(SESSION_COOKIE)
    if old:
        call.team.close_session(old)
    token = call.server.door.token(call.form().get("token", "").strip(), call.request, call.team)
    response = _back("/")
    set_cookie(response, call.server.settings, SESSION_COOKIE, call.team.open_session(token))
    call.team.note(token.name, "signed in")
    return response


@routes("POST", "/logout", "reader", any_project=True)
def sign_out(call: Call) -> Response:
    """Close the session."""
    call.team.close_session(call.request.cookies.get(SESSION_COOKIE, ""))
    response = _back("/login")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@routes("GET", "/static/style.css", None)
def css(_: Call) -> Response:
    """Return the style sheet."""
    return Response(style(), media_type="text/css", headers={"cache-control": "max-age=3600"})


@routes("GET", "/favicon.ico", None)
def icon(_: Call) -> Response:
    """Return no icon, cacheable, so that browsers do not ask again."""
    return Response(status_code=204, headers={"cache-control": "max-age=86400"})

"""The HTTP API: JSON in and out, under /api/v1."""

from __future__ import annotations

import datetime as dt
import math
import re
from typing import Any

import msgspec
from starlette.responses import Response

from stepgrade.compare.fingerprint import FIELDS
from stepgrade.errors import BadOption
from stepgrade.model import Fingerprint
from stepgrade.model.run import RunRow, Trend
from stepgrade.store.alerts import CHANNELS, Alert, Alerts, ChannelState, QuietHours
from stepgrade.store.runs import KEPT_METRICS, RunOrigin, Selection
from stepgrade.store.tables import FindingCost, count_runs, finding_costs, page_of_runs
from stepgrade.store.team import AuditEntry, Project, ProjectSettings, Role, Token
from stepgrade.store.trend import trend_of
from stepgrade.web.access import Refused
from stepgrade.web.bodies import (
    AlertChange,
    MadeToken,
    MetricSeries,
    NewChannel,
    NewToken,
    ProjectName,
    RunEntries,
    RunEntry,
    RunKept,
    RunUpload,
    ShownChannel,
)
from stepgrade.web.calls import Call, Endpoint, ProjectCall, json_answer, table_answer
from stepgrade.web.comparing import Compared, compare_cards
from stepgrade.web.targets import check_channel
from stepgrade.web.uploads import MOST_WORD, add_run, add_trace, moment_of

_MOST_PAGE = 500
_MOST_CARDS = 20
_MOST_FILTERS = 16


def selection(call: Call, limit: int | None = None) -> Selection:
    """Return the query parameters as a selection of runs."""
    labels: dict[str, str] = {}
    for text in call.request.query_params.getlist("label"):
        name, sign, value = text.partition("=")
        if sign and name:
            labels[name] = value
    if len(labels) > _MOST_FILTERS:
        raise Refused(400, f"at most {_MOST_FILTERS} labels")
    chosen = {name: wanted for name in FIELDS if name != "versions" and (wanted := call.query(name))}
    digests: tuple[str, ...] | None = None
    if given := [text for text in call.request.query_params.getlist("fingerprint") if text][:500]:
        digests = tuple(given)
    elif chosen:
        digests = tuple(
            digest
            for digest, other in call.history.fingerprints().items()
            if all(f"{getattr(other, name)}".removesuffix(".0") == wanted for name, wanted in chosen.items())
        )
    return Selection(
        branch=call.query("branch"),
        digests=digests,
        labels=labels,
        grade=call.query("grade"),
        commit=call.query("commit"),
        added_by=call.query("by"),
        since=_since(call, "since"),
        until=_since(call, "until"),
        limit=limit,
    )


def _since(call: Call, name: str) -> str | None:
    """Return a query parameter, a day or a time, in the format of `added_at`."""
    text = call.query(name)
    if text is None:
        return None
    try:
        if len(text) == len("2026-03-01"):
            return dt.date.fromisoformat(text).isoformat()
        # A + in a URL is decoded as a space.
        return moment_of(text.replace(" ", "+")).isoformat(timespec="seconds")
    except ValueError:
        raise Refused(400, f"{name} must be a date or a time like 2026-03-01T12:00:00+00:00") from None


def list_projects(call: Call) -> Response:
    """Return the projects that the caller may read."""
    sees = call.who.sees
    return json_answer([item for item in call.team.projects() if sees is None or item.name in sees])


def add_project(call: Call) -> Response:
    """Create a project."""
    name = call.read(ProjectName).name
    is_new = call.team.add_project(name)
    if is_new:
        call.note("project made", name)
    return json_answer(call.team.project(name), 201 if is_new else 200)


def show_project(call: ProjectCall) -> Response:
    """Return a project and its settings."""
    return json_answer(call.project)


def change_project(call: ProjectCall) -> Response:
    """Replace a project's settings."""
    settings = checked_settings(call.read(ProjectSettings))
    call.team.set_project(call.project.name, settings)
    call.note("settings changed")
    return json_answer(call.team.project(call.project.name))


def checked_settings(settings: ProjectSettings) -> ProjectSettings:
    """Return the settings; raise Refused if they are invalid."""
    price, url = settings.price_per_device_hour, settings.commit_url
    if price is not None and not (math.isfinite(price) and 0 <= price <= 1e6):
        raise Refused(400, "price_per_device_hour must be from 0 to 1,000,000")
    if not re.fullmatch(r"[A-Z]{3}", settings.currency):
        raise Refused(400, "currency must be three capital letters, such as EUR")
    if any(
        value is not None and not 1 <= value <= most
        for value, most in ((settings.keep_runs, 10**7), (settings.keep_days, 36_500))
    ):
        raise Refused(400, "keep_runs must be from 1 to 10,000,000, keep_days from 1 to 36,500")
    if len(settings.branches) > 100 or any(len(name) > MOST_WORD for name in settings.branches):
        raise Refused(400, f"at most 100 branches of at most {MOST_WORD} characters")
    if url is not None and not re.fullmatch(r"https?://[\w.:/~@%+=&?#-]*\{commit\}[\w.:/-]*", url):
        raise Refused(400, "commit_url must be like https://host/team/model/commit/{commit}")
    return settings


def remove_project(call: ProjectCall) -> Response:
    """Delete a project and everything in it."""
    call.team.remove_project(call.project.name)
    call.team.note(call.who.name, "project removed", subject=call.project.name)
    return Response(status_code=204)


def list_runs(call: Call) -> Response:
    """Return a page of runs."""
    has_cards = call.query("cards") == "1"
    limit = call.number("limit", 50, _MOST_CARDS if has_cards else _MOST_PAGE)
    page = page_of_runs(
        call.history,
        selection(call, limit),
        sort=call.query("sort") or "added",
        is_rising=call.query("order") == "rising",
        after=call.query("after"),
    )
    entries = entries_of(call, page.runs, has_cards=has_cards)
    if (table := table_answer(call, [flat(entry) for entry in entries], "runs")) is not None:
        return table
    return json_answer(RunEntries(runs=entries, next=page.next))


def entries_of(call: Call, runs: tuple[RunRow, ...], *, has_cards: bool = False) -> list[RunEntry]:
    """Return runs with their origin, fingerprint and, if wanted, scorecard."""
    numbers = [run.id for run in runs]
    origins, prints = call.history.origins(numbers), call.history.fingerprints()
    cards = call.history.cards(numbers) if has_cards else {}
    return [
        RunEntry(
            run=run,
            origin=origins.get(run.id, RunOrigin(key=None, added_by=None, device_hours=None)),
            fingerprint=prints.get(run.digest, Fingerprint()),
            card=cards[run.id].to_dict() if run.id in cards else None,
        )
        for run in runs
    ]


def flat(entry: RunEntry) -> dict[str, Any]:
    """Return a run as a row of a table."""
    run, origin, where = entry.run, entry.origin, entry.fingerprint
    row: dict[str, Any] = {"id": run.id, "added_at": run.added_at, "branch": run.branch, "commit": run.commit}
    row |= {"grade": run.grade, **run.metrics, "device": where.device, "model": where.model}
    row |= {
        "batch": where.batch,
        "seq": where.seq,
        "world_size": where.world_size,
        "precision": where.precision,
    }
    return row | {"fingerprint": run.digest, "labels": run.labels, **msgspec.to_builtins(origin)}


def show_run(call: Call) -> Response:
    """Return a run and its scorecard."""
    number = call.path_id()
    found = call.history.runs(Selection(after=number - 1, before=number + 1))
    if not found:
        raise Refused(404, "run not found")
    return json_answer(entries_of(call, tuple(found), has_cards=True)[0])


def remove_run(call: Call) -> Response:
    """Delete a run."""
    number = call.path_id()
    if not call.history.runs(Selection(after=number - 1, before=number + 1)):
        raise Refused(404, "run not found")
    call.history.remove([number])
    call.note("run removed", str(number))
    return Response(status_code=204)


def _metric(call: Call) -> str:
    name = str(call.request.path_params["metric"])
    if name not in KEPT_METRICS:
        raise Refused(404, f"unknown metric; known: {', '.join(KEPT_METRICS)}")
    return name


def series(call: Call) -> Response:
    """Return a metric of the selected runs."""
    which = selection(call, call.number("limit", 1000, 100_000))
    return json_answer(MetricSeries(points=call.history.series(_metric(call), which)))


def trend(call: Call) -> Response:
    """Return a metric over time and where its level changed."""
    which = selection(call, call.number("limit", 1000, 10_000))
    return json_answer(trend_of(call.history, _metric(call), which))


def fingerprints(call: Call) -> Response:
    """Return the fingerprints of the project's runs."""
    return json_answer(call.history.fingerprints())


def compare(call: Call) -> Response:
    """Return the comparison of run `b` with run `a`."""
    most = 2**62
    return json_answer(compare_cards(call.history, call.number("a", 0, most), call.number("b", 0, most)))


def findings(call: Call) -> Response:
    """Return the findings of the newest runs and what they cost."""
    costs = finding_costs(call.history, selection(call, call.number("limit", 1000, 1000)))
    rows = [msgspec.to_builtins(cost) for cost in costs]
    return table_answer(call, rows, "findings") or json_answer(costs)


def list_alerts(call: Call) -> Response:
    """Return alerts, newest first."""
    states = call.request.query_params.getlist("state")[:_MOST_FILTERS]
    alerts = Alerts(call.history)
    found = alerts.listed(states) if states else alerts.listed()
    rows = [msgspec.to_builtins(alert) for alert in found]
    return table_answer(call, rows, "alerts") or json_answer(found)


def change_alert(call: Call) -> Response:
    """Acknowledge, waive, resolve or reopen an alert."""
    change: AlertChange = call.read(AlertChange)
    return json_answer(changed_alert(call, change))


def changed_alert(call: Call, change: AlertChange) -> Alert | None:
    """Update an alert and return it; raise Refused if it does not exist."""
    number, alerts = call.path_id(), Alerts(call.history)
    if alerts.alert(number) is None:
        raise Refused(404, "alert not found")
    alerts.change(number, change.state, reason=change.reason, who=call.who.name, until=change.until)
    call.note(f"alert {change.state}", f"{number}: {change.reason}")
    return alerts.alert(number)


def list_channels(call: Call) -> Response:
    """Return the project's channels."""
    return json_answer(shown_channels(call))


def shown_channels(call: Call) -> list[ShownChannel]:
    """Return the project's channels without secrets, and the state of their deliveries."""
    alerts = Alerts(call.history)
    states = alerts.channel_states()
    return [
        shown_channel(item.id, item.kind, item.target, item.quiet, states.get(item.id, ChannelState()))
        for item in alerts.channels()
    ]


def shown_channel(
    number: int,
    kind: str,
    target: str,
    quiet: QuietHours,
    state: ChannelState = ChannelState(),  # noqa: B008  frozen
) -> ShownChannel:
    """Return a channel without secrets: the path of a webhook is a password."""
    shown = target if kind == "email" else "/".join(target.split("/")[:3]) + "/…"
    return ShownChannel(id=number, kind=kind, target=shown, quiet=quiet, state=state)


def add_channel(call: Call) -> Response:
    """Add an alert channel."""
    new: NewChannel = call.read(NewChannel)
    number = added_channel(call, new)
    return json_answer(shown_channel(number, new.kind, new.target, new.quiet), 201)


def added_channel(call: Call, new: NewChannel) -> int:
    """Add a channel if its target is allowed, and return its id."""
    if new.kind not in CHANNELS:
        raise BadOption(f"unknown kind of channel {new.kind!r}", hint=f"one of {', '.join(CHANNELS)}")
    check_channel(new.kind, new.target, new.secret, call.server.settings)
    number = Alerts(call.history).add_channel(new.kind, new.target, new.secret, new.quiet)
    call.note("channel added", f"{number}: {new.kind}")
    return number


def remove_channel(call: Call) -> Response:
    """Remove a channel."""
    Alerts(call.history).remove_channel(call.path_id())
    call.note("channel removed", str(call.path_id()))
    return Response(status_code=204)


def list_tokens(call: Call) -> Response:
    """Return all tokens without their secrets."""
    return json_answer(call.team.tokens())


def add_token(call: Call) -> Response:
    """Create a token."""
    new: NewToken = call.read(NewToken)
    secret, token = call.team.add_token(
        new.name, new.role, project=new.project, days=new.days, created_by=call.who.name
    )
    call.note("token made", f"{token.id}: {token.name}, {token.role} of {token.project or 'every project'}")
    return json_answer(MadeToken(secret=secret, token=token), 201)


def revoke_token(call: Call) -> Response:
    """Revoke a token."""
    if not call.team.revoke(call.path_id()):
        raise Refused(404, "token not found")
    call.note("token revoked", str(call.path_id()))
    return Response(status_code=204)


def audit(call: Call) -> Response:
    """Return the audit log, newest first."""
    before = call.number("before", 2**62, 2**62)
    found = call.team.audit(before=before, limit=call.number("limit", 100, 1000))
    rows = [msgspec.to_builtins(entry) for entry in found]
    return table_answer(call, rows, "audit") or json_answer(found)


def count(call: Call) -> Response:
    """Return the number of runs in the project."""
    return json_answer({"runs": count_runs(call.history)})


_ROOT, _PROJECT = "/api/v1", "/api/v1/projects/{project}"
_FILTERS = ("branch", "fingerprint", "grade", "commit", "by", "since", "until", "label", "device", "model")
_TABLE = ("sort", "order", "after", "limit", "cards", "format")


def _reads(path: str, handle: Any, summary: str, answer: Any, query: tuple[str, ...] = ()) -> Endpoint:
    return Endpoint(
        method="GET",
        path=_PROJECT + path,
        handle=handle,
        needs="reader",
        summary=summary,
        answer=answer,
        query=query,
    )


def _does(method: str, path: str, handle: Any, needs: Role, summary: str, **more: Any) -> Endpoint:
    return Endpoint(method=method, path=path, handle=handle, needs=needs, summary=summary, **more)


ENDPOINTS: tuple[Endpoint, ...] = (
    _does(
        "GET",
        f"{_ROOT}/projects",
        list_projects,
        "reader",
        "List the projects you may read",
        any_project=True,
        answer=list[Project],
    ),
    _does(
        "POST",
        f"{_ROOT}/projects",
        add_project,
        "admin",
        "Create a project",
        body=ProjectName,
        answer=Project,
        status=201,
    ),
    _reads("", show_project, "Get a project and its settings", Project),
    _does(
        "PUT",
        _PROJECT,
        change_project,
        "admin",
        "Replace a project's settings",
        body=ProjectSettings,
        answer=Project,
    ),
    _does("DELETE", _PROJECT, remove_project, "admin", "Delete a project and its runs", status=204),
    _reads("/runs", list_runs, "List runs", RunEntries, _FILTERS + _TABLE),
    _does(
        "POST",
        f"{_PROJECT}/runs",
        add_run,
        "uploader",
        "Upload a run",
        body=RunUpload,
        answer=RunKept,
        status=201,
    ),
    _does(
        "POST",
        f"{_PROJECT}/traces",
        add_trace,
        "uploader",
        "Upload a profile to be scored",
        answer=RunKept,
        status=201,
        query=("device", "commit", "branch"),
        takes_trace=True,
    ),
    _reads("/runs/{number}", show_run, "Get a run and its scorecard", RunEntry),
    _does("DELETE", f"{_PROJECT}/runs/{{number}}", remove_run, "admin", "Delete a run", status=204),
    _reads("/count", count, "Count the runs", dict[str, int]),
    _reads("/series/{metric}", series, "Get a metric of selected runs", MetricSeries, (*_FILTERS, "limit")),
    _reads(
        "/trend/{metric}",
        trend,
        "Get a metric and its changes of level",
        Trend,
        (*_FILTERS, "limit"),
    ),
    _reads("/fingerprints", fingerprints, "List the fingerprints of the runs", dict[str, Fingerprint]),
    _reads("/compare", compare, "Compare run b with run a", Compared, ("a", "b")),
    _reads(
        "/findings",
        findings,
        "List findings by cost",
        list[FindingCost],
        (*_FILTERS, "limit", "format"),
    ),
    _reads("/alerts", list_alerts, "List alerts, newest first", list[Alert], ("state", "format")),
    _does(
        "POST",
        f"{_PROJECT}/alerts/{{number}}",
        change_alert,
        "uploader",
        "Update an alert: acknowledge, waive, resolve or reopen it",
        body=AlertChange,
        answer=Alert,
    ),
    _does(
        "GET",
        f"{_PROJECT}/channels",
        list_channels,
        "admin",
        "List alert channels",
        answer=list[ShownChannel],
    ),
    _does(
        "POST",
        f"{_PROJECT}/channels",
        add_channel,
        "admin",
        "Add an alert channel",
        body=NewChannel,
        answer=ShownChannel,
        status=201,
    ),
    _does(
        "DELETE",
        f"{_PROJECT}/channels/{{number}}",
        remove_channel,
        "admin",
        "Remove an alert channel",
        status=204,
    ),
    _does(
        "GET",
        f"{_ROOT}/tokens",
        list_tokens,
        "admin",
        "List tokens, without their secrets",
        answer=list[Token],
    ),
    _does(
        "POST",
        f"{_ROOT}/tokens",
        add_token,
        "admin",
        "Create a token",
        body=NewToken,
        answer=MadeToken,
        status=201,
    ),
    _does("DELETE", f"{_ROOT}/tokens/{{number}}", revoke_token, "admin", "Revoke a token", status=204),
    _does(
        "GET",
        f"{_ROOT}/audit",
        audit,
        "admin",
        "Get the audit log",
        answer=list[AuditEntry],
        query=("before", "limit", "format"),
    ),
)

"""The HTTP API: JSON in and out, under /api/v1."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
from typing import Any

import msgspec
from starlette.responses import Response

from stepgrade.compare.fingerprint import FIELDS
from stepgrade.errors import BadOption
from stepgrade.model.comparison import RunRow, Trend
from stepgrade.model.scorecard import Fingerprint, Scorecard
from stepgrade.store.alerts import CHANNELS, WATCHED, Alert, Alerts, ChannelState
from stepgrade.store.runs import KEPT_METRICS, NewRun, RunOrigin, Selection
from stepgrade.store.tables import FindingCost, count_runs, finding_costs, page_of_runs, trend_of
from stepgrade.store.team import AuditEntry, Project, ProjectSettings, Token
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
from stepgrade.web.calls import Call, Endpoints, ProjectCall, TraceCall, json_answer, table_answer
from stepgrade.web.comparing import Compared, compare_runs
from stepgrade.web.outgoing import check_channel

_ROOT, _PROJECT = "/api/v1", "/api/v1/projects/{project}"
_FILTERS = ("branch", "fingerprint", "grade", "commit", "by", "since", "until", "label", "device", "model")
_TABLE = ("sort", "order", "after", "limit", "cards", "format")
_MOST_PAGE = 500
_MOST_CARDS = 20
_MOST_FILTERS = 16
_FIRST_MOMENT = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_KEY = r"[A-Za-z0-9._:-]{1,128}"
_MOST_LABELS = 8_192  # characters of all labels of a run
MOST_WORD = 300
routes = Endpoints()


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


def on_a_branch(call: ProjectCall, which: Selection) -> Selection:
    """Return the selection of one branch: the project's default one where the query names none."""
    return msgspec.structs.replace(which, branch=which.branch or call.project.settings.default_branch)


def _since(call: Call, name: str) -> str | None:
    """Return a query parameter, a day or a time, in the format of `added_at`."""
    text = call.query(name)
    if text is None:
        return None
    try:
        if len(text) == len("2026-03-01"):
            return dt.date.fromisoformat(text).isoformat()
        # A + in a URL is decoded as a space.
        return _moment(text.replace(" ", "+")).isoformat(timespec="seconds")
    except ValueError:
        raise Refused(400, f"{name} must be a date or a time like 2026-03-01T12:00:00+00:00") from None


def _moment(text: str) -> dt.datetime:
    """Return a time in UTC, which is also the default zone; raise ValueError if it is invalid."""
    moment = dt.datetime.fromisoformat(text)
    try:
        return (moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment).astimezone(dt.UTC)
    except OverflowError:
        raise ValueError("out of range") from None


@routes("GET", f"{_ROOT}/projects", "reader", any_project=True, answer=list[Project])
def list_projects(call: Call) -> list[Project]:
    """List the projects you may read."""
    sees = call.who.sees
    return [item for item in call.team.projects() if sees is None or item.name in sees]


@routes("POST", f"{_ROOT}/projects", "admin", body=ProjectName, answer=Project, status=201)
def add_project(call: Call, new: ProjectName) -> Response:
    """Create a project."""
    is_new = call.team.add_project(new.name)
    if is_new:
        call.note("project made", new.name)
    return json_answer(call.team.project(new.name), 201 if is_new else 200)


@routes("GET", _PROJECT, "reader", answer=Project)
def show_project(call: ProjectCall) -> Project:
    """Get a project and its settings."""
    return call.project


@routes("PUT", _PROJECT, "admin", body=ProjectSettings, answer=Project)
def change_project(call: ProjectCall, settings: ProjectSettings) -> Project | None:
    """Replace a project's settings.

    Raise Refused if they are invalid.
    """
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
    if not all(name in WATCHED and 0.0 <= share <= 10.0 for name, share in settings.alert_from.items()):
        raise Refused(400, f"alert_from must be shares (0.05 is 5 %) of {', '.join(WATCHED)}")
    if settings.default_branch is not None and not 0 < len(settings.default_branch) <= MOST_WORD:
        raise Refused(400, f"default_branch must have 1 to {MOST_WORD} characters")
    if url is not None and not re.fullmatch(r"https?://[\w.:/~@%+=&?#-]*\{commit\}[\w.:/-]*", url):
        raise Refused(400, "commit_url must be like https://host/team/model/commit/{commit}")
    call.team.set_project(call.project.name, settings)
    call.note("settings changed")
    return call.team.project(call.project.name)


@routes("DELETE", _PROJECT, "admin", status=204)
def remove_project(call: ProjectCall) -> None:
    """Delete a project and its runs."""
    call.team.remove_project(call.project.name)
    call.team.note(call.who.name, "project removed", subject=call.project.name)


@routes("GET", f"{_PROJECT}/runs", "reader", answer=RunEntries, query=_FILTERS + _TABLE)
def list_runs(call: Call) -> Response | RunEntries:
    """List runs."""
    has_cards = call.query("cards") == "1"
    entries, after = entries_page(call, 50, _MOST_CARDS if has_cards else _MOST_PAGE, has_cards=has_cards)
    return runs_table(call, entries) or RunEntries(runs=entries, next=after)


def entries_page(
    call: Call, default: int, most: int, *, has_cards: bool = False
) -> tuple[list[RunEntry], str | None]:
    """Return the page of runs that the query asks for, and the cursor of the next page."""
    page = page_of_runs(
        call.history,
        selection(call, call.number("limit", default, most)),
        sort=call.query("sort") or "added",
        is_rising=call.query("order") == "rising",
        after=call.query("after"),
    )
    return _entries_of(call, page.runs, has_cards=has_cards), page.next


def _entries_of(call: Call, runs: tuple[RunRow, ...], *, has_cards: bool) -> list[RunEntry]:
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


def runs_table(call: Call, entries: list[RunEntry]) -> Response | None:
    """Return runs as CSV or flat JSON if the query asks for that."""
    rows = []
    for entry in entries:
        run, where = entry.run, entry.fingerprint
        row: dict[str, Any] = {name: getattr(run, name) for name in ("id", "added_at", "branch", "commit")}
        row |= {"grade": run.grade, **run.metrics}
        fields = ("device", "model", "batch", "seq", "world_size", "precision")
        row |= {name: getattr(where, name) for name in fields}
        row |= {"fingerprint": run.digest, "labels": run.labels, **msgspec.to_builtins(entry.origin)}
        rows.append(row)
    return table_answer(call, rows, "runs")


@routes("POST", f"{_PROJECT}/runs", "uploader", body=RunUpload, answer=RunKept, status=201, is_upload=True)
def add_run(call: ProjectCall, upload: RunUpload) -> Response:
    """Upload a run.

    A known Idempotency-Key returns the run it belongs to.
    """
    key = _idempotency_key(call)
    if sum(len(name) + len(value) for name, value in upload.labels.items()) > _MOST_LABELS:
        raise Refused(400, f"labels must have at most {_MOST_LABELS:,} characters in total")
    try:
        card = Scorecard.from_json(bytes(upload.card))
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, TypeError, RecursionError) as error:
        raise Refused(400, f"invalid scorecard: {str(error)[:200]}") from None
    added_at = None
    if upload.added_at is not None:
        try:
            has_zone = dt.datetime.fromisoformat(upload.added_at).tzinfo is not None
            moment = _moment(upload.added_at)
        except ValueError:
            raise Refused(400, "added_at must be a time like 2026-03-01T12:00:00+00:00") from None
        if not has_zone:
            raise Refused(400, "added_at needs a time zone")
        if not _FIRST_MOMENT <= moment <= dt.datetime.now(dt.UTC) + dt.timedelta(days=1):
            raise Refused(400, "added_at must be after 1970 and not in the future")
        added_at = moment.isoformat(timespec="seconds")
    return _kept(
        call,
        NewRun(
            card=card,
            commit=upload.commit,
            branch=upload.branch or None,
            labels=upload.labels,
            added_at=added_at,
            key=key,
            added_by=call.who.name,
            device_hours=upload.device_hours,
            is_decoded=True,
        ),
    )


def _idempotency_key(call: Call) -> str | None:
    keys = call.request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or not re.fullmatch(_KEY, keys[0]):
        raise Refused(400, "Idempotency-Key must be 1 to 128 letters, digits or . _ : -")
    return keys[0]


def _kept(call: ProjectCall, run: NewRun) -> Response:
    """Store a run, queue messages about the alerts that it opens, and return its id."""
    earlier = None if run.key is None else call.history.run_with_key(run.key)
    number = call.history.add(run)
    if number == earlier:
        return json_answer(RunKept(id=number, is_new=False))
    call.server.uploaded += 1
    opened: list[int] = []
    (row,) = call.history.runs(Selection(after=number - 1, before=number + 1))
    branches = call.project.settings.branches
    if not branches or row.branch in branches:
        alerts = Alerts(call.history)
        for alert, event in alerts.look(row.branch, row.digest, newest=number):
            alerts.announce(alert, event)
            if event == "opened":
                opened.append(alert.id)
    return json_answer(RunKept(id=number, is_new=True, alerts=tuple(opened)), 201)


_GIVEN = ("device", "commit", "branch")


@routes("POST", f"{_PROJECT}/traces", "uploader", answer=RunKept, status=201, query=_GIVEN, takes_trace=True)
def add_trace(call: TraceCall) -> Response | None:
    """Upload a profile to be scored.

    None if it has to be scored first.
    """
    if (device := call.query("device")) and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,60}", device):
        raise Refused(400, "unknown device")
    if any(len(call.query(name) or "") > MOST_WORD for name in ("commit", "branch")):
        raise Refused(400, f"commit and branch must have at most {MOST_WORD} characters")
    # The digest of the profile, not of its card, which another version may score differently.
    text = f"{call.trace.digest} {[call.query(name) for name in _GIVEN]!r}"
    content = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
    key = _idempotency_key(call)
    if key is not None and (number := call.history.run_with_key(key, content)) is not None:
        return json_answer(RunKept(id=number, is_new=False))
    if call.trace.card is None:
        return None
    run = NewRun(
        card=call.trace.card,
        commit=call.query("commit"),
        branch=call.query("branch"),
        key=key,
        added_by=call.who.name,
        content=content,
        is_decoded=True,
    )
    return _kept(call, run)


@routes("GET", f"{_PROJECT}/runs/{{number}}", "reader", answer=RunEntry)
def show_run(call: Call) -> RunEntry:
    """Get a run and its scorecard."""
    return _entries_of(call, (call.run(),), has_cards=True)[0]


@routes("DELETE", f"{_PROJECT}/runs/{{number}}", "admin", status=204)
def remove_run(call: Call) -> None:
    """Delete a run."""
    number = call.run().id
    call.history.remove([number])
    call.note("run removed", str(number))


@routes("GET", f"{_PROJECT}/count", "reader", answer=dict[str, int])
def count(call: Call) -> dict[str, int]:
    """Count the runs."""
    return {"runs": count_runs(call.history)}


def _metric(call: Call) -> str:
    name = str(call.request.path_params["metric"])
    if name not in KEPT_METRICS:
        raise Refused(404, f"unknown metric; known: {', '.join(KEPT_METRICS)}")
    return name


@routes("GET", f"{_PROJECT}/series/{{metric}}", "reader", answer=MetricSeries, query=(*_FILTERS, "limit"))
def series(call: Call) -> MetricSeries:
    """Get a metric of selected runs."""
    which = selection(call, call.number("limit", 1000, 100_000))
    return MetricSeries(points=call.history.series(_metric(call), which))


@routes("GET", f"{_PROJECT}/trend/{{metric}}", "reader", answer=Trend, query=(*_FILTERS, "limit"))
def trend(call: ProjectCall) -> Trend:
    """Get a metric and its level changes."""
    which = selection(call, call.number("limit", 1000, 10_000))
    return trend_of(call.history, _metric(call), on_a_branch(call, which))


@routes("GET", f"{_PROJECT}/fingerprints", "reader", answer=dict[str, Fingerprint])
def fingerprints(call: Call) -> dict[str, Fingerprint]:
    """List the fingerprints of the runs."""
    return call.history.fingerprints()


@routes("GET", f"{_PROJECT}/compare", "reader", answer=Compared, query=("a", "b"))
def compare(call: Call) -> Compared:
    """Compare run b with run a."""
    return compare_runs(call.history, call.number("a", 0, 2**62), call.number("b", 0, 2**62))[1]


@routes(
    "GET", f"{_PROJECT}/findings", "reader", answer=list[FindingCost], query=(*_FILTERS, "limit", "format")
)
def findings(call: Call) -> Response | list[FindingCost]:
    """List findings by cost."""
    costs = finding_costs(call.history, selection(call, call.number("limit", 1000, 1000)))
    return table_answer(call, costs, "findings") or costs


@routes("GET", f"{_PROJECT}/alerts", "reader", answer=list[Alert], query=("state", "format"))
def list_alerts(call: Call) -> Response | list[Alert]:
    """List alerts, newest first."""
    states = call.request.query_params.getlist("state")[:_MOST_FILTERS]
    alerts = Alerts(call.history)
    found = alerts.listed(states) if states else alerts.listed()
    return table_answer(call, found, "alerts") or found


@routes("POST", f"{_PROJECT}/alerts/{{number}}", "uploader", body=AlertChange, answer=Alert)
def change_alert(call: Call, change: AlertChange) -> Alert | None:
    """Update an alert: acknowledge, waive, resolve or reopen it."""
    number, alerts = call.path_id(), Alerts(call.history)
    if alerts.alert(number) is None:
        raise Refused(404, "alert not found")
    alerts.change(number, change.state, reason=change.reason, who=call.who.name, until=change.until)
    call.note(f"alert {change.state}", f"{number}: {change.reason}")
    return alerts.alert(number)


@routes("GET", f"{_PROJECT}/channels", "admin", answer=list[ShownChannel])
def list_channels(call: Call) -> list[ShownChannel]:
    """List alert channels.

    They come without secrets: the path of a webhook is a password.
    """
    alerts = Alerts(call.history)
    states = alerts.channel_states()
    return [
        ShownChannel(
            id=item.id,
            kind=item.kind,
            target=item.target if item.kind == "email" else "/".join(item.target.split("/")[:3]) + "/…",
            quiet=item.quiet,
            state=states.get(item.id, ChannelState()),
        )
        for item in alerts.channels()
    ]


@routes("POST", f"{_PROJECT}/channels", "admin", body=NewChannel, answer=ShownChannel, status=201)
def add_channel(call: Call, new: NewChannel) -> ShownChannel:
    """Add an alert channel."""
    if new.kind not in CHANNELS:
        raise BadOption(f"unknown kind of channel {new.kind!r}", hint=f"one of {', '.join(CHANNELS)}")
    check_channel(new.kind, new.target, new.secret, call.server.settings)
    number = Alerts(call.history).add_channel(new.kind, new.target, new.secret, new.quiet)
    call.note("channel added", f"{number}: {new.kind}")
    return next(channel for channel in list_channels(call) if channel.id == number)


@routes("DELETE", f"{_PROJECT}/channels/{{number}}", "admin", status=204)
def remove_channel(call: Call) -> None:
    """Remove an alert channel."""
    Alerts(call.history).remove_channel(call.path_id())
    call.note("channel removed", str(call.path_id()))


@routes("GET", f"{_ROOT}/tokens", "admin", answer=list[Token])
def list_tokens(call: Call) -> list[Token]:
    """List tokens, without their secrets."""
    return call.team.tokens()


@routes("POST", f"{_ROOT}/tokens", "admin", body=NewToken, answer=MadeToken, status=201)
def add_token(call: Call, new: NewToken) -> MadeToken:
    """Create a token."""
    secret, token = call.team.add_token(
        new.name, new.role, project=new.project, days=new.days, created_by=call.who.name
    )
    call.note("token made", f"{token.id}: {token.name}, {token.role} of {token.project or 'every project'}")
    return MadeToken(secret=secret, token=token)


@routes("DELETE", f"{_ROOT}/tokens/{{number}}", "admin", status=204)
def revoke_token(call: Call) -> None:
    """Revoke a token."""
    if not call.team.revoke(call.path_id()):
        raise Refused(404, "token not found")
    call.note("token revoked", str(call.path_id()))


@routes("GET", f"{_ROOT}/audit", "admin", answer=list[AuditEntry], query=("before", "limit", "format"))
def audit(call: Call) -> Response | list[AuditEntry]:
    """Get the audit log."""
    before = call.number("before", 2**62, 2**62)
    found = call.team.audit(before=before, limit=call.number("limit", 100, 1000))
    return table_answer(call, found, "audit") or found

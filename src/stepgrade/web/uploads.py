"""Runs that are sent: scorecards, and profiles that are scored here."""

from __future__ import annotations

import datetime as dt
import hashlib
import re

import msgspec
from starlette.responses import Response

from stepgrade.model.scorecard import Scorecard
from stepgrade.store.alerts import Alert, Alerts
from stepgrade.store.history import NewRun, Selection
from stepgrade.web.access import Refused
from stepgrade.web.bodies import RunKept, RunUpload
from stepgrade.web.calls import Call, json_answer

_FIRST_MOMENT = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_KEY = r"[A-Za-z0-9._:-]{1,128}"
_MOST_LABELS = 8_192  # characters of all labels of a run
MOST_WORD = 300


def moment_of(text: str) -> dt.datetime:
    """Return a moment in UTC; one without a zone is in UTC. Raise ValueError for what is none."""
    moment = dt.datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        raise ValueError("out of range") from None


def added_moment(text: str) -> str:
    """Return when a run was added as it is kept; raise Refused for what no clock says."""
    try:
        has_zone = dt.datetime.fromisoformat(text).tzinfo is not None
        moment = moment_of(text)
    except ValueError:
        raise Refused(400, "added_at is a moment like 2026-03-01T12:00:00+00:00") from None
    if not has_zone:
        raise Refused(400, "added_at needs its zone")
    if not _FIRST_MOMENT <= moment <= dt.datetime.now(dt.UTC) + dt.timedelta(days=1):
        raise Refused(400, "added_at is from 1970 on and not in the future")
    return moment.isoformat(timespec="seconds")


def idempotency_key(call: Call) -> str | None:
    """Return the key that a run is sent with; raise Refused for one that is too long, or odd."""
    keys = call.request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or not re.fullmatch(_KEY, keys[0]):
        raise Refused(400, "Idempotency-Key has up to 128 letters, digits and . _ : -")
    return keys[0]


def add_run(call: Call) -> Response:
    """Keep a run that is sent; the same key again answers with the run that is there."""
    if waits := call.server.uploads.take(call.who.name):
        raise Refused(429, "too many uploads", retry_after_s=int(waits) + 1)
    key = idempotency_key(call)
    upload: RunUpload = call.read(RunUpload)
    if sum(len(name) + len(value) for name, value in upload.labels.items()) > _MOST_LABELS:
        raise Refused(400, f"labels have up to {_MOST_LABELS:,} characters together")
    try:
        card = Scorecard.from_json(bytes(upload.card))
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, TypeError, RecursionError) as error:
        raise Refused(400, f"invalid scorecard: {str(error)[:200]}") from None
    return kept(
        call,
        NewRun(
            card=card,
            commit=upload.commit,
            branch=upload.branch or None,
            labels=upload.labels,
            added_at=None if upload.added_at is None else added_moment(upload.added_at),
            key=key,
            added_by=call.who.name,
            device_hours=upload.device_hours,
        ),
    )


def kept(call: Call, run: NewRun) -> Response:
    """Keep a scorecard, look whether its series changed, and answer with its number."""
    earlier = None if run.key is None else call.history.run_with_key(run.key)
    number = call.history.add(run)
    is_new = number != earlier
    opened: list[Alert] = []
    if is_new:
        call.server.uploaded += 1
        opened = look_for_changes(call, number)
    answer = RunKept(id=number, is_new=is_new, alerts=tuple(alert.id for alert in opened))
    return json_answer(answer, 201 if is_new else 200)


def look_for_changes(call: Call, number: int) -> list[Alert]:
    """Return the alerts that a new run opens, with their messages in the queue."""
    assert call.project is not None  # noqa: S101
    (run,) = call.history.runs(Selection(after=number - 1, before=number + 1))
    branches = call.project.settings.branches
    if branches and run.branch not in branches:
        return []
    alerts = Alerts(call.history)
    opened = alerts.look(run.branch, run.digest)
    for alert in opened:
        alerts.announce(alert, "opened")
    return opened


def known_trace(call: Call) -> Response | None:
    """Answer with the run that a profile became before; None when it has to be scored."""
    if (device := call.query("device")) and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,60}", device):
        raise Refused(400, "there is no such device")
    if any(len(call.query(name) or "") > MOST_WORD for name in ("commit", "branch")):
        raise Refused(400, f"commit and branch have up to {MOST_WORD} characters")
    key = idempotency_key(call)
    number = None if key is None else call.history.number_of_key(key, _content_of_trace(call))
    return None if number is None else json_answer(RunKept(id=number, is_new=False))


def add_trace(call: Call) -> Response:
    """Keep the scorecard of a profile that was sent."""
    assert call.trace is not None  # noqa: S101  scored by now
    assert call.trace.card is not None  # noqa: S101
    run = NewRun(
        card=call.trace.card,
        commit=call.query("commit"),
        branch=call.query("branch"),
        key=idempotency_key(call),
        added_by=call.who.name,
        content=_content_of_trace(call),
    )
    return kept(call, run)


def _content_of_trace(call: Call) -> str:
    """Return what tells a profile from another; its card will not do, which a new version may change."""
    assert call.trace is not None  # noqa: S101
    asked = [call.query(name) for name in ("device", "commit", "branch")]
    return hashlib.sha256(f"{call.trace.digest} {asked!r}".encode("utf-8", "backslashreplace")).hexdigest()

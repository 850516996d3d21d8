"""Uploads: scorecards, and profiles that are scored on the server."""

from __future__ import annotations

import datetime as dt
import hashlib
import re

import msgspec
from starlette.responses import Response

from stepgrade.model.scorecard import Scorecard
from stepgrade.store.alerts import Alert, Alerts
from stepgrade.store.runs import NewRun, Selection
from stepgrade.web.access import Refused
from stepgrade.web.bodies import RunKept, RunUpload
from stepgrade.web.calls import Call, ProjectCall, TraceCall, json_answer

_FIRST_MOMENT = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_KEY = r"[A-Za-z0-9._:-]{1,128}"
_MOST_LABELS = 8_192  # characters of all labels of a run
MOST_WORD = 300


def moment_of(text: str) -> dt.datetime:
    """Return a time in UTC, which is also the default zone; raise ValueError if it is invalid."""
    moment = dt.datetime.fromisoformat(text)
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
    try:
        return moment.astimezone(dt.UTC)
    except OverflowError:
        raise ValueError("out of range") from None


def added_moment(text: str) -> str:
    """Return `added_at` as it is stored; raise Refused if it is invalid."""
    try:
        has_zone = dt.datetime.fromisoformat(text).tzinfo is not None
        moment = moment_of(text)
    except ValueError:
        raise Refused(400, "added_at must be a time like 2026-03-01T12:00:00+00:00") from None
    if not has_zone:
        raise Refused(400, "added_at needs a time zone")
    if not _FIRST_MOMENT <= moment <= dt.datetime.now(dt.UTC) + dt.timedelta(days=1):
        raise Refused(400, "added_at must be after 1970 and not in the future")
    return moment.isoformat(timespec="seconds")


def idempotency_key(call: Call) -> str | None:
    """Return the request's Idempotency-Key; raise Refused if it is invalid."""
    keys = call.request.headers.getlist("idempotency-key")
    if not keys:
        return None
    if len(keys) > 1 or not re.fullmatch(_KEY, keys[0]):
        raise Refused(400, "Idempotency-Key must be 1 to 128 letters, digits or . _ : -")
    return keys[0]


def add_run(call: ProjectCall) -> Response:
    """Store an uploaded run; a known Idempotency-Key returns the run it belongs to."""
    if waits := call.server.uploads.take(call.who.name):
        raise Refused(429, "too many uploads", retry_after_s=int(waits) + 1)
    key = idempotency_key(call)
    upload: RunUpload = call.read(RunUpload)
    if sum(len(name) + len(value) for name, value in upload.labels.items()) > _MOST_LABELS:
        raise Refused(400, f"labels must have at most {_MOST_LABELS:,} characters in total")
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
            is_decoded=True,
        ),
    )


def kept(call: ProjectCall, run: NewRun) -> Response:
    """Store a run, check its series for changes of level, and return its id."""
    earlier = None if run.key is None else call.history.run_with_key(run.key)
    number = call.history.add(run)
    is_new = number != earlier
    opened: list[Alert] = []
    if is_new:
        call.server.uploaded += 1
        opened = look_for_changes(call, number)
    answer = RunKept(id=number, is_new=is_new, alerts=tuple(alert.id for alert in opened))
    return json_answer(answer, 201 if is_new else 200)


def look_for_changes(call: ProjectCall, number: int) -> list[Alert]:
    """Return the alerts that a new run opens; their messages are queued."""
    (run,) = call.history.runs(Selection(after=number - 1, before=number + 1))
    branches = call.project.settings.branches
    if branches and run.branch not in branches:
        return []
    alerts = Alerts(call.history)
    opened = alerts.look(run.branch, run.digest)
    for alert in opened:
        alerts.announce(alert, "opened")
    return opened


def add_trace(call: TraceCall) -> Response | None:
    """Store the scorecard of an uploaded profile; None if it has to be scored first."""
    if (device := call.query("device")) and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,60}", device):
        raise Refused(400, "unknown device")
    if any(len(call.query(name) or "") > MOST_WORD for name in ("commit", "branch")):
        raise Refused(400, f"commit and branch must have at most {MOST_WORD} characters")
    # The digest of the profile, not of its card, which another version may score differently.
    given = [call.query(name) for name in ("device", "commit", "branch")]
    text = f"{call.trace.digest} {given!r}"
    content = hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()
    key = idempotency_key(call)
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
    return kept(call, run)

"""Alerts: one per regression in level, its state, and the messages about it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct

from stepgrade.compare.change_points import LEAST_SEGMENT, change_points
from stepgrade.decoding import from_json
from stepgrade.errors import BadOption
from stepgrade.model.comparison import METRICS, RATES
from stepgrade.store.history import History
from stepgrade.store.runs import KEPT_METRICS, NO_BRANCH, Selection
from stepgrade.store.tables import LEAST_CHANGE, is_better
from stepgrade.store.team import moment_after, now

State = Literal["open", "acknowledged", "waived", "resolved"]
STATES: tuple[State, ...] = ("open", "acknowledged", "waived", "resolved")
WATCHED = tuple(name for name in ("step_time_ms", *RATES, "peak_memory_bytes") if name in KEPT_METRICS)
_LOOK_BACK = 200
_MOST_REASON = 500
_CLAIMED_S = 60  # longer than any delivery takes
# Delays between tries of a failed message. The channel's other messages wait as long.
RETRIES_S = (10, 60, 600, 3_600, 21_600)
MOST_CHANNELS = 50  # per project
CHANNELS = ("webhook", "slack", "teams", "discord", "email", "github", "gitlab")


class Alert(Struct, frozen=True, kw_only=True):
    """A regression: between which runs and commits, and its state."""

    id: int
    project: str
    metric: str
    branch: str | None
    digest: str
    last_run: int
    first_run: int
    last_commit: str | None
    first_commit: str | None
    level_before: float
    level_after: float
    opened_at: str
    state: State
    reason: str
    changed_by: str
    changed_at: str
    waived_until: str | None

    @property
    def change(self) -> float:
        """Return the change as a share of the level before."""
        return (self.level_after - self.level_before) / abs(self.level_before) if self.level_before else 0.0


class QuietHours(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The hours (UTC) in which nothing is sent; none if `begin` equals `end`."""

    begin: int = 0
    end: int = 0

    def next_moment(self, at: dt.datetime) -> dt.datetime:
        """Return `at`, or the end of the quiet hours if `at` is within them."""
        length, since = (self.end - self.begin) % 24, (at.hour - self.begin) % 24
        if since >= length:
            return at
        return at.replace(minute=0, second=0, microsecond=0) + dt.timedelta(hours=length - since)


class Channel(Struct, frozen=True, kw_only=True):
    """A channel for a project's alerts; `target` and `secret` are never shown."""

    id: int
    project: str
    kind: str
    target: str
    secret: str
    quiet: QuietHours
    created_at: str


class ChannelState(Struct, frozen=True, kw_only=True):
    """When a channel last delivered a message, and why it failed since."""

    sent_at: str | None = None
    problem: str | None = None
    retry_at: str | None = None  # None if there are no more retries


class Message(Struct, frozen=True, kw_only=True):
    """A message about an alert on a channel."""

    id: int
    channel_id: int
    alert_id: int
    event: str
    tries: int


class Alerts:
    """The alerts of one project."""

    def __init__(self, history: History) -> None:
        self._history, self._database = history, history.database

    def look(self, branch: str | None, digest: str) -> list[Alert]:
        """Check a series of runs for changes of level and return new alerts.

        A change keeps its alert when further runs shift its index a little; the alert is resolved when the
        level is back.
        """
        opened, has_steps = [], False
        for metric in WATCHED:
            which = Selection(branch=branch or NO_BRANCH, digests=(digest,), limit=_LOOK_BACK)
            series = self._history.series(metric, which)
            if metric == "step_time_ms":
                has_steps = bool(series)
            elif metric in RATES and has_steps:
                continue  # both measure the same work
            found = change_points([value for _, value in series], least_change=LEAST_CHANGE)
            if not found:
                continue
            numbers = [number for number, _ in series]
            known = self._select(
                "and metric = ? and coalesce(branch, '') = ? and digest = ?", metric, branch or "", digest
            )
            for index, change in enumerate(found):
                near = set(numbers[max(0, change.index - LEAST_SEGMENT) : change.index + LEAST_SEGMENT + 1])
                if is_better(metric, change.change):
                    self._resolve(known, numbers[change.index], change.after, metric)
                elif not any(alert.first_run in near for alert in known):
                    ends = found[index + 1 :]
                    if any(
                        is_better(metric, later.change) and later.after <= change.before for later in ends
                    ):
                        continue  # over before it was reported
                    last, first = numbers[change.index - 1], numbers[change.index]
                    commits = self._history.commits([last, first])
                    row: dict[str, object] = {"metric": metric, "branch": branch, "digest": digest}
                    row |= {"last_run": last, "first_run": first}
                    row |= {"last_commit": commits.get(last), "first_commit": commits.get(first)}
                    row |= {"level_before": change.before, "level_after": change.after}
                    row |= {"project": self._history.project, "opened_at": now(), "changed_at": now()}
                    row |= {"state": "open", "reason": "", "changed_by": "stepgrade"}
                    opened += self._select("and id = ?", self._database.insert("alert", row))
        return opened

    def _select(self, rest: str, *values: object) -> list[Alert]:
        """Return alerts of the project; `rest` are further conditions."""
        own = (self._history.project, *values)
        return self._database.select(Alert, f"alert where project = ? {rest}", own)

    def _resolve(self, known: Sequence[Alert], first_run: int, level: float, metric: str) -> None:
        """Resolve earlier alerts whose level is back to what it was, or better."""
        for alert in known:
            half = (alert.level_before + alert.level_after) / 2
            is_back = level < half if METRICS[metric].worse == "up" else level > half
            if alert.state != "resolved" and alert.first_run < first_run and is_back:
                self.change(
                    alert.id, "resolved", reason=f"the level recovered with run {first_run}", who="stepgrade"
                )

    def alert(self, number: int) -> Alert | None:
        """Return an alert of the project; None if it does not exist."""
        return next(iter(self._select("and id = ?", number)), None)

    def listed(self, states: Sequence[str] = STATES, limit: int = 200) -> list[Alert]:
        """Return alerts in these states, newest first."""
        marks = ", ".join("?" * len(states)) or "null"
        return self._select(f"and state in ({marks}) order by id desc limit ?", *states, limit)

    def change(self, number: int, state: str, *, reason: str, who: str, until: dt.date | None = None) -> None:
        """Set the state of an alert; acknowledging and waiving need a reason, waiving also a last day."""
        if state not in STATES:
            raise BadOption(f"unknown state {state[:40]!r}", hint=f"one of {', '.join(STATES)}")
        if state in ("acknowledged", "waived") and not reason.strip():
            raise BadOption("a reason is required", field="reason")
        if len(reason) > _MOST_REASON:
            raise BadOption(f"must have at most {_MOST_REASON} characters", field="reason")
        today = dt.datetime.now(dt.UTC).date()
        if state == "waived" and (until is None or not today <= until <= today + dt.timedelta(days=366)):
            raise BadOption("must be a day from today to a year from now", field="until")
        self._database.execute(
            "update stepgrade_alert set state = ?, reason = ?, changed_by = ?, changed_at = ?, "
            "waived_until = ? where project = ? and id = ?",
            (
                state,
                reason.strip(),
                who,
                now(),
                until.isoformat() if until and state == "waived" else None,
                self._history.project,
                number,
            ),
        )

    def reopen_expired(self, today: dt.date) -> list[Alert]:
        """Reopen alerts whose waiver has expired, and return them."""
        found = []
        for alert in self._select("and state = 'waived' and waived_until < ?", today.isoformat()):
            reason = f"the waiver expired on {alert.waived_until}: {alert.reason}"[:_MOST_REASON]
            self.change(alert.id, "open", reason=reason, who="stepgrade")
            found.append(alert)
        return found

    def projects_with_expired(self, today: dt.date) -> list[str]:
        """Return the projects with an expired waiver."""
        rows = self._database.execute(
            "select distinct project from stepgrade_alert where state = 'waived' and waived_until < ?",
            (today.isoformat(),),
        )
        return [str(row[0]) for row in rows]

    def count_open(self) -> int:
        """Return the number of open alerts."""
        sql = "select count(*) from stepgrade_alert where project = ? and state = 'open'"
        return int(self._database.execute(sql, (self._history.project,))[0][0])

    def channels(self) -> list[Channel]:
        """Return the project's channels."""
        columns = "id, project, kind, target, secret, created_at, settings"
        sql = f"select {columns} from stepgrade_channel where project = ? order by id"
        found = []
        for *row, settings in self._database.execute(sql, (self._history.project,)):
            quiet = QuietHours()  # also if the row is invalid
            with suppress(msgspec.DecodeError, TypeError, UnicodeError):
                stored = from_json(settings, QuietHours)
                quiet = stored if 0 <= stored.begin < 24 and 0 <= stored.end < 24 else quiet
            fields = dict(zip(columns.split(", "), row, strict=False))
            found.append(Channel(**fields, quiet=quiet))
        return found

    def channel_states(self) -> dict[int, ChannelState]:
        """Return the delivery state of each channel by id."""
        rows = self._database.execute(
            "select m.channel_id, m.sent_at, m.problem, m.next_at, m.tries from stepgrade_message m "
            "join stepgrade_channel c on c.id = m.channel_id where c.project = ? "
            "and (m.sent_at is not null or m.problem is not null) order by m.id",
            (self._history.project,),
        )
        found: dict[int, ChannelState] = {}
        for number, sent_at, problem, next_at, tries in rows:
            before = found.get(number, ChannelState())
            if sent_at is not None:
                latest = sent_at if before.sent_at is None else max(before.sent_at, sent_at)
                found[number] = ChannelState(sent_at=latest)
            else:
                retry_at = next_at if tries <= len(RETRIES_S) else None
                found[number] = ChannelState(sent_at=before.sent_at, problem=problem, retry_at=retry_at)
        return found

    def add_channel(self, kind: str, target: str, secret: str, quiet: QuietHours) -> int:
        """Add a channel and return its id."""
        if kind not in CHANNELS:
            raise BadOption(f"unknown kind of channel {kind[:40]!r}", hint=f"one of {', '.join(CHANNELS)}")
        if not (0 <= quiet.begin < 24 and 0 <= quiet.end < 24):
            raise BadOption("quiet hours must be from 0 to 23", field="quiet")
        if len(self.channels()) >= MOST_CHANNELS:
            raise BadOption(f"a project can have at most {MOST_CHANNELS} channels", hint="remove one first")
        row = {"project": self._history.project, "kind": kind, "target": target, "secret": secret}
        row |= {"settings": msgspec.json.encode(quiet).decode(), "created_at": now()}
        return self._database.insert("channel", row)

    def remove_channel(self, number: int) -> None:
        """Remove a channel."""
        self._database.execute(
            "delete from stepgrade_channel where project = ? and id = ?", (self._history.project, number)
        )

    def announce(self, alert: Alert, event: str) -> None:
        """Queue a message on each channel, once per alert and event."""
        at = dt.datetime.now(dt.UTC)
        for channel in self.channels():
            due = channel.quiet.next_moment(at).isoformat(timespec="seconds")
            row = {"channel_id": channel.id, "alert_id": alert.id, "event": event}
            self._database.put("message", {**row, "tries": 0, "next_at": due}, ", ".join(row))

    def projects_with_due(self) -> list[str]:
        """Return the projects with messages due, the longest waiting first."""
        rows = self._database.execute(
            "select c.project from stepgrade_message m join stepgrade_channel c on c.id = m.channel_id "
            "where m.sent_at is null and m.next_at <= ? and m.tries <= ? "
            "group by c.project order by min(m.next_at), c.project",
            (now(), len(RETRIES_S)),
        )
        return [str(row[0]) for row in rows]

    def claim_due(self, limit: int, busy: Sequence[int] = ()) -> list[tuple[Message, Channel, Alert]]:
        """Return due messages of the project, at most one per channel, none for `busy` channels.

        A claimed message is not returned to another caller for a minute.
        """
        marks = ", ".join("?" * len(busy))
        with self._database.transaction(exclusive=True):
            messages = self._database.select(
                Message,
                "message where id in (select min(m.id) from stepgrade_message m "
                "join stepgrade_channel c on c.id = m.channel_id "
                "where m.sent_at is null and m.next_at <= ? and m.tries <= ? and c.project = ? "
                f"{f'and c.id not in ({marks}) ' if busy else ''}group by m.channel_id) "
                "order by next_at, id limit ?",
                (now(), len(RETRIES_S), self._history.project, *busy, limit),
            )
            for message in messages:
                self._database.execute(
                    "update stepgrade_message set tries = tries + 1, next_at = ? where id = ?",
                    (moment_after(seconds=_CLAIMED_S), message.id),
                )
        channels = {channel.id: channel for channel in self.channels()}
        claimed = []
        for message in messages:
            alert = self.alert(message.alert_id)
            if alert is not None and message.channel_id in channels:
                claimed.append((message, channels[message.channel_id], alert))
        return claimed

    def settle(self, message: Message, problem: str | None) -> None:
        """Record that a message was sent, or schedule the next try."""
        if problem is None:
            sql = "update stepgrade_message set sent_at = ?, problem = null where id = ?"
            self._database.execute(sql, (now(), message.id))
            return
        # New messages of a channel that keeps failing wait for its next try.
        ((times,),) = self._database.execute(
            "select max(tries) from stepgrade_message where channel_id = ? and sent_at is null and id > "
            "(select coalesce(max(id), 0) from stepgrade_message "
            "where channel_id = ? and sent_at is not null)",
            (message.channel_id, message.channel_id),
        )
        wait = RETRIES_S[min(max(int(times or 1), message.tries + 1), len(RETRIES_S)) - 1]
        with self._database.transaction():
            self._database.execute(
                "update stepgrade_message set problem = ? where id = ?", (problem[:_MOST_REASON], message.id)
            )
            until = moment_after(seconds=wait)
            self._database.execute(
                "update stepgrade_message set next_at = ? "
                "where channel_id = ? and sent_at is null and (next_at < ? or id = ?)",
                (until, message.channel_id, until, message.id),
            )

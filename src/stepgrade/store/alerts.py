"""Alerts: one per regression in level, its state, and the messages about it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec
from msgspec import Struct

from stepgrade.compare.change_points import LEAST_SEGMENT, level_around
from stepgrade.compare.effect import MOST_RUNS
from stepgrade.compare.fingerprint import FIELDS
from stepgrade.compare.levels import Episode, episodes, judged_level, judged_levels
from stepgrade.compare.runs import compare_runs
from stepgrade.config import Sensitivity
from stepgrade.decoding import from_json
from stepgrade.errors import BadOption
from stepgrade.model.comparison import RATES
from stepgrade.model.scorecard import Baseline
from stepgrade.statistics import median
from stepgrade.store.history import History
from stepgrade.store.runs import KEPT_METRICS, NO_BRANCH, Selection
from stepgrade.store.tables import is_better
from stepgrade.store.team import Team, moment_after, now

# An alert opens, may be acknowledged or waived by a person, and ends: its level recovered, or more runs
# showed that it is part of another alert, or that nothing changed. While it is active, its place may move.
State = Literal["open", "acknowledged", "waived", "resolved", "merged", "withdrawn"]
ACTIVE: tuple[State, ...] = ("open", "acknowledged", "waived")
SETTABLE: tuple[State, ...] = (*ACTIVE, "resolved")
STATES: tuple[State, ...] = (*SETTABLE, "merged", "withdrawn")
WATCHED = tuple(name for name in ("step_time_ms", *RATES, "peak_memory_bytes") if name in KEPT_METRICS)
_LOOK_BACK = 200
# An alert and a change of level so many runs apart are the same: more runs move where it is seen.
_SAME_RUNS = 2 * LEAST_SEGMENT
_NEWS_DAYS = 7
_EXPLAINED = 4
_OURSELVES = "stepgrade"
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
    details: str = ""  # in words: the device, the judgement, and what changed

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


class _Seen:
    """A series of runs in the order in which they were made, and its episodes."""

    def __init__(
        self,
        metric: str,
        branch: str | None,
        digest: str,
        series: Sequence[tuple[int, float]],
        sensitivity: Sensitivity,
    ) -> None:
        self.metric, self.branch, self.digest, self.sensitivity = metric, branch, digest, sensitivity
        self.numbers = [number for number, _ in series]
        self.values = [value for _, value in series]
        self.places = {number: place for place, number in enumerate(self.numbers)}
        self._levels = judged_levels(metric, self.values, sensitivity, sure=True)
        self.episodes = episodes(metric, self._levels)

    def is_in_doubt(self, alert: Alert) -> bool:
        """Return whether the runs since the alert may be worse, though there is no sure change of level."""
        place, end = self.places[alert.first_run], len(self.values)
        if not place:
            return True
        return judged_level(self.metric, self.values, 0, place, end, self.sensitivity).judged.outcome not in (
            "no change",
            "improved",
        )

    def is_back(self, alert: Alert) -> bool:
        """Return whether the last level is nearer to what was before the alert than to its own."""
        level = self._levels[-1].after if self._levels else median(self.values)
        half = (alert.level_before + alert.level_after) / 2.0
        return is_better(alert.metric, level - half)


class Alerts:
    """The alerts of one project."""

    def __init__(self, history: History) -> None:
        self._history, self._database = history, history.database

    def look(self, branch: str | None, digest: str, *, newest: int | None = None) -> list[tuple[Alert, str]]:
        """Compare the alerts of a series of runs with its changes of level, and return what happened to them.

        Each comes with its event: opened, improved, moved, merged, withdrawn, resolved or reopened. Where
        `newest` is a run that was just added, but made before others, that is no news: nothing opens.
        """
        happened, has_steps = [], False
        project = Team(self._database).project(self._history.project)
        thresholds = project.settings.alert_from if project else {}
        for metric in WATCHED:
            which = Selection(branch=branch or NO_BRANCH, digests=(digest,), limit=_LOOK_BACK)
            series = self._history.series(metric, which)
            if metric == "step_time_ms":
                has_steps = bool(series)
            elif metric in RATES and has_steps:
                continue  # both measure the same work
            if not series:
                continue
            known = self._select(
                "and metric = ? and coalesce(branch, '') = ? and digest = ? order by id",
                metric,
                branch or "",
                digest,
            )
            sensitivity = Sensitivity(allow=thresholds.get(metric, Sensitivity().allow))
            seen = _Seen(metric, branch, digest, series, sensitivity)
            is_fresh = newest is None or newest == series[-1][0]
            changed = self._reconcile(seen, known, is_fresh=is_fresh)
            happened += changed if is_fresh else []
        return [(alert, event) for number, event in happened if (alert := self.alert(number))]

    def _reconcile(self, seen: _Seen, known: Sequence[Alert], *, is_fresh: bool) -> list[tuple[int, str]]:
        """Bring the alerts of one series in line with its episodes; return their ids with what happened."""
        happened: list[tuple[int, str]] = []
        left = list(known)
        for episode in seen.episodes:
            begin, end = episode.begin - _SAME_RUNS, episode.last + _SAME_RUNS
            own = [
                alert
                for alert in left
                if (place := seen.places.get(alert.first_run)) is not None
                and begin <= place <= end
                and is_better(alert.metric, alert.change) == episode.is_better
            ]
            left = [alert for alert in left if alert not in own]
            if not own:
                if is_fresh and episode.end is None:
                    number = seen.numbers[episode.begin]
                    (run,) = self._history.runs(Selection(after=number - 1, before=number + 1))
                    if run.added_at >= moment_after(days=-_NEWS_DAYS):  # what is filled in later is no news
                        happened.append(self._open(seen, episode))
                continue
            # The oldest active one stays; a person may have written to it.
            keep = min(own, key=lambda alert: (alert.state not in ACTIVE, alert.id))
            for alert in own:
                if alert is not keep and alert.state in ACTIVE:
                    self._set_state(alert, "merged", f"part of alert {keep.id}")
                    happened.append((alert.id, "merged"))
            happened += self._follow(seen, episode, keep)
        for alert in (one for one in left if one.state in ACTIVE):
            if alert.first_run in seen.places and not seen.is_in_doubt(alert):
                self._set_state(alert, "withdrawn", "with more runs there is no change of level")
                happened.append((alert.id, "withdrawn"))
            elif alert.first_run not in seen.places and seen.is_back(alert):
                self._set_state(alert, "resolved", f"the level recovered before run {seen.numbers[-1]}")
                happened.append((alert.id, "resolved"))
        return happened

    def _follow(self, seen: _Seen, episode: Episode, alert: Alert) -> list[tuple[int, str]]:
        """Bring an alert in line with its episode."""
        happened: list[tuple[int, str]] = []
        where = self._place_of(seen, episode)
        if alert.state in ACTIVE and where["first_run"] != alert.first_run:
            happened.append((alert.id, "moved"))
        self._set(alert.id, where)
        if episode.end is not None and alert.state in ACTIVE:
            first = seen.numbers[episode.end]
            self._set_state(alert, "resolved", f"the level recovered with run {first}")
            self._set(alert.id, {"details": self._explained(seen, episode.end)})
            happened = [(alert.id, "resolved")]
        elif episode.end is None and not episode.is_better:
            # What a person resolved stays so.
            was_ours = alert.state in ("resolved", "withdrawn", "merged") and alert.changed_by == _OURSELVES
            if was_ours:
                self._set_state(alert, "open", "the level is as bad as it was")
                happened = [(alert.id, "reopened")]
        return happened

    def _open(self, seen: _Seen, episode: Episode) -> tuple[int, str]:
        row: dict[str, object] = {"metric": seen.metric, "branch": seen.branch, "digest": seen.digest}
        row |= {"project": self._history.project, "opened_at": now(), "changed_at": now()}
        row |= {"state": "open", "reason": "", "changed_by": _OURSELVES}
        if episode.is_better:
            row |= {"state": "resolved", "reason": "an improvement"}
        row |= self._place_of(seen, episode) | {"details": self._explained(seen, episode.begin)}
        return self._database.insert("alert", row), "improved" if episode.is_better else "opened"

    def _place_of(self, seen: _Seen, episode: Episode) -> dict[str, object]:
        last, first = seen.numbers[episode.begin - 1], seen.numbers[episode.begin]
        commits = self._history.commits([last, first])
        place: dict[str, object] = {"last_run": last, "first_run": first}
        place |= {"last_commit": commits.get(last), "first_commit": commits.get(first)}
        return place | {"level_before": episode.before, "level_after": episode.after}

    def _explained(self, seen: _Seen, index: int) -> str:
        """Return in words what the gate says of the runs from `index` on: the device, and what changed."""
        level = level_around(seen.values, index, MOST_RUNS)
        earlier = level_around(seen.values, index - 1, MOST_RUNS)
        before, after = (
            [
                Baseline.of(card)
                for card in self._history.cards([seen.numbers[place] for place in some]).values()
            ]
            for some in (earlier, level)
        )
        if not before or not after:
            return ""
        found = compare_runs(after, before, seen.sensitivity, FIELDS)
        parts = [
            f"{change.outcome}, {change.why}" for change in found.changes if change.metric == seen.metric
        ]
        moved = [f"{shift.name} {shift.difference:+.3g} {shift.unit}" for shift in found.shifts[:_EXPLAINED]]
        parts += [f"what changed: {', '.join(moved)}"] if moved else []
        device = after[0].device or (after[0].fingerprint.device if after[0].fingerprint else None)
        return "; ".join([*([f"on {device}"] if device else []), *parts])[:_MOST_REASON]

    def _set(self, number: int, row: Mapping[str, object]) -> None:
        names = ", ".join(f"{name} = ?" for name in row)
        sql = f"update stepgrade_alert set {names} where project = ? and id = ?"
        self._database.execute(sql, (*row.values(), self._history.project, number))

    def _set_state(self, alert: Alert, state: State, reason: str) -> None:
        row = {"state": state, "reason": reason, "changed_by": _OURSELVES, "changed_at": now()}
        self._set(alert.id, {**row, "waived_until": None})

    def _select(self, rest: str, *values: object) -> list[Alert]:
        """Return alerts of the project; `rest` are further conditions."""
        own = (self._history.project, *values)
        return self._database.select(Alert, f"alert where project = ? {rest}", own)

    def alert(self, number: int) -> Alert | None:
        """Return an alert of the project; None if it does not exist."""
        return next(iter(self._select("and id = ?", number)), None)

    def listed(self, states: Sequence[str] = STATES, limit: int = 200) -> list[Alert]:
        """Return alerts in these states, newest first."""
        marks = ", ".join("?" * len(states)) or "null"
        return self._select(f"and state in ({marks}) order by id desc limit ?", *states, limit)

    def change(self, number: int, state: str, *, reason: str, who: str, until: dt.date | None = None) -> None:
        """Set the state of an alert; acknowledging and waiving need a reason, waiving also a last day."""
        if state not in SETTABLE:
            raise BadOption(f"unknown state {state[:40]!r}", hint=f"one of {', '.join(SETTABLE)}")
        if state in ("acknowledged", "waived") and not reason.strip():
            raise BadOption("a reason is required", field="reason")
        if len(reason) > _MOST_REASON:
            raise BadOption(f"must have at most {_MOST_REASON} characters", field="reason")
        today = dt.datetime.now(dt.UTC).date()
        if state == "waived" and (until is None or not today <= until <= today + dt.timedelta(days=366)):
            raise BadOption("must be a day from today to a year from now", field="until")
        waived_until = until.isoformat() if until and state == "waived" else None
        row = {"state": state, "reason": reason.strip(), "changed_by": who, "changed_at": now()}
        self._set(number, {**row, "waived_until": waived_until})

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

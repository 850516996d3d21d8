"""The server's background jobs: deliver messages, expire waivers, delete old runs, backfill findings."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable
from functools import partial

from stepgrade.store.alerts import Alert, Alerts, Channel, Message
from stepgrade.store.pool import Pool
from stepgrade.store.team import Project, Team
from stepgrade.web.outgoing import BoundedExchange, NotSent, send
from stepgrade.web.settings import ServerSettings
from stepgrade.web.worker import LOG, JobWorker, ServerJob, failure_of, shown_failure

_RETENTION_EVERY_S = 3_600.0
_WAIVERS_EVERY_S = 30.0
_FILLED_AT_ONCE = 50
# Concurrent deliveries in total and per project, so that no project delays the others.
_MOST_UNDER_WAY = 8
_MOST_OF_PROJECT = 2


class Keeper:
    """Expires waivers, applies retention, and backfills findings that older versions did not store."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def jobs(self) -> Iterable[ServerJob]:
        """Yield the jobs of all projects."""
        yield ServerJob("waivers", _WAIVERS_EVERY_S, self.end_waivers)
        with self._pool.history() as history:
            projects = Team(history.database).projects()
        for project in projects:
            yield ServerJob(f"findings of {project.name}", _RETENTION_EVERY_S, partial(self.fill, project))
            yield ServerJob(f"retention of {project.name}", _RETENTION_EVERY_S, partial(self.prune, project))

    def end_waivers(self) -> None:
        """Reopen alerts whose waiver has expired."""
        today = dt.datetime.now(dt.UTC).date()
        with self._pool.history() as history:
            for name in Alerts(history).projects_with_expired(today):
                alerts = Alerts(history.in_project(name))
                for alert in alerts.reopen_expired(today):
                    alerts.announce(alert, "waiver ended")

    def fill(self, project: Project) -> bool:
        """Backfill the findings of some runs; return whether there may be more."""
        with self._pool.history(project.name) as history:
            numbers = history.without_findings(_FILLED_AT_ONCE)
            if numbers:
                history.fill_findings(numbers)
        return len(numbers) == _FILLED_AT_ONCE

    def prune(self, project: Project) -> None:
        """Delete runs beyond the project's retention, except those labelled `pinned`."""
        settings = project.settings
        if settings.keep_runs is None and settings.keep_days is None:
            return
        today = dt.datetime.now(dt.UTC).date()
        before = None
        if settings.keep_days is not None and settings.keep_days < today.toordinal():
            before = today - dt.timedelta(days=settings.keep_days)
        with self._pool.history(project.name) as history:
            gone = history.prunable(keep=settings.keep_runs, older_than=before)
            if gone:
                history.remove(gone)
                counted = f"{len(gone)} by the project's settings"
                Team(history.database).note(
                    "stepgrade", "runs removed", project=project.name, subject=counted
                )


class Delivery(threading.Thread):
    """The delivery of a message, in its own thread."""

    def __init__(
        self, due: tuple[Message, Channel, Alert], settings: ServerSettings, ended: threading.Event
    ) -> None:
        super().__init__(name="stepgrade-delivery", daemon=True)
        self.message, self.channel, self._alert = due
        self.problem: str | None = None
        self.has_ended = False
        self._settings, self._exchange, self._ended = settings, BoundedExchange(), ended
        self.start()

    def cut(self) -> None:
        """Abort it."""
        self._exchange.cut()
        self.join(0.5)

    def run(self) -> None:
        """Send the message, and note how it went."""
        due = (self.message, self.channel, self._alert)
        error = failure_of(partial(send, *due, self._settings, self._exchange))
        if isinstance(error, NotSent):
            self.problem = str(error)
        elif error is not None:
            self.problem = f"unexpected error: {type(error).__name__}"
            LOG.warning("message %s: %s", self.message.id, shown_failure(error))
        self.has_ended = True
        self._ended.set()


class Postman:
    """Delivers due messages, one per channel at a time, so that a slow host delays only its own."""

    def __init__(self, pool: Pool, settings: ServerSettings) -> None:
        self._pool, self._settings = pool, settings
        self.under_way: dict[int, Delivery] = {}
        self.ended = threading.Event()
        self._is_stopping = False

    def jobs(self) -> Iterable[ServerJob]:
        """Yield the jobs to run now."""
        yield ServerJob("results", 0.0, self.settle)
        with self._pool.history() as history:
            names = Alerts(history).projects_with_due()
        for name in names:
            yield ServerJob(f"messages of {name}", 0.0, partial(self.start_due, name))

    def settle(self) -> None:
        """Record finished deliveries; one that cannot be recorded is retried here, not sent again."""
        for number, delivery in list(self.under_way.items()):
            if delivery.has_ended:
                with self._pool.history(delivery.channel.project) as history:
                    Alerts(history).settle(delivery.message, delivery.problem)
                if delivery.problem is not None:
                    LOG.warning(
                        "message %s on channel %s was not sent: %s",
                        delivery.message.id,
                        number,
                        delivery.problem,
                    )
                del self.under_way[number]

    def start_due(self, project: str) -> None:
        """Start deliveries of a project, up to the limits."""
        own = sum(each.channel.project == project for each in self.under_way.values())
        room = min(_MOST_UNDER_WAY - len(self.under_way), _MOST_OF_PROJECT - own)
        if room <= 0 or self._is_stopping:
            return
        with self._pool.history(project) as history:
            due = Alerts(history).claim_due(room, busy=tuple(self.under_way))
        for claimed in due:
            self.under_way[claimed[1].id] = Delivery(claimed, self._settings, self.ended)

    def stop(self) -> None:
        """Abort deliveries; they are retried after the next start."""
        self._is_stopping = True
        for delivery in list(self.under_way.values()):  # the worker may settle some meanwhile
            delivery.cut()


class Housekeeping:
    """The server's two workers; deliveries have their own, since other hosts may be slow."""

    def __init__(self, pool: Pool, settings: ServerSettings) -> None:
        self._postman = Postman(pool, settings)
        self.workers = (
            JobWorker("housekeeping", Keeper(pool).jobs),
            JobWorker("messages", self._postman.jobs, wake=self._postman.ended),
        )

    def start(self) -> None:
        """Start both."""
        for worker in self.workers:
            worker.start()

    def stop(self) -> None:
        """Stop both."""
        self._postman.stop()
        for worker in self.workers:
            worker.stop()

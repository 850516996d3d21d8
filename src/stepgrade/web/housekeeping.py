"""What the server does by itself: send messages, end waivers, remove old runs, fill gaps."""

from __future__ import annotations

import datetime as dt
import threading
import time

from stepgrade.errors import StepgradeError
from stepgrade.store.alerts import Alerts
from stepgrade.store.history import History, Selection
from stepgrade.store.team import Project, Team
from stepgrade.web.calls import LOG, Server
from stepgrade.web.outgoing import NotSent, send
from stepgrade.web.settings import ServerSettings

_EVERY_S = 2.0
_RETENTION_EVERY_S = 3_600.0
_FILLED_AT_ONCE = 50
PINNED = "pinned"  # the label of runs that are never removed by age or number


class Housekeeper:
    """A thread of its own; `stop` ends it between two things."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stepgrade-housekeeping", daemon=True)
        self._pruned_at = 0.0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for what is being done."""
        self._stopping.set()
        self._thread.join(timeout=15.0)

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            try:
                self.once(dt.datetime.now(dt.UTC).date())
            except StepgradeError as error:
                LOG.warning("housekeeping: %s", error)

    def once(self, today: dt.date) -> None:
        """Do all that is due."""
        is_pruning = time.monotonic() - self._pruned_at > _RETENTION_EVERY_S or not self._pruned_at
        with self._server.pool.history() as history:
            projects = Team(history.database).projects()
        for project in projects:
            with self._server.pool.history(project.name) as history:
                alerts = Alerts(history)
                for alert in alerts.reopen_expired(today):
                    alerts.announce(alert, "waiver ended")
                send_due(history, self._server.settings)
                if numbers := history.without_findings(_FILLED_AT_ONCE):
                    history.fill_findings(numbers)
                if is_pruning:
                    self.prune(history, project, today)
        if is_pruning:
            self._pruned_at = time.monotonic()

    def prune(self, history: History, project: Project, today: dt.date) -> None:
        """Remove what the project keeps no longer, but for runs with the label `pinned`."""
        settings = project.settings
        if settings.keep_runs is None and settings.keep_days is None:
            return
        before = None if settings.keep_days is None else today - dt.timedelta(days=settings.keep_days)
        numbers = set(history.prunable(keep=settings.keep_runs, older_than=before))
        if not numbers:
            return
        which = Selection(after=min(numbers) - 1, before=max(numbers) + 1)
        pinned = {run.id for run in history.runs(which) if PINNED in run.labels}
        gone = sorted(numbers - pinned)
        if gone:
            history.remove(gone)
            told = f"{len(gone)} by the project's settings"
            Team(history.database).note("stepgrade", "runs removed", project=project.name, subject=told)


def send_due(history: History, settings: ServerSettings) -> None:
    """Send the messages of a project that are due; those that fail are tried again later."""
    alerts = Alerts(history)
    for message, channel, alert in alerts.claim_due():
        problem = None
        try:
            send(message, channel, alert, settings)
        except NotSent as error:
            problem = str(error)
            LOG.warning("message %s on channel %s was not sent: %s", message.id, channel.id, problem)
        alerts.settle(message, problem)

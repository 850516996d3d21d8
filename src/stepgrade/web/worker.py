"""Threads that run the server's jobs; a failing job affects neither its thread nor other jobs."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import NamedTuple

from stepgrade.errors import StepgradeError

LOG = logging.getLogger("stepgrade.web")
_ROUND_S = 2.0
_MOST_WAIT_S = 60.0
# A round is a few queries; one that waits for a locked store takes a minute.
_STALLED_S = 180.0
_STOP_S = 3.0


class ServerJob(NamedTuple):
    """A periodic job; `do` returns whether to run again at once."""

    name: str
    every_s: float
    do: Callable[[], bool | None]


class JobState(NamedTuple):
    """Whether a worker is alive, how long it has been idle, and how many of its jobs fail."""

    is_alive: bool
    idle_s: float
    failing: int


def failure_of(job: Callable[[], object]) -> Exception | None:
    """Run a job and return its exception, if any."""
    try:
        job()
    except Exception as error:  # noqa: BLE001  nothing may end the thread
        return error
    return None


def shown_failure(error: Exception) -> str:
    """Return an error for the log; for unexpected ones only the type and line: the text may hold a secret."""
    if isinstance(error, StepgradeError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class JobWorker:
    """A thread that runs jobs in turn, with backoff for each failing job."""

    def __init__(
        self, name: str, jobs: Callable[[], Iterable[ServerJob]], wake: threading.Event | None = None
    ) -> None:
        self.name = name
        self.wake = wake or threading.Event()  # set to start the next round now
        self.failing: dict[str, int] = {}  # how often in a row a job failed
        self._jobs = jobs
        self._due: dict[str, float] = {}
        self._stopping = threading.Event()
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"stepgrade-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._beat = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current job; a long one is abandoned."""
        self._stopping.set()
        self.wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def state(self) -> JobState:
        """Return whether it is alive and working."""
        idle_s = time.monotonic() - self._beat
        return JobState(self._thread.is_alive() and idle_s < _STALLED_S, idle_s, len(self.failing))

    def round(self) -> None:
        """Run every job that is due."""
        jobs: list[ServerJob] = []
        self._do(ServerJob("list", 0.0, lambda: jobs.extend(self._jobs())))
        known = {"list", *(job.name for job in jobs)}
        for gone in self._due.keys() - known:
            self._due.pop(gone)
            self.failing.pop(gone, None)
        for job in jobs:
            if self._stopping.is_set():
                return
            self._do(job)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.round()
            self.wake.wait(_ROUND_S)
            self.wake.clear()

    def _do(self, job: ServerJob) -> None:
        if time.monotonic() < self._due.get(job.name, 0.0):
            return
        has_more: list[bool | None] = []
        error = failure_of(lambda: has_more.append(job.do()))
        wait = 0.0 if any(has_more) else job.every_s
        if error is None:
            self.failing.pop(job.name, None)
        else:
            times = self.failing[job.name] = self.failing.get(job.name, 0) + 1
            wait = min(_MOST_WAIT_S, _ROUND_S * 2.0**times)
            LOG.warning(
                "%s: %s failed, the next try is in %.0f s: %s",
                self.name,
                job.name,
                wait,
                shown_failure(error),
            )
        self._beat = time.monotonic()
        self._due[job.name] = self._beat + wait

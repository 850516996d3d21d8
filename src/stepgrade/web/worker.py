"""Threads that do a server's jobs: a job may fail in any way, the thread and the other jobs go on."""

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
    """What is done again and again; `do` returns whether there is more to do at once."""

    name: str
    every_s: float
    do: Callable[[], bool | None]


class Failure(NamedTuple):
    """A job that failed: how often in a row, and what was wrong."""

    times: int
    problem: str


class JobState(NamedTuple):
    """Whether a worker lives, how long ago it last did something, and how many of its jobs fail."""

    is_alive: bool
    idle_s: float
    failing: int


def failure_of(job: Callable[[], object]) -> Exception | None:
    """Do a job, and return what went wrong."""
    try:
        job()
    except Exception as error:  # noqa: BLE001  it meets foreign hosts and old rows: none of them may end the thread
        return error
    return None


def shown_failure(error: Exception) -> str:
    """Return what went wrong for the log; of an unexpected error, whose text may hold a secret, the place."""
    if isinstance(error, StepgradeError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}"


class JobWorker:
    """A thread that does jobs in turns; one that fails has to wait longer each time, the others do not."""

    def __init__(
        self, name: str, jobs: Callable[[], Iterable[ServerJob]], wake: threading.Event | None = None
    ) -> None:
        self.name = name
        self.wake = wake or threading.Event()  # set to begin the next round now
        self.failing: dict[str, Failure] = {}
        self._jobs = jobs
        self._due: dict[str, float] = {}
        self._stopping = threading.Event()
        self._beat = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"stepgrade-{name}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._beat = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End between two jobs; one that takes long is left behind."""
        self._stopping.set()
        self.wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)

    def state(self) -> JobState:
        """Return whether it does its work."""
        idle_s = time.monotonic() - self._beat
        return JobState(self._thread.is_alive() and idle_s < _STALLED_S, idle_s, len(self.failing))

    def round(self) -> None:
        """Do every job that is due."""
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
            times = self.failing[job.name].times + 1 if job.name in self.failing else 1
            self.failing[job.name] = Failure(times, type(error).__name__)
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

"""A pool of processes of this machine.

They are plain child processes that are fed through pipes, not forks: what the caller has open or runs in
threads is not copied, the caller's own script is not run again, and nothing is imported from the directory
that the caller happens to be in.
"""

from __future__ import annotations

import os
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import IO

import msgspec

from stepgrade.decoding import from_msgpack
from stepgrade.engine.base import TRIES, Done, Job, Outcome, ReportItem, died, now_and_then, run_item
from stepgrade.errors import EngineFailed
from stepgrade.files import scratch_folder

_FRAME = struct.Struct("<cI")
_CALL, _REPORT, _DONE = b"C", b"R", b"D"
# -I: no PYTHONPATH, no user's site, no script's or current directory; the path is that of this process.
_START = "import sys; sys.path[:] = sys.argv[1:]; from stepgrade.engine.pool import serve; serve()"
_PATIENCE_SECONDS = 2.0


class ProcessPool:
    """Several processes with one item at a time; one that dies is replaced, and its item tried again."""

    def __init__(self, workers: int) -> None:
        self._workers = max(1, workers)
        self._todo: queue.SimpleQueue[tuple[int, bytes, int] | None] = queue.SimpleQueue()
        self._came: queue.SimpleQueue[Done | tuple[int, int] | BaseException] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        # What the processes keep in files is removed with this, however they end.
        self._cleanup = ExitStack()
        self._folder = self._cleanup.enter_context(scratch_folder())

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield what becomes of each item, as it comes."""
        for place, item in enumerate(work.items):
            self._todo.put((place, item, TRIES))
        threads = [
            threading.Thread(target=self._keep_one_busy, args=(work.function,), daemon=True)
            for _ in range(min(self._workers, len(work.items)))
        ]
        for number, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError as error:
                if not number:
                    raise EngineFailed(f"a thread cannot be started: {error}") from error
                break  # fewer processes do it too
        left = len(work.items)
        while left:
            came = self._came.get()
            if isinstance(came, BaseException):
                raise came
            if isinstance(came, Done):
                left -= 1
                yield came
            else:
                report(*came)
        for _ in threads:
            self._todo.put(None)

    def close(self) -> None:
        """End the processes and remove what they kept."""
        with self._lock:
            self._is_closed = True
            running = [*self._running]
        for process in running:
            process.kill()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_SECONDS)
        self._cleanup.close()

    def _keep_one_busy(self, function: str) -> None:
        """Feed one process after the other until nothing is left to do."""
        try:
            process = None
            while (task := self._todo.get()) is not None:
                place, item, tries = task
                if process is None and (process := self._start()) is None:
                    return
                outcome = self._ask(process, function, place, item)
                if outcome is None:
                    code = self._stop(process)
                    process = None
                    if tries > 1:
                        self._todo.put((place, item, tries - 1))
                        continue
                    outcome = died(f"was ended by signal {-code}" if code < 0 else f"ended with {code}")
                self._came.put(Done(place, outcome))
            if process is not None:
                self._stop(process)
        except BaseException as error:  # noqa: BLE001  who waits for results must not wait for ever
            self._came.put(error)

    def _start(self) -> subprocess.Popen[bytes] | None:
        here = os.getcwd()
        ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        path = [folder for folder in sys.path if os.path.isabs(folder) and folder != here]
        with self._lock:
            if self._is_closed:
                return None
            try:
                process = subprocess.Popen(  # noqa: S603  this interpreter and our own code
                    [sys.executable, "-I", "-c", _START, *([] if ours in path else [ours]), *path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=os.environ | {"TMPDIR": self._folder},
                )
            except OSError as error:
                raise EngineFailed(f"a process cannot be started: {error.strerror or error}") from error
            self._running.add(process)
        return process

    def _stop(self, process: subprocess.Popen[bytes]) -> int:
        """Let a process end by itself, or end it, and return how it ended."""
        with suppress(OSError):
            if process.stdin:
                process.stdin.close()
        try:
            code = process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        with suppress(OSError):
            if process.stdout:
                process.stdout.close()
        with self._lock:
            self._running.discard(process)
        return code

    def _ask(
        self, process: subprocess.Popen[bytes], function: str, place: int, item: bytes
    ) -> Outcome | None:
        """Return what a process makes of an item, and pass on its reports; None when it has died."""
        assert process.stdin  # noqa: S101  both are pipes
        assert process.stdout  # noqa: S101  as above
        try:
            _send(process.stdin, _CALL, msgspec.msgpack.encode((function, item)))
            while frame := _receive(process.stdout):
                kind, data = frame
                if kind == _DONE:
                    return from_msgpack(data, Outcome)
                self._came.put((place, from_msgpack(data, int)))
        except (OSError, ValueError):  # the pipe is broken
            return None
        return None


def _send(pipe: IO[bytes], kind: bytes, data: bytes) -> None:
    pipe.write(_FRAME.pack(kind, len(data)) + data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> tuple[bytes, bytes] | None:
    """Return the next frame; None when the other side is gone."""
    head = pipe.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return None
    kind, size = _FRAME.unpack(head)
    data = pipe.read(size)
    return (kind, data) if len(data) == size else None


def serve() -> None:
    """Be a process of the pool: do what comes in, until nothing more can come."""
    import signal  # only here

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started this process decides when it ends
    came, back = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between
    while frame := _receive(came):
        function, item = from_msgpack(frame[1], tuple[str, bytes])

        def report(done_bytes: int) -> None:
            _send(back, _REPORT, msgspec.msgpack.encode(done_bytes))

        outcome = run_item(function, item, now_and_then(report))
        _send(back, _DONE, msgspec.msgpack.encode(outcome))

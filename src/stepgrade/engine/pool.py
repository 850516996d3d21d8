"""A pool of processes on this machine.

They are plain child processes fed through pipes, not forks: they copy none of the caller's threads or open
files, do not run the caller's script again, and import nothing from the current directory.
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
from msgspec import Struct

from stepgrade.decoding import from_msgpack
from stepgrade.engine.base import TRIES, Done, Job, Outcome, ReportItem, died, now_and_then, run_item
from stepgrade.errors import EngineFailed
from stepgrade.files import scratch_folder

_LENGTH = struct.Struct("<I")
# -I: no PYTHONPATH, no user site, no script or current directory; sys.path is this process's.
_START = "import sys; sys.path[:] = sys.argv[1:]; from stepgrade.engine.pool import serve; serve()"
_PATIENCE_SECONDS = 2.0


class _Message(Struct):
    """What a process sends: the bytes read so far, or the outcome of its item."""

    outcome: Outcome | None = None
    done_bytes: int = 0


class ProcessPool:
    """Several processes with one item at a time; one that dies is replaced, and its item retried."""

    def __init__(self, workers: int) -> None:
        self._workers = max(1, workers)
        self._todo: queue.SimpleQueue[tuple[int, bytes, int] | None] = queue.SimpleQueue()
        self._messages: queue.SimpleQueue[Done | tuple[int, int] | BaseException] = queue.SimpleQueue()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        # The processes' temporary files are removed with this folder, however they end.
        self._cleanup = ExitStack()
        self._folder = self._cleanup.enter_context(scratch_folder())

    def map(self, work: Job, report: ReportItem) -> Iterator[Done]:
        """Yield the outcome of each item as it arrives."""
        for index, item in enumerate(work.items):
            self._todo.put((index, item, TRIES))
        threads = [
            threading.Thread(target=self._run_items, args=(work.function,), daemon=True)
            for _ in range(min(self._workers, len(work.items)))
        ]
        for number, thread in enumerate(threads):
            try:
                thread.start()
            except RuntimeError as error:
                if not number:
                    raise EngineFailed(f"cannot start a thread: {error}") from error
                break  # continue with fewer processes
        left = len(work.items)
        while left:
            message = self._messages.get()
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, Done):
                left -= 1
                yield message
            else:
                report(*message)
        for _ in threads:
            self._todo.put(None)

    def close(self) -> None:
        """Kill the processes and remove their temporary files."""
        with self._lock:
            self._is_closed = True
            running = [*self._running]
        for process in running:
            process.kill()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_SECONDS)
        self._cleanup.close()

    def _run_items(self, function: str) -> None:
        """Give items to one process, and to its successors when it dies, until none is left."""
        try:
            process = None
            while (task := self._todo.get()) is not None:
                index, item, tries = task
                if process is None and (process := self._start()) is None:
                    return
                outcome = None
                with suppress(OSError, ValueError):  # a broken pipe: the process has died
                    _send(process.stdin, (function, item))
                    while data := _receive(process.stdout):
                        message = from_msgpack(data, _Message)
                        outcome = message.outcome
                        if outcome is not None:
                            break
                        self._messages.put((index, message.done_bytes))
                if outcome is None:
                    code = self._stop(process)
                    process = None
                    if tries > 1:
                        self._todo.put((index, item, tries - 1))
                        continue
                    outcome = died(f"was ended by signal {-code}" if code < 0 else f"ended with {code}")
                self._messages.put(Done(index, outcome))
            if process is not None:
                self._stop(process)
        except BaseException as error:  # noqa: BLE001  else `map` would wait forever
            self._messages.put(error)

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Return a new process; None if the pool is closed."""
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
                raise EngineFailed(f"cannot start a process: {error.strerror or error}") from error
            self._running.add(process)
        return process

    def _stop(self, process: subprocess.Popen[bytes]) -> int:
        """Let a process exit, or kill it, and return its exit code."""
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


def _send(pipe: IO[bytes] | None, message: object) -> None:
    data = msgspec.msgpack.encode(message)
    if pipe:
        pipe.write(_LENGTH.pack(len(data)) + data)
        pipe.flush()


def _receive(pipe: IO[bytes] | None) -> bytes:
    """Return the next message; empty if the other side is gone."""
    head = pipe.read(_LENGTH.size) if pipe else b""
    if not pipe or len(head) < _LENGTH.size:
        return b""
    (size,) = _LENGTH.unpack(head)
    data = pipe.read(size)
    return data if len(data) == size else b""


def serve() -> None:
    """Run a worker process: handle calls from standard input until it is closed."""
    import signal  # only here

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    while call := _receive(calls):
        function, item = from_msgpack(call, tuple[str, bytes])
        report = now_and_then(lambda done_bytes: _send(answers, _Message(done_bytes=done_bytes)))
        _send(answers, _Message(outcome=run_item(function, item, report)))

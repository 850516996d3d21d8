"""Sample which line of the user's code the training thread is in while the step waits."""

from __future__ import annotations

import _thread
import linecache
import os
import sys
import time
from collections import defaultdict
from contextlib import suppress
from types import CodeType, FrameType, ModuleType
from typing import NamedTuple

from stepgrade.model.activity import HostLine
from stepgrade.naming.python_frames import read_frame
from stepgrade.record.kineto import without_signals
from stepgrade.record.patches import is_ours
from stepgrade.record.timeline import (
    AFTER_FORWARD,
    BACKWARD,
    FORWARD,
    HOST,
    INPUT,
    LOSS,
    NONE,
    OPTIMIZER,
    StepTimeline,
)

# Sample often at first, for short runs, then rarely, to cost long runs nothing.
_FIRST_SECONDS, _FIRST_INTERVAL, _INTERVAL = 2.0, 0.01, 0.05
_MOST_LOCATIONS = 2000
_LINES_KEPT = 3
_WAITS = {INPUT: "input", NONE: "stall", AFTER_FORWARD: "stall", HOST: "stall"}
_UNSEEN = frozenset({NONE, AFTER_FORWARD})
# The step computes in these, unless the line calls something that is not an operation, like time.sleep.
_MODEL = frozenset({FORWARD, LOSS, BACKWARD, OPTIMIZER})
_OPERATIONS = ("torch", "torchvision", "torchaudio", "transformers", "triton")
# Parts of torch that are host work.
_TEXT = frozenset({"__format__", "__repr__", "__str__"})  # making text of a tensor is host work as well
_NO_OPERATIONS = ("torch/serialization.py", "torch/utils/", "torch/distributed/checkpoint/")


class _Location(NamedTuple):
    """Where the thread was: the phase, the innermost function of the user's code, and what that called."""

    phase: int
    code: CodeType
    at: int  # the instruction
    line: int
    module: str
    called: CodeType | None


class LineSampler:
    """Samples the frames of the training thread from another thread, without stopping it.

    It is not a `threading.Thread`, so that a script that counts those sees only its own, and it ends before
    the process forks, since forking with several threads is unsafe.
    """

    def __init__(self, timeline: StepTimeline) -> None:
        self._timeline = timeline
        self._thread = 0
        self._seconds: dict[_Location, float] = defaultdict(float)
        # Samples of the current step; dropped if it never ends, such as a test after the last step.
        self._of_step: dict[_Location, float] = defaultdict(float)
        self._ended_steps = 0
        self._is_user: dict[CodeType, bool] = {}
        self._callees: dict[_Location, tuple[str | None, bool | None]] = {}
        # A lock that stops the sampling thread, and one that it holds until it ends; empty if none runs.
        # Threads may fork at once, so this is only changed by calls that no other thread can interrupt.
        self._running: dict[str, tuple[_thread.LockType, _thread.LockType]] = {}
        self._began = 0.0
        self.first_step = 0

    @property
    def is_running(self) -> bool:
        """Return whether the sampler is running."""
        return bool(self._running)

    def start(self, step: int) -> None:
        """Start sampling the calling thread, at this step."""
        self._thread, self.first_step, self._began = _thread.get_ident(), step, time.monotonic()
        self.resume()

    def follow(self, thread: int) -> None:
        """Sample another thread from now on."""
        self._thread = self._thread and thread

    def resume(self) -> None:
        """Resume sampling after a pause."""
        if not self._thread:
            return
        stop, ended = locks = _thread.allocate_lock(), _thread.allocate_lock()
        stop.acquire()
        ended.acquire()
        if self._running.setdefault("locks", locks) is not locks:
            return
        try:
            with without_signals():
                _thread.start_new_thread(self._look, locks)
        except RuntimeError:  # no more threads can start
            self._running.pop("locks", None)
            ended.release()

    def pause(self) -> None:
        """Stop the sampling thread and wait for it, not for one that another thread starts meanwhile."""
        locks = self._running.pop("locks", None)
        if locks is not None:
            stop, ended = locks
            stop.release()
            with ended:
                pass
            self._keep_ended()

    def lines(self, steps: int) -> dict[str, list[HostLine]]:
        """Return the lines that took longest, by what they waited for, in milliseconds per step."""
        by_line: dict[str, dict[tuple[str, str, str | None], float]] = defaultdict(lambda: defaultdict(float))
        for location, seconds in list(self._seconds.items()):
            if location not in self._callees:
                self._callees[location] = _callee(location)
            calls, is_operation = self._callees[location]
            wait = "stall" if location.phase in _MODEL else _WAITS.get(location.phase)
            is_waiting = is_operation is False if location.phase in _MODEL else is_operation is not True
            if wait is not None and (is_waiting or wait == "input"):
                frame = read_frame(f"{location.code.co_filename}({location.line}): {location.code.co_name}")
                by_line[wait][_short(frame.where or ""), location.code.co_name, calls] += seconds
            if location.phase in _UNSEEN:
                frame = read_frame(f"{location.code.co_filename}({location.line}): {location.code.co_name}")
                by_line["unseen"][_short(frame.where or ""), location.code.co_name, None] += seconds
        return {
            wait: [
                HostLine(where=where, function=function, calls=calls, ms=seconds * 1e3 / max(1, steps))
                for (where, function, calls), seconds in sorted(found.items(), key=lambda item: -item[1])
            ][:_LINES_KEPT]
            for wait, found in by_line.items()
        }

    def _look(self, stop: _thread.LockType, ended: _thread.LockType) -> None:
        try:
            before = time.monotonic()
            while True:
                is_early = before - self._began < _FIRST_SECONDS
                if stop.acquire(timeout=_FIRST_INTERVAL if is_early else _INTERVAL):
                    return
                now = time.monotonic()
                location = self._look_once() if self._timeline.live else None
                self._keep_ended()
                if location is not None and (
                    location in self._of_step or len(self._of_step) < _MOST_LOCATIONS
                ):
                    self._of_step[location] += now - before
                before = now
        finally:
            ended.release()

    def _keep_ended(self) -> None:
        """Keep the samples of a step once it has ended."""
        if self._timeline.ended == self._ended_steps:
            return
        self._ended_steps = self._timeline.ended
        for location, seconds in self._of_step.items():
            if location in self._seconds or len(self._seconds) < _MOST_LOCATIONS:
                self._seconds[location] += seconds
        self._of_step.clear()

    def _look_once(self) -> _Location | None:
        """Return where the thread is; None if it moved on meanwhile."""
        phase, frame = self._timeline.current, self._innermost()
        at = None if frame is None else frame.f_lasti
        location = self._locate(frame, phase)
        still = frame is self._innermost() and (frame is None or frame.f_lasti == at)
        return location if still and self._timeline.current == phase else None

    def _innermost(self) -> FrameType | None:
        return sys._current_frames().get(self._thread)  # the only way to see another thread

    def _locate(self, frame: FrameType | None, phase: int) -> _Location | None:
        """Return the innermost function of the user's code, and what it called outside of it."""
        called, known = None, self._is_user
        while frame is not None:
            code = frame.f_code
            is_user = known.get(code)
            if is_user is None:
                theirs = read_frame(f"{code.co_filename}(1): {code.co_name}")
                is_user = known[code] = theirs.is_user and not is_ours(code)
            if is_user:
                module = frame.f_globals.get("__name__")
                name = module if isinstance(module, str) else ""
                return _Location(phase, code, frame.f_lasti, frame.f_lineno, name, called)
            called, frame = called if is_ours(code) else code, frame.f_back
        return None


def _callee(location: _Location) -> tuple[str | None, bool | None]:
    """Return what the line calls, as in its source, and whether that is an operation; None if unknown.

    Functions of torch's modules are operations, those of other modules are not; methods are unknown.
    """
    if location.called is not None:
        # Installed code is named from its package on.
        path = location.called.co_filename.replace("\\", "/").rpartition("-packages/")[2]
        function = (
            location.called.co_name if "<" in location.called.co_qualname else location.called.co_qualname
        )
        name = read_frame(f"{path}(1): {function}").name
        is_operation = name.split(".", 1)[0] in _OPERATIONS and not path.startswith(_NO_OPERATIONS)
        return name, is_operation and location.called.co_name not in _TEXT
    *_, position = (None, *location.code.co_positions())[: location.at // 2 + 2]
    line, end_line, start, end = position or (None, None, None, None)
    if line is None or line != end_line or start is None or end is None:
        return None, None
    source = linecache.getline(location.code.co_filename, line).encode()[start:end].decode("utf-8", "replace")
    name, bracket, _ = source.partition("(")
    if not bracket or not name.replace(".", "").isidentifier():
        return None, None
    root = getattr(sys.modules.get(location.module), name.split(".", 1)[0], None)
    if not isinstance(root, ModuleType):
        return name, None
    return name, root.__name__.split(".", 1)[0] in _OPERATIONS


def _short(where: str) -> str:
    """Return a file's path relative to the working directory, else to the home directory."""
    path, _, line = where.rpartition(":")
    here = ""
    with suppress(FileNotFoundError):  # the directory was removed
        here = os.getcwd()
    for folder in (sys.path[0] if sys.path else "", here):
        if folder and path.startswith(folder.rstrip(os.sep) + os.sep):
            return f"{os.path.relpath(path, folder)}:{line}"
    return where

"""Undo what torch's profiler leaves in a process after it ran: a thread and a log level.

The first profiler makes Kineto start a thread that waits for requests from outside and never ends. A forked
child then waits forever for this thread when it exits, and Python warns about forking with threads. A
profiler does not need the thread, so the one that came with ours is ended, on Linux.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

import torch

_TASKS = "/proc/self/task"
_LOADER = "_ZN9libkineto12ConfigLoader8instanceEv"
_STOP = "_ZN9libkineto12ConfigLoader10stopThreadEv"  # since torch 2.0
_LEVEL = "_ZN9libkineto6Logger14severityLevel_E"
_SET_LEVEL_BACK = "suppressLibkinetoLogMessages"
_LEVEL_VARIABLE, _NOTHING = "KINETO_LOG_LEVEL", 99
_DAEMON_VARIABLE = "KINETO_USE_DAEMON"
_GRAPHS_VARIABLE = "TORCHINDUCTOR_CUDAGRAPHS"
_FORK_WAITS_SECONDS = 0.1

_threads: set[str] = set()  # Kineto's threads that started with one of our profilers
_home = threading.main_thread().ident  # imports torch
_has_started = _has_script_started = False


def can_start() -> bool:
    """Return whether a profiler may start in this thread: Kineto warns if its first one is in another."""
    return _has_started or _thread.get_ident() == _home


def note_script_profiler() -> None:
    """Record that the script starts a profiler; Kineto reads the log level at the first one only."""
    global _has_started, _has_script_started  # noqa: PLW0603  one per process
    if _has_started and not _has_script_started:
        after_profiler()
    _has_started = _has_script_started = True


@contextmanager
def starting_profiler() -> Iterator[None]:
    """Start a profiler inside: Kineto writes no log lines, and no signal is delivered to its thread."""
    global _has_started  # noqa: PLW0603  as above
    _has_started = True
    before = _tasks()
    level = os.environ.get(_LEVEL_VARIABLE)
    os.environ[_LEVEL_VARIABLE] = str(_NOTHING)  # read when Kineto starts
    _set_level(_NOTHING)
    try:
        with without_signals():
            # It asks torch for its compiler, to see whether CUDA graphs are on, and imports it, which takes
            # two seconds: where nothing was compiled they are off.
            if "torch._inductor" not in sys.modules and _GRAPHS_VARIABLE not in os.environ:
                torch.profiler.profiler.torch = _Torch()
            yield
    finally:
        torch.profiler.profiler.torch = torch
        if level is None:
            os.environ.pop(_LEVEL_VARIABLE, None)
        else:
            os.environ[_LEVEL_VARIABLE] = level
        if _DAEMON_VARIABLE not in os.environ:  # with it the thread belongs to the daemon
            _threads.update(_tasks() - before)


class _Torch:
    """torch without its compiler."""

    def __getattr__(self, name: str) -> object:
        if name == "_inductor":
            raise AttributeError(name)
        return getattr(torch, name)


def after_profiler() -> None:
    """Restore Kineto's log level."""
    level = os.environ.get(_LEVEL_VARIABLE, "")
    if level.isdecimal():
        _set_level(int(level))
    with suppress(AttributeError):
        getattr(_torch(), _SET_LEVEL_BACK)()  # if the variable is not set


def end_thread(within_seconds: float = 0.0) -> None:
    """End the thread, if any, once it is waiting; before that it would take seconds to react."""
    if not _threads:
        return

    def is_waiting(task: str) -> bool:
        with suppress(OSError), open(f"{_TASKS}/{task}/stat", "rb") as found:
            return found.read().rpartition(b")")[2].split()[0] == b"S"
        return True  # it is gone

    until = time.monotonic() + within_seconds
    while not all(map(is_waiting, _threads)):
        if time.monotonic() >= until:
            return
        time.sleep(0.001)
    with suppress(AttributeError):
        loader, stop = getattr(_torch(), _LOADER), getattr(_torch(), _STOP)
        loader.restype, stop.argtypes, stop.restype = ctypes.c_void_p, [ctypes.c_void_p], None
        stop(loader())
        _threads.clear()


def before_fork() -> None:
    """End the thread; a forked child could not."""
    end_thread(_FORK_WAITS_SECONDS)


def after_fork_in_child() -> None:
    """If the thread could not be ended, let the child exit without the destructor that waits for it."""
    if not _threads:
        return
    _threads.clear()
    with suppress(AttributeError):
        libc = ctypes.CDLL(None)
        # Registered last, so it runs first. Python has ended by then: it must be a C function.
        libc.on_exit(libc._exit, None)
        getattr(libc, "__cxa_atexit")(libc.fflush, None, None)


@contextmanager
def without_signals() -> Iterator[None]:
    """Start a thread inside, and no signal will be delivered to it.

    A signal that the script awaits with `sigwait` is blocked only in its own threads: in ours it would end
    the process.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_level(level: int) -> None:
    with suppress(ValueError):  # this torch has another symbol name
        ctypes.c_int.in_dll(_torch(), _LEVEL).value = level


@cache
def _torch() -> ctypes.CDLL:
    return ctypes.CDLL(torch._C.__file__)  # it depends on all of torch's libraries


def _tasks() -> set[str]:
    with suppress(OSError):
        return set(os.listdir(_TASKS))
    return set()

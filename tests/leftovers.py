"""What a test could leave changed in the process for those after it."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGALRM)
_DEFAULT_START = multiprocessing.get_all_start_methods()[0]
_PATIENCE_S = 10.0


def state_of_the_process(known: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return what all tests of a process share, by name.

    A thread that was not there before is given time to end; a daemon may stay, for it holds nobody up.
    """
    threads = {thread for thread in threading.enumerate() if not thread.daemon}
    if known:
        before: set[threading.Thread] = known["threads"]  # type: ignore[assignment]
        for thread in threads - before:
            thread.join(_PATIENCE_S)
        threads = before | {thread for thread in threads if thread.is_alive()}
    return {
        "the working directory": os.getcwd(),  # noqa: PTH109  faster, and asked twice for each test
        "the running event loop": asyncio._get_running_loop(),
        "threads": threads,
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
        "the folder of temporary files": tempfile.gettempdir(),
        "limits of memory and files": [
            resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE)
        ],
        "collection of garbage": (gc.isenabled(), gc.get_threshold()),
        "tracing": (sys.gettrace(), sys.getprofile(), threading.gettrace()),
        "hooks": (sys.excepthook, threading.excepthook, sys.breakpointhook),
        "the timeout of sockets": socket.getdefaulttimeout(),
        "how processes are started": multiprocessing.get_start_method(allow_none=True) or _DEFAULT_START,
        "limits of the interpreter": (sys.getrecursionlimit(), sys.getswitchinterval()),
    }


def difference(before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Return what has changed."""
    return "; ".join(
        f"{name}: was {was!r}, is {after[name]!r}" for name, was in before.items() if was != after[name]
    )


@contextmanager
def put_back() -> Iterator[None]:
    """Put back the environment and the path of imports: Dask, Polars and others change them when they are used first."""
    environment, path = dict(os.environ), list(sys.path)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.path[:] = path

"""One exchange with another host, which ends at its deadline whatever that host does."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

EXCHANGE_S = 10.0
# Look-ups cannot be interrupted: so many may be left behind by hosts whose name servers do not answer.
_LOOK_UPS = threading.BoundedSemaphore(16)


class ExchangeCut(OSError):
    """The exchange did not end in time, or the server stops."""


class BoundedExchange:
    """The look-ups and connections of one exchange; `cut` ends them from any thread, the deadline by itself.

    A time limit for each operation would not do: a peer that sends a byte now and then meets all of them.
    """

    def __init__(self, seconds: float = EXCHANGE_S) -> None:
        self._end = time.monotonic() + seconds
        self._found: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self.is_cut = False
        self._timer = threading.Timer(seconds, self.cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._hang_up()

    def look_up(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host; raise OSError when there are none, or not in time."""
        if not _LOOK_UPS.acquire(blocking=False):
            raise ExchangeCut("too many look-ups are under way")

        def ask() -> None:
            try:
                self._found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, ValueError) as error:  # of a name that is none: UnicodeError
                self._found.put(error)
            finally:
                _LOOK_UPS.release()

        threading.Thread(target=ask, name="stepgrade-look-up", daemon=True).start()
        rows = self._found.get()  # `cut` puts something too
        if isinstance(rows, Exception):
            raise rows if isinstance(rows, OSError) else OSError("the name is invalid")
        return sorted({str(row[4][0]) for row in rows})

    def connect(self, address: str, port: int) -> socket.socket:
        """Return a connection to an address; raise OSError when there is none in time."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(max(0.0, self._end - time.monotonic()) + 1.0)  # `cut` comes first
        # A second handle on the same connection, since TLS takes the first one over.
        with self._lock:
            self._sockets.append(made.dup())
        if self.is_cut:
            self._hang_up()
        try:
            made.connect((address, port))
        except OSError:
            made.close()
            raise
        return made

    def check(self) -> None:
        """Raise ExchangeCut when the exchange was ended."""
        if self.is_cut:
            raise ExchangeCut("it took too long")

    def cut(self) -> None:
        """End all that is under way."""
        with self._lock:
            self.is_cut = True
        self._found.put(ExchangeCut("it took too long"))
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes whoever waits for it
            one.close()

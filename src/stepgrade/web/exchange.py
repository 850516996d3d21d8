"""An exchange with another host that ends at its deadline, whatever the host does."""

from __future__ import annotations

import queue
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

EXCHANGE_S = 10.0
# DNS lookups cannot be interrupted; at most so many may hang.
_LOOK_UPS = threading.BoundedSemaphore(16)


class ExchangeCut(OSError):
    """The exchange timed out, or the server is shutting down."""


class BoundedExchange:
    """The lookups and connections of one exchange; the deadline ends them, or `cut` from any thread.

    A timeout per operation is not enough: a peer could send one byte at a time.
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
        """Return the addresses of a host; raise OSError if there are none in time."""
        if not _LOOK_UPS.acquire(blocking=False):
            raise ExchangeCut("too many DNS lookups are pending")

        def ask() -> None:
            try:
                self._found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
            except (OSError, ValueError) as error:  # UnicodeError for an invalid name
                self._found.put(error)
            finally:
                _LOOK_UPS.release()

        threading.Thread(target=ask, name="stepgrade-look-up", daemon=True).start()
        rows = self._found.get()  # `cut` also puts something
        if isinstance(rows, Exception):
            raise rows if isinstance(rows, OSError) else OSError("the name is invalid")
        return sorted({str(row[4][0]) for row in rows})

    def connect(self, address: str, port: int) -> socket.socket:
        """Connect to an address; raise OSError if that fails or times out."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(max(0.0, self._end - time.monotonic()) + 1.0)  # `cut` comes first
        # Keep a second handle on the connection, since TLS takes over the first.
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
        """Raise ExchangeCut if the exchange was cut."""
        if self.is_cut:
            raise ExchangeCut("timed out")

    def cut(self) -> None:
        """Abort everything that is pending."""
        with self._lock:
            self.is_cut = True
        self._found.put(ExchangeCut("timed out"))
        self._hang_up()

    def _hang_up(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for it
            one.close()

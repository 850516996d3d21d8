"""A line that says how far a long read or a recording is; only on a terminal, and only after a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stepgrade.units import show_bytes, show_ms

_SILENT_SECONDS = 1.0
_BETWEEN_SECONDS = 0.1
_BETWEEN_STEPS_SECONDS = 0.5
_CLEAR_LINE = "\r\x1b[K"


@contextmanager
def progress_line(*, quiet: bool = False) -> Iterator[ProgressLine | None]:
    """Yield a line on the terminal that is cleared at the end; None when nobody would see it."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    line = ProgressLine()
    try:
        yield line
    finally:
        line.clear()


class ProgressLine:
    """One line that is written over, ten times a second at most."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _SILENT_SECONDS
        self._shown = False
        self._last = (0, time.monotonic())
        self._ranks = ""

    def count_ranks(self, done: int, total: int) -> None:
        """Keep how many ranks are read, for the next time that the line is shown."""
        self._ranks = f"{done} of {total} ranks, " if total > 1 else ""

    def show_bytes(self, done_bytes: int, total_bytes: int) -> None:
        """Show how much of the input is read."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next, self._shown = now + _BETWEEN_SECONDS, True
        share = f" of {show_bytes(total_bytes)}, {done_bytes / total_bytes:.0%}" if total_bytes else ""
        self._write(f"{_CLEAR_LINE}reading: {self._ranks}{show_bytes(done_bytes)}{share}")

    def show_steps(self, steps: int) -> None:
        """Show how many steps are recorded, and how long one takes."""
        now = time.monotonic()
        if now < self._next:
            return
        (before, since), self._last = self._last, (steps, now)
        self._next, self._shown = now + _BETWEEN_STEPS_SECONDS, True
        per_step = show_ms((now - since) * 1e3 / max(1, steps - before))
        self._write(f"{_CLEAR_LINE}recording: step {steps}, {per_step} per step; Ctrl-C ends it")

    def clear(self) -> None:
        """Remove the line, if it was ever shown."""
        if self._shown:
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone: what is done goes on
            sys.stderr.write(text)
            sys.stderr.flush()

"""The process's own streams: a full disk, a closed pipe or a missing stream never ends in a traceback."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from stepgrade.errors import BadInput, crash_text, without_tokens
from stepgrade.units import show_bytes, show_ms

_STANDARD_OUTPUT = "standard output"
_MESSAGE_CELLS = 1000
# A progress line appears after a while, and is written again at most this often.
_SILENT_SECONDS = 1.0
_BETWEEN_SECONDS = 0.1
_BETWEEN_STEPS_SECONDS = 0.5
_CLEAR_LINE = "\r\x1b[K"
_DEFAULT_COLUMNS = 80
_COLUMN_DIGITS = 6


def columns_of(stream: TextIO | None) -> int:
    """Return the width of what is shown on a stream: COLUMNS, else the terminal's, else 80."""
    columns = os.environ.get("COLUMNS", "")[:_COLUMN_DIGITS]
    if columns.isascii() and columns.isdecimal() and int(columns):
        return int(columns)
    with suppress(OSError, ValueError):
        if stream is not None and stream.isatty():
            return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
    return _DEFAULT_COLUMNS


def send(text: str) -> bool:
    """Write to standard output now; return False when its reader has left, and raise BadInput if it fails."""
    if sys.stdout is None:
        if text:
            raise BadInput("is closed", where=_STANDARD_OUTPUT, hint="write to a file with -o FILE")
        return False
    encoding = sys.stdout.encoding or "utf-8"
    data = text.encode(encoding, "replace")
    if not isinstance(sys.stdout, io.TextIOWrapper):  # a notebook's
        sys.stdout.write(data.decode(encoding))
        return True
    with standard_output() as output:
        output.write(data if os.linesep == "\n" else data.replace(b"\n", os.linesep.encode()))
    return output.has_reader


class Output:
    """The bytes of standard output: a write takes everything or raises OSError.

    With PYTHONUNBUFFERED nobody else writes the rest of what the system takes only in part, as a disk that is
    nearly full does, and a terminal that does not block takes nothing for a while.
    """

    def __init__(self) -> None:
        self._raw = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)
        self.has_reader = True

    def write(self, data: bytes) -> int:
        """Write all of it."""
        rest = memoryview(data)
        while rest:
            taken = self._raw.write(rest)
            if taken is None:
                import select  # hardly ever

                select.select([], [self._raw], [])
            rest = rest[taken or 0 :]
        return len(data)


@contextmanager
def standard_output() -> Iterator[Output]:
    """Give standard output; a reader that has left is let go, any other failure is BadInput."""
    output = Output()
    try:
        sys.stdout.flush()
        yield output
    except BrokenPipeError:
        output.has_reader = False
        _let_go()
    except OSError as error:
        _let_go()
        raise BadInput(f"cannot be written: {error.strerror or error}", where=_STANDARD_OUTPUT) from error


def complain(message: str) -> None:
    """Write one line to standard error, if there is one."""
    from stepgrade.report.names import shortened  # only when something is wrong

    if sys.stderr is not None:
        with suppress(OSError):
            line = shortened(without_tokens(message), _MESSAGE_CELLS)
            print(f"stepgrade: {line}", file=sys.stderr)  # noqa: T201


def show_crash() -> None:
    """Write the traceback of the error that is being handled to standard error, without secrets."""
    import traceback  # only when something is wrong

    if sys.stderr is not None:
        with suppress(OSError):
            print(crash_text(traceback.format_exc()), end="", file=sys.stderr)  # noqa: T201


def _let_go() -> None:
    """Send what is still buffered nowhere, so that Python does not fail on it at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn signals that would end the process at once into an exit that tidies up."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            with suppress(ValueError):  # not in the main thread
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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

    def show(self, text: str) -> None:
        """Show what is going on."""
        self._shown = True
        self._write(f"{_CLEAR_LINE}{text[: columns_of(sys.stderr) - 1]}")

    def clear(self) -> None:
        """Remove the line, if it was ever shown."""
        if self._shown:
            self._write(_CLEAR_LINE)

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # continue without the terminal
            sys.stderr.write(text)
            sys.stderr.flush()

"""The process's own streams: a full disk, a closed pipe or no stream at all is no reason for a traceback."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from stepgrade.errors import BadInput, crash_text, without_tokens

_STANDARD_OUTPUT = "standard output"
_MESSAGE_CELLS = 1000


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

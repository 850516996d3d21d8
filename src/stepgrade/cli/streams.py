"""The process's own streams: a full disk, a closed pipe or no stream at all is no reason for a traceback."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

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
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _let_go()
        return False
    except OSError as error:
        _let_go()
        raise BadInput(f"cannot be written: {error.strerror or error}", where=_STANDARD_OUTPUT) from error
    return True


def complain(message: str) -> None:
    """Write one line to standard error, if there is one."""
    from stepgrade.report.names import shortened  # noqa: PLC0415  only when something is wrong

    if sys.stderr is not None:
        with suppress(OSError):
            line = shortened(without_tokens(message), _MESSAGE_CELLS)
            print(f"stepgrade: {line}", file=sys.stderr)  # noqa: T201


def show_crash() -> None:
    """Write the traceback of the error that is being handled to standard error, without secrets."""
    import traceback  # noqa: PLC0415  only when something is wrong

    if sys.stderr is not None:
        with suppress(OSError):
            print(crash_text(traceback.format_exc()), end="", file=sys.stderr)  # noqa: T201


def _let_go() -> None:
    """Send what is still buffered nowhere, so that Python does not fail on it at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

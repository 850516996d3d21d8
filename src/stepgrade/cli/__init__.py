"""The command `stepgrade`: one file per command, no logic; errors become one line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence

_GARBAGE_EVERY = 100_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; as a process of its own (without `argv`) it ends there."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:  # answered before anything is imported
        from stepgrade._version import __version__

        text = f"stepgrade {__version__}\n".encode()
        try:
            while text:
                text = text[os.write(sys.stdout.fileno(), text) :]
        except (OSError, ValueError, AttributeError):
            pass  # reported below
        else:
            return 0
    is_all_ours = argv is None and arguments[:1] != ["record"]  # a recorded script runs in our process
    if is_all_ours:
        # Importing makes no garbage worth looking for, and numpy would start a thread on each core.
        gc.set_threshold(_GARBAGE_EVERY, *gc.get_threshold()[1:])
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # Numbers in files may overflow; numpy's warning about it would be a second line to read.
        warnings.simplefilter("ignore", RuntimeWarning)
    try:
        from stepgrade.cli.dispatch import run
    except KeyboardInterrupt:
        print("stepgrade: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    code = run(arguments, limits_memory=is_all_ours)
    if is_all_ours:  # end at once: freeing every object on the way out is a tenth of a short command
        from contextlib import suppress

        for stream in filter(None, (sys.stdout, sys.stderr)):
            with suppress(OSError, ValueError):  # nobody is left to read it
                stream.flush()
        os._exit(code)
    return code

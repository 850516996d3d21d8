"""The command `stepgrade`: one file per command, no logic; errors become one line and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

_GARBAGE_EVERY = 100_000
_HELP_TEXTS = ("numpy._core._add_newdocs", "numpy._core._add_newdocs_scalars")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments == ["--version"]:  # answered before anything is imported
        from stepgrade._version import __version__  # noqa: PLC0415

        try:
            print(f"stepgrade {__version__}", flush=True)  # noqa: T201
        except OSError:
            pass  # told below, where there are words for it
        else:
            return 0
    is_all_ours = argv is None and arguments[:1] != ["record"]  # a recorded script runs in our process
    if is_all_ours:
        _start_quickly()
    try:
        from stepgrade.cli.dispatch import run  # noqa: PLC0415
    except KeyboardInterrupt:
        print("stepgrade: interrupted", file=sys.stderr)  # noqa: T201
        return 130
    code = run(arguments)
    if is_all_ours:
        gc.freeze()  # the search for garbage on the way out is an eighth of a short command
    return code


def _start_quickly() -> None:
    """Spare a process that is ours alone what it has no use for: it takes a quarter of a small trace's time.

    Importing makes no garbage worth looking for. numpy starts a thread on each core for linear algebra, and
    two of its modules do nothing but tidy the help texts of its functions.
    """
    gc.set_threshold(_GARBAGE_EVERY, *gc.get_threshold()[1:])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    for name in _HELP_TEXTS:
        sys.modules.setdefault(name, type(sys)(name))

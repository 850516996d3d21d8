"""The command `stepgrade`: one file per command, no logic; errors become one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence


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
    from stepgrade.cli.main import run  # noqa: PLC0415

    return run(arguments)

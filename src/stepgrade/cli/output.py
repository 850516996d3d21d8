"""Where a result goes: the terminal as it is, a pipe, or a file that is written whole or not at all."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from contextlib import suppress

from stepgrade import report
from stepgrade.cli.streams import send
from stepgrade.errors import BadInput, BadOption
from stepgrade.files import write_whole
from stepgrade.model.notes import Result
from stepgrade.report.names import printable
from stepgrade.report.types import Page

DEFAULT_WIDTH = 80
WIDEST = 120


def write_result(result: Result, args: Namespace) -> None:
    """Render a result for where it will be read, and write it there."""
    if args.format == "html" and args.output is None and _is_terminal():
        raise BadOption("an HTML page is for a browser", hint="name a file with -o report.html")
    page = page_for(args.output, args.color)
    write(report.render(result, to=args.format, width=page.width, color=page.color), args.output)


def page_for(output: str | None, color: str) -> Page:
    """Return the page that a result will be read on."""
    return Page(width=_width(output), color=_has_color(color, output))


def write(text: str, output: str | None) -> None:
    """Print the text, or write it to a file; raise BadInput when that fails."""
    if output is None or output == "-":
        send(text)
        return
    try:
        # What a link points to is written, and the link stays.
        write_whole(os.path.realpath(output), text.encode("utf-8", "replace"))
    except OSError as error:
        raise BadInput(f"cannot be written: {error.strerror or error}", where=output) from error


def write_raw(text: str, output: str | None) -> None:
    """Write text whose names are not escaped; only a terminal gets them spelt out, line by line."""
    if (output is None or output == "-") and _is_terminal():
        text = "".join(printable(line) + "\n" for line in text.splitlines())
    write(text, output)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _width(output: str | None) -> int:
    if os.environ.get("COLUMNS", "").isdecimal():
        return min(WIDEST, int(os.environ["COLUMNS"]))
    if output is not None or not _is_terminal():
        return DEFAULT_WIDTH
    with suppress(OSError, ValueError):
        return min(WIDEST, os.get_terminal_size(sys.stdout.fileno()).columns)
    return DEFAULT_WIDTH


def _has_color(choice: str, output: str | None) -> bool:
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return output is None and _is_terminal() and os.environ.get("TERM") != "dumb"

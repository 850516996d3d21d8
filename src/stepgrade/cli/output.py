"""Where a result goes: the terminal as it is, a pipe, or a file that is written whole or not at all."""

from __future__ import annotations

import os
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import BinaryIO, TextIO, cast

from stepgrade import report
from stepgrade.cli.commands import FLAGS
from stepgrade.cli.streams import columns_of, send, standard_output
from stepgrade.errors import BadInput, BadOption
from stepgrade.files import write_by
from stepgrade.model.notes import Result
from stepgrade.report.names import printable

WIDEST = 120


def write_result(result: Result, to: str, output: str | None, color: str, *, full: bool = False) -> None:
    """Render a result as `to` for where it will be read, and write it there."""
    if to == "html" and output is None and _is_terminal():
        raise BadOption("HTML is not written to a terminal", hint="name a file with -o report.html")
    width, has_color = page_for(output, color)
    write(report.render(result, to=to, width=width, color=has_color, full=full, flags=FLAGS), output)


def show_beside(result: Result, color: str, full: str) -> None:
    """Show a result on standard error, beside what a script prints; `full` is what shows all of it."""
    if sys.stderr is None:
        return
    width, has_color = page_for(None, color, sys.stderr)
    flags = ChainMap({"full": full}, cast("MutableMapping[str, str]", FLAGS))
    text = report.render(result, to="terminal", width=width, color=has_color, flags=flags)
    with suppress(OSError, ValueError):
        encoding = sys.stderr.encoding or "utf-8"
        sys.stderr.write(text.encode(encoding, "replace").decode(encoding))
        sys.stderr.flush()


def page_for(output: str | None, color: str, stream: TextIO | None = None) -> tuple[int, bool]:
    """Return the width of where a result will be read, and whether it has colour (auto, always or never)."""
    stream = stream or sys.stdout
    is_terminal = output is None and stream is not None and stream.isatty()
    has_color = color == "always"
    if color == "auto" and not os.environ.get("NO_COLOR"):
        has_color = bool(os.environ.get("FORCE_COLOR")) or (is_terminal and os.environ.get("TERM") != "dumb")
    return min(WIDEST, columns_of(stream if is_terminal else None)), has_color


def write(text: str, output: str | None) -> None:
    """Print the text, or write it to a file; raise BadInput when that fails."""
    write_lines([text], output)


def write_lines(lines: Iterable[str], output: str | None) -> None:
    """Print text as it comes until its reader leaves, or write it to a file; raise BadInput if that fails."""
    if output is None or output == "-":
        for line in lines:
            if not send(line):
                break
    else:
        _write_file(lambda file: file.writelines(line.encode("utf-8", "replace") for line in lines), output)


def write_bytes(write_to: Callable[[BinaryIO], object], output: str | None) -> None:
    """Let a file be written, packed where its name ends in .gz, or standard output; raise BadInput."""
    if output is None or output == "-":
        if _is_terminal() or sys.stdout is None:
            raise BadOption(
                "this format is not written to a terminal", hint="name a file with -o run.pftrace"
            )
        with standard_output() as printed:
            write_to(cast("BinaryIO", printed))
        return

    def packed(file: BinaryIO) -> None:
        import gzip  # only for such names

        with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0, compresslevel=6) as pack:
            write_to(cast("BinaryIO", pack))

    _write_file(packed if output.endswith(".gz") else write_to, output)


def _write_file(write_to: Callable[[BinaryIO], object], output: str) -> None:
    try:
        path = os.path.realpath(output)  # what a link points to, so that the link stays
        is_lost = os.path.islink(path)  # `realpath` returns a link that the system cannot resolve
        if not is_lost:
            write_by(path, write_to)
    except BadInput:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and "\0" not in output:
            raise  # not about the path: a bug in what writes
        problem = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot be written: {problem}", where=output) from error
    if is_lost:
        raise BadInput("is a link that cannot be followed", where=output)


def write_raw(text: str, output: str | None) -> None:
    """Write text whose names are not escaped; only a terminal gets them spelt out, line by line."""
    if (output is None or output == "-") and _is_terminal():
        text = "".join(printable(line) + "\n" for line in text.splitlines())
    write(text, output)


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()

"""A run's traces as one annotated file for Perfetto: what `score --format perfetto` and `open` share."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, BinaryIO

from stepgrade.cli import output
from stepgrade.errors import BadOption

if TYPE_CHECKING:
    from stepgrade.model.scorecard import Scorecard
    from stepgrade.report.perfetto import Shown


def check_timeline(args: Namespace) -> None:
    """Raise BadOption for what has no timeline, before anything is read."""
    if "-" in args.sources:
        raise BadOption("a timeline needs a file: standard input can be read only once", field="to")
    if "contract" in args and args.contract == "v1":
        raise BadOption("contract v1 has no timeline", field="to", hint="leave --contract v1 out")


def write_timeline(card: Scorecard, args: Namespace, path: str | None) -> Shown | None:
    """Write the traces of the command line once more, aligned and annotated; return what to show first."""
    from stepgrade.cli.progress import progress_line  # only for this format
    from stepgrade.readers.ranks import read_again
    from stepgrade.readers.source import ReadOptions
    from stepgrade.report import perfetto

    shown: list[Shown | None] = []
    with progress_line() as line:
        options = ReadOptions(
            steps=args.steps,
            max_bytes=args.max_bytes,
            max_memory=args.max_memory,
            progress=line.show_bytes if line else None,
        )

        def write(file: BinaryIO) -> None:
            shown.append(perfetto.write(card, traces, file))

        with read_again(args.sources, card.source, args.input_format, options) as traces:
            output.write_bytes(write, path)
    return shown[0]

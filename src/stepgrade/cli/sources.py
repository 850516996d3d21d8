"""The sources of a run on the command line: which files, which steps of them, how far reading is."""

from __future__ import annotations

import argparse
import re

from stepgrade.cli.parser import Parser
from stepgrade.cli.progress import progress_line
from stepgrade.errors import BadOption
from stepgrade.model import Profile
from stepgrade.readers.load import load


def add_sources(parser: Parser) -> None:
    """Add the sources of one run, and which of its steps to look at."""
    parser.add_argument("sources", metavar="SOURCE", nargs="+")
    parser.add_argument(
        "--steps", type=step_range, metavar="FIRST-LAST", help="only these steps of a trace, such as 3-7"
    )


def load_run(args: argparse.Namespace) -> Profile:
    """Read the run that the command line names, with a progress line when it takes long."""
    with progress_line() as progress:
        return load(
            *args.sources,
            input_format=args.input_format,
            steps=args.steps,
            max_bytes=args.max_bytes,
            progress=progress,
        )


def only_source(args: argparse.Namespace) -> str:
    """Return the one source that contract v1 takes."""
    if len(args.sources) != 1:
        raise BadOption("contract v1 scores one step profile", hint="`stepgrade convert` makes one of traces")
    source: str = args.sources[0]
    return source


def step_range(text: str) -> tuple[int, int]:
    """Return the first and the last step of a text like 3-7 or 5."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    if not match or int(match[2] or match[1]) < int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of steps; write it like 3-7")
    return int(match[1]), int(match[2] or match[1])

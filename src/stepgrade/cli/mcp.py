"""Answer assistants over the Model Context Protocol, on standard input and output.

An assistant can score, inspect, compare, plan and estimate files below the roots, ask what-if questions,
and query the history for trends and findings. Nothing is written unless --allow-saving is given. Answers
are the most relevant fields of the JSON, at most about 1,500 tokens. Needs pip install 'stepgrade[mcp]'.

  stepgrade mcp
  stepgrade mcp --root traces --root models --history runs.db
"""

from __future__ import annotations

import os
from argparse import Namespace

from stepgrade.cli import run_options
from stepgrade.cli.parser import Parser
from stepgrade.errors import EXIT_OK, BadOption


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add = parser.add_argument
    add(
        "--root",
        action="append",
        metavar="FOLDER",
        help="folder that may be read (default: this one); may be repeated",
    )
    add("--allow-saving", action="store_true", help="let the assistant save runs in the history")
    run_options.add_history_option(parser)


def run(args: Namespace) -> int:
    """Answer until standard input ends."""
    folders = args.root or ["."]
    for folder in folders:
        if not os.path.isdir(folder):
            raise BadOption("is not a folder", where=folder)
    from stepgrade.web.assistant import run_over_pipe

    run_over_pipe(folders, args.history, may_save=args.allow_saving)
    return EXIT_OK

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

from stepgrade.cli.parser import Parser, option
from stepgrade.cli.run_options import HISTORY
from stepgrade.errors import EXIT_OK, BadOption


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add(
        option("--root FOLDER ...", "folder that may be read (default: this one); may be repeated"),
        option("--allow-saving", "let the assistant save runs in the history"),
        HISTORY,
    )


def run(args: Namespace) -> int:
    """Answer until standard input ends."""
    folders = args.root or ["."]
    for folder in folders:
        if not os.path.isdir(folder):
            raise BadOption("is not a folder", where=folder)
    from stepgrade.web.assistant import run_over_pipe

    run_over_pipe(folders, args.history, may_save=args.allow_saving)
    return EXIT_OK

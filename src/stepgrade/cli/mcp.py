"""Answer assistants: the Model Context Protocol over standard input and output.

  stepgrade mcp                                  reads files below this folder
  stepgrade mcp --root traces --root models --history https://stepgrade.example.org/llm

An assistant can score, inspect, compare, plan and estimate files below the roots, ask what a step would take
if something were different, and ask the history for trends and findings. Nothing is written unless
--allow-saving is given. Answers are the fields of the JSON that matter, at most about 1,500 tokens.
Needs `pip install 'stepgrade[mcp]'`.
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
        help="what may be read (default: this folder); may be repeated",
    )
    add("--allow-saving", action="store_true", help="let the assistant keep runs in the history")
    run_options.add_history_option(parser)


def run(args: Namespace) -> int:
    """Answer until the assistant hangs up."""
    folders = args.root or ["."]
    for folder in folders:
        if not os.path.isdir(folder):
            raise BadOption("is no folder", where=folder)
    from stepgrade.web.assistant import run_over_pipe  # not needed for the help

    run_over_pipe(folders, args.history, may_save=args.allow_saving)
    return EXIT_OK

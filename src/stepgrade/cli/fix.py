"""Try what the findings of a short recording suggest, prove it, and write it if asked.

SCRIPT runs many times, in copies of the current folder, with its own arguments; nothing of yours is changed
without --write. Each change is made at run time and compared with the unchanged script in turns: it is
accepted if it is faster and did the same work. Options of stepgrade go before SCRIPT. Needs torch:
pip install 'stepgrade[torch]'.

  stepgrade fix train.py --lr 3e-4
  stepgrade fix --write train.py --lr 3e-4
  stepgrade fix --budget 30m torchrun --nproc-per-node 2 train.py
"""

from __future__ import annotations

import argparse
import os
import time
from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.parser import Parser, add_output_options, option
from stepgrade.cli.streams import complain, ended_by_signals, progress_line
from stepgrade.errors import EXIT_OK, BadOption


def add_options(parser: Parser) -> None:
    """Declare the command line; everything from SCRIPT on belongs to the script."""
    command = "the script and its arguments"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT …", help=command)
    parser.add(
        option("-m", "SCRIPT is a module name", dest="as_module"),
        option("--budget TIME", "how long to try", default="10m"),
        option("--allow WHAT ...", "also try changes of precision", choices=("precision",), default=[]),
        option("--least-gain SHARE", "a change that saves less is not worth it", default=0.02),
        option("--write", "edit the script: what was accepted, after a trial of the edit"),
        option("--branch NAME", "commit the same edit on a new branch instead; the checkout stays as it is"),
        option("--allow-dirty", "with --write: also if the folder has changes that are not committed"),
    )
    add_output_options(parser)
    parser.show_first("-m --budget --allow --write --branch --format --output")


def run(args: Namespace) -> int:
    """Try, and report."""
    from stepgrade.fix.run import try_fixes
    from stepgrade.fix.write import check_clean, write_edits

    if args.write and args.branch:
        raise BadOption("--write edits the checkout, --branch leaves it as it is", hint="give one of them")
    if args.write or args.branch:
        check_clean(os.getcwd(), allow_dirty=args.allow_dirty, branch=args.branch)
    began = time.monotonic()

    def say(text: str) -> None:
        if line:
            line.show(f"{(time.monotonic() - began) / 60.0:.1f} of {args.budget / 60.0:g} min: {text}")

    with ended_by_signals(), progress_line() as line:
        found = try_fixes(
            args.command,
            as_module=args.as_module,
            budget_s=args.budget,
            allow=args.allow,
            least_gain=args.least_gain,
            say=say,
        )
    output.write_result(found, args.format, args.output, args.color)
    if args.write or args.branch:
        with ended_by_signals():
            complain(write_edits(os.getcwd(), found, args.branch))
    return EXIT_OK

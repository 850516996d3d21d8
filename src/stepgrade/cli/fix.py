"""Try what the findings of a short recording suggest, prove it, and write it if asked.

SCRIPT runs many times, in copies of the current folder, with its own arguments; nothing of yours is changed
without --write. Each change is made at run time and compared with the unchanged script in turns: it is
accepted if it is faster and did the same work. Options of stepgrade go before SCRIPT. Needs torch:
pip install 'stepgrade[torch]'.

  stepgrade fix train.py --lr 3e-4
  stepgrade fix --write train.py --lr 3e-4
  stepgrade fix --minutes 30 torchrun --nproc-per-node 2 train.py
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
        option("--minutes N", "how long to try", type=float, default=10.0),
        option("--allow WHAT ...", "also try changes of precision", choices=("precision",), default=[]),
        option("--least-gain SHARE", "a change that saves less is not worth it", default=0.02),
        option("--write", "edit the script: what was accepted, after a trial of the edit"),
        option("--allow-dirty", "with --write: also if the folder has changes that are not committed"),
    )
    add_output_options(parser)
    parser.show_first("-m --minutes --allow --least-gain --write --format --output")


def run(args: Namespace) -> int:
    """Try, and report."""
    from stepgrade.fix.run import try_fixes
    from stepgrade.fix.write import check_clean, write_edits

    if not 0.0 < args.minutes <= 10_000.0:
        raise BadOption("--minutes must be above 0")
    if args.write:
        check_clean(os.getcwd(), allow_dirty=args.allow_dirty)
    budget, began = f" of {args.minutes:g} min", time.monotonic()

    def say(text: str) -> None:
        if line:
            line.show(f"{text} ({(time.monotonic() - began) / 60.0:.1f}{budget})")

    with ended_by_signals(), progress_line() as line:
        found = try_fixes(
            args.command,
            as_module=args.as_module,
            budget_s=60.0 * args.minutes,
            allow=args.allow,
            least_gain=args.least_gain,
            say=say,
        )
    output.write_result(found, args.format, args.output, args.color)
    if args.write:
        with ended_by_signals():
            complain(write_edits(os.getcwd(), found))
    return EXIT_OK

"""Write SOURCE as step_profiler_v2 JSON, for contract v1 and other tools that read it.

stepgrade convert train.log -o profile.json
stepgrade convert traces/ | stepgrade score -
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.parser import OUTPUT, READING, Parser
from stepgrade.cli.run_options import add_sources, load_run
from stepgrade.errors import EXIT_OK
from stepgrade.report.step_profile import convert


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add_sources(parser)
    parser.add_argument("--format", choices=("json",), default="json", help="step profile JSON, the only one")
    parser.add(OUTPUT)
    parser.add(*READING, group="reading")
    parser.show_first("--output --steps --input-format")


def run(args: Namespace) -> int:
    """Write the step profile."""
    output.write(convert(load_run(args)), args.output)
    return EXIT_OK

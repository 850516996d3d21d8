"""Show the catalogue of accelerators, one of them with all its facts, or what this machine has.

stepgrade devices                      every device: memory, bandwidth, dense peaks
stepgrade devices --filter "rtx 40"    those that have every word
stepgrade devices h100-sxm5-80gb       all facts, with their sources
stepgrade devices --detect             what drivers and frameworks find here
stepgrade devices --measure            measure this machine and keep the result as a ceiling
"""

from __future__ import annotations

import sys
from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.flags import FLAGS
from stepgrade.cli.parser import Parser, add_output_options
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.hardware.catalogue import devices
from stepgrade.hardware.setup import device_facts
from stepgrade.model.notes import Result


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="a key, or a name as drivers report it")
    add(
        "--filter",
        metavar="WORDS",
        help="only devices whose key, name, maker or architecture has every word",
    )
    add("--detect", action="store_true", help="ask the drivers and frameworks that are installed")
    add("--measure", action="store_true", help="measure bandwidth and matmul rate here (about 10 seconds)")
    add("--state", metavar="FILE", help="where measurements are kept (default: the user's state folder)")
    add_output_options(parser)
    add("--json", action="store_const", const="json", dest="format", help="the same as --format json")


def run(args: Namespace) -> int:
    """Print what was asked for."""
    asked = [args.name is not None, args.filter is not None, args.detect, args.measure]
    if sum(asked) > 1:
        raise BadOption("NAME, --filter, --detect and --measure exclude each other", hint="give one of them")
    result: Result
    if args.detect:
        from stepgrade.hardware.detect import detect  # only when asked for

        result = detect(FLAGS)
    elif args.measure:
        from stepgrade.hardware.measure import measure_here  # only when asked for

        def progress(what: str) -> None:
            print(f"stepgrade: measuring {what} …", file=sys.stderr, flush=True)  # noqa: T201

        result = measure_here(progress, args.state)
    else:
        result = device_facts(args.name, args.state) if args.name is not None else devices(args.filter)
    output.write_result(result, args.format, args.output, args.color)
    return EXIT_OK

"""Show the catalogue of accelerators, one device with its sources, or what this machine has.

stepgrade devices                      all, with memory and peaks
stepgrade devices --filter "rtx 40"    those that match every word
stepgrade devices h100-sxm5-80gb       all figures, with their sources
stepgrade devices --detect             what drivers and frameworks find here
stepgrade devices --measure            measure this machine
"""

from __future__ import annotations

import sys
from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.commands import FLAGS
from stepgrade.cli.parser import Parser, add_output_options, option
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.hardware.catalogue import devices
from stepgrade.hardware.setup import device_facts
from stepgrade.model.notes import Result


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a key, or a name as drivers report it")
    parser.add(
        option("--filter WORDS", "devices that match every word", dest="words"),
        option("--detect", "ask the installed drivers and frameworks"),
        option("--measure", "measure bandwidth and matmul rate, for its ceiling"),
        option("--state FILE", "file of measurements (default: the user's)"),
    )
    add_output_options(parser)
    text = "the same as --format json"
    parser.add(option("--json", text, action="store_const", const="json", dest="format"))
    parser.show_first("--filter --detect --measure --json --format --output")


def run(args: Namespace) -> int:
    """Print the catalogue, one device, or this machine."""
    chosen = [args.name is not None, args.words is not None, args.detect, args.measure]
    if sum(chosen) > 1:
        raise BadOption("NAME, --filter, --detect and --measure exclude each other", hint="give one of them")
    result: Result
    if args.detect:
        from stepgrade.hardware.detect import detect

        result = detect(FLAGS)
    elif args.measure:
        from stepgrade.hardware.measure import measure_here

        def progress(what: str) -> None:
            print(f"stepgrade: measuring {what} …", file=sys.stderr, flush=True)  # noqa: T201

        result = measure_here(progress, args.state)
    else:
        result = device_facts(args.name, args.state) if args.name is not None else devices(args.words)
    output.write_result(result, args.format, args.output, args.color)
    return EXIT_OK

"""Compare OURS with THEIRS: which operations are slower, and how much of the time they explain.

Both may be ParityProfile JSON or any profile with operations. Exit code 3 means that too little
of the time is in operations that both have.

  stepgrade parity ours.json pytorch.json
  stepgrade parity ours.json pytorch.json --contract v1 --format markdown
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade import api
from stepgrade.cli import output
from stepgrade.cli.parser import Parser, add_contract_option, add_input_options, add_output_options
from stepgrade.errors import EXIT_NOT_MEASURED, EXIT_OK


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add_argument("ours", metavar="OURS")
    parser.add_argument("theirs", metavar="THEIRS")
    add_contract_option(parser)
    add_input_options(parser)
    add_output_options(parser, pages=True)


def run(args: Namespace) -> int:
    """Print the comparison; 3 when too little is comparable."""
    if args.contract == "v1":
        comparison = api.parity_v1(args.ours, args.theirs, max_bytes=args.max_bytes)
        output.write_raw(api.render_v1(comparison, to=args.format), args.output)
        return EXIT_OK
    ours, theirs = (
        api.load(source, input_format=args.input_format, max_bytes=args.max_bytes)
        for source in (args.ours, args.theirs)
    )
    report = api.parity(ours, theirs)
    output.write_result(report, args)
    return EXIT_OK if report.parity_achieved is not None else EXIT_NOT_MEASURED

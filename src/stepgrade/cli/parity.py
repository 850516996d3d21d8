"""Compare OURS with THEIRS: which operations are slower, and where the gap comes from.

Each is a profile with operations: ParityProfile JSON, a step profile or a trace. Operations are matched by
name and by their role in the model. More than two sources give a matrix. Exit code 1 means that ours takes
more than --require times as long, 3 that too little of the time is in operations that both have.

  stepgrade parity ours.json pytorch.json
  stepgrade parity ours.json pytorch.json jax.json --require 1.10
  stepgrade parity ours.json pytorch.json --contract v1 --format markdown
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import contract_v1, output
from stepgrade.cli.parser import CONTRACT, READING, Parser, add_output_options, option
from stepgrade.cli.streams import complain
from stepgrade.compare.parity import ParityReport, compare_all, judge, parity
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.loading import load
from stepgrade.report import FORMATS


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add_argument("ours", metavar="OURS", help="your run")
    parser.add_argument("theirs", metavar="THEIRS", nargs="+", help="the runs to compare it with")
    text = "exit with 1 if ours takes more than RATIO times as long"
    parser.add(option("--require RATIO", text, dest="required"), CONTRACT)
    parser.add(*READING, group="reading")
    add_output_options(parser, FORMATS)
    parser.show_first("--require --contract --format --output")


def run(args: Namespace) -> int:
    """Print the comparison; return 3 when too little is comparable."""
    if args.contract == "v1":
        comparison = contract_v1.parity_v1(args)
        output.write_raw(contract_v1.render_v1(comparison, to=args.format), args.output)
        return EXIT_OK
    if args.required is not None and not args.required > 0.0:
        raise BadOption(f"must be above 0, not {args.required:g}", where="--require")
    profiles = [
        load(source, input_format=args.input_format, max_bytes=args.max_bytes, max_memory=args.max_memory)
        for source in (args.ours, *args.theirs)
    ]
    if len(profiles) == 2:
        report = parity(*profiles)
        output.write_result(report, args.format, args.output, args.color)
        reports: tuple[ParityReport, ...] = (report,)
    else:
        matrix = compare_all(tuple(profiles))
        output.write_result(matrix, args.format, args.output, args.color)
        reports = matrix.first_against
    code, reasons = judge(reports, args.required)
    for reason in reasons:
        complain(f"parity: {reason}")
    return code

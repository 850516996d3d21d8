"""Grade the run in SOURCE against what its hardware allows.

SOURCE is a trace (torch.profiler, Nsight Systems, JAX, rocprofv3), a training log or metrics file, a
recording of stepgrade record, a memory snapshot or a step profile; the format is found by content. Several
traces, or a directory of them, are the ranks of one run. Without a throughput and a ceiling the run is
shown but not graded.

  stepgrade score trace.json.gz
  stepgrade score train.log --device h100-sxm5-80gb --model config.json
  stepgrade score traces/ --format html -o report.html
  stepgrade score new.json --baseline old.json --fail-on warning

A log beside a trace belongs to the same run. Files may be gzipped, and - reads standard input.
"""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, BinaryIO

from stepgrade.cli import contract_v1, output, run_options
from stepgrade.cli.parser import CONTRACT, READING, Parser, add_output_options, option
from stepgrade.cli.streams import complain, progress_line
from stepgrade.contract import TrainingScorecard
from stepgrade.errors import BadOption
from stepgrade.gating.fail_on import check_conditions, decide, parse_condition
from stepgrade.loading import load_baseline
from stepgrade.model.scorecard import Scorecard
from stepgrade.report import FORMATS

if TYPE_CHECKING:
    from stepgrade.report.perfetto import Shown

_PERFETTO = "perfetto"


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_sources(parser)
    parser.add(
        option("--baseline FILE", "an earlier run: its scorecard (JSON) or profile"),
        option("--fail-on WHAT ...", "exit with 1 on warning, critical or a grade, such as grade:C"),
        run_options.ALLOW_DIFFERENT,
        run_options.CONFIG,
        CONTRACT,
    )
    parser.add(*run_options.MEASURED, group="measured")
    run_options.add_setup_options(parser)
    run_options.add_save_options(parser)
    parser.add(*READING, group="reading")
    add_output_options(parser, (*FORMATS, _PERFETTO))
    parser.add(option("--full", "in a terminal, every row, detail and note"), group="writing")
    parser.show_first("--device --model --throughput --baseline --fail-on --save --full --format --output")


def run(args: Namespace) -> int:
    """Print the scorecard; return 1 when a condition of --fail-on holds, 3 when it cannot be decided."""
    conditions = [parse_condition(text) for text in args.fail_on]
    check_conditions(conditions, has_baseline=args.baseline is not None)
    card: Scorecard | TrainingScorecard
    if args.format == _PERFETTO:
        check_timeline(args)
    if args.contract == "v1":
        card, comparable = contract_v1.score_v1(args), args.baseline is not None
        output.write_raw(contract_v1.render_v1(card, to=args.format), args.output)
    else:
        if args.model is None:
            run_options.setup_from(args)  # invalid options are refused before anything is read
        profile = run_options.load_run(args)
        setup, before = run_options.setup_from(args, profile), None
        if args.baseline is not None:
            before = load_baseline(args.baseline, max_bytes=args.max_bytes, max_memory=args.max_memory)
        allowed = args.allow_different
        card = run_options.score_run(args, profile, baseline=before, setup=setup, allow_different=allowed)
        if args.format == _PERFETTO:
            write_timeline(card, args, args.output)
        else:
            output.write_result(card, args.format, args.output, args.color, full=args.full)
        if args.save:
            run_options.save_run(card, args)
        comparable = bool(card.compared)
    decision = decide(card.grade, card.regressions, conditions, comparable=comparable)
    for reason in decision.reasons:
        complain(f"gate: {reason}")
    return decision.exit_code


def check_timeline(args: Namespace) -> None:
    """Raise BadOption for what has no timeline, before anything is read."""
    if "-" in args.sources:
        raise BadOption("a timeline needs a file: standard input can be read only once", field="to")
    if "contract" in args and args.contract == "v1":
        raise BadOption("contract v1 has no timeline", field="to", hint="omit --contract v1")


def write_timeline(card: Scorecard, args: Namespace, path: str | None) -> Shown | None:
    """Write the traces of the command line once more, aligned and annotated; return what to show first."""
    from stepgrade.readers.ranks import read_again  # only for this format
    from stepgrade.report import perfetto

    shown: list[Shown | None] = []
    with progress_line() as line:

        def write(file: BinaryIO) -> None:
            shown.append(perfetto.write(card, traces, file))

        options = run_options.read_options(args, line)
        with read_again(args.sources, card.source, args.input_format, options) as traces:
            output.write_bytes(write, path)
    return shown[0]

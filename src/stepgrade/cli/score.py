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

from stepgrade.cli import contract_v1, output, run_options
from stepgrade.cli.parser import Parser, add_contract_option, add_input_options, add_output_options
from stepgrade.cli.streams import complain
from stepgrade.cli.timeline import check_timeline, write_timeline
from stepgrade.contract import TrainingScorecard
from stepgrade.gating.fail_on import check_conditions, decide, parse_condition
from stepgrade.grading import score
from stepgrade.loading import load_baseline
from stepgrade.model.scorecard import Scorecard
from stepgrade.report import FORMATS

_PERFETTO = "perfetto"


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_sources(parser)
    add = parser.add_argument
    add("--baseline", metavar="FILE", help="an earlier run: its scorecard (JSON) or profile")
    add(
        "--fail-on",
        action="append",
        default=[],
        metavar="WHAT",
        help="exit with 1 on warning, critical or, say, grade:C",
    )
    run_options.add_allow_different_option(parser)
    run_options.add_config_option(parser)
    add_contract_option(parser)
    run_options.add_figure_options(parser)
    run_options.add_setup_options(parser)
    run_options.add_save_options(parser)
    add_input_options(parser)
    add_output_options(parser, (*FORMATS, _PERFETTO))
    parser.show_first("--device --model --throughput --baseline --fail-on --save --format --output")


def run(args: Namespace) -> int:
    """Print the scorecard; return 1 when a condition of --fail-on holds, 3 when that cannot be told."""
    conditions = [parse_condition(text) for text in args.fail_on]
    check_conditions(conditions, has_baseline=args.baseline is not None)
    card: Scorecard | TrainingScorecard
    if args.format == _PERFETTO:
        check_timeline(args)
    if args.contract == "v1":
        card, comparable = contract_v1.score_v1(args), args.baseline is not None
        output.write_raw(contract_v1.render_v1(card, to=args.format), args.output)
    else:
        card = _score(args)
        comparable = bool(card.compared)
    decision = decide(card.grade, card.regressions, conditions, comparable=comparable)
    for reason in decision.reasons:
        complain(f"gate: {reason}")
    return decision.exit_code


def _score(args: Namespace) -> Scorecard:
    if args.model is None:
        run_options.setup_from(args)  # nonsense is refused before anything is read
    profile = run_options.load_run(args)
    setup = run_options.setup_from(args, profile)
    before = None
    if args.baseline is not None:
        before = load_baseline(args.baseline, max_bytes=args.max_bytes, max_memory=args.max_memory)
    card = score(
        profile,
        baseline=before,
        setup=setup,
        config=run_options.config_from(args),
        allow_different=args.allow_different,
        throughput_tok_s=args.throughput_tok_s,
        tokens_per_step=args.tokens_per_step,
        work=args.work,
    )
    if args.format == _PERFETTO:
        write_timeline(card, args, args.output)
    else:
        output.write_result(card, args.format, args.output, args.color)
    if args.save:
        run_options.save_run(card, args)
    return card

r"""Grade the run in SOURCE against what its hardware allows.

SOURCE is a trace (torch.profiler, Nsight Systems' sqlite export, JAX's .xplane.pb, rocprofv3, rpd), a
training log or a metrics file (TensorBoard, W&B, CSV, …), a recording of stepgrade record or its journal,
a step profile or ParityProfile (JSON), plain or gzipped, or - for standard input. Several traces or
recordings, or a directory of them, are the ranks of one run; a log beside a trace is of the same run.
Without a throughput and a ceiling the run is shown but not graded.

  stepgrade score profile.json --throughput 194 --device rtx-4060-laptop
  stepgrade score train.log --device h100-sxm5-80gb --model config.json
  stepgrade score train.log trace.json.gz
  stepgrade score profile.json --throughput 2140 --device rtx-4060-laptop \
                  --model config.json --batch 4 --seq 512 --method qlora
  stepgrade score rank0.json.gz rank1.json.gz --device h100-sxm5-80gb
  stepgrade score new.json --baseline old.json --fail-on warning
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
    run_options.add_figure_options(parser)
    add = parser.add_argument
    add("--baseline", metavar="FILE", help="an earlier scorecard (JSON) or profile to compare with")
    add(
        "--fail-on",
        action="append",
        default=[],
        metavar="WHAT",
        help="exit with 1 on a regression of this severity or worse (warning, critical), or on this grade or "
        "worse (grade:C); may be repeated",
    )
    run_options.add_allow_different_option(parser)
    run_options.add_history_option(parser)
    run_options.add_save_options(parser, "with its scorecard")
    run_options.add_config_option(parser)
    add_contract_option(parser)
    run_options.add_setup_options(parser)
    add_input_options(parser)
    add_output_options(parser, (*FORMATS, _PERFETTO))


def run(args: Namespace) -> int:
    """Print the scorecard; 1 when --fail-on says no, 3 when it cannot say."""
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
        run_options.setup_from(args)  # what makes no sense is refused before anything is read
    profile = run_options.load_run(args)
    setup = run_options.setup_from(args, profile)
    before = None
    if args.baseline is not None:
        before = load_baseline(args.baseline, max_bytes=args.max_bytes, max_memory=args.max_memory)
    card = score(
        profile,
        baseline=before,
        setup=setup,
        settings=run_options.config_from(args)[1],
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

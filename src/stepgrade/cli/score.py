r"""Grade the run in SOURCE against what its hardware allows.

SOURCE is a PyTorch trace (torch.profiler), a step profile (JSON) or a training log that holds one,
plain or gzipped, or - for standard input. Several traces, or a directory of them, are the ranks of
one run. Without a throughput and a ceiling the run is shown but not graded.

  stepgrade score profile.json --throughput 194 --device rtx-4060-laptop
  stepgrade score train.log.gz --tokens-per-step 2048 --device gb10
  stepgrade score profile.json --throughput 2140 --device rtx-4060-laptop \
                  --model config.json --batch 4 --seq 512 --method qlora
  stepgrade score rank0.json.gz rank1.json.gz --device h100-sxm5-80gb
  stepgrade score new.json --baseline old.json --fail-on warning
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from stepgrade.cli import contract_v1, output
from stepgrade.cli.config import add_config_option, settings_from
from stepgrade.cli.history_options import add_keeping_options, add_place_option, keep
from stepgrade.cli.parser import Parser, add_contract_option, add_input_options, add_output_options
from stepgrade.cli.run_options import add_hardware_options, add_run_options, setup_from
from stepgrade.cli.sources import add_sources, load_run, only_source
from stepgrade.cli.streams import complain
from stepgrade.contract import TrainingScorecard
from stepgrade.errors import BadOption
from stepgrade.gating.fail_on import Condition, check_conditions, decide, parse_condition
from stepgrade.grading import score
from stepgrade.model.scorecard import Scorecard
from stepgrade.readers.load import load_baseline

_QUESTION = ("throughput_tok_s", "tokens_per_step")
_FIGURES = ("device", "peak_bw_gb_s", "bytes_per_token")


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add_sources(parser)
    add = parser.add_argument
    add(
        "--throughput",
        dest="throughput_tok_s",
        type=float,
        metavar="TOK_S",
        help="tokens per second it reached",
    )
    add("--tokens-per-step", type=float, metavar="N", help="tokens in one step, to work the throughput out")
    add("--bytes-per-token", type=float, metavar="B", help="bytes of memory traffic that one token costs")
    add("--flops-per-token", type=float, metavar="F", help="FLOPs that one token costs")
    add("--baseline", metavar="FILE", help="an earlier scorecard (JSON) or profile to compare with")
    add(
        "--fail-on",
        action="append",
        default=[],
        metavar="WHAT",
        help="exit with 1 on a regression of this severity or worse (warning, critical), or on this grade or "
        "worse (grade:C); may be repeated",
    )
    add(
        "--allow-different",
        action="append",
        default=[],
        metavar="FIELD",
        help="compare although this part of the fingerprint differs (device, versions, …, or all)",
    )
    add_place_option(parser)
    add_keeping_options(parser, "with its scorecard")
    add_config_option(parser)
    add_contract_option(parser)
    add_hardware_options(parser)
    add_run_options(parser)
    add_input_options(parser)
    add_output_options(parser, pages=True)


def run(args: Namespace) -> int:
    """Print the scorecard; 1 when --fail-on says no, 3 when it cannot say."""
    conditions = [parse_condition(text) for text in args.fail_on]
    check_conditions(conditions, has_baseline=args.baseline is not None)
    question = {name: getattr(args, name) for name in _QUESTION}
    if args.contract == "v1":
        if args.save:
            raise BadOption("history keeps scorecards of contract v2", hint="leave --contract v1 out")
        if args.input_format is not None:
            raise BadOption("contract v1 reads step profiles only", hint="leave --input-format out")
        figures = {name: getattr(args, name) for name in _FIGURES}
        card_v1 = contract_v1.score_v1(
            only_source(args), baseline=args.baseline, max_bytes=args.max_bytes, **question, **figures
        )
        output.write_raw(contract_v1.render_v1(card_v1, to=args.format), args.output)
        return _gate(card_v1, conditions, comparable=args.baseline is not None)
    setup = setup_from(args)
    profile = load_run(args)
    before = load_baseline(args.baseline, max_bytes=args.max_bytes) if args.baseline is not None else None
    card = score(
        profile,
        baseline=before,
        setup=setup,
        settings=settings_from(args),
        allow_different=args.allow_different,
        **question,
    )
    output.write_result(card, args)
    if args.save:
        keep(card, args)
    return _gate(card, conditions, comparable=bool(card.compared))


def _gate(card: Scorecard | TrainingScorecard, conditions: Sequence[Condition], *, comparable: bool) -> int:
    decision = decide(card.grade, card.regressions, conditions, comparable=comparable)
    for reason in decision.reasons:
        complain(f"gate: {reason}")
    return decision.exit_code

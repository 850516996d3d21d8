"""Pass or fail the build: compare the run in SOURCE with earlier runs.

Earlier runs are files (--baseline, which may be repeated) or the history of a branch. A change fails only
if it exceeds both the noise between identical runs and the budget. Exit code 0 is a pass, 1 a regression, 2
bad input, and 3 means that nothing was comparable or the noise is too large to tell.

  stepgrade gate new.json --against history:main --save
  stepgrade gate new.json --baseline old.json --run-noise 2%
  stepgrade gate --run 'python train.py' --base main

--run trains here and at the commit where this branch left --base, in turns, until they can be told apart.
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace

import msgspec

from stepgrade.cli import output, run_options
from stepgrade.cli.commands import FLAGS
from stepgrade.cli.parser import READING, Parser, add_output_options, option
from stepgrade.cli.streams import complain, ended_by_signals
from stepgrade.config import Config
from stepgrade.errors import BadOption
from stepgrade.gating.run import gate
from stepgrade.gating.turns import MOST_PAIRS, TurnLimits, gate_in_turns
from stepgrade.hardware.setup import Setup
from stepgrade.loading import load_baseline
from stepgrade.model.comparison import GateReport
from stepgrade.model.notes import texts_of
from stepgrade.report import GATE_FORMATS as FORMATS
from stepgrade.report import render


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_sources(parser, may_be_none=True)
    parser.add(
        option("--run COMMAND", "run this training, here and at --base, in turns"),
        option("--base COMMIT", "the commit or branch that --run compares with"),
        option("--pairs N", "of runs with --run, at most", default=MOST_PAIRS),
        option("--minutes M", "begin no pair that would end later", type=float),
        option("--repeat SOURCE ...", "another run of the same code"),
        option("--baseline FILE ...", "an earlier run; may be repeated"),
        option("--against history:BRANCH", "the runs of a branch in the history"),
        option("--fail-on grade:C ...", "fail on this grade or worse"),
        option("--run-noise PCT", "how much identical runs differ, such as 2%%"),
        option("--cannot-tell", "exit with 3 or 0 if too noisy", choices=("fail", "pass")),
        option("--probably-slower", "exit with 1 or 0 if slower, but not for sure", choices=("fail", "pass")),
        option("--config --budgets TOML", run_options.CONFIG.settings["help"]),
        run_options.ALLOW_DIFFERENT,
    )
    parser.add(*run_options.MEASURED, group="measured")
    run_options.add_setup_options(parser)
    run_options.add_save_options(parser, ", whatever the verdict")
    parser.add(*READING, group="reading")
    text = "write this format to a file too; may be repeated"
    add_output_options(parser, FORMATS, option("--also FORMAT=FILE ...", text, type=also))
    parser.show_first("--against --baseline --repeat --run --base --fail-on --save --format --also --output")


def run(args: Namespace) -> int:
    """Print the verdict and return its exit code."""
    config = run_options.config_from(args)
    given = {name: vars(args)[name] for name in ("run_noise", "cannot_tell", "probably_slower")}
    table = msgspec.structs.replace(
        config.gate,
        **{name: value for name, value in given.items() if value is not None},
        allow_different=(*config.gate.allow_different, *args.allow_different),
    )
    setup = run_options.setup_from(args)
    if args.run is not None or args.base is not None:
        return _in_turns(args, msgspec.structs.replace(config, gate=table), setup)
    if not args.sources:
        raise BadOption("no run to check", supply="{run} and {base}, or a file")
    runs = [run_options.load_run(args), *(run_options.load_run(args, source) for source in args.repeat)]
    cards = [run_options.score_run(args, profile, setup=setup) for profile in runs]
    limits = {"max_bytes": args.max_bytes, "max_memory": args.max_memory}
    report = gate(
        cards,
        baseline=[load_baseline(name, **limits) for name in args.baseline],
        against=args.against,
        history=args.history,
        max_memory=args.max_memory,
        machine=dict(args.label).get("machine"),
        config=msgspec.structs.replace(config, gate=table),
        fail_on=args.fail_on,
        tokens_per_step=args.tokens_per_step,
        work=args.work,
        setup=setup,
    )
    _show(args, report)
    for card in cards if args.save else ():
        run_options.save_run(card, args)
    return report.exit_code


def _in_turns(args: Namespace, config: Config, setup: Setup) -> int:
    if args.run is None or args.base is None:
        raise BadOption("both are needed", supply="{run} and {base}")
    if args.sources or args.baseline or args.against or args.repeat or args.save:
        raise BadOption("it makes its own runs: give no files, and no baseline", field="run")
    table = msgspec.structs.replace(config.gate, fail_on=(*config.gate.fail_on, *args.fail_on))
    with ended_by_signals():
        report = gate_in_turns(
            args.run,
            args.base,
            limits=TurnLimits(pairs=args.pairs, minutes=args.minutes),
            config=msgspec.structs.replace(config, gate=table),
            setup=setup,
            progress=complain,
        )
    _show(args, report)
    return report.exit_code


def _show(args: Namespace, report: GateReport) -> None:
    """Write the report in every format that is asked for."""
    width, color = output.page_for(args.output, args.color)
    text = render(report, to=args.format, width=width, color=color, flags=FLAGS)
    output.write(text, args.output)
    for name, path in args.also:
        output.write(render(report, to=name, flags=FLAGS), path)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if args.format == "github" and summary:
        try:
            with open(summary, "a", encoding="utf-8") as stream:
                stream.write(render(report, to="markdown", flags=FLAGS))
        except OSError as error:
            problem = f"the job's summary cannot be written: {error.strerror or error}"
            raise BadOption(problem, where="GITHUB_STEP_SUMMARY") from error
    for reason in texts_of(report.reasons, FLAGS) if args.format != "terminal" or args.output else ():
        complain(f"gate: {reason}")


def also(text: str) -> tuple[str, str]:
    """Return format and file of a text like junit=gate.xml."""
    name, _, path = text.partition("=")
    if name not in FORMATS or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not FORMAT=FILE with one of {', '.join(FORMATS)}")
    return name, path

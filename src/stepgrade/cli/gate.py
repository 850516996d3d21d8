"""Pass or fail the build: compare the run in SOURCE with earlier runs.

Earlier runs are files (--baseline, which may be repeated) or the history of a branch. A change fails only
if it exceeds both the noise between identical runs and the budget. Exit code 0 is a pass, 1 a regression, 2
bad input, and 3 means that nothing was comparable or the noise is too large to tell.

  stepgrade gate new.json --against history:main --save
  stepgrade gate new.json --baseline old.json --run-noise 2%
  stepgrade gate a.json --repeat b.json --repeat c.json --against history:main
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace

import msgspec

from stepgrade.cli import output, run_options
from stepgrade.cli.commands import FLAGS
from stepgrade.cli.parser import READING, Parser, add_output_options, option
from stepgrade.cli.streams import complain
from stepgrade.errors import BadOption
from stepgrade.gating.run import gate
from stepgrade.loading import load_baseline
from stepgrade.model.notes import texts_of
from stepgrade.report import GATE_FORMATS as FORMATS
from stepgrade.report import render


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_sources(parser)
    parser.add(
        option("--repeat SOURCE ...", "another run of the same code"),
        option("--baseline FILE ...", "an earlier run; may be repeated"),
        option("--against history:BRANCH", "the runs of a branch in the history"),
        option("--fail-on grade:C ...", "fail on this grade or worse"),
        option("--run-noise PCT", "how much identical runs differ, such as 2%%"),
        option("--cannot-tell", "exit with 3 or 0 if too noisy", choices=("fail", "pass")),
        option("--config --budgets TOML", run_options.CONFIG.settings["help"]),
        run_options.ALLOW_DIFFERENT,
    )
    parser.add(*run_options.MEASURED, group="measured")
    run_options.add_setup_options(parser)
    run_options.add_save_options(parser, ", whatever the verdict")
    parser.add(*READING, group="reading")
    text = "write this format to a file too; may be repeated"
    add_output_options(parser, FORMATS, option("--also FORMAT=FILE ...", text, type=also))
    parser.show_first(
        "--against --baseline --repeat --fail-on --run-noise --device --save --format --also --output"
    )


def run(args: Namespace) -> int:
    """Print the verdict and return its exit code."""
    config = run_options.config_from(args)
    given = {"run_noise": args.run_noise, "cannot_tell": args.cannot_tell}
    table = msgspec.structs.replace(
        config.gate,
        **{name: value for name, value in given.items() if value is not None},
        allow_different=(*config.gate.allow_different, *args.allow_different),
    )
    setup = run_options.setup_from(args)
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
    for card in cards if args.save else ():
        run_options.save_run(card, args)
    return report.exit_code


def also(text: str) -> tuple[str, str]:
    """Return format and file of a text like junit=gate.xml."""
    name, _, path = text.partition("=")
    if name not in FORMATS or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not FORMAT=FILE with one of {', '.join(FORMATS)}")
    return name, path

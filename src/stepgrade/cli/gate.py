r"""Pass, or fail the build: compare the run in SOURCE with earlier runs.

Earlier runs are files (--baseline, more than once if you have more) or the history of a branch. A change
fails only when it is beyond the noise between identical runs and beyond the budget. Exit code 0 passes,
1 regressed, 3 could not be measured (nothing comparable, or too noisy to tell), 2 bad input.

  stepgrade gate new.json --against history:main
  stepgrade gate new.json --baseline old.json --run-noise 2%
  stepgrade gate a.json --repeat b.json --repeat c.json --against history:main --budgets stepgrade.toml
  stepgrade gate new.json --against history:main --format github --also junit=gate.xml --also badge=grade.svg
"""

from __future__ import annotations

import argparse
import os
from argparse import Namespace

import msgspec

from stepgrade.cli import output
from stepgrade.cli.config import add_config_option, config_from
from stepgrade.cli.flags import FLAGS
from stepgrade.cli.history_options import add_keeping_options, add_place_option, keep
from stepgrade.cli.parser import Parser, add_input_options, add_output_file
from stepgrade.cli.run_options import add_hardware_options, add_run_options, setup_from
from stepgrade.cli.sources import add_sources, load_run
from stepgrade.cli.streams import complain
from stepgrade.config import DEFAULT_PATH, Config
from stepgrade.diagnosis.settings import settings_from
from stepgrade.errors import BadOption
from stepgrade.gating.run import gate
from stepgrade.grading import score
from stepgrade.model import Profile
from stepgrade.model.comparison import GateReport
from stepgrade.model.notes import texts_of
from stepgrade.readers.load import load, load_baseline
from stepgrade.report import GATE_FORMATS as FORMATS
from stepgrade.report import render


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    add_sources(parser)
    add = parser.add_argument
    add("--repeat", action="append", default=[], metavar="SOURCE", help="another run of the same code")
    add("--baseline", action="append", default=[], metavar="FILE", help="an earlier run; may be repeated")
    add("--against", metavar="history:BRANCH", help="the runs of a branch in the history")
    add_config_option(parser, "--budgets")
    add("--run-noise", type=share, metavar="PCT", help="how much identical runs differ, such as 2%%")
    add("--cannot-tell", choices=("fail", "pass"), help="exit code 3 or 0 when the noise is too large")
    add(
        "--allow-different",
        action="append",
        default=[],
        metavar="FIELD",
        help="compare although this part of the fingerprint differs (device, versions, …, or all)",
    )
    add("--fail-on", action="append", default=[], metavar="grade:C", help="fail on this grade or worse")
    add("--throughput", dest="throughput_tok_s", type=float, metavar="TOK_S", help="tokens per second")
    add("--tokens-per-step", type=float, metavar="N", help="tokens in one step")
    add("--bytes-per-token", type=float, metavar="B", help="bytes of memory traffic that one token costs")
    add("--flops-per-token", type=float, metavar="F", help="FLOPs that one token costs")
    add_place_option(parser)
    add_keeping_options(parser, "after the gate has answered, whatever it says")
    add_hardware_options(parser)
    add_run_options(parser)
    add_input_options(parser)
    _add_output(parser)


def run(args: Namespace) -> int:
    """Print the gate's answer and return its exit code."""
    found = config_from(args) or Config()
    config = _with_options(found, args)
    setup, settings = setup_from(args), settings_from(found, args.config or DEFAULT_PATH)
    runs = [load_run(args), *(_load(source, args) for source in args.repeat)]
    cards = [
        score(
            profile,
            setup=setup,
            settings=settings,
            throughput_tok_s=args.throughput_tok_s,
            tokens_per_step=args.tokens_per_step,
        )
        for profile in runs
    ]
    report = gate(
        cards,
        baselines=[load_baseline(name, max_bytes=args.max_bytes) for name in args.baseline],
        against=args.against,
        history=args.history,
        config=config,
        fail_on=args.fail_on,
        tokens_per_step=args.tokens_per_step,
        setup=setup,
    )
    _write(report, args)
    if args.save:
        for card in cards:
            keep(card, args)
    return report.exit_code


def share(text: str) -> float:
    """Return the share in a text like 2%, 2 % or 0.02."""
    bare = text.strip().removesuffix("%").strip()
    try:
        value = float(bare) / (100.0 if text.strip().endswith("%") else 1.0)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share below one; write it like 2% or 0.02")
    return value


def _with_options(config: Config, args: Namespace) -> Config:
    """Return the file's word, with the command line's where it says something."""
    said = {"run_noise": args.run_noise, "cannot_tell": args.cannot_tell}
    table = msgspec.structs.replace(
        config.gate,
        **{name: value for name, value in said.items() if value is not None},
        allow_different=(*config.gate.allow_different, *args.allow_different),
    )
    return msgspec.structs.replace(config, gate=table)


def _load(source: str, args: Namespace) -> Profile:
    return load(source, input_format=args.input_format, steps=args.steps, max_bytes=args.max_bytes)


def _add_output(parser: Parser) -> None:
    group = parser.add_argument_group("writing")
    group.add_argument("--format", choices=FORMATS, default="terminal", help="default: terminal")
    group.add_argument(
        "--also",
        type=also,
        action="append",
        default=[],
        metavar="FORMAT=FILE",
        help="write this format to a file too; may be repeated",
    )
    add_output_file(group)
    group.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="default: auto")


def also(text: str) -> tuple[str, str]:
    """Return format and file of a text like junit=gate.xml."""
    name, _, path = text.partition("=")
    if name not in FORMATS or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not FORMAT=FILE with one of {', '.join(FORMATS)}")
    return name, path


def _write(report: GateReport, args: Namespace) -> None:
    width, color = output.page_for(args.output, args.color)
    text = render(report, to=args.format, width=width, color=color, flags=FLAGS)
    output.write(text, args.output)
    for name, path in args.also:
        output.write(render(report, to=name, flags=FLAGS), path)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if args.format == "github" and summary:
        _append(render(report, to="markdown", flags=FLAGS), summary)
    for reason in texts_of(report.reasons, FLAGS) if args.format != "terminal" or args.output else ():
        complain(f"gate: {reason}")


def _append(text: str, path: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as stream:  # noqa: PTH123
            stream.write(text)
    except OSError as error:
        problem = f"the job's summary cannot be written: {error.strerror or error}"
        raise BadOption(problem, where="GITHUB_STEP_SUMMARY") from error

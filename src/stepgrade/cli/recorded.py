"""What `record` does with its recordings: grade, compare, write a page, save, repeat."""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from stepgrade.cli import output, run_options
from stepgrade.cli.parser import Parser
from stepgrade.cli.streams import complain
from stepgrade.errors import EXIT_OK, BadOption, NotMeasured
from stepgrade.grading import score
from stepgrade.loading import load, load_baseline
from stepgrade.model import Profile
from stepgrade.model.notes import Result
from stepgrade.model.scorecard import Scorecard
from stepgrade.scoring.target import needs_measuring


def add_options(parser: Parser) -> None:
    """Declare what is done with the recording."""
    add = parser.add_argument
    add("--steps", type=int, metavar="N", help="record N steps, then let the training continue")
    add("--html", metavar="FILE", help="also write the scorecard as an HTML page")
    add("--baseline", metavar="FILE", help="an earlier run: its scorecard (JSON) or profile")
    add("--repeat", type=int, metavar="N", help="run it N times, to measure the noise")
    add("--versus", metavar="COMMAND", help="compare with this command, run in turns")
    run_options.add_allow_different_option(parser)
    run_options.add_config_option(parser)
    run_options.add_save_options(parser)


def check_options(args: Namespace) -> None:
    """Raise BadOption for invalid values, before anything is run."""
    for field in ("steps", "repeat"):
        value = getattr(args, field)
        if value is not None and value < 1:
            raise BadOption(f"--{field} must be at least 1")
    if args.repeat is not None and args.baseline is not None:
        raise BadOption("--repeat cannot be combined with --baseline", hint="compare with --versus COMMAND")


def grade(args: Namespace, paths: Sequence[Path], *, may_measure: bool = True) -> Scorecard:
    """Return the scorecard of a run's recordings; measure this processor first if it never was."""
    setup, profile = run_options.setup_from(args), load(*paths)
    if may_measure and needs_measuring(profile, setup):
        _measure(profile)
    before = load_baseline(args.baseline) if args.baseline is not None else None
    return score(
        profile,
        setup=setup,
        baseline=before,
        config=run_options.config_from(args),
        allow_different=args.allow_different,
    )


def keep(args: Namespace, card: Scorecard) -> None:
    """Write the page, and save the run, if requested."""
    if args.html is not None:
        output.write_result(card, "html", args.html, args.color)
        complain(f"the scorecard is in {args.html}")
    if args.save:
        run_options.save_run(card, args)


def of_one_run(paths: Sequence[Path]) -> Sequence[Path]:
    """Return the files of the ranks of one run; only the first if the processes are separate runs."""
    if len(paths) < 2 or any((load(path).world_size or 1) < 2 for path in paths):
        return paths[:1]
    return paths


def run_repeated(args: Namespace, options: dict[str, object]) -> int:
    """Run the command several times, in turns with the other one if there is one, and compare.

    Return the gate's exit code when two commands were compared, else 0.
    """
    from stepgrade.record.repeat import run_in_turns

    commands = [["-m", *args.command] if args.as_module else args.command]
    if args.versus is not None:
        commands.append(shlex.split(args.versus))
    files = run_in_turns(commands, args.repeat or 1, Path(args.output), options, complain)
    cards = [[grade(args, of_one_run(paths)) for paths in runs] for runs in files]
    for card in cards[0]:
        keep(args, card)
    result: Result
    if len(cards) == 1:
        from stepgrade.compare.repeats import repeats_of

        result, code = repeats_of(cards[0]), EXIT_OK
    else:
        from stepgrade.gating.run import gate

        report = gate(cards[0], baseline=cards[1], config=run_options.config_from(args))
        result, code = report, report.exit_code
    if not args.quiet:
        output.write_result(result, "terminal", None, args.color)
    return code


def _measure(profile: Profile) -> None:
    """Measure this processor once; without a measurement the grade is at best bounded."""
    from stepgrade.hardware.detect import processor
    from stepgrade.hardware.measure import measure_here

    here = processor()
    if profile.recorded is None or profile.recorded.processor != here.name:
        return  # recorded elsewhere
    complain("measuring this processor once, for the grade (takes seconds) …")
    try:
        measured = measure_here(lambda _: None, gpu=False)
    except NotMeasured as error:
        complain(str(error))
        return
    for note in measured.notes:
        complain(str(note))

"""Run a training script, record where its steps' time goes, and grade it.

SCRIPT runs unchanged, with its own arguments: model, optimizer and DataLoaders are found automatically. It
may also be a launcher such as torchrun; every process that trains is recorded. At the end, or on Ctrl-C,
the step profile is written and its scorecard shown on standard error. The exit code is the script's own.
Options of stepgrade go before SCRIPT. Needs torch: pip install 'stepgrade[torch]'.

  stepgrade record train.py --lr 3e-4
  stepgrade record --device h100-sxm5-80gb -o run.json train.py
  stepgrade record torchrun --nproc-per-node 8 train.py
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from stepgrade.cli import output, run_options
from stepgrade.cli.parser import COLOR, Parser, option
from stepgrade.cli.streams import complain, progress_line
from stepgrade.errors import EXIT_OK, BadOption, NotMeasured, StepgradeError, refusal_of
from stepgrade.grading import score
from stepgrade.loading import load, load_baseline
from stepgrade.model.notes import Result
from stepgrade.model.scorecard import Scorecard
from stepgrade.record.launch import Launched, die_by, run_in_turns, run_recorded
from stepgrade.scoring.target import needs_measuring


def add_options(parser: Parser) -> None:
    """Declare the command line; everything from SCRIPT on belongs to the script."""
    command = "the script and its arguments"
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="SCRIPT …", help=command)
    parser.add(
        option("-m", "SCRIPT is a module name", dest="as_module"),
        option("-o --output FILE", "default: stepgrade.json", default="stepgrade.json"),
        option("--tokens-per-step N", "tokens in one step, if the inputs do not show it", type=float),
        option("--layers NAME ...", "modules to time, such as model.layers.*", default=None),
        option("--ops-every N", "profile operations on every Nth step"),
        option("--warmup N", "steps to skip at the start", default=3),
        option("--quiet", "no progress line and no scorecard"),
        option("--steps N", "record N steps, then let the training continue"),
        option("--html FILE", "also write the scorecard as an HTML page"),
        option("--baseline FILE", "an earlier run: its scorecard (JSON) or profile"),
        option("--repeat N", "run it N times, to measure the noise"),
        option("--versus COMMAND", "compare with this command, run in turns"),
        run_options.ALLOW_DIFFERENT,
        run_options.CONFIG,
    )
    run_options.add_save_options(parser)
    parser.add(COLOR)
    run_options.add_setup_options(parser)
    parser.show_first("-m --output --html --steps --device --baseline --versus --repeat --save")


def run(args: Namespace) -> int:
    """Run the script; return its exit code, or end by the signal that ended it."""
    for field, least in (("warmup", 0), ("ops_every", 1), ("steps", 1), ("repeat", 1)):
        value = getattr(args, field)
        if value is not None and value < least:
            raise BadOption(f"--{field.replace('_', '-')} must be at least {least}")
    if args.repeat is not None and args.baseline is not None:
        raise BadOption("--repeat cannot be combined with --baseline", hint="compare with --versus COMMAND")
    run_options.setup_from(args)
    options = {
        "tokens_per_step": args.tokens_per_step,
        "layers": args.layers,
        "ops_every": args.ops_every,
        "warmup": args.warmup,
        "max_steps": args.steps,
        "readable_by": run_options.config_from(args).files.readable_by,
    }
    if args.repeat is not None or args.versus is not None:
        return run_repeated(args, options)
    with progress_line(quiet=args.quiet) as line:
        launched = run_recorded(
            args.command,
            Path(args.output),
            options,
            as_module=args.as_module,
            on_steps=line.show_steps if line else None,
        )
    is_wanted = not args.quiet or args.html is not None or args.save
    if is_wanted and os.environ.get("RANK", "0") == "0":
        try:
            _report(args, launched)
        except StepgradeError as error:
            complain(str(error))  # the exit code stays the script's
        except (OSError, RuntimeError) as error:
            if (problem := refusal_of(error)) is None:
                raise
            complain(problem)
    if launched.code < 0:
        die_by(-launched.code)
        return 128 - launched.code
    return launched.code


def _report(args: Namespace, launched: Launched) -> None:
    """Report what was recorded and what is missing, and grade it."""
    if launched.code < 0:
        complain(f"the script was ended by {signal.Signals(-launched.code).name}")
    for each in launched.recorded:
        steps = "1 step" if each.steps == 1 else f"{each.steps} steps"
        lost = each.steps - (load(os.fspath(each.path)).recorded_steps or 0)
        missing = (
            f"; the last {lost} are missing" if lost > 1 else "; the last one is missing" if lost else ""
        )
        complain(f"recorded {steps} in {each.path}{missing}")
    if not launched.recorded:
        complain(f"no step was recorded: {launched.problem or _why_no_step(launched)}")
        return
    paths = paths_of_run([each.path for each in launched.recorded])
    card = grade(args, paths, may_measure=launched.code >= 0)
    if not args.quiet:
        output.show_beside(
            card, args.color, full=shlex.join(["stepgrade", "score", "--full", *map(str, paths)])
        )
    keep(args, card)


def _why_no_step(launched: Launched) -> str:
    others = " and ".join(name for name in launched.frameworks if name != "torch")
    if "torch" in launched.frameworks and launched.code:
        code = f" with exit code {launched.code}" if launched.code > 0 else ""
        return f"the script ended{code} before a step was seen"
    if "torch" in launched.frameworks:
        return (
            "no process took a step of a torch optimizer, or ran two backward passes "
            "(if the loop does neither, or is compiled as a whole, call step() of sg.start_recording(model))"
        )
    if others:
        return f"it trains with {others}, and only PyTorch is recorded; score the trace of its own profiler"
    if not launched.had_python:
        return "no process was a Python that honours PYTHONPATH (python -I and -E do not)"
    return "no process imported torch"


def grade(args: Namespace, paths: Sequence[Path], *, may_measure: bool = True) -> Scorecard:
    """Return the scorecard of a run's recordings; measure this processor first if it never was."""
    setup, profile = run_options.setup_from(args), load(*paths)
    if may_measure and needs_measuring(profile, setup):
        from stepgrade.hardware.detect import processor
        from stepgrade.hardware.measure import measure_here

        if profile.recorded is not None and profile.recorded.processor == processor().name:  # recorded here
            complain("measuring this processor once, for the grade (takes seconds) …")
            try:
                for note in measure_here(lambda _: None, gpu=False).notes:
                    complain(str(note))
            except NotMeasured as error:
                complain(str(error))
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


def paths_of_run(paths: Sequence[Path]) -> Sequence[Path]:
    """Return the files of the ranks of one run; only the first if the processes are separate runs."""
    if len(paths) < 2 or any((load(path).world_size or 1) < 2 for path in paths):
        return paths[:1]
    return paths


def run_repeated(args: Namespace, options: dict[str, object]) -> int:
    """Run the command several times, in turns with the other one if there is one, and compare.

    Return the gate's exit code when two commands were compared, else 0.
    """
    commands = [["-m", *args.command] if args.as_module else args.command]
    if args.versus is not None:
        commands.append(shlex.split(args.versus))
    files = run_in_turns(commands, args.repeat or 1, Path(args.output), options, complain)
    cards = [[grade(args, paths_of_run(paths)) for paths in runs] for runs in files]
    for card in cards[0]:
        keep(args, card)
    result: Result
    if len(cards) == 1:
        from stepgrade.compare.runs import repeats_of

        result, code = repeats_of(cards[0]), EXIT_OK
    else:
        from stepgrade.gating.run import gate

        report = gate(cards[0], baseline=cards[1], config=run_options.config_from(args))
        result, code = report, report.exit_code
    if not args.quiet:
        output.write_result(result, "terminal", None, args.color)
    return code

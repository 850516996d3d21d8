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
import signal
from argparse import Namespace
from pathlib import Path

from stepgrade.cli import output, recorded
from stepgrade.cli.parser import Parser, add_color_option
from stepgrade.cli.progress import progress_line
from stepgrade.cli.run_options import add_setup_options, config_from, setup_from
from stepgrade.cli.streams import complain
from stepgrade.errors import BadOption, StepgradeError, refusal_of
from stepgrade.loading import load
from stepgrade.record.launch import Launched, die_by, run_recorded


def add_options(parser: Parser) -> None:
    """Declare the command line; everything from SCRIPT on belongs to the script."""
    add = parser.add_argument
    add("command", nargs=argparse.REMAINDER, metavar="SCRIPT …", help="the script and its arguments")
    add("-m", dest="as_module", action="store_true", help="SCRIPT is a module name")
    add("-o", "--output", default="stepgrade.json", metavar="FILE", help="default: stepgrade.json")
    add("--tokens-per-step", type=float, metavar="N", help="tokens in one step, if the inputs do not show it")
    add("--layers", action="append", metavar="NAME", help="modules to time, such as model.layers.*")
    add("--ops-every", type=int, metavar="N", help="profile operations on every Nth step")
    add("--warmup", type=int, default=3, metavar="N", help="steps to skip at the start (default: 3)")
    add("--quiet", action="store_true", help="no progress line and no scorecard")
    recorded.add_options(parser)
    add_color_option(parser)
    add_setup_options(parser)
    parser.show_first("-m --output --html --steps --device --baseline --versus --repeat --save")


def run(args: Namespace) -> int:
    """Run the script; return its exit code, or end by the signal that ended it."""
    if args.warmup < 0 or (args.ops_every is not None and args.ops_every < 1):
        raise BadOption("--warmup must be 0 or more, and --ops-every 1 or more")
    setup_from(args)
    recorded.check_options(args)
    options = {
        "tokens_per_step": args.tokens_per_step,
        "layers": args.layers,
        "ops_every": args.ops_every,
        "warmup": args.warmup,
        "max_steps": args.steps,
        "readable_by": config_from(args).files.readable_by,
    }
    if args.repeat is not None or args.versus is not None:
        return recorded.run_repeated(args, options)
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
            _report(launched)
            if launched.recorded:
                paths = recorded.of_one_run([each.path for each in launched.recorded])
                card = recorded.grade(args, paths, may_measure=launched.code >= 0)
                if not args.quiet:
                    output.show_beside(card, args.color)
                recorded.keep(args, card)
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


def _report(launched: Launched) -> None:
    """Report what was recorded, and what is missing."""
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

r"""Run a training script and record where its steps' time goes.

SCRIPT runs unchanged, with its own arguments after it: the model, the optimizer and the DataLoaders are
found by themselves. At the end, or on Ctrl-C, the step profile is written and its scorecard printed.
Options of stepgrade come before SCRIPT. Needs torch: pip install 'stepgrade[torch]'.

  stepgrade record train.py --lr 3e-4
  stepgrade record --device h100-sxm5-80gb --ops-every 50 -o run.json train.py
  stepgrade record -m my_project.train --epochs 1
  torchrun --nproc-per-node 8 -m stepgrade record train.py
"""

from __future__ import annotations

import argparse
import os
import traceback
from argparse import Namespace
from types import TracebackType

from stepgrade.cli import output, recorded
from stepgrade.cli.parser import Parser, add_color_option
from stepgrade.cli.progress import progress_line
from stepgrade.cli.run_options import add_setup_options, setup_from
from stepgrade.cli.streams import complain
from stepgrade.errors import EXIT_GATE, BadOption, StepgradeError
from stepgrade.record import script


def add_options(parser: Parser) -> None:
    """Declare the command line; everything from SCRIPT on belongs to the script."""
    add = parser.add_argument
    add("command", nargs=argparse.REMAINDER, metavar="SCRIPT …", help="the script and its arguments")
    add("-m", dest="as_module", action="store_true", help="SCRIPT is the name of a module")
    add("-o", "--output", default="stepgrade.json", metavar="FILE", help="default: stepgrade.json")
    add(
        "--tokens-per-step",
        type=float,
        metavar="N",
        help="tokens in one step, when the inputs do not show it",
    )
    add("--layers", action="append", metavar="NAME", help="modules to time, such as model.layers.*")
    add("--ops-every", type=int, metavar="N", help="profile the operations of one step in N")
    add("--warmup", type=int, default=3, metavar="N", help="steps left out at the start (default: 3)")
    add("--quiet", action="store_true", help="no progress line and no scorecard")
    recorded.add_options(parser)
    add_color_option(parser)
    add_setup_options(parser)


def run(args: Namespace) -> int:
    """Run the script; return its own exit code, or 1 when it raised."""
    if args.warmup < 0 or (args.ops_every is not None and args.ops_every < 1):
        raise BadOption("--warmup must be 0 or more, and --ops-every 1 or more")
    setup_from(args)
    recorded.check_options(args)
    if args.repeat is not None or args.versus is not None:
        return recorded.run_repeated(args)
    # torch's profiler writes to standard error unless this is set before it is loaded.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    recorder = script.ScriptRecorder(
        path=args.output,
        tokens_per_step=args.tokens_per_step,
        layers=args.layers,
        ops_every=args.ops_every,
        warmup=args.warmup,
        max_steps=args.steps,
    )
    try:
        with progress_line(quiet=args.quiet) as line:
            recorder.on_step = line.show_steps if line else None
            code = script.run_script(recorder, args.command, as_module=args.as_module)
    except StepgradeError:
        raise
    except Exception as error:  # noqa: BLE001  the script's own: shown as Python shows it
        traceback.print_exception(error.with_traceback(_of_script(error.__traceback__)))
        code = EXIT_GATE
    if recorder.has_profile and recorder.rank == 0 and not (args.quiet and not args.html and not args.save):
        complain(f"recorded {recorder.steps} steps in {recorder.path}")
        card = recorded.grade(args, [recorder.path])
        if not args.quiet:
            output.write_result(card, "terminal", None, args.color)
        recorded.keep(args, card)
    return code


def _of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the script's first line on, without the frames that ran it."""
    ours = (__file__, script.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace

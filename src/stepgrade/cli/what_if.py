"""Predict the step time of the trace in SOURCE after a change.

The typical step is replayed: what the host called, what each stream ran, and what waited for what. If the
replay of the unchanged step does not match the measured time, there is no answer. Several sources are the
ranks of one run. Without a change, the most promising ones are tried.

  stepgrade what-if trace.json.gz
  stepgrade what-if trace.json.gz --faster attention=2x
  stepgrade what-if trace.json.gz --without communication --without data
  stepgrade what-if trace.json.gz --phase optimizer=2x
  stepgrade what-if rank0.json.gz rank1.json.gz --link 2x

WHAT is a kind of work (communication, attention, gemm, norm, optimizer, elementwise, copy, …), host, data
(waiting for input), sync (waits for the device), or part of the names of operations or kernels, with * as a
wildcard: 'aten::*norm*'. Several changes are shown one by one, then all together.
"""

from __future__ import annotations

import argparse
import re
from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.parser import READING, Parser, add_output_options, option
from stepgrade.cli.run_options import STEPS, TOKENS_PER_STEP, WORK, read_options
from stepgrade.cli.streams import progress_line
from stepgrade.errors import EXIT_OK
from stepgrade.hardware.setup import Setup


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="traces of one run")
    parser.add(
        option("--faster WHAT=SPEED ...", "gemm=2x; may be repeated", type=named_speed),
        option("--without WHAT ...", "as if it took no time; may be repeated"),
        option(
            "--phase NAME=SPEED ...", "forward, backward or optimizer, with its launches", type=named_speed
        ),
        option("--link SPEED", "data moves this much faster: 2x", dest="link_speed", type=speed),
        option("--launches N", "launches per step; 0 is one CUDA graph"),
        option("--no-stragglers", "all ranks are as fast as the median one"),
        group="changes",
    )
    device = option("--device KEY", "accelerator to grade against (see stepgrade devices)")
    parser.add(STEPS, device, TOKENS_PER_STEP, WORK)
    parser.add(*READING, group="reading")
    add_output_options(parser)
    parser.show_first(
        "--faster --without --phase --link --launches --no-stragglers --steps --format --output"
    )


def run(args: Namespace) -> int:
    """Print the step with each change."""
    # What needs numpy is imported here: the help does without.
    from stepgrade.readers.ranks import read_ranks
    from stepgrade.whatif import AssumedChange, what_if

    changes = [AssumedChange(what=what, speed=times) for what, times in args.faster]
    changes += [AssumedChange(what=what) for what in args.without]
    changes += [AssumedChange(what=f"phase {name}", speed=times) for name, times in args.phase]
    if args.link_speed is not None:
        changes.append(AssumedChange(what="link", speed=args.link_speed))
    if args.launches is not None:
        changes.append(AssumedChange(what="launches", launches=args.launches))
    if args.no_stragglers:
        changes.append(AssumedChange(what="stragglers"))
    with progress_line() as line:
        traces = read_ranks(args.sources, args.input_format, read_options(args, line))
        figures = {"tokens_per_step": args.tokens_per_step, "work": args.work}
        found = what_if(traces, changes, setup=Setup(device=args.device), **figures)
    output.write_result(found, args.format, args.output, args.color)
    return EXIT_OK


def named_speed(text: str) -> tuple[str, float]:
    """Return the name and the speed-up in a text like gemm=2x."""
    what, sign, times = text.rpartition("=")
    if not sign or not what:
        raise argparse.ArgumentTypeError(f"{text!r} is not a change; write it like gemm=2x")
    return what, speed(times)


def speed(text: str) -> float:
    """Return the speed-up in a text like 2x or 1.5."""
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*x?", text.strip().lower())
    if not match or float(match[1]) == 0.0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a speed; write it like 2x or 1.5x")
    return float(match[1])

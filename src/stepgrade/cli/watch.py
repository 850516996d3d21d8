"""Follow the log or the journal of a run while it trains.

In a terminal the figures are redrawn in place; in a pipe there is one plain line a minute. The file may be
truncated, replaced, or still without a step. Stop with Ctrl-C.

  stepgrade watch train.log --device h100-sxm5-80gb
  stepgrade watch run.journal --every 5
  stepgrade watch train.log --once
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from contextlib import suppress

from stepgrade.cli import run_options
from stepgrade.cli.parser import Parser, option
from stepgrade.cli.streams import send
from stepgrade.errors import EXIT_NOT_MEASURED, EXIT_OK, BadOption, NotMeasured
from stepgrade.readers.logs.follow import Followed
from stepgrade.readers.logs.own import dialects_from
from stepgrade.report import watch
from stepgrade.statistics import median

_IN_TERMINAL_S, _IN_PIPE_S = 2.0, 60.0
_LEAST_S = 0.05
_UP, _CLEAR = "\x1b[{}A", "\x1b[J"


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add_argument("source", metavar="FILE", help="the log or journal")
    parser.add(
        option("--every S", "seconds between updates (default: 2; in a pipe 60)"),
        option("--once", "show the current state and exit"),
    )
    parser.add(*run_options.MEASURED, group="measured")
    parser.add(run_options.CONFIG)
    run_options.add_setup_options(parser)
    parser.show_first("--every --once --device --model --batch --seq --config")


def run(args: Namespace) -> int:
    """Update until interrupted; return 3 when there was no step to show."""
    if args.every is not None and not args.every >= _LEAST_S:
        raise BadOption(f"--every must be at least {_LEAST_S:g} seconds")
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    every = args.every or (_IN_TERMINAL_S if is_terminal else _IN_PIPE_S)
    own = dialects_from(run_options.config_from(args).dialects)
    followed, drawn, code = Followed(args.source, own), 0, EXIT_NOT_MEASURED
    try:
        while True:
            profile, card = followed.look(), None
            shown: dict[str, str] = {"step": "none so far"}
            warned: tuple[str, ...] = ()
            with suppress(NotMeasured):
                if profile is not None:
                    setup = run_options.setup_from(args, profile)
                    card, code = run_options.score_run(args, profile, setup=setup), EXIT_OK
            if profile is not None and card is not None:
                log, changed_at = profile.log, followed.changed_at
                silent_s = max(0.0, time.time() - changed_at) if changed_at is not None else None
                is_over = log is None or (log.total_steps is not None and log.step[-1] >= log.total_steps)
                usual_s = median(log.wall_s) if log is not None and not is_over else None
                shown, warned = watch.facts(card, log, silent_s), watch.alarms(card, silent_s, usual_s)
            if followed.begun_again:
                often = f" {followed.begun_again} times" if followed.begun_again > 1 else ""
                shown["file"] = f"was truncated or replaced{often}"
            clock = time.strftime("%H:%M:%S")
            if is_terminal:  # over what was drawn before
                rows = watch.screen(args.source, clock, shown, warned)
                send((_UP.format(drawn) if drawn else "") + "\r" + _CLEAR + "\n".join(rows) + "\n")
                drawn = len(rows)
            else:
                send(watch.line(clock, shown, warned) + "\n")
            if args.once:
                return code
            time.sleep(every)
    except KeyboardInterrupt:
        return code
    finally:
        followed.close()

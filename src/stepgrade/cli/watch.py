"""Follow a log, or the journal of a recording, while the run goes on.

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

from stepgrade.cli import run_options
from stepgrade.cli.parser import Parser
from stepgrade.cli.streams import send
from stepgrade.errors import EXIT_NOT_MEASURED, EXIT_OK, BadOption, NotMeasured
from stepgrade.grading import score
from stepgrade.model import Profile
from stepgrade.model.scorecard import Scorecard
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
    parser.add_argument(
        "--every", type=float, metavar="S", help="seconds between updates (default: 2; in a pipe 60)"
    )
    parser.add_argument("--once", action="store_true", help="show the current state and exit")
    run_options.add_figure_options(parser)
    run_options.add_config_option(parser)
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
            profile = followed.look()
            card = _scored(profile, args) if profile is not None else None
            if profile is not None and card is not None:
                code = EXIT_OK
            drawn = _show(args.source, followed, profile, card, drawn if is_terminal else None)
            if args.once:
                return code
            time.sleep(every)
    except KeyboardInterrupt:
        return code
    finally:
        followed.close()


def _scored(profile: Profile, args: Namespace) -> Scorecard | None:
    try:
        return score(
            profile,
            setup=run_options.setup_from(args, profile),
            config=run_options.config_from(args),
            throughput_tok_s=args.throughput_tok_s,
            tokens_per_step=args.tokens_per_step,
            work=args.work,
        )
    except NotMeasured:
        return None


def _show(
    path: str, followed: Followed, profile: Profile | None, card: Scorecard | None, drawn: int | None
) -> int:
    """Write a line, or redraw the last `drawn` lines of the terminal; return how many were drawn."""
    clock = time.strftime("%H:%M:%S")
    shown: dict[str, str] = {"step": "none so far"}
    warned: tuple[str, ...] = ()
    if profile is not None and card is not None:
        silent_s = max(0.0, time.time() - followed.changed_at) if followed.changed_at is not None else None
        log = profile.log
        is_over = log is None or (log.total_steps is not None and log.step[-1] >= log.total_steps)
        usual_s = median(log.wall_s) if log is not None and not is_over else None
        shown, warned = watch.facts(card, profile.log, silent_s), watch.alarms(card, silent_s, usual_s)
    if followed.begun_again:
        shown["file"] = "was truncated or replaced" + (
            f" {followed.begun_again} times" if followed.begun_again > 1 else ""
        )
    if drawn is None:
        send(watch.line(clock, shown, warned) + "\n")
        return 0
    rows = watch.screen(path, clock, shown, warned)
    send((_UP.format(drawn) if drawn else "") + "\r" + _CLEAR + "\n".join(rows) + "\n")
    return len(rows)

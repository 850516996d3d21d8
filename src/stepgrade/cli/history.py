"""Keep runs over time, and see where they changed.

  stepgrade history add profile.json --device h100-sxm5-80gb --tokens-per-step 8192
  stepgrade history list --branch main
  stepgrade history trend step_time_ms --branch main
  stepgrade history show 12
  stepgrade history prune --keep 500
  stepgrade history export -o runs.jsonl

The history is .stepgrade/history.db, or what --history names: a file, or a database of PostgreSQL.
"""

from __future__ import annotations

import argparse
import re
from argparse import Namespace
from collections.abc import Callable

import msgspec

from stepgrade.cli import output
from stepgrade.cli.config import add_config_option, settings_from
from stepgrade.cli.history_options import add_origin_options, add_place_option, keep, label
from stepgrade.cli.parser import Parser, add_input_options, add_output_file, add_output_options
from stepgrade.cli.run_options import add_hardware_options, add_run_options, setup_from
from stepgrade.cli.sources import add_sources, load_run
from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.grading import score
from stepgrade.report.history import FORMATS, render_runs, render_trend
from stepgrade.report.names import json_text
from stepgrade.store import Selection, open_history

LISTED = 20


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, (_, declare, summary) in _ACTIONS.items():
        declare(commands.add_parser(name, description=summary, help=summary))


def run(args: Namespace) -> int:
    """Do what is asked of the history."""
    _ACTIONS[args.action][0](args)
    return EXIT_OK


def _add(args: Namespace) -> None:
    profile = load_run(args)
    card = score(
        profile,
        setup=setup_from(args),
        settings=settings_from(args),
        throughput_tok_s=args.throughput_tok_s,
        tokens_per_step=args.tokens_per_step,
    )
    keep(card, args)


def _list(args: Namespace) -> None:
    with open_history(args.history, create=False) as history:
        runs = history.runs(Selection(branch=args.branch, labels=dict(args.label), limit=args.limit))
    width, color = output.page_for(args.output, args.color)
    output.write(render_runs(runs, args.format, width=width, color=color), args.output)


def _show(args: Namespace) -> None:
    with open_history(args.history, create=False) as history:
        card = history.card(args.run)
    output.write_result(card, args)


def _trend(args: Namespace) -> None:
    from stepgrade.store.trend import trend_of  # noqa: PLC0415  needs numpy

    digests = (args.fingerprint,) if args.fingerprint else None
    which = Selection(branch=args.branch, digests=digests, labels=dict(args.label), limit=args.limit)
    with open_history(args.history, create=False) as history:
        trend = trend_of(history, args.metric, which, allowed_fields(args.allow_different))
    width, color = output.page_for(args.output, args.color)
    output.write(render_trend(trend, args.format, width=width, color=color), args.output)


def _prune(args: Namespace) -> None:
    if args.keep is None and args.older_than is None:
        raise BadOption(
            "says not what to remove", where="history prune", hint="give --keep N or --older-than"
        )
    with open_history(args.history, create=False) as history:
        count = history.prune(keep=args.keep, older_than=args.older_than)
        output.write(f"removed {count} run{'s' if count != 1 else ''} from {history.name}\n", None)


def _export(args: Namespace) -> None:
    with open_history(args.history, create=False) as history:
        which = Selection(branch=args.branch, labels=dict(args.label))
        lines = [json_text(msgspec.json.encode(run).decode()) + "\n" for run in history.export(which)]
    output.write("".join(lines), args.output)


def _declare_add(parser: Parser) -> None:
    add_sources(parser)
    add = parser.add_argument
    add("--throughput", dest="throughput_tok_s", type=float, metavar="TOK_S", help="tokens per second")
    add("--tokens-per-step", type=float, metavar="N", help="tokens in one step")
    add("--bytes-per-token", type=float, metavar="B", help="bytes of memory traffic that one token costs")
    add("--flops-per-token", type=float, metavar="F", help="FLOPs that one token costs")
    add_origin_options(parser)
    add_place_option(parser)
    add_config_option(parser)
    add_hardware_options(parser)
    add_run_options(parser)
    add_input_options(parser)


def _declare_list(parser: Parser) -> None:
    _declare_selection(parser)
    parser.add_argument(
        "--limit", type=int, default=LISTED, metavar="N", help=f"the newest N runs (default: {LISTED})"
    )
    _declare_output(parser)


def _declare_show(parser: Parser) -> None:
    parser.add_argument("run", type=int, metavar="RUN", help="the number of a run")
    add_place_option(parser)
    add_output_options(parser)


def _declare_trend(parser: Parser) -> None:
    parser.add_argument("metric", nargs="?", default="step_time_ms", metavar="METRIC")
    _declare_selection(parser)
    parser.add_argument("--fingerprint", metavar="DIGEST", help="default: that of the newest run")
    parser.add_argument("--allow-different", action="append", default=[], metavar="FIELD")
    parser.add_argument("--limit", type=int, metavar="N", help="only the newest N runs")
    _declare_output(parser)


def _declare_prune(parser: Parser) -> None:
    parser.add_argument(
        "--keep", type=int, metavar="N", help="the newest N runs of every branch and fingerprint"
    )
    parser.add_argument("--older-than", type=day, metavar="YYYY-MM-DD", help="remove what was added before")
    add_place_option(parser)


def _declare_export(parser: Parser) -> None:
    _declare_selection(parser)
    add_output_file(parser)


def _declare_selection(parser: Parser) -> None:
    add_place_option(parser)
    parser.add_argument("--branch", metavar="NAME", help="only runs of this branch")
    parser.add_argument("--label", action="append", default=[], type=label, metavar="NAME=TEXT")


def _declare_output(parser: Parser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="terminal")
    add_output_file(parser)
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")


def day(text: str) -> str:
    """Return an ISO day as it is."""
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no day; write it like 2026-03-01")
    return text


_Action = tuple[Callable[[Namespace], None], Callable[[Parser], None], str]
_ACTIONS: dict[str, _Action] = {
    "add": (_add, _declare_add, "score a run and keep it"),
    "list": (_list, _declare_list, "the newest runs"),
    "show": (_show, _declare_show, "the scorecard of a kept run"),
    "trend": (_trend, _declare_trend, "a metric over time, and where its level changed"),
    "prune": (_prune, _declare_prune, "remove old runs"),
    "export": (_export, _declare_export, "every run with its scorecard, one JSON object per line"),
}

"""Options of the commands that keep runs: where, under which commit and branch, with which labels."""

from __future__ import annotations

import argparse
from argparse import Namespace

from stepgrade.cli.parser import Parser
from stepgrade.cli.streams import complain
from stepgrade.model.scorecard import Scorecard


def add_place_option(parser: Parser) -> None:
    """Add `--history`."""
    parser.add_argument(
        "--history",
        metavar="PLACE",
        help="a file, or postgresql://… (default: .stepgrade/history.db)",
    )


def add_keeping_options(parser: Parser, when: str) -> None:
    """Add `--save` and what goes with it."""
    group = parser.add_argument_group("keeping")
    group.add_argument("--save", action="store_true", help=f"keep the run in the history, {when}")
    add_origin_options(group)


def add_origin_options(group: argparse._ActionsContainer) -> None:
    """Add where a run comes from."""
    group.add_argument("--commit", metavar="SHA", help="default: the checkout's, or what CI says")
    group.add_argument("--branch", metavar="NAME", help="default: the checkout's, or what CI says")
    group.add_argument(
        "--label", action="append", default=[], type=label, metavar="NAME=TEXT", help="may be repeated"
    )


def label(text: str) -> tuple[str, str]:
    """Return name and value of a text like machine=dgx-3."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is no label; write it like machine=dgx-3")
    return name, value


def keep(card: Scorecard, args: Namespace) -> int:
    """Add a run to the history, say so on standard error, and return its number."""
    from stepgrade.store import NewRun, open_history  # noqa: PLC0415  only when something is kept
    from stepgrade.store.git import branch_here, commit_here  # noqa: PLC0415  as above

    run = NewRun(
        card=card,
        commit=args.commit or commit_here(),
        branch=args.branch or branch_here(),
        labels=dict(args.label),
    )
    with open_history(args.history) as history:
        number = history.add(run)
        complain(f"kept as run {number} in {history.name}")
    return number

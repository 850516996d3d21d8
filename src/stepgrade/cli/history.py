"""Keep runs over time, and find where they changed.

  stepgrade history add profile.json --device h100-sxm5-80gb
  stepgrade history list --branch main
  stepgrade history trend step_time_ms --branch main
  stepgrade history prune --keep 500
  stepgrade history push --to https://stepgrade.example.org/llm

The history is --history, else STEPGRADE_HISTORY, else .stepgrade/history.db: a file, a PostgreSQL database,
or a project on a team's server (https://SERVER/PROJECT, with a token in STEPGRADE_TOKEN). If the server
does not answer, saved runs wait in the outbox (~/.local/state/stepgrade, or STEPGRADE_OUTBOX); the next
save or push sends them. push sends the runs of a history only if --history or STEPGRADE_HISTORY names it. A
database password is read from PGPASSWORD, ~/.pgpass or PGPASSFILE, because arguments are visible to
everyone on the machine.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import re
import sys
from argparse import Namespace
from contextlib import suppress
from pathlib import Path

import msgspec

from stepgrade.cli import output, run_options
from stepgrade.cli.parser import COLOR, OUTPUT, READING, Parser, add_output_options, option
from stepgrade.cli.run_options import HISTORY
from stepgrade.cli.streams import complain
from stepgrade.compare.fingerprint import allowed_fields
from stepgrade.decoding import from_json
from stepgrade.errors import EXIT_BAD_INPUT, EXIT_OK, BadOption
from stepgrade.report.history import FORMATS, render_runs, render_trend
from stepgrade.report.names import json_text, shortened
from stepgrade.store import History, Runs, Selection, open_history, open_store
from stepgrade.store.database import DEFAULT_PATH, VARIABLE

LISTED = 20
_SHOWN = 10
ACTIONS = {
    "add": "score a run and save it",
    "list": "the newest runs",
    "show": "the scorecard of a saved run",
    "trend": "a metric over time, and where its level changed",
    "prune": "remove old runs",
    "export": "every run with its scorecard, one JSON object per line",
    "push": "send waiting runs, and those of the given history, to a server",
    "pull": "copy runs from a server",
    "outbox": "the runs that wait for a server, and why",
}


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions = {
        name: commands.add_parser(name, description=summary, help=summary)
        for name, summary in ACTIONS.items()
    }
    adding = actions["add"]
    run_options.add_sources(adding)
    adding.add(*run_options.MEASURED, group="measured")
    adding.add(*run_options.ORIGIN, HISTORY, run_options.CONFIG)
    run_options.add_setup_options(adding)
    adding.add(*READING, group="reading")
    adding.show_first("--device --tokens-per-step --branch --commit --label --history")

    branch = option("--branch NAME", "only runs of this branch")
    selection = (HISTORY, branch, option("--label NAME=TEXT ...", "only runs with this label"))
    writing = (option("--format", "output format", choices=FORMATS, default="terminal"), OUTPUT, COLOR)
    newest = option("--limit N", "the newest N runs", type=whole_number, default=LISTED)
    actions["list"].add(*selection, newest, *writing)

    actions["show"].add_argument("run", type=whole_number, metavar="RUN", help="the number of a run")
    actions["show"].add(HISTORY)
    add_output_options(actions["show"])

    actions["trend"].add_argument("metric", nargs="?", default="step_time_ms", metavar="METRIC")
    actions["trend"].add(
        *selection,
        option("--fingerprint DIGEST", "default: that of the newest run"),
        run_options.ALLOW_DIFFERENT,
        option("--limit N", "only the newest N runs", type=whole_number),
        *writing,
    )

    actions["prune"].add(
        option("--keep N", "keep the newest N of every branch and fingerprint", type=whole_number),
        option("--older-than YYYY-MM-DD", "remove runs added before this day", type=day),
        option("--yes", "remove them without asking"),
        HISTORY,
    )

    where = "https://SERVER/PROJECT"
    why = "another outbox, such as .stepgrade/outbox of a checkout, including runs of other users"
    outbox = option("--outbox FOLDER", why)
    actions["push"].add(HISTORY, option("--to URL", where, dest="server", required=True), outbox)
    actions["pull"].add(HISTORY, option("--from URL", where, dest="server", required=True), branch)
    actions["outbox"].add(outbox)
    actions["export"].add(*selection, OUTPUT)


def run(args: Namespace) -> int:
    """Run one action on the history."""
    if args.action == "add":
        profile = run_options.load_run(args)
        card = run_options.score_run(args, profile, setup=run_options.setup_from(args))
        run_options.save_run(card, args)
        return EXIT_OK
    if args.action == "prune" and args.keep is None and args.older_than is None:
        hint = "give --keep N or --older-than YYYY-MM-DD"
        raise BadOption("which runs to remove?", where="history prune", hint=hint)
    if args.action in ("push", "pull"):
        return _exchange(args)
    if args.action == "outbox":
        output.write(_waiting(args.outbox), None)
        return EXIT_OK
    if args.action == "prune":
        with open_store(args.history, create=False) as store:
            _prune(store, args)
            _report_damage(store)
        return EXIT_OK
    with open_history(args.history, create=False) as history:
        if args.action == "show":
            output.write_result(history.card(args.run), args.format, args.output, args.color)
        elif args.action == "export":
            chosen = history.export(Selection(branch=args.branch, labels=dict(args.label)))
            lines = (json_text(msgspec.json.encode(run).decode()) + "\n" for run in chosen)
            output.write_lines(lines, args.output)
        else:
            width, color = output.page_for(args.output, args.color)
            which = Selection(branch=args.branch, labels=dict(args.label), limit=args.limit)
            if args.action == "list":
                text = render_runs(history.runs(which), args.format, width=width, color=color)
            else:
                from stepgrade.store.tables import trend_of

                digests = (args.fingerprint,) if args.fingerprint else None
                which = msgspec.structs.replace(which, digests=digests)
                trend = trend_of(history, args.metric, which, allowed_fields(args.allow_different))
                text = render_trend(trend, args.format, width=width, color=color)
            output.write(text, args.output)
        _report_damage(history)
    return EXIT_OK


def _report_damage(history: Runs) -> None:
    if history.damaged:
        complain(f"skipped in {history.name}: {history.damage()}")


def _exchange(args: Namespace) -> int:
    """Send runs to a server, or copy its runs."""
    from stepgrade.store.remote import RemoteHistory
    from stepgrade.store.sync import pull, push

    with RemoteHistory(args.server) as remote:
        if args.action == "pull":
            with open_store(args.history) as local:
                new, here = pull(local, remote, Selection(branch=args.branch))
            output.write(f"{new} new from {remote.name}, {here} already here\n", None)
            return EXIT_OK
        sent, there = remote.send_waiting() if args.outbox is None else remote.send_folder(args.outbox), 0
        # A history that nobody named may have come with the checkout.
        named = args.history or os.environ.get(VARIABLE)
        if named and args.outbox is None and not named.lower().startswith(("http:", "https:")):
            with open_store(named, create=False) as local:
                more, there = push(local, remote)
                sent += more
        elif args.outbox is None and os.path.exists(DEFAULT_PATH):
            complain(f"runs of {DEFAULT_PATH} are not sent: add --history {DEFAULT_PATH} to send them")
        run_options.report_outbox(remote)
        output.write(f"{sent} sent to {remote.name}, {there} already there\n", None)
        return EXIT_BAD_INPUT if remote.refused else EXIT_OK


class _Origin(msgspec.Struct, frozen=True):
    branch: str | None = None
    commit: str | None = None
    added_at: str = "?"


def _waiting(folder: str | None) -> str:
    """Return a line for each run that waits or was refused."""
    from stepgrade.store.client import token_from_environment
    from stepgrade.store.remote import everything, files_in, outbox_folder

    where = Path(folder) if folder else outbox_folder()
    lines = []
    for path, run, problem in (
        files_in(where, is_any_owner=True) if folder else everything(token_from_environment())
    ):
        state = "refused by the server" if path.name.startswith("refused-") else problem or "waits"
        parts = [str(path), state]
        with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            if run is not None:
                origin = from_json(bytes(run.body), _Origin)
                commit = (origin.commit or "no commit")[:12]
                parts += [run.server, origin.branch or "no branch", commit, origin.added_at]
        lines.append("  ".join(shortened(part) for part in parts) + "\n")
    return "".join(lines) or f"nothing waits in {where}\n"


def _prune(history: History, args: Namespace) -> None:
    """List the runs to remove, and remove them after `--yes` or a confirmation at the terminal."""
    numbers = history.prunable(keep=args.keep, older_than=args.older_than)
    which = f"{len(numbers)} of {len(history.runs())} runs in {history.name}"
    if numbers and not args.yes:
        shown = ", ".join(str(number) for number in sorted(numbers)[:_SHOWN])
        which += f" (run {shown}{', …' if len(numbers) > _SHOWN else ''})"
        if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise BadOption(f"would remove {which}", hint="nothing was removed; give --yes to remove them")
        sys.stderr.write(f"Remove {which}? [y/N] ")
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            output.write("nothing was removed\n", None)
            return
    history.remove(numbers)
    output.write(f"removed {which}\n", None)


def day(text: str) -> dt.date:
    """Return the day of a text like 2026-03-01."""
    try:
        return dt.date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day; write it like 2026-03-01") from None


def whole_number(text: str) -> int:
    """Return a number from 1 to what every database can hold."""
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)

"""Look after a team's server: tokens, projects, copies of the store.

  stepgrade admin token --name alice --role admin
  stepgrade admin token --name ci --role uploader --project llm --days 365
  stepgrade admin tokens
  stepgrade admin revoke 3
  stepgrade admin project llm
  stepgrade admin backup copy.db
  stepgrade admin restore copy.db

They work on the store itself, whether a server runs or not: --history names it as for `stepgrade serve`.
A secret is printed once, on standard output; only its hash is kept.
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import output, run_options
from stepgrade.cli.history import whole_number
from stepgrade.cli.parser import Parser
from stepgrade.cli.streams import complain
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.store import open_history
from stepgrade.store.place import place_of
from stepgrade.store.team import ROLES, Team

ACTIONS = {
    "token": "make a token and print its secret",
    "tokens": "list the tokens, without their secrets",
    "revoke": "end a token",
    "project": "make a project",
    "backup": "copy a store of SQLite while it is in use",
    "restore": "put a copy in the place of a store",
}


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions = {
        name: commands.add_parser(name, description=summary, help=summary)
        for name, summary in ACTIONS.items()
    }
    for action in actions.values():
        run_options.add_history_option(action)
    add = actions["token"].add_argument
    add("--name", required=True, metavar="NAME", help="whose it is")
    add("--role", choices=ROLES, default="reader", help="default: reader")
    add("--project", metavar="NAME", help="default: every project")
    add("--days", type=whole_number, default=90, metavar="N", help="how long it lives (default: 90)")
    actions["revoke"].add_argument("token", type=whole_number, metavar="TOKEN", help="its number")
    actions["project"].add_argument("name", metavar="NAME")
    actions["backup"].add_argument("file", metavar="FILE", help="a file that is not there yet")
    actions["restore"].add_argument("file", metavar="FILE", help="a copy that `backup` made")


def run(args: Namespace) -> int:
    """Do what is asked."""
    if args.action in ("backup", "restore"):
        _copy(args)
        return EXIT_OK
    with open_history(args.history) as history:
        team = Team(history.database)
        if args.action == "token":
            secret, token = team.add_token(
                args.name, args.role, project=args.project, days=args.days, created_by="admin"
            )
            team.note("admin", "token made", subject=f"{token.id}: {token.name}, {token.role}")
            where = token.project or "every project"
            complain(f"token {token.id}: {token.role} of {where} until {token.expires_at[:10]}")
            output.write_raw(secret + "\n", None)
        elif args.action == "tokens":
            rows = []
            for one in team.tokens():
                ends = f"revoked {one.revoked_at[:10]}" if one.revoked_at else f"until {one.expires_at[:10]}"
                where = one.project or "every project"
                rows.append(f"{one.id:>4}  {one.shown:<9} {one.role:<9} {where:<20} {ends}  {one.name}")
            output.write_raw("".join(row + "\n" for row in rows) or "no token yet\n", None)
        elif args.action == "revoke":
            if not team.revoke(args.token):
                raise BadOption(f"there is no token {args.token}")
            team.note("admin", "token revoked", subject=str(args.token))
            complain(f"token {args.token} is ended")
        else:
            word = "made" if team.add_project(args.name) else "was there already"
            complain(f"project {args.name} {word}")
    return EXIT_OK


def _copy(args: Namespace) -> None:
    """Copy a store's file, or put a copy in its place."""
    from stepgrade.store.sqlite import copy_sqlite  # not needed for PostgreSQL

    url, path = place_of(args.history)
    if url is not None:
        raise BadOption("PostgreSQL has its own tools for this", hint="pg_dump and pg_restore")
    if args.action == "backup":
        copy_sqlite(path, args.file)
        complain(f"copied {path} to {args.file}")
    else:
        copy_sqlite(args.file, path)
        complain(f"restored {path} from {args.file}")

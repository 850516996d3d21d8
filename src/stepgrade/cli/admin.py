"""Manage a team's server: tokens, projects, backups of the store.

  stepgrade admin token --name alice --role admin
  stepgrade admin token --name ci --role uploader --project llm --days 365
  stepgrade admin revoke 3
  stepgrade admin backup copy.db

The commands work on the store itself, whether a server runs or not: --history names it as for stepgrade
serve. A secret is printed once, on standard output; only its hash is stored.
"""

from __future__ import annotations

from argparse import Namespace

from stepgrade.cli import output
from stepgrade.cli.history import whole_number
from stepgrade.cli.parser import Parser, option
from stepgrade.cli.run_options import HISTORY
from stepgrade.cli.streams import complain
from stepgrade.errors import EXIT_OK, BadOption
from stepgrade.store import open_store
from stepgrade.store.database import locate
from stepgrade.store.team import ROLES, Team

ACTIONS = {
    "token": "create a token and print its secret",
    "tokens": "list the tokens, without their secrets",
    "revoke": "revoke a token",
    "project": "create a project",
    "backup": "copy an SQLite store while it is in use",
    "restore": "replace a store with a backup",
}


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    actions = {
        name: commands.add_parser(name, description=summary, help=summary)
        for name, summary in ACTIONS.items()
    }
    for action in actions.values():
        action.add(HISTORY)
    actions["token"].add(
        option("--name NAME", "its owner", required=True),
        option("--role", "permissions", choices=ROLES, default="reader"),
        option("--project NAME", "default: every project"),
        option("--days N", "days until it expires", type=whole_number, default=90),
    )
    actions["revoke"].add_argument("token", type=whole_number, metavar="TOKEN", help="its number")
    actions["project"].add_argument("name", metavar="NAME")
    actions["backup"].add_argument("file", metavar="FILE", help="a file that does not exist yet")
    actions["restore"].add_argument("file", metavar="FILE", help="a file that `backup` wrote")


def run(args: Namespace) -> int:
    """Run one action."""
    if args.action in ("backup", "restore"):
        from stepgrade.store.sqlite import copy_sqlite

        url, path = locate(args.history)
        if url is not None:
            raise BadOption("PostgreSQL has its own tools for this", hint="use pg_dump and pg_restore")
        if args.action == "backup":
            copy_sqlite(path, args.file)
            complain(f"copied {path} to {args.file}")
        else:
            copy_sqlite(args.file, path)
            complain(f"restored {path} from {args.file}")
        return EXIT_OK
    with open_store(args.history) as history:
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
            for token in team.tokens():
                revoked = f"revoked {(token.revoked_at or '')[:10]}"
                ends = revoked if token.revoked_at else f"until {token.expires_at[:10]}"
                where = f"{token.role:<9} {token.project or 'every project':<20}"
                rows.append(f"{token.id:>4}  {token.shown:<9} {where} {ends}  {token.name}")
            output.write_raw("".join(row + "\n" for row in rows) or "no token yet\n", None)
        elif args.action == "revoke":
            if not team.revoke(args.token):
                raise BadOption(f"token {args.token} not found")
            team.note("admin", "token revoked", subject=str(args.token))
            complain(f"token {args.token} revoked")
        else:
            word = "created" if team.add_project(args.name) else "already exists"
            complain(f"project {args.name} {word}")
    return EXIT_OK

r"""Serve a history to a team: pages for people, an API for CI.

There are three ways to grant access: to this machine only (the default), by tokens, or by a trusted proxy.

  stepgrade serve
  stepgrade serve --tokens --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
  stepgrade serve --trusted-proxy 10.0.0.5 --host 10.0.0.9 \
                  --public-url https://stepgrade.example.org

The store is --history, else STEPGRADE_HISTORY, else .stepgrade/history.db; several servers may share a
PostgreSQL database. Create tokens with stepgrade admin token. Operators: see docs/server.md.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace

from stepgrade.cli import run_options
from stepgrade.cli.parser import Parser, option
from stepgrade.cli.streams import complain
from stepgrade.errors import EXIT_OK, BadOption

_WHO = {
    "localhost": "to this machine only",
    "tokens": "to anyone with a token",
    "proxy": "to users of the proxy, and to tokens",
}


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    parser.add(
        run_options.HISTORY,
        option("--host ADDRESS", "address to listen on", default="127.0.0.1"),
        option("--port N", "default: 8765; 0 picks a free port", default=8765),
        option("--no-browser", "do not open a browser"),
    )
    parser.add(
        option("--open-to-localhost", "this machine, no accounts (the default)"),
        option("--tokens", "anyone with a token"),
        option("--trusted-proxy ADDRESS ...", "users of the proxy at this address"),
        option("--proxy-admin NAME ...", "a user or group with all permissions", dest="proxy_admins"),
        option("--proxy-uploader NAME ...", "a user or group that may upload runs", dest="proxy_uploaders"),
        option("--public-url URL", "the address in browsers, behind a proxy"),
        option("--tls-cert FILE", "the server's certificate"),
        option("--tls-key FILE", "its key"),
        group="access",
    )
    parser.add(
        option("--workers N", "processes", default=1),
        option("--max-connections N", "per process", default=1000),
        option(
            "--connections-per-address N",
            "per client (default: 200); a trusted proxy has no limit",
            default=200,
        ),
        option("--max-upload SIZE", "of one run", default="2MiB", dest="most_bytes"),
        option("--uploads-per-minute N", "per token", default=120),
        option(
            "--accept-traces", "also score uploaded profiles, in a process with limits", dest="accepts_traces"
        ),
        option("--trace-memory SIZE", "for all profiles scored at once", default="4GiB"),
        group="limits",
    )
    parser.add(
        option("--private-webhooks", "allow webhooks to private addresses"),
        option("--smtp HOST:PORT", "the mail server; its password is STEPGRADE_SMTP_PASSWORD"),
        option("--smtp-user NAME", "user at the mail server"),
        option("--smtp-from ADDRESS", "sender of mails", default="stepgrade@localhost"),
        option("--smtp-plain", "no TLS: for a mail server on this machine"),
        group="notifications",
    )
    parser.show_first(
        "--history --host --port --tokens --trusted-proxy --tls-cert --tls-key --workers --accept-traces "
        "--no-browser"
    )


def run(args: Namespace) -> int:
    """Serve until interrupted."""
    from stepgrade.web.serving import serve  # not needed for the help
    from stepgrade.web.settings import Mail, ServerSettings

    chosen = {"localhost": args.open_to_localhost, "tokens": args.tokens, "proxy": bool(args.trusted_proxy)}
    ways = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(ways) > 1:
        raise BadOption(
            "choose one way to grant access", hint="behind a proxy, tokens work too: omit --tokens"
        )
    mail = None
    if args.smtp is not None:
        host, _, port = args.smtp.partition(":")
        if not host or not (port or "587").isdecimal():
            raise BadOption("write it like mail.example.org:587", where="--smtp")
        sender, user, starttls = args.smtp_from, args.smtp_user, not args.smtp_plain
        mail = Mail(host=host, port=int(port or 587), sender=sender, user=user, starttls=starttls)
    given = run_options.fields_given(args, ServerSettings)
    given |= {
        "location": args.history,
        "access": ways[0] if ways else "localhost",
        "trusted_proxies": tuple(args.trusted_proxy),
        "proxy_admins": tuple(args.proxy_admins),
        "proxy_uploaders": tuple(args.proxy_uploaders),
        "most_connections": args.max_connections,
        "connections_per_address": min(args.connections_per_address, args.max_connections),
        "mail": mail,
    }
    settings = ServerSettings(**given)

    def ready(address: str) -> None:
        complain(f"serving at {address}, {_WHO[settings.access]} (Ctrl-C stops)")
        has_screen = bool(os.environ.get("DISPLAY") or sys.platform in ("darwin", "win32"))
        if settings.access == "localhost" and not args.no_browser and has_screen and sys.stderr.isatty():
            import webbrowser  # only where there is one

            webbrowser.open(address)

    serve(settings, ready)
    return EXIT_OK

r"""Serve a history to a team: pages for people, an interface for CI.

There are three ways to be reached, each asked for by name; anything else refuses to start.

  stepgrade serve                                              this machine alone, without accounts
  stepgrade serve --tokens --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
  stepgrade serve --trusted-proxy 10.0.0.5 --host 10.0.0.9 --public-url https://stepgrade.example.org

The store is .stepgrade/history.db, or what --history or else STEPGRADE_HISTORY names; with PostgreSQL,
several servers may share one. Tokens are made by `stepgrade admin token`. docs/server.md is for operators.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from stepgrade.cli import run_options
from stepgrade.cli.parser import Parser, byte_count
from stepgrade.cli.streams import complain
from stepgrade.errors import EXIT_OK, BadOption

if TYPE_CHECKING:
    from stepgrade.web.settings import Mail


_WHO = {
    "localhost": "to this machine alone",
    "tokens": "to whoever has a token",
    "proxy": "to whom the proxy lets in, and to tokens",
}


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_history_option(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    add("--port", type=int, default=8765, metavar="N", help="default: 8765; 0 takes a free one")
    ways = parser.add_argument_group("who may come in").add_argument
    ways("--open-to-localhost", action="store_true", help="this machine, without accounts (the default)")
    ways("--tokens", action="store_true", help="whoever has a token")
    ways(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="whom this proxy lets in: X-Forwarded-User from this address or network is believed",
    )
    ways("--proxy-admin", action="append", default=[], metavar="NAME", help="a user or group with all rights")
    ways("--proxy-uploader", action="append", default=[], metavar="NAME", help="one that may send runs")
    ways("--public-url", metavar="URL", help="as browsers see the server, when something stands in front")
    ways("--tls-cert", metavar="FILE", help="the server's certificate")
    ways("--tls-key", metavar="FILE", help="its key")
    limits = parser.add_argument_group("limits").add_argument
    limits("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    limits("--max-connections", type=int, default=1000, metavar="N", help="of a process (default: 1000)")
    limits(
        "--connections-per-address",
        type=int,
        default=200,
        metavar="N",
        help="of one client (default: 200); a trusted proxy has no such limit",
    )
    limits("--max-upload", type=byte_count, default="2MiB", metavar="SIZE", help="of a run (default: 2MiB)")
    limits("--uploads-per-minute", type=int, default=120, metavar="N", help="of one token (default: 120)")
    limits("--accept-traces", action="store_true", help="score profiles here too, in a process with limits")
    limits(
        "--trace-memory",
        type=byte_count,
        default="4GiB",
        metavar="SIZE",
        help="of all profiles that are scored at once (default: 4GiB)",
    )
    telling = parser.add_argument_group("telling").add_argument
    telling("--private-webhooks", action="store_true", help="let webhooks go to addresses of the own network")
    telling("--smtp", metavar="HOST:PORT", help="the mail server; its password is STEPGRADE_SMTP_PASSWORD")
    telling("--smtp-user", metavar="NAME")
    telling("--smtp-from", metavar="ADDRESS", default="stepgrade@localhost")
    telling("--smtp-plain", action="store_true", help="without TLS: for a mail server on this machine")
    add("--no-browser", action="store_true", help="do not open the pages in a browser")


def run(args: Namespace) -> int:
    """Serve until interrupted."""
    from stepgrade.web.serving import serve  # not needed for the help
    from stepgrade.web.settings import ServerSettings

    asked = {"localhost": args.open_to_localhost, "tokens": args.tokens, "proxy": bool(args.trusted_proxy)}
    ways = [name for name, is_asked in asked.items() if is_asked]
    if len(ways) > 1:
        raise BadOption(
            "one way to come in at a time", hint="a proxy's users may have tokens too: leave --tokens out"
        )
    settings = ServerSettings(
        place=args.history,
        host=args.host,
        port=args.port,
        access=ways[0] if ways else "localhost",  # type: ignore[arg-type]  # a key of the dict above
        trusted_proxies=tuple(args.trusted_proxy),
        proxy_admins=tuple(args.proxy_admin),
        proxy_uploaders=tuple(args.proxy_uploader),
        public_url=args.public_url,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        workers=args.workers,
        most_connections=args.max_connections,
        connections_per_address=min(args.connections_per_address, args.max_connections),
        most_bytes=args.max_upload,
        uploads_per_minute=args.uploads_per_minute,
        accepts_traces=args.accept_traces,
        trace_memory=args.trace_memory,
        private_webhooks=args.private_webhooks,
        mail=_mail(args),
    )

    def ready(address: str) -> None:
        complain(f"serving at {address}, {_WHO[settings.access]} (Ctrl-C stops)")
        has_screen = bool(os.environ.get("DISPLAY") or sys.platform in ("darwin", "win32"))
        if settings.access == "localhost" and not args.no_browser and has_screen and sys.stderr.isatty():
            import webbrowser  # only where there is one

            webbrowser.open(address)

    serve(settings, ready)
    return EXIT_OK


def _mail(args: Namespace) -> Mail | None:
    from stepgrade.web.settings import Mail

    if args.smtp is None:
        return None
    host, _, port = args.smtp.partition(":")
    if not host or not (port or "587").isdecimal():
        raise BadOption("write it like mail.example.org:587", where="--smtp")
    return Mail(
        host=host,
        port=int(port or 587),
        sender=args.smtp_from,
        user=args.smtp_user,
        starttls=not args.smtp_plain,
    )

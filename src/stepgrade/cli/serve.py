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
from typing import TYPE_CHECKING

from stepgrade.cli import run_options
from stepgrade.cli.parser import Parser, byte_count
from stepgrade.cli.streams import complain
from stepgrade.errors import EXIT_OK, BadOption

if TYPE_CHECKING:
    from stepgrade.web.settings import Mail


_WHO = {
    "localhost": "to this machine only",
    "tokens": "to anyone with a token",
    "proxy": "to users of the proxy, and to tokens",
}


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_history_option(parser)
    add = parser.add_argument
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=int, default=8765, metavar="N", help="default: 8765; 0 picks a free port")
    ways = parser.add_argument_group("access").add_argument
    ways("--open-to-localhost", action="store_true", help="this machine, no accounts (the default)")
    ways("--tokens", action="store_true", help="anyone with a token")
    ways(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="users of the proxy at this address",
    )
    ways(
        "--proxy-admin",
        action="append",
        default=[],
        metavar="NAME",
        help="a user or group with all permissions",
    )
    ways(
        "--proxy-uploader",
        action="append",
        default=[],
        metavar="NAME",
        help="a user or group that may upload runs",
    )
    ways("--public-url", metavar="URL", help="the address in browsers, behind a proxy")
    ways("--tls-cert", metavar="FILE", help="the server's certificate")
    ways("--tls-key", metavar="FILE", help="its key")
    limits = parser.add_argument_group("limits").add_argument
    limits("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    limits("--max-connections", type=int, default=1000, metavar="N", help="per process (default: 1000)")
    limits(
        "--connections-per-address",
        type=int,
        default=200,
        metavar="N",
        help="per client (default: 200); a trusted proxy has no limit",
    )
    limits("--max-upload", type=byte_count, default="2MiB", metavar="SIZE", help="of one run (default: 2MiB)")
    limits("--uploads-per-minute", type=int, default=120, metavar="N", help="per token (default: 120)")
    limits(
        "--accept-traces", action="store_true", help="also score uploaded profiles, in a process with limits"
    )
    limits(
        "--trace-memory",
        type=byte_count,
        default="4GiB",
        metavar="SIZE",
        help="for all profiles scored at once (default: 4GiB)",
    )
    notify = parser.add_argument_group("notifications").add_argument
    notify("--private-webhooks", action="store_true", help="allow webhooks to private addresses")
    notify("--smtp", metavar="HOST:PORT", help="the mail server; its password is STEPGRADE_SMTP_PASSWORD")
    notify("--smtp-user", metavar="NAME", help="user at the mail server")
    notify("--smtp-from", metavar="ADDRESS", default="stepgrade@localhost", help="sender of mails")
    notify("--smtp-plain", action="store_true", help="no TLS: for a mail server on this machine")
    add("--no-browser", action="store_true", help="do not open a browser")
    parser.show_first(
        "--history --host --port --tokens --trusted-proxy --tls-cert --tls-key --workers --accept-traces "
        "--no-browser"
    )


def run(args: Namespace) -> int:
    """Serve until interrupted."""
    from stepgrade.web.serving import serve  # not needed for the help
    from stepgrade.web.settings import ServerSettings

    chosen = {"localhost": args.open_to_localhost, "tokens": args.tokens, "proxy": bool(args.trusted_proxy)}
    ways = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(ways) > 1:
        raise BadOption(
            "choose one way to grant access", hint="behind a proxy, tokens work too: leave --tokens out"
        )
    settings = ServerSettings(
        location=args.history,
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

r"""Open TRACE in Perfetto: its page fetches the file from this machine, and it goes nowhere else.

The traces of several ranks, and formats that Perfetto does not know, are opened as one annotated timeline, as
`score --format perfetto` writes it; --annotate does so for a single trace too. Served on port 9001 of this
machine, the only one that Perfetto's page asks, until Ctrl-C or for an hour.

  stepgrade open trace.json.gz
  stepgrade open rank0.json.gz rank1.json.gz
  stepgrade open run.nsys.sqlite --no-browser
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from stepgrade.cli import run_options
from stepgrade.cli.parser import Parser, add_input_options
from stepgrade.cli.streams import complain, send
from stepgrade.errors import EXIT_OK, BadInput
from stepgrade.files import scratch_folder

if TYPE_CHECKING:
    from stepgrade.report.perfetto import Shown

_AS_THEY_ARE = ("kineto", "xla_trace")  # what Perfetto reads itself


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_sources(parser)
    add = parser.add_argument
    add("--annotate", action="store_true", help="open a single trace as the annotated timeline too")
    add("--once", action="store_true", help="stop when the file has been fetched")
    add("--minutes", type=float, default=60.0, metavar="N", help="stop after so long (default: 60)")
    add("--no-browser", action="store_true", help="print the link and open nothing")
    add_input_options(parser)


def run(args: Namespace) -> int:
    """Serve the file until it was fetched, time is up, or somebody interrupts."""
    from stepgrade.cli.timeline import check_timeline, write_timeline
    from stepgrade.grading import score

    check_timeline(args)
    only = args.sources[0]
    if len(args.sources) == 1 and not args.annotate and _is_read_by_perfetto(only, args):
        try:
            with open(only, "rb") as file:
                return _serve(file, only, None, args)
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror or error}", where=only) from error
    with scratch_folder() as folder:
        path = os.path.join(folder, "run.pftrace")
        shown = write_timeline(score(run_options.load_run(args)), args, path)
        with open(path, "rb") as file:
            return _serve(file, path, shown, args)


def _is_read_by_perfetto(source: str, args: Namespace) -> bool:
    from stepgrade.readers import registry
    from stepgrade.readers.source import ByteSource

    if not os.path.isfile(source):  # a directory or a URL
        return False
    with ByteSource(source) as opened:
        return not opened.is_archive and registry.reader_for(opened, args.input_format).name in _AS_THEY_ARE


def _serve(file: BinaryIO, name: str, shown: Shown | None, args: Namespace) -> int:
    from stepgrade.web.loopback import TraceServer

    server = TraceServer(file, name)
    try:
        link = server.link() if shown is None else server.link(shown.start_ns, shown.start_ns + shown.dur_ns)
        send(f"{link}\n")
        if not args.no_browser and sys.stdout is not None and sys.stdout.isatty():
            import webbrowser

            webbrowser.open(link)
        if args.once:
            ends = "once it has been fetched, or with Ctrl-C"
        else:
            ends = f"with Ctrl-C, or after {args.minutes:g} minutes"
        complain(f"served to this machine's browser alone; ends {ends}")
        with suppress(KeyboardInterrupt):
            server.wait(args.minutes * 60.0, once=args.once)
    finally:
        server.close()
    return EXIT_OK

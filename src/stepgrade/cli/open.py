"""Open a trace in Perfetto, whose page fetches it from this machine; nothing is uploaded.

Several ranks, and formats that Perfetto does not read, are opened as one annotated timeline, as score
--format perfetto writes it; --annotate does so for a single trace too. The file is served on port 9001 of
this machine, the only port that Perfetto's page may use, until Ctrl-C or for an hour.

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
from stepgrade.cli.parser import READING, Parser, option
from stepgrade.cli.streams import complain, send
from stepgrade.errors import EXIT_OK, BadInput
from stepgrade.files import scratch_folder

if TYPE_CHECKING:
    from stepgrade.report.perfetto import Shown

_READ_BY_PERFETTO = ("kineto", "xla_trace")


def add_options(parser: Parser) -> None:
    """Declare the command line."""
    run_options.add_sources(parser)
    parser.add(
        option("--annotate", "open a single trace as the annotated timeline"),
        option("--once", "stop once the file has been fetched"),
        option("--minutes N", "stop after N minutes (default: 60)", type=float, default=60.0),
        option("--no-browser", "print the link only"),
    )
    parser.add(*READING, group="reading")
    parser.show_first("--annotate --once --minutes --no-browser --steps --input-format")


def run(args: Namespace) -> int:
    """Serve the file until it was fetched, the time is up, or on Ctrl-C."""
    from stepgrade.cli.score import check_timeline, write_timeline
    from stepgrade.grading import score
    from stepgrade.readers import registry
    from stepgrade.readers.source import ByteSource

    check_timeline(args)
    only, is_read_by_perfetto = args.sources[0], False
    if len(args.sources) == 1 and not args.annotate and os.path.isfile(only):
        with ByteSource(only) as opened:
            reader = None if opened.is_archive else registry.reader_for(opened, args.input_format)
            is_read_by_perfetto = reader is not None and reader.name in _READ_BY_PERFETTO
    if is_read_by_perfetto:
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


def _serve(file: BinaryIO, name: str, shown: Shown | None, args: Namespace) -> int:
    from stepgrade.web.loopback import TraceServer

    server = TraceServer(file, name)
    if args.once:
        ends = "once it has been fetched, or with Ctrl-C"
    else:
        ends = f"with Ctrl-C, or after {args.minutes:g} minutes"
    try:
        with suppress(KeyboardInterrupt):  # the way to stop it, as soon as the link is there
            complain(f"served to this machine's browser only; stops {ends}")
            link = (
                server.link() if shown is None else server.link(shown.start_ns, shown.start_ns + shown.dur_ns)
            )
            send(f"{link}\n")
            if not args.no_browser and sys.stdout is not None and sys.stdout.isatty():
                import webbrowser

                webbrowser.open(link)
            server.wait(args.minutes * 60.0, once=args.once)
    finally:
        server.close()
    return EXIT_OK

"""Links that open the trace in Perfetto's page at the time in question.

Perfetto's page takes no trace from a page opened as a file (browsers give those no origin), but it does fetch
one from port 9001 of the same machine, and shows the stretch that the link names.
"""

from __future__ import annotations

from urllib.parse import quote

from stepgrade.model import Source, Span

ADDRESS = "https://ui.perfetto.dev/#!/?url=http%3A%2F%2F127.0.0.1%3A9001%2F"
SERVER = (
    "from http.server import HTTPServer, SimpleHTTPRequestHandler as Files\n"
    "class Shared(Files):\n"
    "    def end_headers(self):\n"
    '        self.send_header("Access-Control-Allow-Origin", "https://ui.perfetto.dev")\n'
    "        super().end_headers()\n"
    'HTTPServer(("127.0.0.1", 9001), Shared).serve_forever()'
)
# Some time on both sides, so that what comes before and after can be seen.
MARGIN = 0.25
_LONGEST_FILE_NAME = 255  # of every file system in use


def link(span: Span | None, source: Source) -> str | None:
    """Return the address that shows a stretch of a trace; None for other sources or without a file's name."""
    if span is None or not 0 <= span.file < len(source.files):
        return None
    name = source.files[span.file].replace("\\", "/").rpartition("/")[2]
    if not name or name == "-" or len(name) > _LONGEST_FILE_NAME:
        return None
    margin = int(span.dur_ns * MARGIN)
    begin, end = max(0, span.start_ns - margin), span.start_ns + span.dur_ns + margin
    # Twice: once for the address that is fetched, once for its being a parameter; as browsers encode it.
    return f"{ADDRESS}{_encoded(_encoded(name))}&visStart={begin}&visEnd={end}"


def _encoded(text: str) -> str:
    return quote(text, safe="!'()*", errors="replace")

"""Read trace.json.gz and perfetto_trace.json.gz of jax.profiler: XPlane's events without its programs."""

from __future__ import annotations

from stepgrade.patterns import regex
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_CHROME = regex(rb'\A\s{0,99}\{\s{0,99}"(?:displayTimeUnit|metadata|traceEvents)"')
_OF_XLA = regex(rb'"name"\s{0,9}:\s{0,9}"/(?:device:[A-Z]|host:CPU)')


def recognises(source: ByteSource) -> bool:
    """Tell by the names of processes: they are those of planes."""
    return _CHROME.match(source.head) is not None and _OF_XLA.search(source.head) is not None


def read(source: ByteSource) -> Part:
    """Return a trace for each device: they are the ranks of one run."""
    from stepgrade.readers.xplane.chrome import read_traces  # needs numpy

    return Part(traces=read_traces(source))


READER = Reader(
    name="xla_trace",
    summary="Chrome traces of jax.profiler, without their XPlane file",
    recognises=recognises,
    read=read,
    kind="traces",
    rank_files=(".json", ".json.gz"),
)

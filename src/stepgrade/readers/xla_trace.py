"""Read trace.json.gz and perfetto_trace.json.gz of jax.profiler: XPlane's events without its programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepgrade.readers.base import Reader
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.model.events import Trace

_CHROME = re.compile(rb'\A\s{0,99}\{\s{0,99}"(?:displayTimeUnit|metadata|traceEvents)"')
_OF_XLA = re.compile(rb'"name"\s{0,9}:\s{0,9}"/(?:device:[A-Z]|host:CPU)')


def recognises(source: ByteSource) -> bool:
    """Tell by the names of processes: they are those of planes."""
    return _CHROME.match(source.head) is not None and _OF_XLA.search(source.head) is not None


def read(source: ByteSource) -> Iterator[Trace]:
    """Yield a trace for each device: they are the ranks of one run."""
    from stepgrade.readers.xplane.chrome import read_traces  # needs numpy

    return read_traces(source)


READER = Reader(
    name="xla_trace",
    summary="Chrome traces of jax.profiler, where the XPlane file beside them is gone",
    recognises=recognises,
    read=read,
    rank_files=(".json", ".json.gz"),
)

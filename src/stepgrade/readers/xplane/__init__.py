"""Read the profiles of JAX and XLA: .xplane.pb, one for each host."""

from __future__ import annotations

import re

from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

# A list of planes, and the name of one of them.
_PLANE = re.compile(
    rb"(?s)\A\n.{1,65000}?\x12[\x04-\x7f](?:/host:(?:CPU|metadata|python)|/device:[A-Z]|Task Environment)"
)


def recognises(source: ByteSource) -> bool:
    """Tell by the name of a plane; text is none."""
    return source.head[:1] == b"\n" and _PLANE.match(source.head) is not None


def read(source: ByteSource) -> Part:
    """Return a trace for each device: they are the ranks of one run."""
    from stepgrade.readers.xplane.reader import read_traces  # needs numpy

    return Part(traces=read_traces(source))


READER = Reader(
    name="xplane",
    summary="XPlane files of JAX and XLA, for GPU, TPU and CPU; its devices are the ranks of one run",
    recognises=recognises,
    read=read,
    kind="traces",
    rank_files=(".xplane.pb", ".xplane.pb.gz"),
)

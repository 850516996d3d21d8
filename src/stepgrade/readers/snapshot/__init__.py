"""Read memory snapshots of PyTorch (`torch.cuda.memory._dump_snapshot`) without ever unpickling them."""

from __future__ import annotations

import re

from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

# The first key of the dict that a snapshot is, in protocol 2 (of C++) to 5.
_SNAPSHOT = re.compile(rb"\A\x80[\x02-\x05](?s:.){0,40}(?:segments|device_traces)")


def recognises(source: ByteSource) -> bool:
    """Tell by the first key of the pickle."""
    return _SNAPSHOT.match(source.head) is not None


def read(source: ByteSource) -> Part:
    """Return the allocations of the busiest device; a snapshot has no times of steps."""
    from stepgrade.readers.snapshot.reader import read_snapshot  # needs numpy

    return Part(memory=read_snapshot(source))


READER = Reader(
    name="snapshot",
    summary="PyTorch memory snapshots: what held the memory, at its peak or when it ran out",
    recognises=recognises,
    read=read,
    kind="memory",
)

"""Read the traces that PyTorch's profiler (Kineto) writes, of every era, in bounded memory."""

from __future__ import annotations

from stepgrade.errors import BadInput
from stepgrade.readers.base import Part, Reader, one_by_one
from stepgrade.readers.source import ByteSource


def recognises(source: ByteSource) -> bool:
    """Tell by the head; a few words decide whether to look closer."""
    if not any(word in source.head for word in (b'"ph"', b'"traceEvents"', b'"schemaVersion"')):
        return False
    from stepgrade.readers.kineto.categories import (  # slow to set up
        looks_like_aiu,
        looks_like_kineto,
    )

    return looks_like_kineto(source.head) or looks_like_aiu(source.head)


def read(source: ByteSource) -> Part:
    """Return a trace for each rank that the file holds."""
    from stepgrade.readers.kineto.categories import looks_like_aiu  # slow to set up
    from stepgrade.readers.kineto.reader import read_traces  # needs numpy

    if looks_like_aiu(source.head):
        problem = "is a trace of IBM's Spyre (AIU) runtime: device events only, without operations and steps"
        raise BadInput(problem, where=source.name, hint="record the run with torch.profiler as well")

    return Part(traces=one_by_one(read_traces(source)))


READER = Reader(
    name="kineto",
    summary="PyTorch traces of torch.profiler, of every era; several are the ranks of one run",
    recognises=recognises,
    read=read,
    kind="traces",
    rank_files=(".json", ".json.gz"),
)

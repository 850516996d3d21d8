"""Memory timelines of PyTorch (`export_memory_timeline`): bytes by category over time, sums or events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from stepgrade.contract.decode import decode_json
from stepgrade.errors import BadInput, BadJson
from stepgrade.patterns import regex
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.model.events import Floats

# [[times], [[sizes], …]], and rows of time, action, bytes and category.
_SUMS = regex(rb"\A\s{0,9}\[\s{0,9}\[\d{10,20}(?:\.\d{1,9})?(?:\]|,\s{0,9}\d{10,20}\b)")
_EVENTS = regex(rb"\A\s{0,9}\[\s{0,9}\[-?\d{1,20},\s{0,9}[1-4],\s{0,9}-?\d{1,20},\s{0,9}[0-7]\]")
# What each column of the sums is: the first is always 0. Inputs are in no category, and what
# autograd needs besides activations comes and goes within the backward pass.
_COLUMNS = ("weights", "optimizer", "other", "temporary", "activations", "gradients", "temporary", "other")
_MOST_BYTES = float(1 << 50)
_Long = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
_Number = Annotated[int, Meta(ge=0, lt=len(_COLUMNS))]


def recognises(source: ByteSource) -> bool:
    """Tell by the first row of numbers."""
    return _EVENTS.match(source.head) is not None or _SUMS.match(source.head) is not None


def read(source: ByteSource) -> Part:
    """Return what the memory held, by category and over time; a timeline has no times of steps."""
    import numpy as np  # only to read

    from stepgrade.model.allocations import MemoryTimeline  # needs numpy

    document, width = source.document(), len(_COLUMNS)
    try:
        if _EVENTS.match(source.head) is None:
            times, sizes = decode_json(document, tuple[list[float], list[list[float]]])
            if len(times) != len(sizes) or any(len(row) != width + 1 for row in sizes):
                raise BadInput(f"needs {width + 1} sizes for each of its {len(times):,} moments")
            columns = np.array(sizes, float).reshape(len(sizes), width + 1)[:, 1:]
            at_ms = (np.array(times, float) - (times[0] if times else 0.0)) / 1e3
        else:
            rows = decode_json(document, list[tuple[_Long, int, _Long, _Number]])
            at_ns = np.array([row[0] for row in rows], np.int64)
            deltas = np.zeros((len(rows), width))
            deltas[np.arange(len(rows)), [row[3] for row in rows]] = [row[2] for row in rows]
            columns, known = np.cumsum(deltas, axis=0), at_ns[at_ns >= 0]  # -1 is before the recording
            at_ms = np.maximum(at_ns - (int(known[0]) if len(known) else 0), 0) / 1e6
    except BadJson as error:
        raise BadInput(f"is not a complete memory timeline: {error}", where=source.name) from error
    levels: dict[str, Floats] = {}
    for number, name in enumerate(_COLUMNS):
        levels[name] = levels[name] + columns[:, number] if name in levels else columns[:, number]
    if not len(at_ms) or not all(abs(level).max() < _MOST_BYTES for level in levels.values()):
        raise BadInput("contains no valid sizes", where=source.name)
    timeline = MemoryTimeline(file=source.name, format=READER.name, at_ms=at_ms, levels=levels)
    return Part(memory=timeline)


READER = Reader(
    name="memory_timeline",
    summary="PyTorch memory timelines: what held the memory over time, by category",
    recognises=recognises,
    read=read,
    kind="memory",
)

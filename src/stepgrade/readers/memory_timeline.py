"""Memory timelines of PyTorch (`export_memory_timeline`): bytes by category over time, sums or events."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from stepgrade.contract.decode import decode_json
from stepgrade.errors import BadInput, BadJson
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

if TYPE_CHECKING:
    from stepgrade.model.events import Floats

# [[times], [[sizes], …]], and rows of time, action, bytes and category.
_SUMS = re.compile(rb"\A\s{0,9}\[\s{0,9}\[\d{10,20}(?:\.\d{1,9})?(?:\]|,\s{0,9}\d{10,20}\b)")
_EVENTS = re.compile(rb"\A\s{0,9}\[\s{0,9}\[-?\d{1,20},\s{0,9}[1-4],\s{0,9}-?\d{1,20},\s{0,9}[0-7]\]")
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
    from stepgrade.model.allocations import MemoryTimeline  # needs numpy

    is_sums = _EVENTS.match(source.head) is None
    document = source.document()
    try:
        at_ms, levels = levels_of_sums(document) if is_sums else levels_of_events(document)
    except BadJson as error:
        raise BadInput(f"is not a complete memory timeline: {error}", where=source.name) from error
    if not len(at_ms) or not all(abs(level).max() < _MOST_BYTES for level in levels.values()):
        raise BadInput("holds no valid sizes", where=source.name)
    timeline = MemoryTimeline(file=source.name, format=READER.name, at_ms=at_ms, levels=levels)
    return Part(memory=timeline)


def levels_of_sums(document: bytes) -> tuple[Floats, dict[str, Floats]]:
    """Return the moments in milliseconds, and the bytes of each category at them, as the sums tell."""
    import numpy as np  # only to read

    times, rows = decode_json(document, tuple[list[float], list[list[float]]])
    width = len(_COLUMNS) + 1
    if len(times) != len(rows) or any(len(row) != width for row in rows):
        raise BadInput(f"needs {width} sizes for each of its {len(times):,} moments")
    columns = np.array(rows, float).reshape(len(rows), width)[:, 1:]
    return (np.array(times, float) - (times[0] if times else 0.0)) / 1e3, _by_category(columns)


def levels_of_events(document: bytes) -> tuple[Floats, dict[str, Floats]]:
    """Return the same from allocation events."""
    import numpy as np  # only to read

    rows = decode_json(document, list[tuple[_Long, int, _Long, _Number]])
    times = np.array([row[0] for row in rows], np.int64)
    deltas = np.zeros((len(rows), len(_COLUMNS)))
    deltas[np.arange(len(rows)), [row[3] for row in rows]] = [row[2] for row in rows]
    known = times[times >= 0]  # allocations before the recording have time -1
    first = int(known[0]) if len(known) else 0
    return np.maximum(times - first, 0) / 1e6, _by_category(np.cumsum(deltas, axis=0))


def _by_category(columns: Floats) -> dict[str, Floats]:
    levels: dict[str, Floats] = {}
    for number, name in enumerate(_COLUMNS):
        levels[name] = levels[name] + columns[:, number] if name in levels else columns[:, number]
    return levels


READER = Reader(
    name="memory_timeline",
    summary="PyTorch memory timelines: what held the memory over time, by category",
    recognises=recognises,
    read=read,
    kind="memory",
)

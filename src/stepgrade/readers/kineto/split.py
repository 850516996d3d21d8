"""Cut the text of the event array into chunks of whole events."""

from __future__ import annotations

import mmap
import re
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from stepgrade.decoding import json_decoder
from stepgrade.readers.kineto.decode import DECODE_ERRORS
from stepgrade.readers.source import ByteSource

SLOT_BYTES = 1 << 19
MAX_EVENT_BYTES = 8 << 20
_KEPT_BYTES = 4096  # enough to see an edge that two blocks share
_EDGE = re.compile(rb'(\n[ \t]*)?\}(\s*),(\s*)\{(\s*"[^"\\]{1,40}")')


class Slots:
    """Equal parts of one buffer, each free, being filled or being read."""

    def __init__(self, buffer: mmap.mmap, count: int) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer)
        self.free = list(range(count))

    @classmethod
    def private(cls) -> Slots:
        """Make the one slot that a single process needs."""
        return cls(mmap.mmap(-1, SLOT_BYTES), 1)


class WorkerLost(Exception):
    """A worker died or read past the end: everything must be read again without workers."""


class Chunk(NamedTuple):
    """A JSON array of whole events, brackets included; `slot` is None for one that outgrew the slots."""

    view: memoryview
    offset: int
    slot: int | None


class _Recognised(Struct):
    ph: str = ""


_recognise = json_decoder(_Recognised).decode


def learn_edge(text: bytes) -> bytes | None:
    """Return the bytes between two events as this file writes them, found at the first one that decodes.

    With the newlines of an indented file, which cannot occur inside JSON strings.
    """
    start = 0
    for match in _EDGE.finditer(text):
        brace = text.index(b"}", match.start())
        with suppress(*DECODE_ERRORS):
            if _recognise(text[start : brace + 1]).ph:
                indented = match[1] and b"\n" in match[3]
                return text[match.start() : match.start(4)] if indented else text[brace : match.end()]
        start = match.start(4) - 1
    return None


class Splitter:
    """Give out chunk after chunk; when there are no more, `rest` is the text after the last edge."""

    def __init__(self, source: ByteSource, head: bytes, offset: int, slots: Slots) -> None:
        self._source = source
        self._head = head
        self._slots = slots
        self._carry = b""
        self._edge = b""
        self._joint = b""  # text between the last chunk and the carry
        self.offset = offset  # where in the text the next chunk, or the rest, begins
        self.rest = b""

    def next_chunk(self) -> Chunk | None:
        """Return the next whole events, None at the end of the text; a slot must be free."""
        if len(self._carry) + 1 >= SLOT_BYTES:  # an event that is longer than a slot
            return self._long_chunk(self._carry)
        slot = self._slots.free.pop()
        low = slot * SLOT_BYTES
        view = self._slots.view[low : low + SLOT_BYTES]
        filled = 1 + len(self._carry)
        view[:filled] = b"[" + self._carry
        high = low + filled + self._fill(view[filled:])
        cut = self._find_cut(self._slots.buffer, low + 1, high)
        if cut is not None:
            return self._cut_off(self._slots.view[low:high], cut - low, slot)
        self._slots.free.append(slot)
        text = bytes(self._slots.view[low + 1 : high])
        if high == low + SLOT_BYTES:
            return self._long_chunk(text)
        self.rest, self._carry = text, b""
        return None

    def release(self, chunk: Chunk) -> None:
        """Give back the slot of a chunk that was read."""
        if chunk.slot is not None:
            self._slots.free.append(chunk.slot)

    def text_after(self, most: int) -> bytes:
        """Return the text that follows the last chunk given out, up to about `most` bytes."""
        text = bytearray(self._joint + self._carry)
        while len(text) < most and (block := self._read_block()):
            text += block
        return bytes(text)

    def _fill(self, view: memoryview) -> int:
        taken = min(len(self._head), len(view))
        if taken:
            view[:taken] = self._head[:taken]
            self._head = self._head[taken:]
        return taken + self._source.fill(view[taken:])

    def _read_block(self) -> bytes:
        block = bytearray(SLOT_BYTES)
        return bytes(block[: self._fill(memoryview(block))])

    def _find_cut(self, buffer: mmap.mmap | bytearray, low: int, high: int) -> int | None:
        """Return where the last edge between `low` and `high` begins."""
        cut = self._rfind(buffer, low, high)
        # The pattern is slow on text without edges: zeros, or one endless value.
        if cut is None and buffer.find(b"}", low, high) >= 0:
            self._edge = learn_edge(bytes(memoryview(buffer)[low:high])) or self._edge
            cut = self._rfind(buffer, low, high)
        return cut

    def _rfind(self, buffer: mmap.mmap | bytearray, low: int, high: int) -> int | None:
        cut = buffer.rfind(self._edge, low, high) if self._edge else -1
        return None if cut < 0 else cut

    def _cut_off(self, view: memoryview, cut: int, slot: int | None) -> Chunk:
        comma = cut + self._edge.index(b",")
        brace = cut + self._edge.index(b"{", comma - cut)
        self._joint, self._carry = bytes(view[comma:brace]), bytes(view[brace:])
        view[comma] = ord("]")
        chunk = Chunk(view[: comma + 1], self.offset, slot)
        self.offset += brace - 1
        return chunk

    def _long_chunk(self, text: bytes) -> Chunk | None:
        """Read on until an edge is found; text longer than any event is dropped, except its end."""
        self._carry = b""
        grown = bytearray(b"[" + text)
        while block := self._read_block():
            if len(grown) > MAX_EVENT_BYTES:
                self.offset += len(grown) - 1 - _KEPT_BYTES
                del grown[1:-_KEPT_BYTES]
            searched = max(1, len(grown) - _KEPT_BYTES)
            grown += block
            cut = self._find_cut(grown, searched, len(grown))
            if cut is not None:
                return self._cut_off(memoryview(grown), cut, None)
        self.rest = bytes(grown[1:])
        return None

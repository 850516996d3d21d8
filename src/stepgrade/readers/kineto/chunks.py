"""Cut the array of events into chunks of whole events, and read them into columns.

A chunk is decoded as a whole, or event by event where it is broken.
"""

from __future__ import annotations

import json
import mmap
import re
from contextlib import suppress
from typing import Final, NamedTuple

from stepgrade.memory import check
from stepgrade.model.events import NONE
from stepgrade.patterns import regex
from stepgrade.readers import compiled
from stepgrade.readers.kineto.decode import (
    DECODE_ERRORS,
    Event,
    NeedsText,
    Unusable,
    decode_events,
    decode_loosely,
    decode_text_timed,
    from_ns,
    from_numbers,
    from_texts,
    repair,
    scan_value,
)
from stepgrade.readers.kineto.tables import ROW_BYTES, Tables
from stepgrade.readers.source import ByteSource

SLOT_BYTES = 1 << 19
MAX_EVENT_BYTES = 8 << 20
_KEPT_BYTES = 4096  # enough to see an edge that two blocks share
_EDGE: Final = regex(rb'(\n[ \t]*)?\}(\s*),(\s*)\{(\s*"[^"\\]{1,40}")')
_ODD_VALUES: Final = (*DECODE_ERRORS, TypeError, OverflowError)
_EVENT_EDGE: Final = regex(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:)')
_ARRAY_END: Final = regex(rb'\}\s*\]\s*(?:,\s*"\w[^"\\]*"\s*:|\}\s*$|$)')
_GAP: Final = regex(rb"[\s,\0]*")
# Unescaped Windows paths: not a valid JSON escape.
_BARE_BACKSLASH: Final = regex(rb'(?<!\\)(?:\\\\)*\\(?!["\\/bfnrtu])')
_BACKSLASH: Final = regex(rb'(\\\\|\\["/]|\\u[0-9a-fA-F]{4})|\\')
# Up to the next key of an event: some versions of PyTorch do not escape the quotes in the name of a frame.
_NAME: Final = regex(rb'"name"\s*:\s*"(.*?)"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:|\})')
_QUOTE: Final = regex(rb'(\\.)|"')
_CLOSE: Final = ord("]")
_MOST_READINGS: Final = 8
_LONG_VALUE: Final = 1 << 16


class WorkerLost(Exception):
    """A worker died or read past the end: everything must be read again without workers."""


class Chunk(NamedTuple):
    """A JSON array of whole events, brackets included; `slot` is None if it outgrew the slots."""

    view: memoryview
    offset: int
    slot: int | None


class Splitter:
    """Give out chunk after chunk; when there are no more, `rest` is the text after the last edge."""

    def __init__(self, source: ByteSource, head: bytes, offset: int, buffer: mmap.mmap) -> None:
        self._source = source
        self._head = head
        self._buffer, self._view = buffer, memoryview(buffer)
        self.free = [*range(len(buffer) // SLOT_BYTES)]  # slots of the buffer that nobody fills or reads
        self._carry = b""
        self._edge = b""
        self._joint = b""  # text between the last chunk and the carry
        self.offset = offset  # where in the text the next chunk, or the rest, begins
        self.rest = b""

    def next_chunk(self) -> Chunk | None:
        """Return the next whole events, None at the end of the text; a slot must be free."""
        if len(self._carry) + 1 >= SLOT_BYTES:  # an event that is longer than a slot
            return self._long_chunk(self._carry)
        slot = self.free.pop()
        low = slot * SLOT_BYTES
        view = self._view[low : low + SLOT_BYTES]
        filled = 1 + len(self._carry)
        view[:filled] = b"[" + self._carry
        high = low + filled + self._fill(view[filled:])
        cut = self._find_cut(self._buffer, low + 1, high)
        if cut >= 0:
            return self._cut_off(self._view[low:high], cut - low, slot)
        self.free.append(slot)
        text = bytes(self._view[low + 1 : high])
        if high == low + SLOT_BYTES:
            return self._long_chunk(text)
        self.rest, self._carry = text, b""
        return None

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

    def _find_cut(self, buffer: mmap.mmap | bytearray, low: int, high: int) -> int:
        """Return where the last edge between `low` and `high` begins, -1 without one.

        An edge is the text between two events as this file writes it, learned at the first that decodes. An
        indented file's includes the newlines, which cannot occur inside JSON strings.
        """
        cut = buffer.rfind(self._edge, low, high) if self._edge else -1
        # The pattern is slow on text without edges: zeros, or one endless value.
        if cut >= 0 or buffer.find(b"}", low, high) < 0:
            return cut
        text, start = bytes(memoryview(buffer)[low:high]), 0
        for match in _EDGE.finditer(text):
            brace = text.index(b"}", match.start())
            with suppress(*DECODE_ERRORS):
                if bytes(decode_loosely(text[start : brace + 1]).ph):
                    indented = match[1] and b"\n" in match[3]
                    edge = slice(match.start(), match.start(4)) if indented else slice(brace, match.end())
                    self._edge = text[edge]
                    return buffer.rfind(self._edge, low, high)
            start = match.start(4) - 1
        return -1

    def _cut_off(self, view: memoryview, cut: int, slot: int | None) -> Chunk:
        comma = cut + self._edge.index(b",")
        brace = cut + self._edge.index(b"{", comma - cut)
        self._joint, self._carry = bytes(view[comma:brace]), bytes(view[brace:])
        view[comma] = _CLOSE
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
            if cut >= 0:
                return self._cut_off(memoryview(grown), cut, None)
        self.rest = bytes(grown[1:])
        return None


class ChunkReader:
    """Reads chunks in any order, so that several processes can share the chunks of a file."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.tables = Tables()
        library = compiled.load()
        if library is None:
            self._lane = None
        else:
            from stepgrade.readers.kineto.lane import CompiledLane  # not everywhere is there a library for it

            self._lane = CompiledLane(library, self.tables)
        self.losses: dict[str, tuple[int, int]] = {}  # events left out by reason, and the first one's offset
        self.text_times = False  # whether times had to be read from their text
        self.end: int | None = None  # where in the text the array of events closes, once that is seen

    def lose(self, reason: str, count: int, offset: int) -> None:
        """Count events left out for `reason`."""
        before, first = self.losses.get(reason, (0, offset))
        self.losses[reason] = before + count, min(first, offset)

    def read(self, chunk: memoryview, offset: int) -> None:
        """Add a JSON array of events; `offset` is where the text after its bracket begins.

        Raise TooLarge once the events read exceed the memory limit.
        """
        pending_rows = self._lane.pending_rows if self._lane else 0
        check(self.tables.memory_bytes + pending_rows * ROW_BYTES, self._most_bytes)
        try:
            if self._lane:
                needs_text = self._lane.read(chunk, self._add)
                if needs_text is not None:
                    self.text_times |= needs_text
                    return
                self.flush()
            self._add(chunk)
        except _ODD_VALUES:
            text = bytes(chunk[1:-1])
            if _BARE_BACKSLASH.search(text):
                self.read(memoryview(b"[" + _with_slashes(text) + b"]"), offset)
            else:
                self.read_pieces(text, offset)

    def _add(self, chunk: memoryview | bytes) -> None:
        """Add a JSON array of events, all or (raising one of _ODD_VALUES) none."""
        if not self.text_times:
            try:
                self.tables.add(decode_events(chunk), from_numbers)
            except NeedsText:
                self.text_times = True
            else:
                return
        self.tables.add(decode_text_timed(chunk), from_texts)

    def read_pieces(self, text: bytes, offset: int) -> None:
        """Add the intact events in `text`; set `end` to the offset where the array of events closes."""
        events: list[Event] = []
        if _BARE_BACKSLASH.search(text):
            text = _with_slashes(text)
        pieces, at = _Pieces(text), 0
        while (gap := _GAP.match(text, at)) and (at := gap.end()) < len(text):
            if text[at] == _CLOSE:
                self.end = offset + at + 1
                break
            end = pieces.value_end(at)
            stop = pieces.next_start(at) if end is None else end
            value = text[at:stop]
            if end is None and (name := _NAME.match(value, max(0, value.find(b'"name"')))):
                quoted = _QUOTE.sub(lambda found: found[1] or b"'", name[1])
                value = value[: name.start(1)] + quoted + value[name.end(1) :]
            try:
                event = repair(value)
                events += [] if event is None else [event]
            except Unusable as error:
                self.lose(str(error), 1, offset + at)
            except DECODE_ERRORS:
                self.lose("not valid JSON", 1, offset + at)
            at = stop
        self.flush()
        self.tables.add(events, from_ns)

    def flush(self) -> None:
        """Add the rows to the tables that the compiled lane has not added yet."""
        if self._lane:
            self._lane.flush()


def _with_slashes(text: bytes) -> bytes:
    """Return JSON of the same length in which the backslashes of unescaped paths are slashes."""
    return _BACKSLASH.sub(lambda found: found[1] or b"/", text)


class _Pieces:
    """Finds where values of a broken text end, and where to continue after a value without an end.

    The search for a missing end goes to the end of the text. Once such searches have cost as much as reading
    the text a few times, a value may only reach to where the next event begins.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._characters = text.decode("latin-1")  # one character per byte, so that offsets are equal
        self._patience = _MOST_READINGS * len(text)
        self._next: dict[re.Pattern[bytes], int] = {}

    def value_end(self, at: int) -> int | None:
        """Return where the value at `at` ends, None if it is broken.

        Search up to where the next event seems to begin, and further only if the value lacks its end there.
        The scanner gets only parts of the text, because its errors count the lines before them.
        """
        for high in (self.next_start(at), at + _LONG_VALUE, len(self._text)):
            part = self._characters[at:high]
            try:
                return at + int(scan_value(part, 0)[1])
            except json.JSONDecodeError as error:
                lacks_end = error.msg.startswith("Unterminated") or error.pos >= len(part) - 1
                self._patience -= len(part) if lacks_end else error.pos
            except (ValueError, RecursionError):
                lacks_end = False
                self._patience -= len(part)
            if not lacks_end or self._patience < 0:
                break
        return None

    def next_start(self, at: int) -> int:
        """Return where to continue after a broken event: before the next event, or before the array's end."""
        for pattern in (_EVENT_EDGE, _ARRAY_END):
            if self._next.get(pattern, NONE) <= at:
                found = pattern.search(self._text, at + 1)
                self._next[pattern] = found.start() if found else len(self._text)
        return min(*self._next.values(), len(self._text) - 1) + 1

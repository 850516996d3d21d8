"""Chunks of event text into columns: fast as a whole, and event by event where a chunk is broken."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Final

from msgspec import Struct

from stepgrade.memory import check
from stepgrade.model.events import NONE
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
from stepgrade.readers.kineto.tables import Tables

_ODD_VALUES: Final = (*DECODE_ERRORS, TypeError, OverflowError)
_EDGE: Final = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:)')
_ARRAY_END: Final = re.compile(rb'\}\s*\]\s*(?:,\s*"\w[^"\\]*"\s*:|\}\s*$|$)')
_GAP: Final = re.compile(rb"[\s,\0]*")
_CONTROL: Final = re.compile(rb"[\x00-\x1f]")
# Unescaped Windows paths: not a valid JSON escape.
_BARE_BACKSLASH: Final = re.compile(rb'(?<!\\)(?:\\\\)*\\(?!["\\/bfnrtu])')
_BACKSLASH: Final = re.compile(rb'(\\\\|\\["/]|\\u[0-9a-fA-F]{4})|\\')
# Up to the next key of an event: some versions of PyTorch do not escape the quotes in the name of a frame.
_NAME: Final = re.compile(rb'"name"\s*:\s*"(.*?)"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:|\})')
_QUOTE: Final = re.compile(rb'(\\.)|"')
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CLOSE: Final = ord("]")
_BROKEN: Final = "not valid JSON"
_MOST_READINGS: Final = 8
_LONG_VALUE: Final = 1 << 16


class Losses(Struct):
    """Events left out, by reason, each with the offset of the first."""

    counts: dict[str, int] = {}
    first: dict[str, int] = {}

    def add(self, reason: str, offset: int, count: int = 1) -> None:
        """Count events lost for `reason`."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        self.first[reason] = min(offset, self.first.get(reason, offset))

    def merge(self, other: Losses) -> None:
        """Add another reader's losses."""
        for reason, count in other.counts.items():
            self.add(reason, other.first[reason], count)

    def sentences(self) -> tuple[str, ...]:
        """Return a sentence for each reason."""
        return tuple(
            f"{count} {'event' if count == 1 else 'events'} left out, {reason}, the first at byte "
            f"{self.first[reason]} of the text"
            for reason, count in Counter(self.counts).most_common()
        )


class ChunkReader:
    """Reads chunks in any order, so that several processes can share the chunks of a file."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.tables = Tables()
        self.losses = Losses()
        self.text_times = False  # whether times had to be read from their text
        self.end: int | None = None  # where in the text the array of events closes, once that is seen

    def read(self, chunk: memoryview, offset: int) -> None:
        """Add a JSON array of events; `offset` is where the text after its bracket begins.

        Raise TooLarge once the events read exceed the memory limit.
        """
        check(self.tables.memory_bytes, self._most_bytes)
        try:
            if not self.text_times:
                try:
                    self.tables.add(decode_events(chunk), from_numbers)
                except NeedsText:
                    self.text_times = True
                else:
                    return
            self.tables.add(decode_text_timed(chunk), from_texts)
        except _ODD_VALUES:
            text = bytes(chunk[1:-1])
            if _BARE_BACKSLASH.search(text):
                self.read(memoryview(b"[" + with_slashes(text) + b"]"), offset)
            else:
                self.read_pieces(text, offset)

    def read_pieces(self, text: bytes, offset: int) -> None:
        """Add what is intact of `text`; set `end` to the offset where the array of events closes."""
        events: list[Event] = []
        if _BARE_BACKSLASH.search(text):
            text = with_slashes(text)
        pieces = _Pieces(text)
        at = _next_value(text, 0)
        while at < len(text):
            if text[at] == _CLOSE:
                self.end = offset + at + 1
                break
            stop = pieces.value_end(at)
            if stop is None:
                stop = pieces.next_start(at)
                value = _with_single_quotes(text[at:stop])
            else:
                value = text[at:stop]
            event = self._repaired(value, offset + at)
            if event is not None:
                events.append(event)
            at = _next_value(text, stop)
        self.tables.add(events, from_ns)

    def _repaired(self, text: bytes, offset: int) -> Event | None:
        try:
            try:
                loose = decode_loosely(text)
            except DECODE_ERRORS:
                # Bytes that are not UTF-8, control characters and half surrogates cost their letter only.
                whole = _SURROGATE.sub(rb"\\ufffd", text.decode(errors="replace").encode())
                loose = decode_loosely(_CONTROL.sub(b" ", whole))
            return repair(loose)
        except Unusable as error:
            self.losses.add(str(error), offset)
        except DECODE_ERRORS:
            self.losses.add(_BROKEN, offset)
        return None


def with_slashes(text: bytes) -> bytes:
    """Return JSON of the same length in which the backslashes of unescaped paths are slashes."""
    return _BACKSLASH.sub(lambda found: found[1] or b"/", text)


def _with_single_quotes(event: bytes) -> bytes:
    """Return a broken event with the double quotes inside its name replaced by single quotes."""
    name = _NAME.match(event, max(0, event.find(b'"name"')))
    if name is None:
        return event
    return event[: name.start(1)] + _QUOTE.sub(lambda found: found[1] or b"'", name[1]) + event[name.end(1) :]


def _next_value(text: bytes, at: int) -> int:
    """Return where the next value of the array, or its closing bracket, is."""
    found = _GAP.match(text, at)
    return found.end() if found else len(text)


class _Pieces:
    """Finds where values of a broken text end, and where to read on after one that has no end.

    A value without an end is looked for to the end of the text. A text of such values would be scanned again
    for each of them: once that has cost as much as reading the text a few times, no value may be longer than
    to where the next event begins.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        # One character per byte, so that offsets in both are equal.
        self._characters = text.decode("latin-1")
        self._patience = _MOST_READINGS * len(text)
        self._next: dict[re.Pattern[bytes], int] = {}

    def value_end(self, at: int) -> int | None:
        """Return where the value at `at` ends, None if it is broken.

        It is looked for up to where the next event seems to begin; what only lacks its end there, further on.
        An error counts the lines before it, so that only parts of the text are given to the scanner.
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
        """Return where to read on after a broken event: before the next one, or before the array's end."""
        return min(self._search(_EDGE, at + 1), self._search(_ARRAY_END, at + 1), len(self._text) - 1) + 1

    def _search(self, pattern: re.Pattern[bytes], at: int) -> int:
        """Return where the pattern is next; what was found once is not looked for again."""
        if self._next.get(pattern, NONE) < at:
            found = pattern.search(self._text, at)
            self._next[pattern] = found.start() if found else len(self._text)
        return self._next[pattern]

"""Chunks of event text into columns: fast as a whole, and event by event where a chunk is broken."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from msgspec import Struct

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
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_CLOSE: Final = ord("]")
_BROKEN: Final = "not valid JSON"


class Losses(Struct):
    """Events left out, by reason, each with the place in the text of its first one."""

    counts: dict[str, int] = {}
    first: dict[str, int] = {}

    def add(self, reason: str, offset: int, count: int = 1) -> None:
        """Count events lost for `reason`."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        self.first[reason] = min(offset, self.first.get(reason, offset))

    def merge(self, other: Losses) -> None:
        """Add what another reader lost."""
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

    def __init__(self) -> None:
        self.tables = Tables()
        self.losses = Losses()
        self.text_times = False  # whether times had to be read from their text
        self.end: int | None = None  # where in the text the array of events closes, once that is seen

    def read(self, chunk: memoryview, offset: int) -> None:
        """Add a JSON array of events; `offset` is where the text after its bracket begins."""
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
            self.read_pieces(bytes(chunk[1:-1]), offset)

    def read_pieces(self, text: bytes, offset: int) -> None:
        """Add what is intact of `text`; set `end` to the place where the array of events closes in it."""
        events: list[Event] = []
        # One character a byte, so that places in both are the same.
        characters = text.decode("latin-1")
        at = _next_value(text, 0)
        while at < len(text):
            if text[at] == _CLOSE:
                self.end = offset + at + 1
                break
            try:
                _, stop = scan_value(characters, at)
            except (ValueError, RecursionError):
                self.losses.add(_BROKEN, offset + at)
                stop = _resume(text, at)
            else:
                event = self._repaired(text[at:stop], offset + at)
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


def _next_value(text: bytes, at: int) -> int:
    """Return where the next value of the array, or its closing bracket, is."""
    found = _GAP.match(text, at)
    return found.end() if found else len(text)


def _resume(text: bytes, at: int) -> int:
    """Return where to read on after a broken event: before the next event, or before the end of the array."""
    edge = _EDGE.search(text, at + 1)
    close = _ARRAY_END.search(text, at + 1)
    if edge and not (close and close.start() < edge.start()):
        return edge.start() + 1
    return close.start() + 1 if close else len(text)

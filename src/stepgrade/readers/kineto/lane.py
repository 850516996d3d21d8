"""Chunks of event text into columns: fast as a whole, and piece by piece where a chunk is broken."""

from __future__ import annotations

import re
from itertools import islice
from typing import Final

from stepgrade.readers.kineto.decode import (
    DECODE_ERRORS,
    Event,
    Unusable,
    decode_events,
    decode_loosely,
    decode_text_timed,
    mend,
)
from stepgrade.readers.kineto.losses import BROKEN, Losses
from stepgrade.readers.kineto.tables import Tables
from stepgrade.readers.kineto.times import NeedsText, from_ns, from_numbers, from_texts

_ODD_VALUES: Final = (*DECODE_ERRORS, TypeError, OverflowError)
_EDGE: Final = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:)')
_ARRAY_END: Final = re.compile(rb"\}\s*\]")
_EMPTY_END: Final = re.compile(rb"\s*\]")
_MOST_ENDS: Final = 32  # bounds the time that a hostile text can take


class Lane:
    """Reads chunks in any order; two lanes read twice as fast."""

    def __init__(self) -> None:
        self.tables = Tables()
        self.losses = Losses()
        self.text_times = False
        self.end: int | None = None

    def read(self, chunk: memoryview, offset: int) -> None:
        """Add a JSON array of events; `offset` is where the text after its bracket begins."""
        try:
            self._read_whole(chunk)
        except _ODD_VALUES:
            self.read_pieces(bytes(chunk[1:-1]), offset)

    def _read_whole(self, chunk: memoryview) -> None:
        if not self.text_times:
            try:
                self.tables.add(decode_events(chunk), from_numbers)
            except NeedsText:
                self.text_times = True
            else:
                return
        self.tables.add(decode_text_timed(chunk), from_texts)

    def read_pieces(self, text: bytes, offset: int) -> None:
        """Add what is intact of `text`; set `end` to the place where the array of events closes in it."""
        events: list[Event] = []
        start = 0
        for edge in (*_EDGE.finditer(text), None):
            stop = edge.start() + 1 if edge else len(text)
            end = self._read_piece(text[start:stop], offset + start, events)
            if end is not None:
                self.end = offset + start + end
                break
            start = edge.end() if edge else stop
        self.tables.add(events, from_ns)

    def _read_piece(self, piece: bytes, offset: int, events: list[Event]) -> int | None:
        """Add the events of one piece and return where the array ends in it, None if it does not."""
        try:
            events += self._mended(piece, offset)
        except DECODE_ERRORS:
            return self._read_last(piece, offset, events)
        return None

    def _read_last(self, piece: bytes, offset: int, events: list[Event]) -> int | None:
        if _EMPTY_END.match(piece):
            return piece.index(b"]") + 1
        for match in islice(_ARRAY_END.finditer(piece), _MOST_ENDS):
            try:
                events += self._mended(piece[: match.start() + 1], offset)
            except DECODE_ERRORS:
                continue
            return match.end()
        self._read_garbled(piece, offset, events)
        return None

    def _read_garbled(self, piece: bytes, offset: int, events: list[Event]) -> None:
        try:
            text = piece.decode(errors="replace").encode()
            if text == piece:
                raise ValueError
            events += self._mended(text, offset)
        except DECODE_ERRORS:
            self.losses.add(BROKEN, offset)

    def _mended(self, text: bytes, offset: int) -> list[Event]:
        mended = []
        for loose in decode_loosely(text):
            try:
                event = mend(loose)
            except Unusable as error:
                self.losses.add(str(error), offset)
                continue
            if event is not None:
                mended.append(event)
        return mended

"""Training logs: a step profile in JSON among other text, found by its first key, else the step lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from stepgrade.decoding import from_json
from stepgrade.errors import BadInput, StepgradeError, UnknownFormat
from stepgrade.model.notes import Note
from stepgrade.readers import step_profile
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

# A profile is a few kilobytes; a longer object is treated as truncated.
MAX_OBJECT_BYTES = 16 * 2**20
_BARS_NAMED = 3

# Both emitters write "_profiler" first. Between the brace and the key there is only white space.
_KEY = b'"_profiler"'
_OPENING = re.compile(rb'\{\s{0,256}"_profiler"')
_OPENING_BYTES = 512
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# Possessive, so that a long string costs no memory; `\Z` marks a string that the text cuts off.
_TOKEN = re.compile(rb'(?P<opening>\{\s{0,256}"_profiler")|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+(?:"|\\?\Z)|[{}]')


class FoundText(Struct, frozen=True, kw_only=True):
    """The JSON text of a profile, the line it starts on, and how many the log holds."""

    text: bytes
    line: int
    count: int


def recognises(source: ByteSource) -> bool:
    """Tell whether this is text that no reader of whole JSON files knows."""
    return source.is_text


def read(source: ByteSource) -> Part:
    """Return the last step profile in the log, else the run described by its step lines."""
    from stepgrade.readers.logs.own import dialects_from  # slow to import
    from stepgrade.readers.logs.scan import LogScanner

    scanner = LogScanner(dialects_from(source.options.dialects))
    found = _search(source, scanner.feed)
    if not isinstance(found, FoundText):
        from stepgrade.readers.logs.assemble import profile_of_log  # needs numpy
        from stepgrade.readers.logs.failures import with_failure

        scanned = scanner.result()
        run = profile_of_log(scanned, source.name)
        if scanned.failed is not None:
            run = with_failure(run, scanned.failed, source.name)
        if run is None:
            raise _refusal(source, found, scanned.bars.names)
        return Part(log=run)
    profile = step_profile.profile_from_json(found.text, source.name)
    notes = [Note("from_log", f"read from a log, line {found.line}")]
    if found.count > 1:
        notes.append(Note("last_of_several", f"the log contains {found.count} profiles; this is the last"))
    return Part(log=msgspec.structs.replace(profile, notes=(*notes, *profile.notes)))


def find_profile(source: ByteSource) -> FoundText:
    """Return the last whole profile; raise BadInput when it is cut off, UnknownFormat when there is none."""
    found = _search(source)
    if not isinstance(found, FoundText):
        raise _refusal(source, found)
    return found


def _search(source: ByteSource, watch: Callable[[bytes], None] | None = None) -> FoundText | int | None:
    """Return the last whole profile, else the line of one that is cut off; `watch` sees all chunks."""
    cut_line: int | None = None
    watched = source.chunks() if watch is None else (watch(chunk) or chunk for chunk in source.chunks())
    for chunks in (watched, _quoted_texts(source)):
        found: FoundText | None = None
        for line, text in _Scanner(chunks).objects():
            if text is None:
                cut_line = line
            else:
                found = FoundText(text=text, line=line, count=found.count + 1 if found else 1)
        if found is not None:
            return found
    return cut_line


def _refusal(source: ByteSource, cut_line: int | None, bars: tuple[str, ...] = ()) -> StepgradeError:
    """Return the error: broken JSON, a truncated profile, bars that count no steps, or an unknown format."""
    from stepgrade.readers.foreign import TRAINING_LOG, refusal, what_it_is  # only for what cannot be read
    from stepgrade.readers.logs.bars import EVIDENCE
    from stepgrade.readers.registry import readers

    known = what_it_is(source.head)
    if source.json_error is not None and known is None:
        return source.json_error.at(source.name)
    if cut_line is not None:
        problem = "the profile is cut off or its JSON is broken"
        return BadInput(problem, where=f"{source.name}: line {cut_line}", hint="is the file complete?")
    if bars and (known is None or known.what == TRAINING_LOG):
        more = f" and {len(bars) - _BARS_NAMED} more" if len(bars) > _BARS_NAMED else ""
        named = ", ".join(f"'{name}'" for name in bars[:_BARS_NAMED])
        problem = f"shows no training step, only progress bars of {named}{more}"
        return UnknownFormat(problem, where=source.name, hint=f"training is known by {EVIDENCE}")
    return refusal(source, readers())


def _quoted_texts(source: ByteSource) -> Iterator[bytes]:
    """Yield the strings inside a JSON document: some harnesses keep a run's log as one of them."""
    if source.json_keys is None or b'\\"_profiler\\"' not in source.document():
        return
    for string in _STRING.finditer(source.document()):
        if b'\\"_profiler\\"' in string[0]:
            with suppress(msgspec.DecodeError, UnicodeError):  # a lone surrogate
                yield from_json(string[0], str).encode() + b"\n"


class _Scanner:
    """Walks through chunks once, holding no more than the object it is in."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._text = b""
        self._at = 0
        self._line = 1

    def objects(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield the line and text of each object that starts with the key; None for one without an end."""
        while True:
            # Looking for the key first is much faster than the pattern.
            while self._text.find(_KEY, self._at) < 0 or not (
                opening := _OPENING.search(self._text, self._at)
            ):
                self._skip_to(max(self._at, len(self._text) - _OPENING_BYTES))
                if not self._read_on():
                    return
            self._skip_to(opening.start())
            line, end = self._line, self._object_end()
            text = self._text[self._at : end] if end else None
            try:
                from_json(text or b"", msgspec.Raw)
            except (msgspec.DecodeError, RecursionError):
                text = None
            yield line, text
            self._skip_to(end or self._at + 1)

    def _object_end(self) -> int | None:
        """Return where the current object ends; None if the text ends or another profile starts before."""
        depth, seen = 0, self._at
        while True:
            for token in _TOKEN.finditer(self._text, seen):
                if token.end() == len(self._text) and token[0] != b"}":
                    break  # a string or an opening may go on in the next chunk
                if token.lastgroup == "opening" and token.start() > self._at:
                    return None
                seen = token.end()
                depth += token[0].startswith(b"{") - (token[0] == b"}")
                if depth == 0:
                    return seen
            held = len(self._text) - self._at
            seen -= self._at
            if held > MAX_OBJECT_BYTES or not self._read_on():
                return None
            seen += self._at

    def _skip_to(self, position: int) -> None:
        self._line += self._text.count(b"\n", self._at, position)
        self._at = position

    def _read_on(self) -> bool:
        """Add the next chunk to the unread text; return whether there was one."""
        chunk = next(self._chunks, b"")
        self._text = self._text[self._at :] + chunk
        self._at = 0
        return bool(chunk)


READER = Reader(
    name="log",
    summary="a training log: the step lines of its framework, or a step profile among its lines",
    recognises=recognises,
    read=read,
    kind="log",
)

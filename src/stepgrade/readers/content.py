"""Bytes of a source, plain or gzipped, read in pieces and never beyond a limit."""

from __future__ import annotations

import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import msgspec

from stepgrade.contract.decode import decode_json
from stepgrade.errors import BadInput, BadJson, TooLarge
from stepgrade.units import show_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

STANDARD_INPUT = "-"
DEFAULT_MAX_BYTES = 16 * 2**30
HEAD_BYTES = 64 * 2**10
CHUNK_BYTES = 2**20
# Profiles that are one JSON object are small; what is larger is looked through in chunks only.
MAX_DOCUMENT_BYTES = 256 * 2**20

_GZIP_MAGIC = b"\x1f\x8b"


class Content:
    """One source, seen decompressed: its head to recognise it by, then all of it."""

    def __init__(self, name: str, stream: io.BufferedReader, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.name = name
        self._max_bytes = max_bytes
        self._stream = self._unpacked(stream)
        self._kept = self._next(HEAD_BYTES)
        self._keys: frozenset[str] | BadJson | None = None
        if not self._kept:
            raise BadInput("the file is empty", where=name)

    @property
    def head(self) -> bytes:
        """Return the first bytes, at most 64 KiB."""
        return self._kept[:HEAD_BYTES]

    @property
    def is_text(self) -> bool:
        """Tell whether the head looks like text: no NUL byte in it."""
        return b"\0" not in self.head

    @property
    def json_keys(self) -> frozenset[str] | None:
        """Return the top-level keys when the whole source is one JSON object, else None."""
        keys = self._decoded_keys()
        return keys if isinstance(keys, frozenset) else None

    @property
    def json_error(self) -> BadJson | None:
        """Return why a source that starts like a JSON object is none."""
        keys = self._decoded_keys()
        return keys if isinstance(keys, BadJson) else None

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes in pieces; only those read before by `document` can be walked twice."""
        for start in range(0, len(self._kept), CHUNK_BYTES):
            yield self._kept[start : start + CHUNK_BYTES]
        while chunk := self._next(CHUNK_BYTES):
            yield chunk

    def stream(self) -> _Stream:
        """Return the same bytes as a file that can be read once."""
        return _Stream(self)

    def document(self) -> bytes:
        """Return all bytes; raise TooLarge beyond 256 MiB."""
        if not self._keep_all():
            raise TooLarge(f"is larger than {show_bytes(MAX_DOCUMENT_BYTES)}", where=self.name)
        return self._kept

    def _decoded_keys(self) -> frozenset[str] | BadJson | None:
        if self._keys is None and self.is_text and self.head.lstrip()[:1] == b"{" and self._keep_all():
            self._keys = _top_level_keys(self._kept)
        return self._keys

    def _keep_all(self) -> bool:
        """Read on until the end; tell whether it came before the size of a document was passed."""
        pieces, size = [self._kept], len(self._kept)
        while size <= MAX_DOCUMENT_BYTES and (chunk := self._next(CHUNK_BYTES)):
            pieces.append(chunk)
            size += len(chunk)
        self._kept = b"".join(pieces)
        return size <= MAX_DOCUMENT_BYTES

    def _unpacked(self, stream: io.BufferedReader) -> io.BufferedIOBase:
        if self._guarded(stream.peek, len(_GZIP_MAGIC))[:2] != _GZIP_MAGIC:
            return stream
        import gzip  # noqa: PLC0415  only for gzipped sources

        return gzip.GzipFile(fileobj=stream)

    def _next(self, size: int) -> bytes:
        piece = self._guarded(self._stream.read, min(size, self._max_bytes + 1))
        self._max_bytes -= len(piece)
        if self._max_bytes < 0:
            raise TooLarge(
                "holds more bytes than the limit allows", where=self.name, hint="raise --max-bytes"
            )
        return piece

    def _guarded(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        except (EOFError, zlib.error) as error:
            raise BadInput(f"the gzip data is damaged or cut off: {error}", where=self.name) from error
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror or error}", where=self.name) from error


class _Stream(io.RawIOBase):
    """The chunks of a Content, in the pieces that a reader asks for."""

    def __init__(self, content: Content) -> None:
        self.name = content.name
        self._chunks = content.chunks()
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        room = memoryview(buffer).cast("B")
        self._left = self._left or next(self._chunks, b"")
        taken = min(len(room), len(self._left))
        room[:taken], self._left = self._left[:taken], self._left[taken:]
        return taken


@contextmanager
def open_content(source: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[Content]:
    """Open a path, or standard input for `-`; raise BadInput when it cannot be read."""
    path = os.fspath(source)
    name = path.encode("utf-8", "backslashreplace").decode()  # a path may hold bytes that are no text
    if path == STANDARD_INPUT:
        yield Content("standard input", _standard_input(), max_bytes)
        return
    try:
        stream = open(path, "rb")  # noqa: SIM115, PTH123  closed below, whatever the reader does
    except (OSError, ValueError) as error:
        raise _cannot_open(name, error) from error
    with stream:
        yield Content(name, stream, max_bytes)


def _standard_input() -> io.BufferedReader:
    if sys.stdin is None:
        raise BadInput("is closed", where="standard input", hint="name a file")
    return cast("io.BufferedReader", sys.stdin.buffer)


def _cannot_open(name: str, error: OSError | ValueError) -> BadInput:
    if isinstance(error, IsADirectoryError):
        return BadInput("is a directory", where=name, hint="name a profile inside it")
    if isinstance(error, FileNotFoundError):
        return BadInput("no such file", where=name, hint="use - to read standard input")
    reason = getattr(error, "strerror", None) or str(error)
    return BadInput(f"cannot be read: {reason}", where=name)


def _top_level_keys(text: bytes) -> frozenset[str] | BadJson:
    try:
        return frozenset(decode_json(text, dict[str, msgspec.Raw]))
    except BadJson as error:
        return error

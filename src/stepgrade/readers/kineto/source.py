"""A trace file as a stream of text bytes: plain or gzipped, whole or cut short, never all in memory."""

from __future__ import annotations

import io
import os
import zlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self, TypeAlias

from stepgrade.errors import BadInput, TooLarge
from stepgrade.units import show_bytes

Readable: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO

GZIP_MAGIC = b"\x1f\x8b"
MAX_TEXT_BYTES = 64 << 30
_READ_BYTES = 1 << 17


class _Inflater(Protocol):
    eof: bool
    unused_data: bytes
    unconsumed_tail: bytes

    def decompress(self, packed: bytes, max_length: int, /) -> bytes: ...


class Source:
    """Text bytes of a path, of bytes in memory or of an open file; `damage` says why the text ended early."""

    def __init__(self, source: Readable, *, limit_bytes: int = MAX_TEXT_BYTES) -> None:
        self.name, self._file, self.size_bytes = _open(source)
        self._limit_bytes = limit_bytes
        self._spare = self._file.read(2)
        self._gunzip = _Gunzip(self._read) if self._spare == GZIP_MAGIC else None
        self.done_bytes = 0  # of the file
        self.text_bytes = 0  # of the text in it

    @staticmethod
    def estimate_text_bytes(source: str | os.PathLike[str] | bytes) -> int:
        """Guess the size of the text from that of the file: gzip makes traces 12 to 30 times smaller."""
        _, file, size = _open(source)
        with file:
            return size * 14 if file.read(2) == GZIP_MAGIC else size

    @property
    def damage(self) -> str | None:
        """Say what is wrong with the gzip stream, if anything was found so far."""
        return self._gunzip.damage if self._gunzip else None

    def fill(self, view: memoryview) -> int:
        """Fill `view` as far as the text goes and return how far; raise TooLarge beyond the limit."""
        read = self._gunzip.read if self._gunzip else self._read
        filled = 0
        while filled < len(view) and (text := read(len(view) - filled)):
            view[filled : filled + len(text)] = text
            filled += len(text)
        self.text_bytes += filled
        if self.text_bytes > self._limit_bytes:
            problem = f"holds more than {show_bytes(self._limit_bytes)} of text"
            raise TooLarge(problem, where=self.name, hint="raise --max-bytes")
        return filled

    def _read(self, most: int) -> bytes:
        block, self._spare = self._spare or self._file.read(most), b""
        self.done_bytes += len(block)
        return block

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._file.close()


class _Gunzip:
    """Gunzip that gives back all it could unpack before the stream broke off."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._make, self._error = _inflater()
        self._inflate: _Inflater = self._make(wbits=31)
        self._at_end = False
        self.damage: str | None = None

    def read(self, most: int) -> bytes:
        """Return up to `most` bytes of text, none at the end."""
        packed = self._inflate.unconsumed_tail
        while not self._at_end:
            if self._inflate.eof:
                packed = self._next_member()
            packed = packed or self._read(_READ_BYTES)
            text = self._unpack(packed, most)
            if text:
                return text
            packed = self._inflate.unconsumed_tail
        return b""

    def _unpack(self, packed: bytes, most: int) -> bytes:
        if not packed or self._at_end:
            self._stop(None if self._at_end else "the gzip data ends early")
            return b""
        try:
            return self._inflate.decompress(packed, most)
        except self._error:
            self._stop("the gzip data is damaged")
            return b""

    def _next_member(self) -> bytes:
        """Begin the next of several gzip streams in one file; anything else after the end is ignored."""
        rest = self._inflate.unused_data or self._read(_READ_BYTES)
        if not rest.startswith(GZIP_MAGIC):
            self._at_end = True
            return b""
        self._inflate = self._make(wbits=31)
        return rest

    def _stop(self, why: str | None) -> None:
        self.damage = why
        self._at_end = True


def _inflater() -> tuple[Any, type[Exception]]:
    # isal unpacks about three times as fast as zlib and gives the same bytes; not every platform has it.
    try:
        from isal import isal_zlib  # noqa: PLC0415
    except ImportError:
        return zlib.decompressobj, zlib.error
    return isal_zlib.decompressobj, isal_zlib.error  # type: ignore[return-value]  # its stub names no class


def _open(source: Readable) -> tuple[str, BinaryIO, int]:
    """Return the name, the open file and its size (0 where it cannot be known)."""
    if isinstance(source, bytes):
        return "<bytes>", io.BytesIO(source), len(source)
    if not isinstance(source, str | os.PathLike):
        return str(getattr(source, "name", "<stream>")), source, 0
    name = os.fspath(source)
    try:
        # pathlib takes longer to import than a small trace to read.
        file = open(name, "rb", buffering=0)  # noqa: SIM115, PTH123  closed by the Source
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be opened: {_reason(error)}", where=name) from error
    return name, file, os.fstat(file.fileno()).st_size


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, IsADirectoryError):
        return "it is a directory, not a file"
    return getattr(error, "strerror", None) or str(error)

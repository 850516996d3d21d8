"""A trace file as a stream of text bytes: plain or gzipped, whole or cut short, never all in memory."""

from __future__ import annotations

import io
import zlib
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

from stepgrade.errors import BadInput, TooLarge

GZIP_MAGIC = b"\x1f\x8b"
MAX_TEXT_BYTES = 64 << 30
_READ_BYTES = 1 << 17


class _Inflater(Protocol):
    eof: bool
    unused_data: bytes
    unconsumed_tail: bytes

    def decompress(self, packed: bytes, max_length: int, /) -> bytes: ...


class Source:
    """Text bytes of a path or of bytes in memory; `damage` says why the text ended early."""

    def __init__(self, source: str | Path | bytes, *, limit_bytes: int = MAX_TEXT_BYTES) -> None:
        self.name = "<bytes>" if isinstance(source, bytes) else str(source)
        self._file, self.size_bytes = _open(source)
        self.is_gzip = self._file.read(2) == GZIP_MAGIC
        self._file.seek(0)
        self._packed = _Gunzip(self._file) if self.is_gzip else None
        self._limit_bytes = limit_bytes
        self.text_bytes = 0

    @property
    def damage(self) -> str | None:
        """Say what is wrong with the gzip stream, if anything was found so far."""
        return self._packed.damage if self._packed else None

    @property
    def done_bytes(self) -> int:
        """Count the bytes of the file (not of the text) that were read so far."""
        return self._file.tell()

    def fill(self, view: memoryview) -> int:
        """Fill `view` as far as the text goes and return how many bytes it took."""
        read = self._packed.readinto if self._packed else self._file.readinto  # type: ignore[attr-defined]  # BinaryIO
        filled = 0
        while filled < len(view) and (count := read(view[filled:])):
            filled += count
        self.text_bytes += filled
        if self.text_bytes > self._limit_bytes:
            raise TooLarge(f"more than {self._limit_bytes} bytes of text", where=self.name)
        return filled

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()


class _Gunzip:
    """Gunzip that gives back all it could unpack before the stream broke off."""

    def __init__(self, packed: BinaryIO) -> None:
        self._packed = packed
        self._make, self._error = _inflater()
        self._inflate: _Inflater = self._make(wbits=31)
        self._at_end = False
        self.damage: str | None = None

    def readinto(self, view: memoryview) -> int:
        while not self._at_end:
            text = self._unpack(len(view))
            if text:
                view[: len(text)] = text
                return len(text)
        return 0

    def _unpack(self, most: int) -> bytes:
        if self._inflate.eof and not self._next_member():
            return b""
        waiting = self._inflate.unconsumed_tail
        packed = waiting or self._packed.read(_READ_BYTES)
        if not packed:
            self._stop("the gzip data ends early")
            return b""
        try:
            return self._inflate.decompress(packed, most)
        except self._error:
            self._stop("the gzip data is damaged")
            return b""

    def _next_member(self) -> bool:
        rest = self._inflate.unused_data or self._packed.read(_READ_BYTES)
        if not rest.startswith(GZIP_MAGIC):
            self._at_end = True
            return False
        self._inflate = self._make(wbits=31)
        self._packed.seek(-len(rest), io.SEEK_CUR)
        return True

    def _stop(self, why: str) -> None:
        self.damage = why
        self._at_end = True


def _inflater() -> tuple[Any, type[Exception]]:
    # isal unpacks about three times as fast as zlib and gives the same bytes; not every platform has it.
    try:
        from isal import isal_zlib  # noqa: PLC0415
    except ImportError:
        return zlib.decompressobj, zlib.error
    return isal_zlib.decompressobj, isal_zlib.error


def _open(source: str | Path | bytes) -> tuple[BinaryIO, int]:
    if isinstance(source, bytes):
        return io.BytesIO(source), len(source)
    path = Path(source)
    try:
        size = path.stat().st_size
        return path.open("rb", buffering=0) if path.is_file() else _refuse(path), size
    except OSError as error:
        raise BadInput(f"cannot be opened: {error.strerror or error}", where=str(path)) from error


def _refuse(path: Path) -> BinaryIO:
    raise BadInput("is not a file", where=str(path))

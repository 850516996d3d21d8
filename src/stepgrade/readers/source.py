"""Bytes of a path, URL, buffer, open file or standard input, decompressed, within a limit."""

from __future__ import annotations

import errno
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self, TypeAlias

import msgspec
from msgspec import Struct

from stepgrade.config import DialectTable
from stepgrade.contract.decode import decode_json
from stepgrade.errors import BadInput, BadJson, MissingExtra, TooLarge
from stepgrade.files import scratch_folder
from stepgrade.memory import check_json, default_limit
from stepgrade.units import show_bytes

PathLike: TypeAlias = str | os.PathLike[str]
Readable: TypeAlias = PathLike | bytes | BinaryIO
Progress: TypeAlias = Callable[[int, int], None]  # bytes of the file read, bytes of the file (0: not known)

STANDARD_INPUT = "-"
DEFAULT_MAX_BYTES = 16 * 2**30
MOST_UNREADABLE = 0.05  # share of the ranks that may be unreadable
HEAD_BYTES = 64 * 2**10
CHUNK_BYTES = 2**20
# Profiles that are one JSON object are small; larger files are read in chunks.
MAX_DOCUMENT_BYTES = 256 * 2**20

ZIP_MAGIC = b"PK\x03\x04"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_PACKED_BYTES = 1 << 17
_FIRST_FED_BYTES = 1 << 10
# Traces are 12 to 30 times smaller in gzip.
_USUAL_GZIP_RATIO = 14
# Below this size of a gzipped file, importing isal takes longer than it saves.
_LEAST_BYTES_FOR_ISAL = 1 << 18


class ReadOptions(Struct, frozen=True, kw_only=True):
    """What the user wants of a source: which steps of a trace, how many bytes at most, progress reports."""

    steps: tuple[int, int] | None = None
    max_bytes: int = DEFAULT_MAX_BYTES
    max_memory: int | None = None  # bytes that what is decoded may take; None is a quarter of the machine's
    progress: Progress | None = None
    dialects: tuple[DialectTable, ...] = ()  # the user's own log dialects
    engine: str | None = None  # where the files of ranks are read; None: in this process, or a pool if large
    workers: int | None = None  # processes that read them; None is as many as cores and memory allow
    most_unreadable: float = MOST_UNREADABLE  # share of the ranks that may be unreadable
    cache: bool = False  # keep what is made of each rank's file, and take it from there the next time
    sample_ranks: int | None = None  # files of ranks that are looked at, spread over all; None is all
    rank_progress: Progress | None = None  # as `progress`, of ranks


class ByteSource:
    """One source, decompressed while it is read: its head to recognise it by, then all of it.

    A reader takes what suits its format: `head`, `document()`, `chunks()`, `fill(buffer)`, or, for formats
    that need random access, `path()` or `seekable()`. All but `fill` refuse gzip data that is damaged; after
    `fill`, `damage` says why the text ended early, if it did.
    """

    def __init__(
        self,
        source: Readable,
        options: ReadOptions = ReadOptions(),  # noqa: B008  frozen
        name: str | None = None,
    ) -> None:
        self.options = options
        self.name, self._file, self.size_bytes, self._path = _open(source)
        self.name = name or self.name
        self._given_source = source
        self._close_at_end = isinstance(source, str | os.PathLike) and source != STANDARD_INPUT
        self._stamp = self._stamp_now()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.done_bytes = 0  # of the file
        self.text_bytes = 0  # of the text in it
        self._keys: frozenset[str] | BadJson | None = None
        self._unread = b""
        first = b""
        while len(first) < len(_ZSTD_MAGIC) and (more := self._read_file(len(_ZSTD_MAGIC) - len(first))):
            first += more  # a pipe returns what it has
        self._gunzip: _Gunzip | _Unzstd | None = None
        if first.startswith(_GZIP_MAGIC):
            self._gunzip = _Gunzip(self._read_file, self.size_bytes)
        elif first == _ZSTD_MAGIC:
            self._gunzip = _Unzstd(self._read_file, self.name)
        self.done_bytes, self._unread = 0, first
        self._kept = b""  # the text from its beginning, as far as it is held in memory
        self._given = 0  # of what is kept, by `fill`
        while len(self._kept) < HEAD_BYTES and (piece := self._next(HEAD_BYTES - len(self._kept))):
            self._kept += piece
        self.head = self._kept
        if not self.head:
            hint = None if self.damage else "was the run stopped before the profile was written?"
            raise BadInput(self.damage or "the file is empty", where=self.name, hint=hint)

    def restart(self) -> None:
        """Begin again with the first byte, if `can_restart`."""
        self._file.seek(0)
        self._start()

    @property
    def is_gzip(self) -> bool:
        """Tell whether the bytes are packed, by gzip or zstd."""
        return self._gunzip is not None

    @property
    def is_archive(self) -> bool:
        """Tell whether the bytes, once unpacked, begin a tar or zip archive."""
        return self.head.startswith(ZIP_MAGIC) or self.head.startswith(_TAR_MAGIC, _TAR_MAGIC_AT)

    @property
    def is_text(self) -> bool:
        """Tell whether the head looks like text: no NUL byte in it, but for a hole before all text.

        A log that is cut while its writer goes on begins with a hole as long as what was cut.
        """
        if not self.head.startswith(b"\0"):
            return b"\0" not in self.head
        text = self.head.lstrip(b"\0")
        return len(text) > 0 and min(text) >= ord("\t")

    @property
    def can_restart(self) -> bool:
        """Tell whether the source can be read twice: bytes and files can, pipes cannot."""
        return self.size_bytes > 0

    @property
    def expected_text_bytes(self) -> int:
        """Guess the size of the text from the size of the file; 0 where that is not known."""
        return self.size_bytes * _USUAL_GZIP_RATIO if self.is_gzip else self.size_bytes

    @property
    def damage(self) -> str | None:
        """Say what is wrong with the gzip data, if anything was found so far."""
        return self._gunzip.damage if self._gunzip else None

    @property
    def memory_bytes(self) -> int:
        """Return how much memory what is decoded may take."""
        return default_limit() if self.options.max_memory is None else self.options.max_memory

    @property
    def json_keys(self) -> frozenset[str] | None:
        """Return the top-level keys when the whole source is one JSON object, else None."""
        keys = self._decoded_keys()
        return keys if isinstance(keys, frozenset) else None

    @property
    def json_error(self) -> BadJson | None:
        """Return why a source that starts like a JSON object is not one."""
        keys = self._decoded_keys()
        return keys if isinstance(keys, BadJson) else None

    def chunks(self) -> Iterator[bytes]:
        """Yield all bytes in pieces; only those read before by `document` can be walked twice."""
        for start in range(0, len(self._kept), CHUNK_BYTES):
            yield self._kept[start : start + CHUNK_BYTES]
        while chunk := self._next_sound(CHUNK_BYTES):
            yield chunk

    def lines(self) -> Iterator[bytes]:
        """Yield the lines that are not blank, without holding more than one of them."""
        pieces: list[bytes] = []
        size = 0
        for chunk in self.chunks():
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                if text := b"".join((*pieces, line)).strip():
                    yield text
                pieces, size = [], 0
            pieces.append(rest)
            size += len(rest)
            if size > MAX_DOCUMENT_BYTES:
                raise TooLarge(f"has a line of more than {show_bytes(MAX_DOCUMENT_BYTES)}", where=self.name)
        if text := b"".join(pieces).strip():
            yield text

    def document(self) -> bytes:
        """Return all bytes; raise TooLarge beyond 256 MiB, or where a JSON text would decode to too much."""
        if not self._keep_all():
            raise TooLarge(f"is larger than {show_bytes(MAX_DOCUMENT_BYTES)}", where=self.name)
        check_json(self._kept, self.memory_bytes, self.name)
        return self._kept

    def fill(self, view: memoryview) -> int:
        """Fill `view` as far as the text goes and return how far; after the end, see `damage`."""
        filled = 0
        if self._given < len(self._kept):
            kept = self._kept[self._given : self._given + len(view)]
            view[: len(kept)] = kept
            filled = len(kept)
            self._given += filled
        while filled < len(view) and (text := self._next(len(view) - filled)):
            view[filled : filled + len(text)] = text
            filled += len(text)
        self._report()
        return filled

    @contextmanager
    def path(self) -> Iterator[str]:
        """Give the path of a plain file: the source itself, or a temporary copy of the decompressed bytes."""
        if self._path is not None and self.can_restart and not self.is_gzip:
            if self.size_bytes > self.options.max_bytes:
                raise self._too_large()
            yield self._path
            return
        with scratch_folder() as directory:
            path = os.path.join(directory, "source")
            with open(path, "wb") as copy:
                copy.writelines(self.chunks())
            yield path

    @contextmanager
    def seekable(self) -> Iterator[BinaryIO]:
        """Give the decompressed bytes as a file that can be read in any order."""
        with self.path() as path, open(path, "rb") as file:
            yield file

    def was_written(self) -> bool:
        """Tell whether the file has changed since it was opened: whoever writes it is not done."""
        return self._stamp_now() != self._stamp

    def _stamp_now(self) -> tuple[object, ...]:
        if self._path is not None:
            with suppress(OSError):
                found = os.stat(self._path)
                return found.st_size, found.st_mtime_ns
        if self._path is None and self._close_at_end and self.size_bytes:
            from stepgrade.readers.remote import stamp  # few sources are remote

            with suppress(BadInput):
                return stamp(os.fspath(self._given_source))  # type: ignore[arg-type]  # it is a URL
        return ()

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._close_at_end:
            with suppress(OSError):  # it was only read
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def _decoded_keys(self) -> frozenset[str] | BadJson | None:
        if self._keys is None and self.is_text and self.head.lstrip()[:1] == b"{" and self._keep_all():
            try:
                decode_json(self._kept, msgspec.Raw)  # other formats are not decoded
                check_json(self._kept, self.memory_bytes, self.name)
                self._keys = frozenset(decode_json(self._kept, dict[str, msgspec.Raw]))
            except BadJson as error:
                self._keys = error
        return self._keys

    def _keep_all(self) -> bool:
        """Read on until the end; tell whether it came before the size of a document was passed."""
        pieces, size = [self._kept], len(self._kept)
        while size <= MAX_DOCUMENT_BYTES and (chunk := self._next_sound(CHUNK_BYTES)):
            pieces.append(chunk)
            size += len(chunk)
        self._kept = b"".join(pieces)
        return size <= MAX_DOCUMENT_BYTES

    def _next_sound(self, most: int) -> bytes:
        """Return the next bytes of text, none at the end; raise BadInput where gzip data is damaged."""
        text = self._next(most)
        if not text and self.damage:
            raise BadInput(self.damage, where=self.name, hint="is the file damaged or cut off?")
        self._report()
        return text

    def _next(self, most: int) -> bytes:
        most = min(most, self.options.max_bytes + 1 - self.text_bytes)
        text = self._gunzip.read(most) if self._gunzip else self._read_file(most)
        self.text_bytes += len(text)
        if self.text_bytes > self.options.max_bytes:
            raise self._too_large()
        return text

    def _too_large(self) -> TooLarge:
        problem = f"holds more than the limit of {show_bytes(self.options.max_bytes)}"
        return TooLarge(problem, where=self.name, supply="a larger {max_bytes}")

    def _read_file(self, most: int) -> bytes:
        try:
            block, self._unread = self._unread or self._file.read(most), b""
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror or error}", where=self.name) from error
        self.done_bytes += len(block)
        return block

    def _report(self) -> None:
        if self.options.progress is not None:
            self.options.progress(self.done_bytes, self.size_bytes)


class _Inflater(Protocol):
    eof: bool
    unused_data: bytes
    unconsumed_tail: bytes

    def decompress(self, packed: bytes, max_length: int, /) -> bytes: ...


class _Unpacker:
    """The bytes of a packed file, as they are fed to what unpacks them."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._block, self._at = b"", 0  # of the file, and how far it was fed
        self._fed_at_once = _FIRST_FED_BYTES
        self._at_end = False
        self.damage: str | None = None

    def _feed(self) -> bytes:
        """Return the next bytes of the file: few at first, for what a short stream leaves is copied."""
        if self._at >= len(self._block):
            self._block, self._at = self._read(_PACKED_BYTES), 0
        fed = self._block[self._at : self._at + self._fed_at_once]
        self._at += len(fed)
        self._fed_at_once = min(4 * self._fed_at_once, _PACKED_BYTES)
        return fed


class _Gunzip(_Unpacker):
    """Gunzip that gives back all it could unpack before the stream broke off."""

    def __init__(self, read: Callable[[int], bytes], size_bytes: int) -> None:
        super().__init__(read)
        self._make: Any = zlib.decompressobj
        self._error: Any = zlib.error
        if not 0 < size_bytes < _LEAST_BYTES_FOR_ISAL:
            # isal unpacks about three times as fast and gives the same bytes; not every platform has it.
            with suppress(ImportError):
                from isal import isal_zlib

                self._make, self._error = isal_zlib.decompressobj, isal_zlib.error
        self._inflate: _Inflater = self._make(wbits=31)

    def read(self, most: int) -> bytes:
        """Return up to `most` bytes of text, none at the end."""
        packed = self._inflate.unconsumed_tail
        while not self._at_end:
            if self._inflate.eof:
                # Several gzip streams may follow each other; anything else after the end is ignored.
                self._at -= len(self._inflate.unused_data)
                while len(self._block) - self._at < len(_GZIP_MAGIC) and (more := self._read(_PACKED_BYTES)):
                    self._block, self._at = self._block[self._at :] + more, 0
                if not self._block.startswith(_GZIP_MAGIC, self._at):
                    self._at_end = True
                    break
                self._inflate, self._fed_at_once = self._make(wbits=31), _FIRST_FED_BYTES
                packed = b""  # isal leaves the next stream in its tail as well
            packed = packed or self._feed()
            if not packed:
                self._stop("the gzip data ends early")
                break
            try:
                text = self._inflate.decompress(packed, most)
            except self._error:
                self._stop("the gzip data is damaged")
                break
            if text:
                return text
            packed = self._inflate.unconsumed_tail
        return b""

    def _stop(self, damage: str) -> None:
        self.damage = damage
        self._at_end = True


class _Unzstd(_Unpacker):
    """Zstandard, as gzip above: gives back all that it could unpack before the data broke off."""

    def __init__(self, read: Callable[[int], bytes], where: str) -> None:
        super().__init__(read)
        try:
            try:
                from compression import zstd  # type: ignore[import-not-found]  # since Python 3.14
            except ImportError:
                from backports import zstd  # an extra
        except ImportError as error:
            hint = "pip install 'stepgrade[zstd]'"
            raise MissingExtra("unpacking zstd needs a package", where=where, hint=hint) from error
        self._zstd: Any = zstd
        self._inflate: Any = zstd.ZstdDecompressor()

    def read(self, most: int) -> bytes:
        """Return up to `most` bytes of text, none at the end."""
        while not self._at_end:
            packed = b""
            if self._inflate.eof:  # several frames may follow each other
                self._at -= len(self._inflate.unused_data)
                self._inflate, self._fed_at_once = self._zstd.ZstdDecompressor(), _FIRST_FED_BYTES
                packed = self._feed()
                self._at_end = not packed
            elif self._inflate.needs_input and not (packed := self._feed()):
                self.damage, self._at_end = "the zstd data ends early", True
            if self._at_end:
                break
            try:
                text: bytes = self._inflate.decompress(packed, most)
            except self._zstd.ZstdError:
                self.damage, self._at_end = "the zstd data is damaged", True
                break
            if text:
                return text
        return b""


def shown_path(path: str) -> str:
    """Return the path as text: it may hold bytes that are none."""
    return path.encode("utf-8", "backslashreplace").decode()


def _open(source: Readable) -> tuple[str, BinaryIO, int, str | None]:
    """Return the name, the open file, its size (0 where it cannot be known) and its path, if it has one."""
    if isinstance(source, bytes):
        return "<bytes>", io.BytesIO(source), len(source), None
    if not isinstance(source, str | os.PathLike):
        return str(getattr(source, "name", "<stream>")), source, 0, None
    path = os.fspath(source)
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise BadInput("is closed", where="standard input", hint="pass a file name")
        return "standard input", sys.stdin.buffer, 0, None
    if "://" in path:
        from stepgrade.readers.remote import is_url, open_url, shown_url  # few sources are

        if is_url(path):
            remote, size = open_url(path)
            return shown_url(path), remote, size, None
    return open_local(path)


def open_local(path: str) -> tuple[str, BinaryIO, int, str | None]:
    """Return what `_open` does for a file of this machine; raise BadInput with what the system says."""
    name = shown_path(path)
    try:
        # pathlib takes longer to import than a step profile to read.
        file = open(path, "rb", buffering=0)  # noqa: SIM115  closed by the source
    except IsADirectoryError as error:
        raise BadInput("is a directory", where=name, hint="pass a profile inside it") from error
    except FileNotFoundError as error:
        raise BadInput("no such file", where=name, hint="use - to read standard input") from error
    except PermissionError as error:
        raise BadInput("permission denied", where=name, hint="make it readable with chmod +r") from error
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) == errno.ENXIO:
            raise BadInput(
                "is a socket or a device", where=name, hint="pass a file name, or - to read standard input"
            ) from error
        raise BadInput(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=name) from error
    try:
        return name, file, os.fstat(file.fileno()).st_size, path
    except OSError as error:
        file.close()
        raise BadInput(f"cannot be read: {error.strerror or error}", where=name) from error

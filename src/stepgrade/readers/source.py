"""Bytes of a path, URL, buffer, open file or standard input, decompressed, within a limit."""

from __future__ import annotations

import errno
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from stepgrade.config import DialectTable
from stepgrade.contract.decode import decode_json
from stepgrade.decoding import from_json
from stepgrade.errors import BadInput, BadJson, MissingExtra, TooLarge
from stepgrade.files import scratch_folder
from stepgrade.memory import check, check_json, default_limit
from stepgrade.units import show_bytes

T = TypeVar("T")
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
MAX_JSON_BYTES = 4 * 2**30

ZIP_MAGIC = b"PK\x03\x04"
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_OPEN_ERRORS: dict[int | None, tuple[str, str | None]] = {
    errno.EISDIR: ("is a directory", "pass a profile inside it"),
    errno.ENOENT: ("no such file", "use - to read standard input"),
    errno.EACCES: ("permission denied", "make it readable with chmod +r"),
    errno.EPERM: ("permission denied", "make it readable with chmod +r"),
    errno.ENXIO: ("is a socket or a device", "pass a file name, or - to read standard input"),
}
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
    max_memory: int | None = None  # bytes of decoded objects; None is a quarter of the machine's memory
    progress: Progress | None = None
    dialects: tuple[DialectTable, ...] = ()  # the user's own log dialects
    engine: str | None = None  # where the files of ranks are read; None: in this process, or a pool if large
    workers: int | None = None  # processes that read them; None is as many as cores and memory allow
    most_unreadable: float = MOST_UNREADABLE  # share of the ranks that may be unreadable
    cache: bool = False  # keep the result of each trace and log for the next time
    sample_ranks: int | None = None  # files of ranks that are looked at, spread over all; None is all
    rank_progress: Progress | None = None  # as `progress`, of ranks


class ByteSource:
    """One source, decompressed while it is read: its head to recognise it by, then all of it.

    A reader takes what suits its format: `head`, `document()`, `chunks()`, `fill(buffer)`, or, for random
    access, `path()` or `seekable()`. All but `fill` refuse damaged gzip data; `fill` sets `damage` instead.
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
        self.can_restart = self.size_bytes > 0  # bytes and files can be read twice, pipes cannot
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
        self._keys: frozenset[str] | None = None
        self._json_error: BadJson | None = None
        self._unread = b""
        first = b""
        while len(first) < len(_ZSTD_MAGIC) and (more := self._read_file(len(_ZSTD_MAGIC) - len(first))):
            first += more  # a pipe returns what it has
        self._unpacker: _Unpacker | None = None
        if first.startswith((_GZIP_MAGIC, _ZSTD_MAGIC)):
            self._unpacker = _Unpacker(self._read_file, self.name, first, self.size_bytes)
        self.done_bytes, self._unread = 0, first
        self._kept = b""  # the text from its beginning, as far as it is held in memory
        self._given = 0  # of what is kept, by `fill`
        while len(self._kept) < HEAD_BYTES and (piece := self._next(HEAD_BYTES - len(self._kept))):
            self._kept += piece
        self.head = self._kept
        self.is_gzip = self._unpacker is not None  # packed, by gzip or zstd
        self.is_archive = self.head.startswith(ZIP_MAGIC) or self.head.startswith(_TAR_MAGIC, _TAR_MAGIC_AT)
        # A guess by the size of the file; 0 where that is not known.
        self.expected_text_bytes = self.size_bytes * (_USUAL_GZIP_RATIO if self.is_gzip else 1)
        if not self.head:
            hint = None if self.damage else "was the run stopped before the profile was written?"
            raise BadInput(self.damage or "the file is empty", where=self.name, hint=hint)

    def restart(self) -> None:
        """Begin again with the first byte, if `can_restart`."""
        self._file.seek(0)
        self._start()

    @property
    def is_text(self) -> bool:
        """Tell whether the head looks like text; a log cut while its writer goes on begins with NUL bytes."""
        if not self.head.startswith(b"\0"):
            return b"\0" not in self.head
        text = self.head.lstrip(b"\0")
        return len(text) > 0 and min(text) >= ord("\t")

    @property
    def damage(self) -> str | None:
        """Return what is wrong with the packed data, if anything was found so far."""
        return self._unpacker.damage if self._unpacker else None

    @property
    def memory_bytes(self) -> int:
        """Return how much memory decoded objects may take."""
        return default_limit() if self.options.max_memory is None else self.options.max_memory

    @property
    def json_keys(self) -> frozenset[str] | None:
        """Return the top-level keys when the whole source is one JSON object, else None."""
        may_be_object = self.is_text and self.head.lstrip()[:1] == b"{"
        if self._keys is None and self._json_error is None and may_be_object and self._keep_all():
            try:
                decode_json(self._kept, msgspec.Raw)  # other formats are not decoded
                check_json(self._kept, self.memory_bytes, self.name)
                self._keys = frozenset(decode_json(self._kept, dict[str, msgspec.Raw]))
            except BadJson as error:
                self._json_error = error
        return self._keys

    @property
    def json_error(self) -> BadJson | None:
        """Return why a source that starts like a JSON object is not one."""
        return self._json_error if self.json_keys is None else None

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

    def whole(self, memory_per_byte: int) -> bytes:
        """Return all bytes; raise TooLarge if decoding would take too much at `memory_per_byte`."""
        pieces, size = [], 0
        for chunk in self.chunks():
            size += len(chunk)
            check(size * memory_per_byte, self.memory_bytes, self.name)
            pieces.append(chunk)
        return b"".join(pieces)

    def decoded(self, kind: type[T], what: str, memory_per_byte: int) -> T:
        """Return the JSON text as a `kind`; raise BadJson for a text that is not `what`."""
        text = self.whole(memory_per_byte)
        if len(text) > MAX_JSON_BYTES:
            raise TooLarge(f"is larger than {show_bytes(MAX_JSON_BYTES)}", where=self.name)
        try:
            return from_json(text, kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = f": {str(error)[:200]}" if isinstance(error, msgspec.DecodeError) else ""
            raise BadJson(f"is not {what}{reason}", where=self.name) from error

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

    def _keep_all(self) -> bool:
        """Read to the end; return False if the text is longer than a document may be."""
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
        text = self._unpacker.read(most) if self._unpacker else self._read_file(most)
        self.text_bytes += len(text)
        if self.text_bytes > self.options.max_bytes:
            raise self._too_large()
        return text

    def _too_large(self) -> TooLarge:
        problem = f"contains more than the limit of {show_bytes(self.options.max_bytes)}"
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


class _Unpacker:
    """Decompresses gzip or zstd, and gives back all that it could unpack before the data broke off."""

    def __init__(self, read: Callable[[int], bytes], where: str, first: bytes, size_bytes: int) -> None:
        self._read = read
        self._block, self._at = b"", 0  # of the file, and how far it was fed
        self._fed_at_once = _FIRST_FED_BYTES
        self._at_end = False
        self._is_gzip = first.startswith(_GZIP_MAGIC)
        self.damage: str | None = None
        self._make: Callable[[], Any]
        self._error: Any
        if self._is_gzip:
            self._make, self._error = partial(zlib.decompressobj, wbits=31), zlib.error
            if not 0 < size_bytes < _LEAST_BYTES_FOR_ISAL:
                # isal unpacks about three times as fast and gives the same bytes; not every platform has it.
                with suppress(ImportError):
                    from isal import isal_zlib

                    self._make, self._error = partial(isal_zlib.decompressobj, wbits=31), isal_zlib.error
        else:
            try:
                try:
                    from compression import zstd  # type: ignore[import-not-found]  # since Python 3.14
                except ImportError:
                    from backports import zstd  # an extra
            except ImportError as error:
                hint = "pip install 'stepgrade[zstd]'"
                raise MissingExtra("unpacking zstd needs a package", where=where, hint=hint) from error
            self._make, self._error = zstd.ZstdDecompressor, zstd.ZstdError
        self._inflate: Any = self._make()

    def read(self, most: int) -> bytes:
        """Return up to `most` bytes of text, none at the end."""
        problem = None
        while not self._at_end:
            # zlib gives back what it did not take; a zstd decompressor keeps it.
            packed = self._inflate.unconsumed_tail if self._is_gzip else b""
            if self._inflate.eof:
                if not self._begin_stream():
                    break
                packed = b""  # isal leaves the next stream in its tail as well
            if not packed and (self._is_gzip or self._inflate.needs_input) and not (packed := self._feed()):
                problem = "ends early"
                break
            try:
                if text := self._inflate.decompress(packed, most):
                    return bytes(text)
            except self._error:
                problem = "is damaged"
                break
        self._at_end = True
        if problem:
            self.damage = f"the {'gzip' if self._is_gzip else 'zstd'} data {problem}"
        return b""

    def _begin_stream(self) -> bool:
        """Go on with the stream that follows; return False where there is none."""
        self._at -= len(self._inflate.unused_data)
        while len(self._block) - self._at < len(_GZIP_MAGIC) and (more := self._read(_PACKED_BYTES)):
            self._block, self._at = self._block[self._at :] + more, 0
        self._inflate, self._fed_at_once = self._make(), _FIRST_FED_BYTES
        rest = self._block[self._at : self._at + len(_GZIP_MAGIC)]
        return rest == _GZIP_MAGIC if self._is_gzip else bool(rest)

    def _feed(self) -> bytes:
        """Return the next bytes of the file: few at first, for what a short stream leaves is copied."""
        if self._at >= len(self._block):
            self._block, self._at = self._read(_PACKED_BYTES), 0
        fed = self._block[self._at : self._at + self._fed_at_once]
        self._at += len(fed)
        self._fed_at_once = min(4 * self._fed_at_once, _PACKED_BYTES)
        return fed


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
    name = shown_path(path)
    try:
        # pathlib takes longer to import than a step profile to read.
        file = open(path, "rb", buffering=0)  # noqa: SIM115  closed by the source
        return name, file, os.fstat(file.fileno()).st_size, path
    except (OSError, ValueError) as error:
        other = f"cannot be read: {getattr(error, 'strerror', None) or error}", None
        problem, hint = _OPEN_ERRORS.get(getattr(error, "errno", None), other)
        raise BadInput(problem, where=name, hint=hint) from error

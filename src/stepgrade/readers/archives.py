"""Unpack tar and zip archives of a run's ranks into a temporary directory.

Only regular files are taken, under names of ours, and together they may not exceed the limit of a source.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, Self

from stepgrade.errors import BadInput, TooLarge
from stepgrade.readers.source import CHUNK_BYTES, ZIP_MAGIC, ByteSource, shown_path
from stepgrade.units import show_bytes

MOST_FILES = 100_000
_KEPT_FREE_BYTES = 1 << 30  # of the disk
_LONGEST_ENDING = 40
# The list of what a zip holds is read as a whole, and so are long names in a tar.
_MOST_LIST_BYTES = 64 << 20
_MOST_NAME_BYTES = 1 << 20
_ZIP_END_BYTES = 98 + (1 << 16)  # where the list is, with the longest remark
_IN_ZIP64 = 0xFFFF_FFFF
_MOST_ENTRIES = 10  # folders and links, for each file
_LONG_NAMES = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
# What Python's own readers raise for bytes that make no sense, beside errors of their own.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    ValueError,
    OverflowError,
    IndexError,
    KeyError,
    struct.error,
)


def unpack(source: ByteSource, folder: str) -> list[tuple[str, str]]:
    """Unpack regular files into the folder; return path and name of each. Raise BadInput for damage."""
    files: list[tuple[str, str]] = []
    total = 0
    try:
        for name, member in members_of(source):
            if len(files) >= MOST_FILES:
                raise TooLarge(f"contains more than {MOST_FILES} files", where=source.name)
            base = name.replace("\\", "/").rpartition("/")[2]
            # The number makes names unique, the ending shows the format; folders are ignored.
            safe = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in base)
            path = os.path.join(folder, f"{len(files)}-{safe[-_LONGEST_ENDING:]}")
            total = _copy(member, path, source, total)
            files.append((path, f"{source.name}/{shown_path(name)}"))
    except BadInput:  # which is a ValueError as well
        raise
    except _DAMAGE as error:
        raise BadInput("the archive is damaged", where=source.name) from error
    except OSError as error:
        # zipfile seeks to where the archive says, which may be before its beginning.
        is_damaged = error.errno in (None, errno.EINVAL)
        problem = "the archive is damaged" if is_damaged else f"cannot be unpacked: {error.strerror}"
        raise BadInput(problem, where=source.name) from error
    except RuntimeError as error:  # zipfile needs a password
        raise BadInput("the archive is encrypted", where=source.name) from error
    return files


def members_of(source: ByteSource) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the content of each regular file, to be read before the next."""
    if source.head.startswith(ZIP_MAGIC):
        with source.seekable() as file:
            # The list of its files is read as a whole.
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _ZIP_END_BYTES))
            end = file.read()
            at = end.rfind(b"PK\x05\x06")
            listed = int.from_bytes(end[at + 12 : at + 16], "little") if at >= 0 else 0
            if listed == _IN_ZIP64 and (further := end.rfind(b"PK\x06\x06")) >= 0:
                listed = int.from_bytes(end[further + 40 : further + 48], "little")
            if listed > _MOST_LIST_BYTES:
                raise TooLarge(f"lists files in more than {show_bytes(_MOST_LIST_BYTES)}", where=source.name)
            packed = zipfile.ZipFile(file)
            for info in packed.infolist():
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    hint = "pack it again with zip, or as a tar"
                    raise BadInput(
                        "the archive uses an unsupported compression", where=source.name, hint=hint
                    )
                if not info.is_dir():
                    with packed.open(info) as member:
                        yield info.filename, member
        return
    stream = io.BufferedReader(_Stream(source.chunks()), CHUNK_BYTES)
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as archive:
        for count, entry in enumerate(archive):
            archive.members = []  # type: ignore[attr-defined]  # it would keep every entry that was passed
            if count >= _MOST_ENTRIES * MOST_FILES:
                raise TooLarge(
                    f"contains more than {_MOST_ENTRIES * MOST_FILES:,} entries", where=source.name
                )
            inside = archive.extractfile(entry) if entry.isreg() else None
            if inside is not None:
                yield entry.name, inside


class _Entry(tarfile.TarInfo):
    """An entry of a tar; long names, which are read as a whole, are limited."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the entry that a header describes."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _LONG_NAMES and entry.size > _MOST_NAME_BYTES:
            raise tarfile.ReadError("a name of megabytes")
        return entry


def _copy(member: IO[bytes], path: str, source: ByteSource, total: int) -> int:
    """Write one file and return the new total size; raise TooLarge beyond the limit."""
    limit = source.options.max_bytes
    with open(path, "xb") as copy:
        while chunk := member.read(CHUNK_BYTES):
            total += len(chunk)
            if total > limit:
                problem = f"contains more than the limit of {show_bytes(limit)}"
                raise TooLarge(problem, where=source.name, supply="a larger {max_bytes}")
            if hasattr(os, "statvfs"):
                disk = os.statvfs(path)
                if disk.f_bavail * disk.f_frsize < _KEPT_FREE_BYTES:
                    hint = "set TMPDIR to a directory on another disk"
                    raise BadInput("not enough disk space to unpack it", where=source.name, hint=hint)
            copy.write(chunk)
    return total


class _Stream(io.RawIOBase):
    """Chunks as a file that is read from the beginning to the end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with the next bytes; return how many."""
        self._rest = self._rest or memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

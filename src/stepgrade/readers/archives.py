"""Tar and zip archives of a run's ranks: unpacked into a directory that is gone afterwards.

What is inside decides nothing about where it is written: only regular files are taken, each under a name of
ours, and all of them together are no larger than a source may be.
"""

from __future__ import annotations

import errno
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO, Self

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
    """Write the regular files of the archive into the folder; return the path and the name of each.

    Raise BadInput for a damaged or hostile archive.
    """
    files: list[tuple[str, str]] = []
    total = 0
    try:
        for name, member in members_of(source):
            if len(files) >= MOST_FILES:
                raise TooLarge(f"holds more than {MOST_FILES} files", where=source.name)
            base = name.replace("\\", "/").rpartition("/")[2]
            # A number keeps names apart, the end tells formats apart; nothing of the folders in it is used.
            safe = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in base)
            path = os.path.join(folder, f"{len(files)}-{safe[-_LONGEST_ENDING:]}")
            total += copy_member(member, path, source, total)
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
    except RuntimeError as error:  # zipfile's way to say that it needs a password
        raise BadInput("the archive is encrypted", where=source.name) from error
    return files


def members_of(source: ByteSource) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the content of each regular file, to be read before the next."""
    if source.head.startswith(ZIP_MAGIC):
        with source.seekable() as file, open_zip(file, source) as packed:
            for info in packed.infolist():
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    hint = "pack it again with zip, or as a tar"
                    raise BadInput(
                        "the archive is packed in a way that is not read", where=source.name, hint=hint
                    )
                if not info.is_dir():
                    with packed.open(info) as member:
                        yield info.filename, member
        return
    stream = _Stream(source.chunks())
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Entry) as archive:  # type: ignore[call-overload]  # it only reads
        for count, entry in enumerate(archive):
            archive.members = []  # which would keep every entry that was passed
            if count >= _MOST_ENTRIES * MOST_FILES:
                raise TooLarge(f"holds more than {_MOST_ENTRIES * MOST_FILES:,} entries", where=source.name)
            inside = archive.extractfile(entry) if entry.isreg() else None
            if inside is not None:
                yield entry.name, inside


def open_zip(file: BinaryIO, source: ByteSource) -> zipfile.ZipFile:
    """Open a zip whose list of files is not larger than any honest one."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _ZIP_END_BYTES))
    end = file.read()
    at = end.rfind(b"PK\x05\x06")
    listed = int.from_bytes(end[at + 12 : at + 16], "little") if at >= 0 else 0
    if listed == _IN_ZIP64 and (further := end.rfind(b"PK\x06\x06")) >= 0:
        listed = int.from_bytes(end[further + 40 : further + 48], "little")
    if listed > _MOST_LIST_BYTES:
        raise TooLarge(f"lists files in more than {show_bytes(_MOST_LIST_BYTES)}", where=source.name)
    return zipfile.ZipFile(file)


class _Entry(tarfile.TarInfo):
    """An entry of a tar whose names are no longer than any honest one's: they are read as a whole."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return the entry that a header describes."""
        entry = super().frombuf(buf, encoding, errors)
        if entry.type in _LONG_NAMES and entry.size > _MOST_NAME_BYTES:
            raise tarfile.ReadError("a name of megabytes")
        return entry


def copy_member(member: IO[bytes], path: str, source: ByteSource, before: int) -> int:
    """Write one file and return its size; raise TooLarge when it is too much with those `before`."""
    size, limit = 0, source.options.max_bytes
    with open(path, "xb") as copy:
        while chunk := member.read(CHUNK_BYTES):
            size += len(chunk)
            if before + size > limit:
                problem = f"holds more than the limit of {show_bytes(limit)}"
                raise TooLarge(problem, where=source.name, supply="a larger {max_bytes}")
            if hasattr(os, "statvfs"):
                disk = os.statvfs(path)
                if disk.f_bavail * disk.f_frsize < _KEPT_FREE_BYTES:
                    problem = "the disk has too little room to unpack it"
                    raise BadInput(
                        problem, where=source.name, hint="set TMPDIR to a directory on another disk"
                    )
            copy.write(chunk)
    return size


class _Stream:
    """Chunks as a file that is read from the beginning to the end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._chunk, self._at = b"", 0  # and how far it was given

    def read(self, most: int) -> bytes:
        """Return the next bytes: fewer than asked for only at the end."""
        parts, left = [], most
        while left:
            if self._at >= len(self._chunk):
                self._chunk, self._at = next(self._chunks, b""), 0
            if not (part := self._chunk[self._at : self._at + left]):
                break
            self._at += len(part)
            left -= len(part)
            parts.append(part)
        return b"".join(parts)

"""Tar and zip archives of a run's ranks: unpacked into a directory that is gone afterwards.

What is inside decides nothing about where it is written: only regular files are taken, each under a name of
ours, and all of them together are no larger than a source may be.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, NamedTuple

from stepgrade.errors import BadInput, TooLarge
from stepgrade.readers.source import CHUNK_BYTES, ZIP_MAGIC, ByteSource
from stepgrade.units import show_bytes

MOST_FILES = 100_000
_KEPT_FREE_BYTES = 1 << 30  # of the disk
_LONGEST_ENDING = 40


class Unpacked(NamedTuple):
    """A file of an archive: where it is now, and what it is called."""

    path: str
    name: str
    size_bytes: int


def unpack(source: ByteSource, folder: str) -> list[Unpacked]:
    """Write the regular files of the archive into the folder; raise BadInput for a damaged or hostile one."""
    files: list[Unpacked] = []
    total = 0
    try:
        for name, member in members_of(source):
            if len(files) >= MOST_FILES:
                raise TooLarge(f"holds more than {MOST_FILES} files", where=source.name)
            base = name.replace("\\", "/").rpartition("/")[2]
            # A number keeps names apart, the end tells formats apart; nothing of the folders in it is used.
            safe = "".join(sign if sign.isalnum() or sign in "._-" else "_" for sign in base)
            path = os.path.join(folder, f"{len(files)}-{safe[-_LONGEST_ENDING:]}")  # noqa: PTH118  as elsewhere
            size = copy_member(member, path, source, total)
            total += size
            files.append(Unpacked(path, f"{source.name}/{name}", size))
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise BadInput("the archive is damaged", where=source.name) from error
    except RuntimeError as error:  # zipfile's way to say that it needs a password
        raise BadInput("the archive is encrypted", where=source.name) from error
    return files


def members_of(source: ByteSource) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name and the content of each regular file, to be read before the next."""
    if source.head.startswith(ZIP_MAGIC):
        with source.seekable() as file, zipfile.ZipFile(file) as packed:
            for info in packed.infolist():
                if not info.is_dir():
                    with packed.open(info) as member:
                        yield info.filename, member
        return
    stream = _Stream(source.chunks())
    with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]  # it only reads
        for entry in archive:
            inside = archive.extractfile(entry) if entry.isreg() else None
            if inside is not None:
                yield entry.name, inside


def copy_member(member: IO[bytes], path: str, source: ByteSource, before: int) -> int:
    """Write one file and return its size; raise TooLarge when it is too much with those `before`."""
    size, limit = 0, source.options.max_bytes
    with open(path, "xb") as copy:  # noqa: PTH123  as elsewhere
        while chunk := member.read(CHUNK_BYTES):
            size += len(chunk)
            if before + size > limit:
                problem = f"holds more than the limit of {show_bytes(limit)}"
                raise TooLarge(problem, where=source.name, supply="a larger {max_bytes}")
            if hasattr(os, "statvfs"):
                disk = os.statvfs(path)
                if disk.f_bavail * disk.f_frsize < _KEPT_FREE_BYTES:
                    problem = "the disk has too little room to unpack it"
                    raise BadInput(problem, where=source.name, hint="TMPDIR names another place")
            copy.write(chunk)
    return size


class _Stream:
    """Chunks as a file that is read from the beginning to the end."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def read(self, most: int) -> bytes:
        """Return the next bytes: fewer than asked for only at the end."""
        while len(self._rest) < most and (chunk := next(self._chunks, b"")):
            self._rest += chunk
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

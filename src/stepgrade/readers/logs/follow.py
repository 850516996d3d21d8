"""A log or a recording that still grows: what was added since the last look, across rotations."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import BinaryIO

from stepgrade.errors import BadInput
from stepgrade.model import Profile
from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.scan import LogScanner
from stepgrade.readers.source import CHUNK_BYTES, ByteSource

_GZIP = b"\x1f\x8b"
_RECORDINGS = (b'{"_recording":', b'{"_profiler":')  # a journal, and the profile that replaces it at the end
# Limit per look, so that the first look at a large log stays short.
MOST_AT_ONCE = 64 << 20


class Followed:
    """One file by its path: read on from the last look, or from the start if it was cut or replaced."""

    def __init__(self, path: str, dialects: tuple[Dialect, ...] = ()) -> None:
        self.path = path
        self._dialects = dialects
        self.begun_again = 0  # how often the file was cut or replaced
        self.changed_at: float | None = None
        self._file: BinaryIO | None = None
        self._identity: tuple[int, int] | None = None
        self._read_bytes = 0
        self._scanner = LogScanner(dialects)
        self._is_journal = False
        self._profile: Profile | None = None

    def look(self) -> Profile | None:
        """Return the run so far; None before its first step.

        Raise BadInput if the file never existed or is not text.
        """
        try:
            state = os.stat(self.path)
        except OSError as error:
            if self._identity is None:
                raise BadInput(f"cannot be read: {error.strerror or error}", where=self.path) from error
            return self._profile  # between two files of a rotation
        identity = (state.st_dev, state.st_ino)
        if self._identity != identity or state.st_size < self._read_bytes:
            self.begun_again += self._identity is not None
            self._begin(identity)
        if state.st_size == self._read_bytes and self._profile is not None:
            return self._profile
        self.changed_at = state.st_mtime
        if self._is_journal:
            from stepgrade.readers.registry import read_source  # only for recordings

            with suppress(BadInput), ByteSource(self.path) as source:  # a partial line, or no step so far
                self._profile = read_source(source).profile or self._profile
            self._read_bytes = state.st_size
        else:
            from stepgrade.readers.logs.assemble import profile_of_log  # needs numpy

            done = 0
            while self._file is not None and done < MOST_AT_ONCE and (chunk := self._file.read(CHUNK_BYTES)):
                self._scanner.feed(chunk)
                done += len(chunk)
            self._read_bytes += done
            self._profile = profile_of_log(self._scanner.result(is_whole=False), self.path) or self._profile
        return self._profile

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, identity: tuple[int, int]) -> None:
        self.close()
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115  closed by `close`
        except OSError as error:
            raise BadInput(f"cannot be read: {error.strerror or error}", where=self.path) from error
        self._identity, self._read_bytes, self._scanner = identity, 0, LogScanner(self._dialects)
        head = self._file.read(64)
        self._file.seek(0)
        if head.startswith(_GZIP):
            self.close()
            hint = "stepgrade score reads it once it is complete"
            raise BadInput("is gzipped: only plain files can be followed", where=self.path, hint=hint)
        self._is_journal = head.startswith(_RECORDINGS)

"""Results that are kept for the next time, under the user's cache directory.

A result is found by what it was made from, never by a name, so a changed file is read again. Nothing is taken
from a place that others can write to, nothing whose checksum is wrong, and whoever takes it still decodes it
as what it should be. Two processes may share the place: files appear whole, and one that is gone is a miss.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress

from stepgrade._version import __version__
from stepgrade.files import write_whole

MOST_BYTES = 1 << 30
MOST_RESULT_BYTES = 64 << 20
FOLDER = "STEPGRADE_CACHE"  # the environment's word for another place
_TRIM_EVERY = 64
_DIGEST_BYTES = 32
_CHUNK_BYTES = 1 << 20


def cache_folder() -> str:
    """Return where results are kept: what STEPGRADE_CACHE says, else in the user's cache directory."""
    if place := os.environ.get(FOLDER):
        return place
    home = os.path.expanduser("~")  # noqa: PTH111  pathlib imports slowly, here and below
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches")  # noqa: PTH118
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")  # noqa: PTH118
    return os.path.join(base, "stepgrade", "ranks")  # noqa: PTH118


class Cache:
    """A bounded store of results by key."""

    def __init__(self, folder: str | None = None, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder or cache_folder()
        self._most_bytes = most_bytes
        self._puts = 0

    def get(self, key: str) -> bytes | None:
        """Return the result under a key, if it is there, ours and whole."""
        path = os.path.join(self._folder, key)  # noqa: PTH118
        with suppress(OSError):
            if not self._is_safe():
                return None
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            with os.fdopen(handle, "rb") as file:
                if not is_ours(os.fstat(handle)):
                    return None
                data = file.read(MOST_RESULT_BYTES + _DIGEST_BYTES + 1)
            os.utime(path)  # what is used stays longest
            digest, result = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if hashlib.blake2b(result, digest_size=_DIGEST_BYTES).digest() == digest:
                return result
        return None

    def put(self, key: str, result: bytes) -> None:
        """Keep a result; where that is not possible, do nothing."""
        if len(result) > MOST_RESULT_BYTES:
            return
        with suppress(OSError):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)  # noqa: PTH103
            if not self._is_safe():
                return
            digest = hashlib.blake2b(result, digest_size=_DIGEST_BYTES).digest()
            write_whole(os.path.join(self._folder, key), digest + result, new_mode=0o600)  # noqa: PTH118
            if self._puts % _TRIM_EVERY == 0:
                self._trim()
            self._puts += 1

    def _is_safe(self) -> bool:
        return is_ours(os.stat(self._folder, follow_symlinks=False))  # noqa: PTH116

    def _trim(self) -> None:
        """Remove what was not used for longest until the rest is small enough."""
        with os.scandir(self._folder) as entries:
            found = [(one.stat(follow_symlinks=False), one.path) for one in entries]
        total = sum(status.st_size for status, _ in found)
        for status, path in sorted(found, key=lambda one: one[0].st_mtime_ns):
            if total <= self._most_bytes:
                break
            total -= status.st_size
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108


def is_ours(status: os.stat_result) -> bool:
    """Tell whether a file or folder is this user's, and nobody else can write to it."""
    if os.name != "posix":
        return True  # folders under the user's own profile are closed to others there
    shared = stat.S_IWGRP | stat.S_IWOTH
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return is_plain and status.st_uid == os.getuid() and not status.st_mode & shared


def key_of(path: str, options: Iterable[object]) -> str:
    """Return the key of what is made of a file: its bytes, how it is read, and by which code of ours."""
    digest = hashlib.blake2b(repr([__version__, code_stamp(), *options]).encode(), digest_size=_DIGEST_BYTES)
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def code_stamp() -> str:
    """Return what changes with our code: who works on it has one version for many of them."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH120, PTH100
    digest = hashlib.blake2b(digest_size=16)
    for folder, folders, names in os.walk(package):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                found = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()

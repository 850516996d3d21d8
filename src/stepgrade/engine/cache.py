"""Cached results, in our own folder under the user's cache directory.

The key of a result is a hash of its input, never a name, so a changed file is read again. Entries that others
can write to, or whose checksum is wrong, are ignored, and callers decode entries by their schema. Processes
may share the folder: files appear whole, and a missing one is a miss. Only files with our names, of this
user, in a folder with our marker are ever removed.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterable
from contextlib import suppress

from stepgrade._version import __version__
from stepgrade.files import DRAFT_NAME, is_mine, write_whole

MOST_BYTES = 1 << 30
MOST_RESULT_BYTES = 64 << 20
FOLDER = "STEPGRADE_CACHE"  # names another folder, or turns the cache off
OWN_FOLDER = "stepgrade-ranks"  # inside that folder, which may hold other files
MARKER = "CACHEDIR.TAG"  # backup programs skip a folder with it; see https://bford.info/cachedir
MARKER_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# Results of stepgrade, which it makes again when they are missing: this folder can be removed at any time.
"""
_NAME = re.compile(r"rank-[0-9a-f]{64}")
_OFF = ("", "off", "0", "no", "false", "none")
_ON = ("on", "1", "yes", "true")
_GROWN_SHARE = 1 / 16  # of the limit; after adding so much, a process checks the size again
_DIGEST_BYTES = 32
_CHUNK_BYTES = 1 << 20
_grown_bytes: dict[str, int] = {}  # by folder: added by this process since the last check


def cache_folder() -> str | None:
    """Return our folder under STEPGRADE_CACHE, else under the user's cache directory; None if turned off."""
    chosen = os.environ.get(FOLDER, "on").strip()
    if chosen.lower() in _OFF:
        return None
    home = os.path.expanduser("~")
    if chosen.lower() not in _ON:
        base = os.path.abspath(os.path.expanduser(chosen))
    elif sys.platform == "win32":
        base = os.path.join(os.environ.get("LOCALAPPDATA") or home, "stepgrade")
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches", "stepgrade")
    else:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
        base = os.path.join(root, "stepgrade")
    return os.path.join(base, OWN_FOLDER)


class Cache:
    """A bounded store of results by key, in a folder of its own."""

    def __init__(self, folder: str, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def get(self, key: str) -> bytes | None:
        """Return the result of a key if it is there, ours and intact."""
        with suppress(OSError):
            if not self._is_ours():
                return None
            path = self._path(key)
            data = _read_ours(path, MOST_RESULT_BYTES + _DIGEST_BYTES + 1)
            with suppress(OSError):
                os.utime(path)  # recently used entries are kept longest
            digest, result = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
            if hashlib.blake2b(result, digest_size=_DIGEST_BYTES).digest() == digest:
                return result
        return None

    def put(self, key: str, result: bytes) -> None:
        """Keep a result, if possible; if the cache has grown too large, remove the least recently used."""
        if len(result) > MOST_RESULT_BYTES:
            return
        with suppress(OSError):
            if not self._is_ours(make=True):
                return
            path = self._path(key)
            with suppress(FileNotFoundError):
                if not is_ours(os.stat(path, follow_symlinks=False)):
                    return
            digest = hashlib.blake2b(result, digest_size=_DIGEST_BYTES).digest()
            write_whole(path, digest + result, new_mode=0o600)
            grown = _grown_bytes.get(self._folder, self._most_bytes) + len(result)
            if grown > self._most_bytes * _GROWN_SHARE:
                grown = 0
                with os.scandir(self._folder) as entries:
                    known = [entry for entry in entries if _NAME.fullmatch(entry.name)]
                    found = [(entry.stat(follow_symlinks=False), entry.path) for entry in known]
                found = [pair for pair in found if stat.S_ISREG(pair[0].st_mode) and is_mine(pair[0])]
                total = sum(status.st_size for status, _ in found)
                for status, path in sorted(found, key=lambda pair: pair[0].st_mtime_ns):
                    if total <= self._most_bytes:
                        break
                    total -= status.st_size
                    with suppress(OSError):
                        os.unlink(path)
            _grown_bytes[self._folder] = grown

    def _path(self, key: str) -> str:
        name = f"rank-{key}"
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a key: {key!r}")
        return os.path.join(self._folder, name)

    def _is_ours(self, *, make: bool = False) -> bool:
        """Return whether the folder is real, only this user's, and marked; `make` marks an empty one."""
        if make:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not is_ours(os.stat(self._folder, follow_symlinks=False)):
            return False
        marker = os.path.join(self._folder, MARKER)
        if make and not os.path.lexists(marker):
            names = os.listdir(self._folder)
            if all(map(DRAFT_NAME.fullmatch, names)):  # other processes may be marking it right now
                write_whole(marker, MARKER_TEXT, new_mode=0o600)
        return _read_ours(marker, len(MARKER_TEXT) + 1) == MARKER_TEXT


def _read_ours(path: str, most_bytes: int) -> bytes:
    """Return the first bytes of a file that only we can write; raise OSError, also for a link."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if not is_ours(os.fstat(file.fileno())):
            raise PermissionError(f"{path} may be written by others")
        return file.read(most_bytes)


def is_ours(status: os.stat_result) -> bool:
    """Return whether a file or folder is this user's, and nobody else can write to it."""
    if os.name != "posix":
        return True  # the user's profile is private there
    shared = stat.S_IWGRP | stat.S_IWOTH
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return is_plain and is_mine(status) and not status.st_mode & shared


def key_of(path: str, options: Iterable[object]) -> str:
    """Return the key of a result: from the file's bytes, the options, and the version of our code."""
    digest = hashlib.blake2b(repr([__version__, code_stamp(), *options]).encode(), digest_size=_DIGEST_BYTES)
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@functools.cache
def code_stamp() -> str:
    """Return a stamp that changes with our code, as the version does not during development."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = hashlib.blake2b(digest_size=16)
    for folder, folders, names in os.walk(package):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                found = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()

"""Results that are kept for the next time, in a folder of our own under the user's cache directory.

A result is found by what it was made from, never by a name, so a changed file is read again. Nothing is taken
from a place that others can write to, nothing whose checksum is wrong, and whoever takes it still decodes it
as what it should be. Two processes may share the place: files appear whole, and one that is gone is a miss.
Nothing is removed but files with our names, of this user, in a folder with our marker.
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
FOLDER = "STEPGRADE_CACHE"  # the environment's word for another place, or for none
OWN_FOLDER = "stepgrade-ranks"  # within that place, where others may keep files too
MARKER = "CACHEDIR.TAG"  # backup programs skip a folder with it; see https://bford.info/cachedir
MARKER_TEXT = b"""Signature: 8a477f597d28d172789f06886806bc55
# Results of stepgrade, which it makes again when they are missing: this folder can be removed at any time.
"""
_NAME = re.compile(r"rank-[0-9a-f]{64}")
_OFF = ("", "off", "0", "no", "false", "none")
_ON = ("on", "1", "yes", "true")
_GROWN_SHARE = 1 / 16  # of the limit, after which a process looks again at how large the cache is
_DIGEST_BYTES = 32
_CHUNK_BYTES = 1 << 20
_grown_bytes: dict[str, int] = {}  # by folder: what this process has added since it last looked


def cache_folder() -> str | None:
    """Return the folder of results: under what STEPGRADE_CACHE names, else the user's cache directory.

    None where STEPGRADE_CACHE turns the cache off. A relative path is one of the working directory.
    """
    place = os.environ.get(FOLDER, "on").strip()
    if place.lower() in _OFF:
        return None
    home = os.path.expanduser("~")
    if place.lower() not in _ON:
        base = os.path.abspath(os.path.expanduser(place))
    elif sys.platform == "win32":
        base = os.path.join(os.environ.get("LOCALAPPDATA") or home, "stepgrade")
    elif sys.platform == "darwin":
        base = os.path.join(home, "Library", "Caches", "stepgrade")
    else:
        root = os.environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
        base = os.path.join(root, "stepgrade")
    return os.path.join(base, OWN_FOLDER)


class Cache:
    """A bounded store of results by key, in a folder that holds nothing else."""

    def __init__(self, folder: str, most_bytes: int = MOST_BYTES) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def get(self, key: str) -> bytes | None:
        """Return the result under a key, if it is there, ours and whole."""
        with suppress(OSError):
            if not self._is_ours():
                return None
            path = self._path(key)
            data = _read_ours(path, MOST_RESULT_BYTES + _DIGEST_BYTES + 1)
            with suppress(OSError):
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
                self._trim()
                grown = 0
            _grown_bytes[self._folder] = grown

    def _path(self, key: str) -> str:
        name = f"rank-{key}"
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a key: {key!r}")
        return os.path.join(self._folder, name)

    def _is_ours(self, *, make: bool = False) -> bool:
        """Tell whether the folder is real, only this user's and has our marker; `make` marks an empty one."""
        if make:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not is_ours(os.stat(self._folder, follow_symlinks=False)):
            return False
        marker = os.path.join(self._folder, MARKER)
        if make and not os.path.lexists(marker):
            names = os.listdir(self._folder)
            if all(map(DRAFT_NAME.fullmatch, names)):  # of other processes that mark it at this moment
                write_whole(marker, MARKER_TEXT, new_mode=0o600)
        return _read_ours(marker, len(MARKER_TEXT) + 1) == MARKER_TEXT

    def _trim(self) -> None:
        """Remove the results that were not used for longest until the rest is small enough."""
        with os.scandir(self._folder) as entries:
            found = [
                (one.stat(follow_symlinks=False), one.path) for one in entries if _NAME.fullmatch(one.name)
            ]
        found = [(status, path) for status, path in found if stat.S_ISREG(status.st_mode) and is_mine(status)]
        total = sum(status.st_size for status, _ in found)
        for status, path in sorted(found, key=lambda one: one[0].st_mtime_ns):
            if total <= self._most_bytes:
                break
            total -= status.st_size
            with suppress(OSError):
                os.unlink(path)


def _read_ours(path: str, most_bytes: int) -> bytes:
    """Return the first bytes of a file that nobody else can write; raise OSError, for a link too."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if not is_ours(os.fstat(file.fileno())):
            raise PermissionError(f"{path} may be written by others")
        return file.read(most_bytes)


def is_ours(status: os.stat_result) -> bool:
    """Tell whether a file or folder is this user's, and nobody else can write to it."""
    if os.name != "posix":
        return True  # folders under the user's own profile are closed to others there
    shared = stat.S_IWGRP | stat.S_IWOTH
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return is_plain and is_mine(status) and not status.st_mode & shared


def key_of(path: str, options: Iterable[object]) -> str:
    """Return the key of what is made of a file: its bytes, how it is read, and by which code of ours."""
    digest = hashlib.blake2b(repr([__version__, code_stamp(), *options]).encode(), digest_size=_DIGEST_BYTES)
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


@functools.cache
def code_stamp() -> str:
    """Return what changes with our code: who works on it has one version for many of them."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    digest = hashlib.blake2b(digest_size=16)
    for folder, folders, names in os.walk(package):
        folders.sort()
        for name in sorted(names):
            if name.endswith(".py"):
                found = os.stat(os.path.join(folder, name))
                digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}".encode())
    return digest.hexdigest()

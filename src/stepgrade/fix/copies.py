"""Copies of the user's folder for trials: all of it that fits, links to the rest, nothing that leads back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import islice

from msgspec import Struct

_NOT_COPIED = {".git", ".hg", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", "node_modules"}
_MOST_BYTES, _MOST_FILES = 256 * 2**20, 20_000  # of a copy
_MOST_LOOKED_AT = 100_000  # files of a folder, before and after the trials


class Original(Struct, frozen=True):
    """The user's folder; virtual environments and large entries are linked instead of copied."""

    folder: str
    linked: frozenset[str]

    def copy(self, to: str, without: str | None = None) -> None:
        """Copy the folder `without` the one that copies are in; raise OSError.

        Pipes, devices, what may not be read and what is removed meanwhile are left out.
        """
        self._copy_folder(self.folder, to, os.path.realpath(without or to))

    def _copy_folder(self, folder: str, to: str, without: str) -> None:
        with os.scandir(folder) as found:
            entries = list(found)
        os.makedirs(to)
        for entry in entries:
            target = os.path.join(to, entry.name)
            if entry.name in _NOT_COPIED or os.path.realpath(entry.path) == without:
                continue
            if folder == self.folder and entry.name in self.linked:
                os.symlink(os.path.realpath(entry.path), target)
            elif entry.is_symlink():
                self._copy_link(entry.path, target)
            elif entry.is_dir():
                with _unless_gone(entry.path):
                    self._copy_folder(entry.path, target, without)
            elif entry.is_file():
                with _unless_gone(entry.path):
                    shutil.copy2(entry.path, target)

    def _copy_link(self, path: str, target: str) -> None:
        """Link to the same file, or to its copy: a trial must not write through to the original."""
        real = os.path.realpath(path)
        inside = os.path.relpath(real, os.path.realpath(self.folder))
        parts = inside.split(os.sep)
        is_copied = parts[0] not in {os.pardir, *self.linked} and not {*parts} & _NOT_COPIED
        own = os.path.relpath(os.path.realpath(os.path.dirname(path)), os.path.realpath(self.folder))
        os.symlink(os.path.relpath(inside, own) if is_copied else real, target)

    def files(self, copy: str) -> set[str]:
        """Return the files of a copy, by their paths in it, without what is only linked."""
        return {os.path.relpath(path, copy) for path in _files_below(copy, self.linked)}

    def stamps(self) -> dict[str, tuple[int, int]]:
        """Return size and time of change of the first files of the folder, of what is linked too."""
        found = {}
        for path in islice(_files_below(self.folder, ()), _MOST_LOOKED_AT):
            with suppress(OSError):
                status = os.lstat(path)
                found[os.path.relpath(path, self.folder)] = status.st_size, status.st_mtime_ns
        return found


@contextmanager
def _unless_gone(path: str) -> Iterator[None]:
    """Leave out what may not be read, and what is removed while it is copied."""
    try:
        yield
    except PermissionError:
        pass
    except FileNotFoundError:
        if os.path.lexists(path):
            raise


def original_in(folder: str) -> Original:
    """Return a folder as the source of copies; its largest entries are linked until the rest fits."""
    linked, sizes = set[str](), dict[str, tuple[int, int]]()
    for entry in os.scandir(folder):
        if os.path.exists(os.path.join(entry.path, "pyvenv.cfg")):
            linked.add(entry.name)
        elif entry.name not in _NOT_COPIED and not entry.is_symlink():
            with suppress(OSError):  # it is gone already
                sizes[entry.name] = _size_of(entry)
    for most, at in ((_MOST_BYTES, 0), (_MOST_FILES, 1)):
        left = {name: size[at] for name, size in sizes.items() if name not in linked}
        while sum(left.values()) > most:
            largest = max(left, key=lambda name: left[name])
            linked.add(largest)
            del left[largest]
    return Original(folder, frozenset(linked))


def _size_of(entry: os.DirEntry[str]) -> tuple[int, int]:
    """Return bytes and files of an entry, as far as it takes to see that they are too many."""
    if not entry.is_dir():
        return entry.stat(follow_symlinks=False).st_size, 1
    size = count = 0
    for path in _files_below(entry.path, ()):
        with suppress(OSError):
            size += os.lstat(path).st_size
        count += 1
        if size > _MOST_BYTES or count > _MOST_FILES:
            break
    return size, count


def _files_below(top: str, linked: Collection[str]) -> Iterator[str]:
    for base, folders, names in os.walk(top):
        without = {*_NOT_COPIED, *(linked if base == top else ())}
        folders[:] = [
            name
            for name in folders
            if name not in without and not os.path.exists(os.path.join(base, name, "pyvenv.cfg"))
        ]
        yield from (os.path.join(base, name) for name in names if name not in without)

"""Write files that are whole, or as they were before."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import BinaryIO

# Who may read a new file of ours, before the umask takes away from it; who writes it may always.
MODES = {"owner": 0o600, "group": 0o660, "all": 0o666}
_STALE_SECONDS = 3600.0  # a draft that nobody has written to for so long has no writer any more
_cleaned: set[str] = set()  # folders that this process has looked through, once


def write_whole(path: str | os.PathLike[str], data: bytes, *, new_mode: int = MODES["all"]) -> None:
    """Put a new file with this content in the place of `path`, as `write_by` does; raise OSError."""
    write_by(path, lambda file: file.write(data), new_mode=new_mode)


def write_by(
    path: str | os.PathLike[str], write: Callable[[BinaryIO], object], *, new_mode: int = MODES["all"]
) -> None:
    """Put a new file in the place of `path`, safe on the disk when this returns; raise OSError.

    An interrupt, a full disk or a power failure leaves the old file as it was. A file keeps its permissions;
    one that was not there gets `new_mode` as far as the umask allows. A device or a pipe is written to.
    """
    target = os.fspath(path)
    mode = None
    with suppress(FileNotFoundError):
        mode = os.stat(target).st_mode  # noqa: PTH116  pathlib takes milliseconds to import
    if mode is not None and not stat.S_ISREG(mode):
        with open(target, "wb") as special:  # noqa: PTH123  as above
            write(special)
        return
    folder = os.path.dirname(target) or "."  # noqa: PTH120  as above
    draft = _new_draft(folder, new_mode)
    try:
        with draft:
            write(draft)
            draft.flush()
            os.fsync(draft.fileno())
        if mode is not None:
            os.chmod(draft.name, stat.S_IMODE(mode))  # noqa: PTH101  as above
        os.replace(draft.name, target)  # noqa: PTH105  as above
    except BaseException:  # an interrupt leaves nothing behind either
        with suppress(OSError):
            os.unlink(draft.name)  # noqa: PTH108  as above
        raise
    # That the name means the new file is written in the folder; some systems cannot sync a folder.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _new_draft(folder: str, mode: int) -> BinaryIO:
    """Create a hidden file in the folder under a name that nobody can foresee, and never through a link."""
    while True:
        name = os.path.join(folder, f".stepgrade-{os.urandom(8).hex()}.tmp")  # noqa: PTH118  as above
        with suppress(FileExistsError):
            opener = partial(os.open, mode=mode)
            draft = open(name, "xb", opener=opener)  # noqa: SIM115  the caller closes it
            _remove_stale_drafts(folder, os.fstat(draft.fileno()).st_mtime)
            return draft


def _remove_stale_drafts(folder: str, now: float) -> None:
    """Remove what killed processes left in the folder; `now` is by the clock of its file system."""
    if folder in _cleaned:
        return
    _cleaned.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not (entry.name.startswith(".stepgrade-") and entry.name.endswith(".tmp")):
                continue
            with suppress(OSError):  # somebody else's, or gone already
                if now - entry.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS:
                    os.unlink(entry.path)  # noqa: PTH108  as above

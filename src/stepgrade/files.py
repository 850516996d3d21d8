"""Write files that are whole, or as they were before."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import BinaryIO


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Put a new file in the place of `path`, safe on the disk when this returns; raise OSError.

    An interrupt, a full disk or a power failure leaves the old file as it was. A file keeps its permissions;
    a device or a pipe is written to directly.
    """
    target = os.fspath(path)
    mode = None
    with suppress(FileNotFoundError):
        mode = os.stat(target).st_mode  # noqa: PTH116  pathlib takes milliseconds to import
    if mode is not None and not stat.S_ISREG(mode):
        with open(target, "wb") as special:  # noqa: PTH123  as above
            special.write(data)
        return
    folder = os.path.dirname(target) or "."  # noqa: PTH120  as above
    draft = _new_draft(folder)
    try:
        with draft:
            draft.write(data)
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


def _new_draft(folder: str) -> BinaryIO:
    """Create a hidden file in the folder; one that exists is not ours to write to."""
    number = 0
    while True:
        name = os.path.join(folder, f".stepgrade-{os.getpid()}-{number}.tmp")  # noqa: PTH118  as above
        try:
            return open(name, "xb")  # noqa: PTH123  as above; the caller closes it
        except FileExistsError:
            number += 1

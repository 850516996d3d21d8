"""Write files that are whole, or as they were before."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import BinaryIO

# Who may read a new file of ours, before the umask takes away from it; who writes it may always.
MODES = {"owner": 0o600, "group": 0o660, "all": 0o666}
DRAFT_NAME = re.compile(r"\.stepgrade-[0-9a-f]{16}\.tmp")
_STALE_SECONDS = 3600.0  # a younger draft may be of a writer that has not locked it yet
_cleaned: set[str] = set()  # folders that this process has looked through, once


def state_folder() -> str:
    """Return the user's folder for what outlives a command and cannot be made again."""
    home = os.path.expanduser("~")
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(home, ".local", "state")
    return os.path.join(base, "stepgrade")


def write_whole(path: str | os.PathLike[str], data: bytes, *, new_mode: int = MODES["all"]) -> None:
    """Replace `path` with a new file of this content, as `write_by` does; raise OSError."""
    write_by(path, lambda file: file.write(data), new_mode=new_mode)


def write_by(
    path: str | os.PathLike[str],
    write: Callable[[BinaryIO], object],
    *,
    new_mode: int = MODES["all"],
    only_new: bool = False,
) -> None:
    """Replace `path` with a new file, synced to disk when this returns; raise OSError.

    An interrupt, a full disk or a power failure leaves the old file as it was. Permissions, owner and
    attributes are kept as far as the system allows; a write-protected file is refused. A device or pipe is
    written to; a link is replaced, not followed. With `only_new` an existing file raises FileExistsError.
    """
    target = os.fspath(path)
    old = None
    with suppress(FileNotFoundError):
        old = os.stat(target)
    if old is not None and not stat.S_ISREG(old.st_mode):
        with open(target, "wb") as special:
            write(special)
        return
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    folder = os.path.dirname(target) or "."
    # A hidden file under a name that nobody can foresee, and never through a link.
    name = os.path.join(folder, f".stepgrade-{os.urandom(8).hex()}.tmp")
    draft = open(name, "xb", opener=partial(os.open, mode=new_mode))  # noqa: SIM115  closed below
    _lock(draft.fileno())
    _remove_stale_drafts(folder, draft.fileno())
    try:
        with draft:
            write(draft)
            draft.flush()
            if old is not None:
                _copy_attributes(target, old, draft)
            os.fsync(draft.fileno())
            if os.name == "posix":  # while it is open, and so locked
                _move(draft.name, target, only_new=only_new)
        if os.name != "posix":  # where a file that is open cannot be moved
            _move(draft.name, target, only_new=only_new)
    except BaseException:  # an interrupt leaves nothing behind either
        with suppress(OSError):
            os.unlink(draft.name)
        raise


def _move(draft: str, target: str, *, only_new: bool) -> None:
    """Give the draft its name, on the disk too; with `only_new` no file of that name is replaced."""
    is_linked = False
    if only_new:
        try:
            os.link(draft, target)
            is_linked = True
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODES["owner"]))
    if is_linked:
        with suppress(OSError):  # it has two names now, and the next writer removes this one
            os.unlink(draft)
    else:
        os.replace(draft, target)
    try:
        handle = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # Some systems sync no folder, and one that may be written may be closed to readers.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise


def is_mine(status: os.stat_result) -> bool:
    """Tell whether a file belongs to the user of this process; not known on Windows, where all pass."""
    return os.name != "posix" or status.st_uid == os.geteuid()


def _copy_attributes(target: str, old: os.stat_result, draft: BinaryIO) -> None:
    """Give the draft the mode of the file it replaces, and owner and attributes where that is allowed."""
    mode, new = stat.S_IMODE(old.st_mode) & 0o777, os.fstat(draft.fileno())
    has_group = new.st_gid == old.st_gid
    if not has_group:
        with suppress(OSError):
            os.chown(draft.name, -1, old.st_gid)
            has_group = True
    # The rights of a group that the draft does not have are not given to another one.
    os.chmod(draft.name, mode if has_group else mode & ~stat.S_IRWXG)
    with suppress(OSError, AttributeError):  # only Linux has them, and not on every file system
        for name in os.listxattr(target) if has_group else ():
            if not name.startswith("security."):  # the system's to give
                os.setxattr(draft.name, name, os.getxattr(target, name))
    if new.st_uid != old.st_uid:
        with suppress(OSError):
            os.chown(draft.name, old.st_uid, -1)


def temporary_folder() -> str:
    """Return the folder for temporary files; a script may still set tempfile.tempdir afterwards."""
    import tempfile  # not every command needs it

    chosen = tempfile.tempdir
    try:
        return tempfile.gettempdir()
    finally:
        tempfile.tempdir = chosen


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return the absolute path; in the folder for temporary files when the current directory is gone."""
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        return os.path.join(temporary_folder(), os.path.basename(path))


def _lock(handle: int) -> bool:
    """Lock a file until it is closed; return False where another process has it, or nothing can be locked."""
    try:
        import fcntl  # Windows has none, and removes no file that is open
    except ImportError:
        return True
    with suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _remove_stale_drafts(folder: str, draft: int) -> None:
    """Remove what killed processes left in the folder of a new draft."""
    with suppress(OSError), os.scandir(folder) as entries:
        now = os.fstat(draft).st_mtime  # by the clock of the file system
        folder = os.path.abspath(folder)
        if folder in _cleaned:
            return
        _cleaned.add(folder)
        for entry in entries:
            if not (DRAFT_NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)):
                continue
            with suppress(OSError):  # gone already, or it may not be written
                found = entry.stat(follow_symlinks=False)
                if not is_mine(found) or now - found.st_mtime <= _STALE_SECONDS:
                    continue
                handle = os.open(entry.path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
                try:
                    is_abandoned = _lock(handle)
                finally:
                    os.close(handle)
                if is_abandoned:
                    os.unlink(entry.path)


@contextmanager
def scratch_folder(inside: str | None = None) -> Iterator[str]:
    """Give a folder that is removed at the end; raise OSError when there can be none."""
    import shutil  # few commands need it
    import tempfile

    folder = tempfile.mkdtemp(prefix="stepgrade-", dir=inside)
    try:
        yield folder
    finally:
        # Failing to remove the folder is not an error; a second try may succeed.
        for _ in range(2):
            with suppress(OSError):
                shutil.rmtree(folder)
                break

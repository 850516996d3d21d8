"""The one writer of files: whole or as before, with the file's permissions, into devices too."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from stepgrade.files import write_by, write_whole


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_whole(path, b"old")
    path.chmod(0o640)
    write_whole(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_file_and_folder_are_synced_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append((stat.S_ISDIR(os.fstat(handle).st_mode), path.exists()))
    )
    write_whole(path, b"new")
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: BaseException
) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(error)):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_draft_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / f".stepgrade-{os.getpid()}-0.tmp"
    other.write_bytes(b"theirs")
    write_whole(tmp_path / "out.json", b"new")
    assert other.read_bytes() == b"theirs"
    assert (tmp_path / "out.json").read_bytes() == b"new"


def test_a_write_protected_file_is_refused() -> None:
    """As a user for whom modes count, in a folder that this user can reach."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("protected.json", "free.json")]
        for path, mode in zip(paths, (0o444, 0o644), strict=True):
            path.write_bytes(b"old")
            path.chmod(mode)
        if os.geteuid() == 0:
            for path in (*paths, Path(folder)):
                os.chown(path, 65534, 65534)
        if (child := os.fork()) == 0:
            refused = 0
            with suppress(BaseException):
                if os.geteuid() == 0:
                    os.setresuid(65534, 65534, 65534)
                for path in paths:
                    try:
                        write_whole(path, b"new")
                    except PermissionError:
                        refused += 1
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        assert [path.read_bytes() for path in paths] == [b"old", b"new"]
        assert sorted(Path(folder).iterdir()) == sorted(paths)


def test_a_file_keeps_owner_and_attributes(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    with suppress(OSError):
        os.setxattr(path, "user.origin", b"theirs")
    attributes = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    if os.geteuid() == 0:
        os.chown(path, 65534, 65533)
    path.chmod(0o4640)
    before = path.stat()
    write_whole(path, b"new")
    after = path.stat()
    assert path.read_bytes() == b"new"
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert stat.S_IMODE(after.st_mode) == 0o640, "a new content is not run as somebody else"
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == attributes


def test_a_group_that_cannot_be_kept_takes_its_rights_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to a group that it is not in")
    path = tmp_path / "out.json"
    path.write_bytes(b"old")
    os.chown(path, -1, 65533)
    path.chmod(0o664)

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chown", refuse)
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_other_hard_links_keep_the_old_content(tmp_path: Path) -> None:
    path, other = tmp_path / "out.json", tmp_path / "other.json"
    path.write_bytes(b"old")
    other.hardlink_to(path)
    write_whole(path, b"new")
    assert (path.read_bytes(), other.read_bytes()) == (b"new", b"old")


def test_a_draft_is_locked_while_it_is_written(tmp_path: Path) -> None:
    import fcntl

    def look(_: object) -> None:
        (draft,) = tmp_path.glob(".stepgrade-*.tmp")
        with draft.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    write_by(tmp_path / "out.json", look)
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", b"new")
    assert (tmp_path / "real").read_bytes() == b"old"
    assert (tmp_path / "link").read_bytes() == b"new"


def test_a_pipe_is_written_to_directly(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_whole(path, b"new")
    reader.join()
    assert read == [b"new"]
    assert stat.S_ISFIFO(path.stat().st_mode)

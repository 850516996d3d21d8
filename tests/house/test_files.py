"""The one writer of files: whole or as before, with the file's permissions, into devices too."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from stepgrade.files import write_whole


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

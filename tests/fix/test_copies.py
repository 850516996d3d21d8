"""The folder that a trial runs in: like the user's own, and with no way back to it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from stepgrade.fix import copies
from stepgrade.fix.copies import Original, original_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    for name in (
        "train.py",
        "pkg/model.py",
        "data/a.bin",
        "data/b.bin",
        ".git/HEAD",
        "env/pyvenv.cfg",
        "env/bin/python",
    ):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(name)
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "more.bin").write_text("more")
    return found


def test_what_fits_is_copied_and_what_does_not_is_linked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "_MOST_FILES", 3)
    original = original_in(str(folder))
    assert original.linked == {"data", "env"}  # the entry with the most files, and the virtual environment
    copy = folder.parent / "copy"
    original.copy(str(copy))
    assert original.files(str(copy)) == {"train.py", "pkg/model.py"}
    assert (copy / "data").readlink() == folder / "data"
    assert (copy / "env" / "bin" / "python").read_text() == "env/bin/python"  # a command may name it
    assert not (copy / ".git").exists()


def test_many_entries_that_are_small_alone_are_not_copied_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        (folder / f"part-{number}.bin").write_bytes(b"0" * 1000)
    monkeypatch.setattr(copies, "_MOST_BYTES", 4000)
    copy = folder.parent / "copy"
    original_in(str(folder)).copy(str(copy))
    copied = [path for path in copy.glob("part-*") if not path.is_symlink()]
    assert 1 <= len(copied) <= 4
    assert len(list(copy.glob("part-*"))) == 10


def test_no_link_of_a_copy_leads_to_a_file_that_is_copied(folder: Path) -> None:
    links = {
        "latest": "data/a.bin",
        "absolute": str(folder / "data" / "b.bin"),
        "pkg/up": "../data/a.bin",
        "outside": "../beside/more.bin",
        "dangling": "nowhere",
        "whole": str(folder / "data"),
    }
    for name, target in links.items():
        (folder / name).symlink_to(target)
    copy = folder.parent / "elsewhere" / "copy"
    copy.parent.mkdir()
    original_in(str(folder)).copy(str(copy))
    for name in ("latest", "absolute", "pkg/up"):
        (copy / name).write_text("written by a trial")
    (copy / "whole" / "new.bin").write_text("written by a trial")
    assert (folder / "data" / "a.bin").read_text() == "data/a.bin"
    assert (folder / "data" / "b.bin").read_text() == "data/b.bin"
    assert not (folder / "data" / "new.bin").exists()
    assert (copy / "outside").read_text() == "more"
    assert not (copy / "dangling").exists()


def test_links_below_names_like_special_ones_lead_to_the_copy(folder: Path) -> None:
    """A folder that begins with two dots is inside, and only a top folder of the name is linked."""
    for name in ("..hidden/a.txt", "pkg/data/a.txt"):
        (folder / name).parent.mkdir()
        (folder / name).write_text("mine")
    (folder / "first").symlink_to("..hidden/a.txt")
    (folder / "second").symlink_to("pkg/data/a.txt")
    copy = folder.parent / "copy"
    Original(str(folder), frozenset({"data"})).copy(str(copy))
    for name in ("first", "second"):
        (copy / name).write_text("written by a trial")
    assert (folder / "..hidden" / "a.txt").read_text() == "mine"
    assert (folder / "pkg" / "data" / "a.txt").read_text() == "mine"


def test_a_copy_does_not_hold_the_folder_that_copies_are_in(folder: Path) -> None:
    scratch = folder / "tmp" / "stepgrade-x"
    scratch.mkdir(parents=True)
    (folder / "tmp" / "theirs").write_text("theirs")
    copy = scratch / "trial-0" / "project"
    original_in(str(folder)).copy(str(copy), str(scratch))
    assert sorted(path.name for path in (copy / "tmp").iterdir()) == ["theirs"]
    assert (copy / "train.py").exists()


def test_what_is_removed_while_it_is_copied_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_one = shutil.copy2

    def copy2(path: str, to: str) -> None:
        if path.endswith("train.py"):
            Path(path).unlink()
        copy_one(path, to)

    monkeypatch.setattr(shutil, "copy2", copy2)
    copy = folder.parent / "copy"
    original_in(str(folder)).copy(str(copy))
    assert not (copy / "train.py").exists()
    assert (copy / "pkg" / "model.py").exists()


def test_what_trials_write_to_linked_entries_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_MOST_FILES", 3)
    original = original_in(str(folder))
    before = original.stamps()
    (folder / "data" / "a.bin").write_text("longer than before")
    after = original.stamps()
    assert {name for name in after if after[name] != before.get(name)} == {"data/a.bin"}

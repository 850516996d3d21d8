"""The folder that a trial runs in: like the user's own, and with no way back to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepgrade.fix import copies
from stepgrade.fix.copies import original_in


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


def test_what_trials_write_to_linked_entries_shows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_MOST_FILES", 3)
    original = original_in(str(folder))
    before = original.stamps()
    (folder / "data" / "a.bin").write_text("longer than before")
    after = original.stamps()
    assert {name for name in after if after[name] != before.get(name)} == {"data/a.bin"}

"""Edits of the user's files: all of them or none, and never without a way back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from msgspec import structs

from stepgrade.errors import BadInput
from stepgrade.files import write_whole
from stepgrade.fix import write
from stepgrade.fix.edit import diff_of
from stepgrade.fix.write import REVERSE, check_clean, write_edits
from stepgrade.model.fix import FixReport
from tests.fix.reports import written_report

BEFORE, AFTER = "a = 1\n", "a = 2\n"


def edits_of(folder: Path, *names: str) -> FixReport:
    """Write scripts, and return a report that edits them all."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(BEFORE)
    found = written_report(BEFORE, AFTER, names[0])
    assert found.together is not None
    diff = "".join(diff_of(BEFORE, AFTER, name) for name in sorted(names))
    return structs.replace(
        found,
        edits=dict.fromkeys(names, AFTER),
        together=structs.replace(found.together, diff=diff),
    )


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    return subprocess.run(
        ["git", *names, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("names", [("train.py",), ("a.py", "b.py"), ("my train.py",), ("übung.py", "-x.py")])
@pytest.mark.parametrize("inside", ["", "sub"])
def test_git_applies_the_way_back(tmp_path: Path, names: tuple[str, ...], inside: str) -> None:
    git(tmp_path, "init", "-q")
    folder = tmp_path / inside
    folder.mkdir(exist_ok=True)
    write_edits(str(folder), edits_of(folder, *names))
    assert {(folder / name).read_text() for name in names} == {AFTER}
    git(folder, "apply", REVERSE)
    assert {(folder / name).read_text() for name in names} == {BEFORE}


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("at", [0, 1])
def test_what_fails_or_is_interrupted_leaves_all_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, is_after: bool
) -> None:
    """A file may have its new text although writing it fails, when its folder cannot be synced."""
    calls = []

    def fail(path: str, data: bytes) -> None:
        calls.append(path)
        if len(calls) != at + 1:
            write_whole(path, data)
            return
        if is_after:
            write_whole(path, data)
        raise KeyboardInterrupt

    found = edits_of(tmp_path, "a.py", "b.py")
    monkeypatch.setattr(write, "write_whole", fail)
    with pytest.raises(KeyboardInterrupt):
        write_edits(str(tmp_path), found)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.py": BEFORE, "b.py": BEFORE}


def test_the_way_back_of_another_is_not_replaced(tmp_path: Path) -> None:
    """Two may run at once, and the second one finds its script as it was."""
    found = edits_of(tmp_path, "train.py")
    (tmp_path / REVERSE).write_text("of another script")
    with pytest.raises(BadInput, match="earlier run"):
        write_edits(str(tmp_path), found)
    assert (tmp_path / REVERSE).read_text() == "of another script"
    assert (tmp_path / "train.py").read_text() == BEFORE


def test_looking_for_changes_runs_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text(BEFORE)
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "all")
    trap = tmp_path / ".git" / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(tmp_path, "config", "core.fsmonitor", str(trap))
    os.utime(tmp_path / "train.py", (1, 1))  # git would write this into its index
    index = (tmp_path / ".git" / "index").read_bytes()
    check_clean(str(tmp_path), allow_dirty=False)
    (tmp_path / "train.py").write_text("b\n")
    with pytest.raises(BadInput, match=r": train\.py has changes"):
        check_clean(str(tmp_path), allow_dirty=False)
    check_clean(str(tmp_path), allow_dirty=True)
    assert (tmp_path / ".git" / "index").read_bytes() == index
    assert not (tmp_path / "sprung").exists()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BadInput, match="does not tell"):
        check_clean(str(tmp_path), allow_dirty=False)


def test_a_folder_without_git_has_no_changes(tmp_path: Path) -> None:
    check_clean(str(tmp_path), allow_dirty=False)
